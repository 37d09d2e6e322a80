"""SimCSE++ (Xu et al., EMNLP 2023): SimCSE with negatives without dropout noise, and a contrast of dimensions."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from ray import tune
from torch import Tensor

from multicse.data.settings import refuse_idle
from multicse.data.streams.base import Batch
from multicse.models.adapters import without_dropout
from multicse.models.text_encoder import TextEncoder
from multicse.pipelines import parts
from multicse.trainers import losses
from multicse.trainers.gather import gather, offset
from multicse.trainers.losses import full_precision
from multicse.trainers.method import MethodConfig, RecipeParts, StepOutput, check_texts
from multicse.trainers.recipe import Recipe
from multicse.trainers.simcse import SimCSE, SimCSEConfig
from multicse.trainers.tuning.space import SearchSpace
from multicse.tune_spaces import nonling


class SimCSEPPConfig(MethodConfig):
    """Settings of SimCSE++; the defaults are taken from the authors' code for both parts together."""

    citations: ClassVar[tuple[str, ...]] = ("xu2023simcsepp", "gao2021simcse")

    name: Literal["simcsepp"] = "simcsepp"
    variant: Literal["fixed"] = "fixed"
    temperature: float = Field(0.05, gt=0)
    """Softmax temperature: cosine similarities are divided by it. Lower values put more weight on hard negatives."""
    head: Literal["mlp", "none"] = "mlp"
    """Head after the pooling, which is used in training only. `mlp`: Linear + tanh. `none`: no head."""
    negatives: Literal["plain", "dropout"] = "plain"
    """How negatives are encoded. `plain`: without dropout, in a third forward pass. `dropout`: as in SimCSE."""
    positive_scale: float = Field(1.0, gt=0)
    """Factor of the positive's similarity if negatives are `plain`; the authors' is 0.9 without dimension contrast."""
    dimension_weight: float = Field(0.1, ge=0)
    """Weight of the contrast of dimensions; 0 disables it."""
    dimension_temperature: float = Field(5.0, gt=0)
    """Softmax temperature of the contrast of dimensions: correlations are divided by it."""

    def vectors(self) -> dict[str, tuple[str, ...]]:
        """Return the views and the vectors without dropout, if they are computed without a training-only head."""
        names = ("views", "plain") if self.negatives == "plain" else ("views",)
        return {"text": names} if self.head == "none" else {}

    def check_settings(self) -> None:
        """Raise ValueError if a setting has no effect."""
        if self.negatives == "dropout" and self.positive_scale != 1:
            raise ValueError(
                f"method.positive_scale={self.positive_scale} has no effect with method.negatives='dropout'; set it to 1.0, "
                "or method.negatives to 'plain'"
            )
        if not self.dimension_weight:
            refuse_idle(
                self, ["dimension_temperature"], "dimensions are not contrasted; set method.dimension_weight", "method."
            )

    def check(self, recipe: RecipeParts, encoder: Any) -> None:
        """Check that a sample is one text."""
        check_texts(recipe, "text", (1,), "method.name='simcsepp'", "one column, txt")

    def build(self, encoder: TextEncoder) -> SimCSEPP:
        """Return SimCSE++ with `encoder`."""
        return SimCSEPP(encoder, self)


