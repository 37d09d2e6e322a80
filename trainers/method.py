"""What a paper is to the engine: its settings, the modules it adds, and how batches become losses."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol

import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from multicse.data.streams.base import Batch
from multicse.data.streams.text import TextStream
from multicse.models.sentence_encoder import SentenceEncoder

if TYPE_CHECKING:
    from multicse.trainers.recipe import Recipe

Variant = Literal["paper", "released", "fixed"]
Schedule = Literal["constant", "linear", "cosine"]
PAPERS = Path(__file__).with_name("papers.bib")


def bibtex(citations: Sequence[str]) -> list[str]:
    """Return the BibTeX entries of papers.

    Args:
        citations: Keys of `papers.bib` (`MethodConfig.citations`). An entry is returned as it is.
    """
    entries = PAPERS.read_text(encoding="utf-8").strip().split("\n\n")
    by_key = {entry[entry.index("{") + 1 : entry.index(",")]: entry for entry in entries}
    return [by_key.get(citation, citation) for citation in citations]


class RecipeParts(Protocol):
    """The parts of a recipe that `MethodConfig.check` reads; a `Recipe` has more, and contains the method itself."""

    @property
    def streams(self) -> Mapping[str, Any]:
        """Stream of each name."""
        ...

    @property
    def encoder(self) -> Any:
        """Settings of the encoder, of any kind."""
        ...

    @property
    def run(self) -> Any:
        """Settings of the run."""
        ...


class MethodConfig(BaseModel):
    """Settings of a method. Subclasses narrow `name` to a literal, which tells them apart in a saved recipe.

    variant: ``paper`` is the text, ``released`` the authors' code with its defects, ``fixed`` what the paper meant,
    repaired. Where they differ: docs/papers/errata.md.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    encoder_kind: ClassVar[str] = "transformer"
    """The kind of encoder that the method trains (`multicse.models.sentence_encoder.AnyEncoderConfig`)."""
    smallest_batch: ClassVar[int] = 2
    """Samples without which there is nothing to compare a sample with."""
    citations: ClassVar[tuple[str, ...]] = ()
    """Papers for the cards of models: keys of `papers.bib`, or BibTeX entries."""

    name: str
    variant: Variant = "fixed"
    """The paper's text, the authors' code with its defects, or what the paper meant, repaired: see docs/papers/errata.md."""

    def updates(self) -> dict[str, tuple[str, ...]]:
        """Return the updates of a step, name -> streams: those of an update share one backward and one optimizer step.

        ``named_updates(("image",), ("text",))`` is one optimizer step on images, then one on text. Default: one update of
        the stream ``text``.
        """
        return named_updates(("text",))

    @property
    def batch_norm(self) -> bool:
        """Whether BatchNorm mixes the samples of a batch; several workers share its statistics on GPUs only."""
        return False

    def vectors(self) -> dict[str, tuple[str, ...]]:
        """Of each stream the features that are sentence vectors as the model will give them: what `run.matryoshka` can cut.

        None of a method whose losses see them behind a head that is not exported.
        """
        return {}

    def check_settings(self) -> None:
        """Raise ValueError, which names the setting, for settings that contradict each other."""

    def check(self, recipe: RecipeParts, encoder: Any) -> None:
        """Raise ValueError, which names the setting, where the method cannot train this recipe.

        encoder: what `AnyEncoderConfig.read` found, a transformer's configuration for example; None where no file is to be
        read, which leaves the rules that need it out.
        """

    def make_start(self, recipe: Recipe) -> Recipe:
        """Make the encoder that a run starts from, if the method makes one, and return the recipe that names it."""
        return recipe

    def build(self, encoder: Any) -> Method:
        """The method around `encoder`, which it trains."""
        raise NotImplementedError  # the interface: every config defines it


def check_texts(recipe: RecipeParts, stream: str, allowed: tuple[int, ...], setting: str, hint: str) -> None:
    """Raise ValueError unless the stream has as many texts a sample as `setting`, given as ``name=value``, wants."""
    config = recipe.streams[stream]
    if not isinstance(config, TextStream):
        raise ValueError(f"streams.{stream}.kind={config.kind!r} where the method takes sentences; use the kind 'text'")
    if config.n_texts not in allowed:
        raise ValueError(
            f"streams.{stream}.columns={config.columns} are {config.n_texts} texts a sample, and {setting} takes "
            f"{' or '.join(map(str, allowed))}: name {hint}, or change {setting.split('=')[0]}"
        )


