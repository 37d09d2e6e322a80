"""Interface between a method and the engine: its settings, the modules it adds, and how batches become losses."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import torch.nn.functional as F
from torch import Tensor, nn

from multicse.data.shards import ShardSet
from multicse.data.streams.base import Batch
from multicse.data.streams.text import TextStream
from multicse.models.sentence_encoder import SentenceEncoder, Settings

Variant = Literal["paper", "released", "fixed"]
Schedule = Literal["constant", "linear", "cosine"]
PAPERS = Path(__file__).with_name("papers.bib")


def bibtex(citations: Sequence[str]) -> list[str]:
    """Return the BibTeX entries of keys in `papers.bib`; entries are returned unchanged."""
    entries = PAPERS.read_text(encoding="utf-8").strip().split("\n\n")
    by_key = {entry[entry.index("{") + 1 : entry.index(",")]: entry for entry in entries}
    return [by_key.get(citation, citation) for citation in citations]


class RecipeParts(Protocol):
    """The parts of a recipe that a method's settings read; a `Recipe` has more, and contains the method itself."""

    @property
    def streams(self) -> Mapping[str, Any]:
        """Settings of each stream, by name."""

    @property
    def encoder(self) -> Any:
        """Settings of the encoder."""

    @property
    def run(self) -> Any:
        """Settings of the run."""

    def shards(self, stream: str) -> ShardSet:
        """Open the shards of a stream."""


class MethodConfig(Settings):
    """Settings of a method. A subclass narrows `name` to a literal, which identifies the class in a saved recipe."""

    plugin: ClassVar = ("method", "name")
    encoder_kind: ClassVar[str] = "transformer"
    """The kind of encoder that the method trains (`multicse.models.sentence_encoder.AnyEncoderConfig`)."""
    smallest_batch: ClassVar[int] = 2
    """Smallest batch size for which the losses can compare samples."""
    citations: ClassVar[tuple[str, ...]] = ()
    """Papers cited in the model card: keys of `papers.bib`, or BibTeX entries."""
    parameter_groups: ClassVar[tuple[str, ...]] = ("weights", "biases_and_norms")
    """Names of the groups that `Method.param_groups` returns, for the check of `optim.UPDATE.groups`."""

    name: str
    """Name of the method; cannot be changed."""
    variant: Variant = "fixed"
    """`paper`: as printed. `released`: as the authors' code, including its defects. `fixed`: as the paper intends, with
    errors corrected. See docs/papers/errata.md."""

    def updates(self) -> dict[str, tuple[str, ...]]:
        """Return the updates of a step, name -> streams, which share one backward pass and one optimizer step.

        ``named_updates(("image",), ("text",))`` is one optimizer step on images, followed by one on text.
        """
        return named_updates(("text",))

    @property
    def batch_norm(self) -> bool:
        """Return True if BatchNorm mixes the samples of a batch; several workers share its statistics on GPUs only."""
        return False

    def vectors(self) -> dict[str, tuple[str, ...]]:
        """Return, for each stream, the features that `run.matryoshka` can truncate: those without a training-only head."""
        return {}

    def vector_size(self, encoder: Any) -> int | None:
        """Return the dimension of the features in `vectors`, or None if it is unknown.

        Args:
            encoder: Result of `AnyEncoderConfig.read`.
        """
        return getattr(encoder, "hidden_size", None)

    def check_settings(self) -> None:
        """Raise ValueError, which names the setting, if the settings contradict each other."""

    def check(self, recipe: RecipeParts, encoder: Any) -> None:
        """Raise ValueError, which names the setting, if the method cannot train a recipe.

        Args:
            recipe: Recipe that contains these settings.
            encoder: Result of `AnyEncoderConfig.read`, for example the configuration of a transformer. If None, no file is
                read and rules that need it are skipped.
        """

    def make_start(self, recipe: RecipeParts) -> str | None:
        """Create the encoder that a run starts from, and return its folder; None if `encoder.path` has it."""
        return None

    def build(self, encoder: Any) -> Method:
        """Return the method around `encoder`, which it trains."""
        raise NotImplementedError


def check_texts(recipe: RecipeParts, stream: str, allowed: tuple[int, ...], setting: str, hint: str) -> None:
    """Raise ValueError if a stream contains no text, or another number of texts per sample.

    Args:
        recipe: Recipe that contains the stream.
        stream: Name of the stream.
        allowed: Allowed numbers of texts.
        setting: Setting that requires them, as ``name=value``.
        hint: Columns to suggest in the error.
    """
    config = recipe.streams[stream]
    if not isinstance(config, TextStream):
        raise ValueError(f"streams.{stream}.kind={config.kind!r}: the method needs sentences; use the kind 'text'")
    if config.n_texts not in allowed:
        raise ValueError(
            f"streams.{stream}.columns={config.columns}: {config.n_texts} texts per sample, but {setting} requires "
            f"{' or '.join(map(str, allowed))}. Name {hint}, or change {setting.split('=')[0]}"
        )


def decay(schedule: Schedule, share: float) -> float:
    """Return the factor of a schedule after a share of the run.

    Args:
        schedule: `constant` is always 1; `linear` and `cosine` (half a cosine) fall from 1 to 0.
        share: Completed share of the run, 0 to 1.
    """
    return {"linear": max(0.0, 1 - share), "cosine": 0.5 * (1 + math.cos(math.pi * share)), "constant": 1.0}[schedule]


