"""SimCSE (Gao et al., EMNLP 2021): a sentence is its own positive under another dropout mask. Every table's baseline.

The optional masked-language-model term of the released code (off by default there) is left out.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from multicse.data.streams.base import Batch
from multicse.models.text_encoder import TextEncoder
from multicse.trainers import losses
from multicse.trainers.gather import gather, offset
from multicse.trainers.method import Method, MethodConfig, RecipeParts, StepOutput, check_texts


class SimCSEConfig(MethodConfig):
    """Settings of SimCSE, and of the text update of everything built on it."""

    citations: ClassVar[tuple[str, ...]] = ("gao2021simcse",)

    name: Literal["simcse"] = "simcse"
    """Name of the method; fixed, since the other settings belong to it."""
    supervised: bool = False
    """Off: one text a sample, encoded twice. On: (premise, entailment) or (premise, entailment, contradiction)."""
    temperature: float = Field(0.05, gt=0)
    """What cosines are divided by in the loss; a lower one weighs the nearest negatives more."""
    head: Literal["mlp", "none"] = "mlp"
    """`mlp`: Linear + tanh behind the pooling; unsupervised it serves training only, supervised it stays."""
    hard_negative_log_weight: float = 0.0
    """Added to the logit of a sample's own contradiction: the logarithm of its weight."""

    def vectors(self) -> dict[str, tuple[str, ...]]:
        return {"text": ("views",)} if self.supervised or self.head == "none" else {}

    def check(self, recipe: RecipeParts, encoder: Any, setting: str = "method.supervised") -> None:
        hint = "a pair or a triple, for example sent0 sent1 hard_neg" if self.supervised else "one column, txt"
        check_texts(recipe, "text", (2, 3) if self.supervised else (1,), f"{setting}={self.supervised}", hint)

    def build(self, encoder: TextEncoder) -> SimCSE:
        return SimCSE(encoder, self)


class SimCSE(Method):
    """One stream ``text``: ``input_ids``, ``attention_mask`` (B, V, L) with V = 1 unsupervised, 2 or 3 supervised."""

    sentence_encoder: TextEncoder

    def __init__(self, encoder: TextEncoder, config: SimCSEConfig) -> None:
        super().__init__()
        self.sentence_encoder = encoder
        self.text = config
        if config.head == "mlp":
            encoder.add_head(only_trains=not config.supervised)

    def encode(self, stream: str, batch: Batch) -> dict[str, Tensor]:
        """``views`` (B, V, d) behind the head."""
        return {"views": self.projected(self.pooled(batch))}

    def pooled(self, batch: Batch) -> Tensor:
        """Views (B, V, d) before the head. All go through one forward, rows interleaved: x1, x1, x2, x2, ..."""
        texts = [self._views(tensor) for tensor in batch.texts()]
        return self.sentence_encoder.pooled(*(tensor.flatten(0, 1) for tensor in texts)).unflatten(0, texts[0].shape[:2])

    def projected(self, pooled: Tensor) -> Tensor:
        """The same views (B, V, d) behind it."""
        return self.sentence_encoder.project(pooled.flatten(0, 1)).unflatten(0, pooled.shape[:2])

    def losses(self, features: dict[str, dict[str, Tensor]], batches: dict[str, Batch]) -> StepOutput:
        return StepOutput({"text": self.text_loss(features["text"]["views"], batches["text"])})

    def text_loss(self, z: Tensor, batch: Batch) -> Tensor:
        """The loss of views z (B, V, d), gathered across workers."""
        z_all = gather(z)
        return losses.simcse(
            z[:, 0],
            z_all[:, 1],
            z_all[:, 2] if z.shape[1] == 3 else None,
            self.text.temperature,
            self.text.hard_negative_log_weight,
            offset(len(z)),
        )

    def _views(self, tokens: Tensor) -> Tensor:
        return tokens.expand(-1, 2, -1) if tokens.shape[1] == 1 else tokens