def decay(schedule: Schedule, share: float) -> float:
    """What is left after this share of a run: 1 all along, or falling from 1 to 0 along a line or half a cosine."""
    return {"linear": max(0.0, 1 - share), "cosine": 0.5 * (1 + math.cos(math.pi * share)), "constant": 1.0}[schedule]


class StepOutput(NamedTuple):
    """What one update gives back: losses are weighted and summed by the engine, metrics only logged."""

    losses: dict[str, Tensor]
    metrics: dict[str, Tensor] = {}


class Method(nn.Module):
    """A paper: the modules it adds and how batches become losses.

    DDP wraps the method and is called exactly once per update (`MethodConfig.updates`).
    """

    sentence_encoder: SentenceEncoder
    matryoshka: tuple[int, ...] = ()
    """Further sizes of sentence vectors to be learned."""
    vectors: dict[str, tuple[str, ...]] = {}
    """What is cut to them: `MethodConfig.vectors`."""
    progress: float = 0.0
    """Share of the run's steps that are done; the engine says it before every step."""

    @property
    def loss_weights(self) -> dict[str, float]:
        """Factor of each of `losses` by name; 1 where nothing is said."""
        return {}

    def encode(self, stream: str, batch: Batch) -> dict[str, Tensor]:
        """Features of one stream's batch, axis 0 the sample. Local to the worker.

        With `run.mini_batch_size` it is called for some samples at a time, twice with the same random numbers. So what
        mixes samples, such as BatchNorm, belongs into `losses`; where that cannot be, `MethodConfig.check` refuses
        `run.mini_batch_size`.
        """
        raise NotImplementedError  # the interface: every method defines it

    def losses(self, features: dict[str, dict[str, Tensor]], batches: dict[str, Batch]) -> StepOutput:
        """Losses of one update from the features of its streams; gathers across workers where negatives are needed."""
        raise NotImplementedError  # the interface: every method defines it

    def penalties(self) -> dict[str, Tensor]:
        """Further losses of an update, of the parameters alone."""
        return {}

    def nested_losses(self, features: dict[str, dict[str, Tensor]], batches: dict[str, Batch]) -> StepOutput:
        """`losses`, and added to those of sentences the same of the first so many dimensions of their vectors, for each size
        of `matryoshka` (Kusupati et al., NeurIPS 2022, eq. 1, all sizes weighted alike); metrics have each by itself."""
        output = self.losses(features, batches)
        cut = [name for name in features if name in self.vectors]
        for size in self.matryoshka if cut else ():
            shorter = {name: {**features[name], **self._shorter(name, features[name], size)} for name in cut}
            again = self.losses(shorter, {name: batches[name] for name in cut}).losses
            losses = {name: loss + again[name] if name in again else loss for name, loss in output.losses.items()}
            output = StepOutput(losses, {**output.metrics, **{f"{name}_{size}": loss for name, loss in again.items()}})
        return output

    def _shorter(self, stream: str, features: dict[str, Tensor], size: int) -> dict[str, Tensor]:
        """The stream's sentence vectors, cut and brought to unit length."""
        vectors = {name: features[name] for name in self.vectors[stream] if name in features}
        if (least := min(vector.shape[-1] for vector in vectors.values())) <= size:
            raise ValueError(f"run.matryoshka={self.matryoshka}: the vectors have {least} dimensions; give smaller sizes")
        return {name: F.normalize(vector[..., :size], dim=-1) for name, vector in vectors.items()}

    def forward(self, batches: dict[str, Batch]) -> StepOutput:
        """One update: encode every stream, then the losses."""
        penalties = self.penalties()  # first, so that their backward is last, when the activations are gone
        output = self.nested_losses({name: self.encode(name, batch) for name, batch in batches.items()}, batches)
        return StepOutput({**output.losses, **penalties}, output.metrics)

    def param_groups(self, update: str) -> dict[str, list[nn.Parameter]]:
        """Named parameter groups of an update's optimizer; a recipe's optimizer may override settings per group."""
        decay = [p for p in self.parameters() if p.requires_grad and p.ndim > 1]
        no_decay = [p for p in self.parameters() if p.requires_grad and p.ndim <= 1]
        return {"weights": decay, "biases_and_norms": no_decay}

    def after_step(self, step: int) -> None:
        """Called after all updates of a step: clamp a scale, move a momentum copy."""


def named_updates(*updates: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Return updates by the name that recipes and metrics give them: ``text``, or ``image+text`` for two streams."""
    return {"+".join(streams): streams for streams in updates}
