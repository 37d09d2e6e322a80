"""ESimCSE (Wu et al., COLING 2022): SimCSE with repeated words in the positive, and a queue of further negatives."""

from __future__ import annotations

import copy
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from multicse.data.streams.base import Batch
from multicse.models.adapters import frozen
from multicse.models.text_encoder import TextEncoder
from multicse.pipelines import parts
from multicse.trainers import losses
from multicse.trainers.gather import gather, offset
from multicse.trainers.method import Method, MethodConfig, RecipeParts, StepOutput, check_texts
from multicse.trainers.recipe import Recipe


class ESimCSEConfig(MethodConfig):
    """Settings of ESimCSE; the defaults are the paper's for BERT-base."""

    name: Literal["esimcse"] = "esimcse"
    temperature: float = Field(0.05, gt=0)
    """Softmax temperature: cosine similarities are divided by it."""
    repetition: float = Field(0.32, ge=0, le=1)
    """Maximum share of a sentence's words that are repeated."""
    queue: int = Field(160, gt=0)
    """Number of earlier sentences that serve as negatives: 2.5 batches of 64."""
    momentum: float = Field(0.995, ge=0, le=1)
    """Momentum of the slow encoder: the share of its weights that is kept per step."""

    def check(self, recipe: RecipeParts, encoder: Any) -> None:
        """Check that a sample is one text."""
        check_texts(recipe, "text", (1,), "method.name='esimcse'", "one column, txt")

    def build(self, encoder: TextEncoder) -> ESimCSE:
        """Return ESimCSE with `encoder`."""
        return ESimCSE(encoder, self)


def repeat_words(ids: Tensor, mask: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Return ids and mask (B, L) with 0 to max(2, share x N) random words of a sentence of N words repeated."""
    words = mask.sum(1) - 2  # neither [CLS] nor [SEP]
    most = (share * words).long().clamp(min=2).minimum(words)
    count = (torch.rand(len(ids), device=ids.device) * (most + 1)).long()
    place = torch.arange(ids.shape[1], device=ids.device)
    order = torch.rand(ids.shape, device=ids.device).masked_fill((place == 0) | (place > words[:, None]), 2.0)
    times = mask + (order.argsort(1).argsort(1) < count[:, None]).long()
    rows = [row.repeat_interleave(n) for row, n in zip(ids, times, strict=True)]
    return pad_sequence(rows, batch_first=True), pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)


class ESimCSE(Method):
    """ESimCSE on the stream ``text``: ``input_ids``, ``attention_mask`` (B, 1, L)."""

    sentence_encoder: TextEncoder

    def __init__(self, encoder: TextEncoder, config: ESimCSEConfig) -> None:
        super().__init__()
        encoder.add_head(only_trains=True)
        self.sentence_encoder, self.config = encoder, config
        self.slow = frozen(copy.deepcopy(encoder))  # evaluated without dropout, saved in checkpoints
        self.register_buffer("queue", torch.zeros(config.queue, encoder.hidden_size))
        self.register_buffer("filled", torch.zeros((), dtype=torch.long))

    def encode(self, stream: str, batch: Batch) -> dict[str, Tensor]:
        """Return ``views`` (B, 2, d), original and repeated words, and ``slow`` (B, d) from the momentum encoder."""
        ids, mask = batch["input_ids"][:, 0], batch["attention_mask"][:, 0]
        encoder, texts = self.sentence_encoder, ((ids, mask), repeat_words(ids, mask, self.config.repetition))
        views = [encoder.project(encoder.outputs(*text).pooled) for text in texts]
        with torch.no_grad():
            slow = self.slow.project(self.slow.outputs(ids, mask).pooled)
        return {"views": torch.stack(views, dim=1), "slow": slow}

    def losses(self, features: dict[str, dict[str, Tensor]], batches: dict[str, Batch]) -> StepOutput:
        """Return InfoNCE over the sentences of all workers and the queue."""
        z, slow = features["text"]["views"], gather(features["text"]["slow"])
        candidates = torch.cat([gather(z)[:, 1], self.queue[: self.filled]])  # the sentences of all workers, then the queue
        loss = losses.info_nce(z[:, 0], candidates, self.config.temperature, offset(len(z)))
        self.queue = torch.cat([slow.to(self.queue.dtype), self.queue])[: len(self.queue)]  # the newest first
        self.filled = (self.filled + len(slow)).clamp(max=len(self.queue))
        return StepOutput({"text": loss})

    @torch.no_grad()
    def after_step(self, step: int) -> None:
        """Update the slow encoder."""
        for slow, fast in zip(self.slow.parameters(), self.sentence_encoder.parameters(), strict=True):
            slow.lerp_(fast, 1 - self.config.momentum)


def bert_base() -> Recipe:
    """Train BERT-base on a million sentences of Wikipedia, with batches of 64 and a learning rate of 3e-5."""
    return parts.text_bert_base("esimcse", ESimCSEConfig())


def demo() -> Recipe:
    """Train for minutes on a laptop, offline."""
    method, text = ESimCSEConfig(temperature=0.2), parts.offline_text(64)
    return parts.demo("esimcse", method, {"text": text}, {"text": parts.SMALL_OPTIM}, steps=200, every=50)


def smoke() -> Recipe:
    """Train for eight steps, as tests do."""
    return parts.smoke(demo())


RECIPES = {"demo": demo, "smoke": smoke, "bert-base": bert_base}
