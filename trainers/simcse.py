"""SimCSE (Gao et al., EMNLP 2021): the positive of a sentence is the sentence itself under another dropout mask.

It is the baseline in the tables of all papers. The optional masked-language-model term of the released code, off by default,
is not implemented.
"""

from __future__ import annotations

import logging
from typing import Any, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from multicse.data.streams.base import Batch
from multicse.models.text_encoder import TextEncoder
from multicse.models.text_folders import has_dropout
from multicse.trainers import losses
from multicse.trainers.gather import gather, offset
from multicse.trainers.method import Method, MethodConfig, RecipeParts, StepOutput, check_texts

log = logging.getLogger(__name__)


class SimCSEConfig(MethodConfig):
    """Settings of SimCSE, and of the text update of all methods that extend it."""

    citations: ClassVar[tuple[str, ...]] = ("gao2021simcse",)

    name: Literal["simcse"] = "simcse"
    supervised: bool = False
    """If False, one text per sample, encoded twice. If True, (premise, entailment) or (premise, entailment,
    contradiction)."""
    temperature: float = Field(0.05, gt=0)
    """Softmax temperature: cosine similarities are divided by it. Lower values put more weight on hard negatives."""
    head: Literal["mlp", "none"] = "mlp"
    """Head after the pooling. `mlp`: Linear + tanh, used in training only if unsupervised, exported if supervised.
    `none`: no head."""
    hard_negative_log_weight: float = 0.0
    """Logarithm of the weight of a sample's own contradiction, added to its logit."""

    def vectors(self) -> dict[str, tuple[str, ...]]:
        """Return the views, if they are computed without a training-only head."""
        return {"text": ("views",)} if self.supervised or self.head == "none" else {}

    def check(self, recipe: RecipeParts, encoder: Any, setting: str = "method.supervised") -> None:
        """Check the number of texts per sample, which `setting` (the path of `supervised`) determines."""
        hint = "a pair or a triple, for example sent0 sent1 hard_neg" if self.supervised else "one column, txt"
        check_texts(recipe, "text", (2, 3) if self.supervised else (1,), f"{setting}={self.supervised}", hint)
        start = recipe.encoder
        if encoder is None or self.supervised or start.lora.dropout:
            return
        if not has_dropout(encoder, start.hidden_dropout, start.attention_dropout):
            log.warning(
                "encoder.path: without dropout both views of a sentence are equal, so the loss only separates sentences; "
                "set encoder.attention_dropout to 0.1, or encoder.lora.dropout with encoder.lora.rank"
            )

    def build(self, encoder: TextEncoder) -> SimCSE:
        """Return SimCSE with `encoder`."""
        return SimCSE(encoder, self)


class SimCSE(Method):
    """SimCSE on the stream ``text``: ``input_ids``, ``attention_mask`` (B, V, L); V = 1 unsupervised, 2 or 3 supervised."""

    sentence_encoder: TextEncoder

    def __init__(self, encoder: TextEncoder, config: SimCSEConfig) -> None:
        super().__init__()
        self.sentence_encoder = encoder
        self.text = config
        if config.head == "mlp":
            encoder.add_head(only_trains=not config.supervised)

    def encode(self, stream: str, batch: Batch) -> dict[str, Tensor]:
        """Return ``views`` (B, V, d) after the head."""
        return {"views": self.projected(self.pooled(batch))}

    def pooled(self, batch: Batch) -> Tensor:
        """Encode a batch without the head.

        All views share one forward pass, with rows interleaved: x1, x1, x2, x2, ...

        Args:
            batch: Tokens (B, V, L).

        Returns:
            Pooled embeddings, (B, V, d); V = 2 for a single text.
        """
        texts = [self._views(tensor) for tensor in batch.texts()]
        return self.sentence_encoder.pooled(*(tensor.flatten(0, 1) for tensor in texts)).unflatten(0, texts[0].shape[:2])

    def projected(self, pooled: Tensor) -> Tensor:
        """Apply the head.

        Args:
            pooled: (B, V, d).

        Returns:
            Views, (B, V, d).
        """
        return self.sentence_encoder.project(pooled.flatten(0, 1)).unflatten(0, pooled.shape[:2])

    def losses(self, features: dict[str, dict[str, Tensor]], batches: dict[str, Batch]) -> StepOutput:
        """Return the loss ``text``."""
        return StepOutput({"text": self.text_loss(features["text"]["views"], batches["text"])})

    def text_loss(self, z: Tensor, batch: Batch) -> Tensor:
        """Compute the contrastive loss of the sentences of all workers.

        Args:
            z: Views of this worker, (B, V, d).
            batch: Their batch.

        Returns:
            Scalar loss.
        """
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
