"""What a paper is to the engine: the modules it adds and how batches become losses."""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor, nn

from data.batch import Batch


class StepOutput(NamedTuple):
    """What one turn gives back: losses are weighted and summed by the engine, metrics only logged."""

    losses: dict[str, Tensor]
    metrics: dict[str, Tensor] = {}


@runtime_checkable
class SentenceEncoder(Protocol):
    """What is evaluated and exported."""

    def tokenize(self, texts: list[str]) -> dict[str, Tensor]:
        """Token ids and mask, each (B, L), padded to the longest text and cut at the model's limit."""
        ...

    def __call__(self, batch: dict[str, Tensor]) -> Tensor:
        """Sentence vectors (B, d) of tokenised texts."""
        ...

    def save(self, folder: str) -> None:
        """Write a folder that `SentenceTransformer(folder)` loads."""
        ...


class Method(nn.Module):
    """A paper: the modules it adds and how batches become losses.

    ``turns`` names the streams of each optimizer step: ``(("image",), ("text",))`` is one optimizer step on images, then
    one on text. The streams inside a turn share one backward. DDP wraps the method and is called exactly once per turn.
    """

    turns: tuple[tuple[str, ...], ...]
    sentence_encoder: SentenceEncoder

    @property
    def loss_weights(self) -> dict[str, float]:
        """Factor of each of `losses` by name; 1 where nothing is said."""
        return {}

    def encode(self, stream: str, batch: Batch) -> dict[str, Tensor]:
        """Features of one stream's batch, axis 0 the sample. Local to the worker; may be chunked and replayed."""
        raise NotImplementedError  # the interface: every method defines it

    def losses(self, features: dict[str, dict[str, Tensor]], batches: dict[str, Batch]) -> StepOutput:
        """Losses of one turn from the features of its streams; gathers across workers where negatives are needed."""
        raise NotImplementedError  # the interface: every method defines it

    def forward(self, batches: dict[str, Batch]) -> StepOutput:
        """One turn: encode every stream, then the losses."""
        return self.losses({name: self.encode(name, batch) for name, batch in batches.items()}, batches)

    def param_groups(self, turn: str) -> dict[str, list[nn.Parameter]]:
        """Named parameter groups of a turn's optimizer; a recipe's optimizer may override settings per group."""
        decay = [p for p in self.parameters() if p.requires_grad and p.ndim > 1]
        no_decay = [p for p in self.parameters() if p.requires_grad and p.ndim <= 1]
        return {"weights": decay, "biases_and_norms": no_decay}

    def after_step(self, step: int) -> None:
        """Called after all turns of a step: clamp a scale, move a momentum copy."""


def turn_name(streams: tuple[str, ...]) -> str:
    """The name of a turn in recipes and metrics: its streams joined by a plus sign, ``text`` or ``image+text``."""
    return "+".join(streams)