class SimCSEPP(SimCSE):
    """SimCSE++ on the stream ``text``: ``input_ids``, ``attention_mask`` (B, 1, L)."""

    def __init__(self, encoder: TextEncoder, config: SimCSEPPConfig) -> None:
        super().__init__(encoder, SimCSEConfig(temperature=config.temperature, head=config.head))
        self.config = config

    @property
    def loss_weights(self) -> dict[str, float]:
        """Return the weight of the contrast of dimensions."""
        return {"dimensions": self.config.dimension_weight}

    def encode(self, stream: str, batch: Batch) -> dict[str, Tensor]:
        """Return ``views`` (B, 2, d) with dropout and, if negatives are plain, ``plain`` (B, d) without."""
        features = super().encode(stream, batch)
        if self.config.negatives == "plain":
            with without_dropout(self.sentence_encoder):
                pooled = self.sentence_encoder.pooled(*(tensor[:, 0] for tensor in batch.texts()))
            features["plain"] = self.sentence_encoder.project(pooled)
        return features

    def losses(self, features: dict[str, dict[str, Tensor]], batches: dict[str, Batch]) -> StepOutput:
        """Return the loss ``text`` and, unless its weight is 0, ``dimensions``."""
        views, plain, config = features["text"]["views"], features["text"].get("plain"), self.config
        if plain is None:
            found = {"text": self.text_loss(features["text"], batches["text"])}
        else:
            found = {"text": self._plain_negatives(views[:, 0], views[:, 1], plain, gather(plain))}
        if config.dimension_weight:  # with the statistics of the global batch, so losses are equal on all workers
            found["dimensions"] = self._dimension_contrast(*gather(views).unbind(1))
        return StepOutput(found)

    @full_precision
    def _plain_negatives(self, z1: Tensor, z2: Tensor, plain: Tensor, plain_all: Tensor) -> Tensor:
        """Compute SimCSE with positives under dropout, and negatives without (the authors' ``off_dropout``).

        -log( e^p_i / (e^p_i + sum_{j != i} e^n_ij) ) with p_i = positive_scale cos(z1_i, z2_i) / temperature and
        n_ij = cos(plain_i, plain_j) / temperature.
        """
        positive = self.config.positive_scale * F.cosine_similarity(z1, z2) / self.config.temperature
        negatives = losses.cosine_similarity(plain, plain_all) / self.config.temperature
        numbers = torch.arange(len(plain_all), device=plain.device)
        itself = numbers[: len(plain), None] + offset(len(plain)) == numbers
        logits = torch.cat([positive[:, None], negatives.masked_fill(itself, -torch.inf)], dim=1)
        return (logits.logsumexp(1) - positive).mean()

    @full_precision
    def _dimension_contrast(self, z1: Tensor, z2: Tensor) -> Tensor:
        """Compute InfoNCE over dimensions, standardised over the batch (N, d) as by BatchNorm (the authors' ``dcl_loss``).

        `z1` has the anchors, `z2` the candidates, compared by correlation.
        """
        first, second = ((z - z.mean(0)) / (z.var(0, correction=0) + 1e-5).sqrt() for z in (z1, z2))
        logits = first.T @ second / (len(z1) * self.config.dimension_temperature)
        return F.cross_entropy(logits, torch.arange(z1.shape[1], device=z1.device))


ROWS: parts.Rows = {
    "bert-base-plain-negatives": (
        "BERT-base, negatives without dropout only, with the positive's cosine multiplied by 0.9.",
        {"method.dimension_weight": 0.0, "method.positive_scale": 0.9},
    ),
    "bert-base-dimensions": ("BERT-base, contrast of dimensions only.", {"method.negatives": "dropout"}),
}


def bert_base() -> Recipe:
    """Train BERT-base with both parts: one epoch of one million sentences, batch 64, lr 3e-5."""
    return parts.text_bert_base("simcsepp", SimCSEPPConfig())


def demo() -> Recipe:
    """Train in minutes on a laptop, offline: Wikipedia sentences, this project's small encoder."""
    return parts.text_demo("simcsepp", SimCSEPPConfig(head="none", temperature=0.2))


smoke = parts.smoke_of(demo)

RECIPES = {
    "demo": demo,
    "smoke": smoke,
    "bert-base": bert_base,
    **parts.rows(bert_base, ROWS),
}

both: SearchSpace = {
    "optim.text.lr": tune.grid_search([1e-5, 3e-5, 5e-5]),
    "method.positive_scale": tune.grid_search([0.9, 1.0]),
    "method.dimension_weight": tune.grid_search([0.0, 0.1]),
}
wide: SearchSpace = {
    "streams.text.batch_size": tune.choice([32, 64, 128, 256]),
    "optim.text.lr": tune.loguniform(1e-6, 1e-3),
    "method.temperature": tune.loguniform(0.02, 0.5),
    "method.positive_scale": tune.uniform(0.8, 1.2),
    "method.dimension_weight": tune.loguniform(0.01, 1.0),
    "method.dimension_temperature": tune.loguniform(0.05, 20.0),
}
SPACES = {"parts": both, "text": nonling.text, "wide": wide}