class StepOutput(NamedTuple):
    """Result of one update. The engine weights and sums the losses; metrics are only logged."""

    losses: dict[str, Tensor]
    metrics: dict[str, Tensor] = {}


class Method(nn.Module):
    """A paper: the modules it adds and how batches become losses.

    DDP wraps the method and calls it exactly once per update (`MethodConfig.updates`).
    """

    sentence_encoder: SentenceEncoder
    matryoshka: tuple[int, ...] = ()
    """Additional, smaller sizes of the embeddings that are trained."""
    vectors: dict[str, tuple[str, ...]] = {}
    """The features that are truncated to these sizes (`MethodConfig.vectors`)."""
    progress: float = 0.0
    """Completed share of the run's steps, set by the engine before every step."""

    @property
    def loss_weights(self) -> dict[str, float]:
        """Factors of the losses by name; 1 for losses that are not listed."""
        return {}

    def encode(self, stream: str, batch: Batch) -> dict[str, Tensor]:
        """Return the features of one stream's batch by name, (B, ...), without communication between workers.

        With `run.mini_batch_size` it is called for parts of the batch, twice with the same random numbers. Layers that mix
        samples, such as BatchNorm, therefore belong in `losses`; if that is not possible, `MethodConfig.check` must refuse
        `run.mini_batch_size`.

        Args:
            stream: Name of the stream.
            batch: Its batch; tensors are (B, V, ...), with V views per sample.
        """
        raise NotImplementedError

    def losses(self, features: dict[str, dict[str, Tensor]], batches: dict[str, Batch]) -> StepOutput:
        """Compute the unweighted losses of one update; gathers features across workers if they serve as negatives.

        Args:
            features: Stream -> result of `encode` for the whole batch, each (B, ...).
            batches: Stream -> batch.
        """
        raise NotImplementedError

    def penalties(self) -> dict[str, Tensor]:
        """Return further losses of an update that depend on the parameters only."""
        return {}

    def nested_losses(self, features: dict[str, dict[str, Tensor]], batches: dict[str, Batch]) -> StepOutput:
        """Compute `losses`, plus the losses of truncated embeddings for each size of `matryoshka`, all with weight 1.

        Args:
            features: As for `losses`, each (B, ...).
            batches: As for `losses`.

        Returns:
            Summed losses by name; the metrics contain the loss of each size as ``NAME_SIZE``.

        References:
            Kusupati et al., Matryoshka Representation Learning, NeurIPS 2022, eq. 1.
        """
        output = self.losses(features, batches)
        cut = [name for name in features if name in self.vectors]
        for size in self.matryoshka if cut else ():
            shorter = {name: {**features[name], **self._shorter(name, features[name], size)} for name in cut}
            again = self.truncated_losses(shorter, {name: batches[name] for name in cut})
            losses = {name: loss + again[name] if name in again else loss for name, loss in output.losses.items()}
            output = StepOutput(losses, {**output.metrics, **{f"{name}_{size}": loss for name, loss in again.items()}})
        return output

    def truncated_losses(self, features: dict[str, dict[str, Tensor]], batches: dict[str, Batch]) -> dict[str, Tensor]:
        """Return the losses of truncated embeddings. Override it if `losses` has some that do not use them.

        Args:
            features: As for `losses`, of the streams in `vectors` only, each (B, ...).
            batches: Batches of the same streams.
        """
        return self.losses(features, batches).losses

    def _shorter(self, stream: str, features: dict[str, Tensor], size: int) -> dict[str, Tensor]:
        """Truncate a stream's embeddings and normalise them to unit length."""
        vectors = {name: features[name] for name in self.vectors[stream] if name in features}
        if (least := min(vector.shape[-1] for vector in vectors.values())) <= size:  # `vector_size` of a user's method
            raise ValueError(f"run.matryoshka={self.matryoshka}: the embeddings have {least} dimensions; set smaller sizes")
        return {name: F.normalize(vector[..., :size], dim=-1) for name, vector in vectors.items()}

    def forward(self, batches: dict[str, Batch]) -> StepOutput:
        """Run one update: encode every stream, then compute the losses."""
        penalties = self.penalties()  # first, so that their backward pass is last, after the activations are freed
        output = self.nested_losses({name: self.encode(name, batch) for name, batch in batches.items()}, batches)
        return StepOutput({**output.losses, **penalties}, output.metrics)

    def param_groups(self, update: str) -> dict[str, list[nn.Parameter]]:
        """Return the named parameter groups of an update's optimizer, whose settings a recipe can override per group."""
        decay = [p for p in self.parameters() if p.requires_grad and p.ndim > 1]
        no_decay = [p for p in self.parameters() if p.requires_grad and p.ndim <= 1]
        return {"weights": decay, "biases_and_norms": no_decay}

    def after_step(self, step: int) -> None:
        """Run after all updates of a step, for example to clamp a scale or to update a momentum copy."""


def named_updates(*updates: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Return updates under the names that recipes and metrics use: ``text``, or ``image+text`` for two streams."""
    return {"+".join(streams): streams for streams in updates}
