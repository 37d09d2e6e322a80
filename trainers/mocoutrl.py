"""MoCoUTRL (Connection Science 2023): a word is replaced by a synonym and by an antonym. A slowly moving dictionary of word
embeddings embeds these views, and its row of the word is what the replacements are compared to.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from multicse.data.streams.base import Batch
from multicse.models.pooling import Head
from multicse.models.text_encoder import TextEncoder
from multicse.models.text_folders import positions
from multicse.trainers import losses
from multicse.trainers.gather import gather, offset, world_size
from multicse.trainers.method import Method, MethodConfig, RecipeParts, StepOutput

PADDED = 200
"""Positions that the released code pads every sentence to, and takes the mean over."""


class Choices(NamedTuple):
    """What the variants differ in [errata 6.2, 6.3]."""

    dictionary_views: bool
    projectors: bool
    sentence_loss: Literal["eq6", "nt_xent"]
    token_loss: Literal["eq10", "triplet", "rows"]
    perturbation: bool
    mean_with_padding: bool


VARIANTS = {
    "paper": Choices(True, True, "eq6", "eq10", True, False),
    "released": Choices(False, False, "nt_xent", "rows", False, True),
    "fixed": Choices(True, True, "nt_xent", "triplet", True, False),
}


class MoCoUTRLConfig(MethodConfig):
    """Settings of MoCoUTRL. None: what the variant says."""

    citations: ClassVar[tuple[str, ...]] = ("zou2023mocoutrl",)

    name: Literal["mocoutrl"] = "mocoutrl"
    """Name of the method; fixed, since the other settings belong to it."""
    balance: float = Field(0.5, ge=0, le=1)
    """Weight of the long-span loss (lambda); the token loss has the rest."""
    temperature: float = Field(0.07, gt=0)
    """What cosines are divided by in the loss; a lower one weighs the nearest negatives more."""
    momentum: float = Field(0.999, ge=0, le=1)
    """Share of the dictionary that stays at a step (eq. 1)."""
    dictionary_views: bool | None = None
    """Whether x+ and x- are embedded by the dictionary; else by the trained embeddings, as the released code does."""
    projectors: bool | None = None
    """Two layers with GELU behind the sentence vector (SLD) and behind the replaced word (TLD), in training only."""
    sentence_loss: Literal["eq6", "nt_xent"] | None = None
    """`eq6`: against the antonym sentences alone. `nt_xent`: against all of the batch."""
    token_loss: Literal["eq10", "triplet", "rows"] | None = None
    """`eq10`: has no lower bound. `triplet`: the same with a margin. `rows`: the released code's, of the first sentence."""
    margin: float = Field(1.0, gt=0)
    """Margin of the token loss `triplet`, in squared distances to unit vectors (0 to 4, of a target of unit length)."""
    perturbation: bool | None = None
    """Whether the target, the dictionary's row, is brought to unit length and moved by a Gaussian (eq. 21, the last factor
    of Table 3), or taken as it is."""
    mean_with_padding: bool | None = None
    """Whether a sentence vector is the mean of 200 positions, padding included, in training."""

    @property
    def choices(self) -> Choices:
        """The settings, those of the variant where they are none."""
        own = {name: value for name in Choices._fields if (value := getattr(self, name)) is not None}
        return VARIANTS[self.variant]._replace(**own)

    def check(self, recipe: RecipeParts, encoder: Any) -> None:
        stream: Any = recipe.streams["text"]
        if stream.kind != "triplet":
            raise ValueError(
                f"streams.text.kind={stream.kind!r} where the method takes sentences with a synonym and an antonym in place "
                "of a word; use the kind 'triplet'"
            )
        if not self.choices.mean_with_padding:
            return
        if stream.max_length > PADDED:
            raise ValueError(
                f"streams.text.max_length={stream.max_length} is more than the {PADDED} positions that "
                "method.mean_with_padding takes the mean over; give at most that"
            )
        if encoder is not None and positions(encoder) < PADDED:
            raise ValueError(
                f"encoder.path has {positions(encoder)} positions, and method.mean_with_padding takes the mean over "
                f"{PADDED}; set method.mean_with_padding False, or choose an encoder with as many"
            )

    def build(self, encoder: TextEncoder) -> MoCoUTRL:
        return MoCoUTRL(encoder, self)


