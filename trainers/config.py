"""What every method's settings have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from trainers.method import Method

Variant = Literal["paper", "released", "fixed"]


class MethodConfig(BaseModel):
    """Settings of a method. Subclasses narrow `name` to a literal, which tells them apart in a saved recipe.

    variant: ``paper`` is the text, ``released`` the authors' code with its defects, ``fixed`` what the paper meant,
    repaired. Where they differ: docs/errata.md.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    takes_words: ClassVar[bool] = False
    """Whether the encoder is word vectors, not a transformer."""

    name: str
    variant: Variant = "fixed"
    """The paper's text, the authors' code with its defects, or what the paper meant, repaired: see docs/errata.md."""

    def streams(self) -> tuple[tuple[str, ...], ...]:
        """The turns of a step: each names the streams that share one backward; known without building a model."""
        raise NotImplementedError  # the interface: every config defines it

    def check(self, hidden_size: int) -> None:
        """Raise ValueError when an encoder of this hidden size cannot be trained so; reads configuration files only."""

    def build(self, encoder: Any) -> Method:
        """The method around `encoder`, which it trains."""
        raise NotImplementedError  # the interface: every config defines it