class MoCoUTRL(Method):
    """One stream ``text`` of triplets x, x+, x-: ``input_ids``, ``attention_mask``, ``word_mask`` (B, 3, L), and
    ``candidate`` (B,)."""

    sentence_encoder: TextEncoder
    dictionary: Tensor
    """(V, d), an average of the word embeddings over the steps; in checkpoints, without gradient."""

    def __init__(self, encoder: TextEncoder, config: MoCoUTRLConfig) -> None:
        super().__init__()
        self.sentence_encoder, self.config, self.choices = encoder, config, config.choices
        self.register_buffer("dictionary", self.table.weight.detach().clone())
        size, words = encoder.hidden_size, self.table.weight.shape[1]
        if size != words and not (self.choices.projectors and self.choices.token_loss != "rows"):
            raise ValueError(
                f"encoder.path: its word embeddings have {words} dimensions and its states {size}, which the token loss "
                "compares; set method.projectors, with method.token_loss 'eq10' or 'triplet'"
            )
        self.sld: nn.Module = nn.Identity()
        self.tld: nn.Module = nn.Identity()
        if self.choices.projectors:
            self.sld = nn.Sequential(Head(size, size, nn.GELU()), Head(size, size, nn.GELU()))
        if self.choices.projectors and config.balance < 1:
            self.tld = nn.Sequential(Head(size, size, nn.GELU()), Head(size, words, nn.GELU()))

    @property
    def table(self) -> nn.Embedding:
        """The trained word embeddings."""
        return word_embeddings(self.sentence_encoder)

    @property
    def loss_weights(self) -> dict[str, float]:
        return {"long": self.config.balance, "token": 1 - self.config.balance}

    def after_step(self, step: int) -> None:
        losses.move(self.dictionary, self.table.weight, self.config.momentum)

    def encode(self, stream: str, batch: Batch) -> dict[str, Tensor]:
        """``z`` (B, 3, d) of x, x+, x- in one forward, and ``w`` (B, 3, d) at the word, the mean of its sub-tokens; or all
        token states (B, 3, L, d) for the token loss `rows`, since only the whole batch says where it reads."""
        (ids, mask, host_mask), marks = batch.texts(), batch["word_mask"]
        if self.choices.mean_with_padding:
            ids = _padded(ids, self.sentence_encoder.tokenizer.pad_token_id)
            mask, marks = _padded(mask), _padded(marks)
        if not self.choices.dictionary_views:
            words = self.table(ids)
        else:
            # through the module, which may do more than look up: Gemma's multiplies
            views = torch.func.functional_call(self.table, {"weight": self.dictionary}, (ids[:, 1:],))
            words = torch.cat([self.table(ids[:, :1]), views], 1)
        rows, whole = self.choices.token_loss == "rows", self.choices.mean_with_padding
        out = self.sentence_encoder.outputs(
            inputs_embeds=words.flatten(0, 1),
            attention_mask=mask.flatten(0, 1),
            padding=rows or whole,
            host_mask=host_mask.flatten(0, 1),
        )
        pooled = out.tokens.mean(1) if whole else out.pooled
        at_word = out.tokens if rows else mean_of_marked(out.tokens, marks.flatten(0, 1))
        z, w = pooled.unflatten(0, ids.shape[:2]), at_word.unflatten(0, ids.shape[:2])
        return {"z": self.sld(z), "w": w if self.config.balance == 1 else self.tld(w)}

    def losses(self, features: dict[str, dict[str, Tensor]], batches: dict[str, Batch]) -> StepOutput:
        z, batch, t = features["text"]["z"], batches["text"], self.config.temperature
        z_all, kept, first = gather(z), gather(batch["candidate"]), offset(len(z))
        if self.choices.sentence_loss == "eq6":
            long = losses.long_span(z[:, 0], z[:, 1], z_all[:, 2], t, kept)
        else:
            long = losses.nt_xent_with_negatives(z[:, :2], z_all[:, :2], z_all[:, 2], t, first, kept)
        if self.config.balance == 1:
            return StepOutput({"long": long})
        there = batch["word_mask"].any(-1).all(-1)
        token = self._token(features["text"]["w"], batch, there, long)
        return StepOutput({"long": long, "token": token}, {"token_share": there.float().mean()})

    def _token(self, w: Tensor, batch: Batch, there: Tensor, long: Tensor) -> Tensor:
        """The token loss: the mean over all samples that have their word in all three views, of all workers."""
        ids, marks = batch["input_ids"], batch["word_mask"]
        if self.choices.token_loss == "rows":
            return losses.token_rows(w, ids, self.dictionary, long)
        target = mean_of_marked(F.embedding(ids[:, 0], self.dictionary), marks[:, 0])
        if self.choices.perturbation:
            target = losses.gaussian_shell(target)
        if self.choices.token_loss == "eq10":
            rows = losses.token_eq10(target, w[:, 1], w[:, 2])
        else:
            rows = losses.token_triplet(target, w[:, 1], w[:, 2], self.config.margin)
        count = gather(there.sum()[None]).sum().clamp(min=1)
        return (rows * there).sum() * world_size() / count


def _padded(tokens: Tensor, value: int = 0) -> Tensor:
    return F.pad(tokens, (0, PADDED - tokens.shape[-1]), value=value)


def word_embeddings(encoder: TextEncoder) -> nn.Embedding:
    """The table that a model looks its token ids up in. Raises ValueError for a model without one."""
    try:
        table = encoder.model.get_input_embeddings()
    except NotImplementedError:
        table = None
    if not isinstance(table, nn.Embedding):
        raise ValueError(
            f"encoder.path: a {encoder.config.model_type!r} model has no table of word embeddings that the dictionary "
            "could be a copy of; choose one that has, such as DeBERTa, RoBERTa, BERT, DistilBERT or MPNet"
        )
    return table


def mean_of_marked(states: Tensor, marks: Tensor) -> Tensor:
    """Mean (..., d) of the states (..., L, d) where marks (..., L) is 1; zero where it is 1 nowhere."""
    marks = marks.to(states)
    return torch.einsum("...ld,...l->...d", states, marks) / marks.sum(-1, keepdim=True).clamp(min=1)
