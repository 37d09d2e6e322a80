"""MoCoUTRL (Connection Science 2023): contrast with a synonym and an antonym of a word.

A momentum-updated dictionary of word embeddings embeds these two views, and its row of the original word is the target of
the replaced words.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from multicse.data.settings import refuse_idle
from multicse.data.streams.base import Batch
from multicse.models.pooling import Head
from multicse.models.text_encoder import TextEncoder
from multicse.models.text_folders import positions
from multicse.trainers import losses
from multicse.trainers.gather import gather, offset, world_size
from multicse.trainers.method import Method, MethodConfig, RecipeParts, StepOutput

PADDED = 200
"""Positions to which the released code pads every sentence, and over which it averages."""


class Choices(NamedTuple):
    """Settings in which the variants differ [errata 6.2, 6.3]."""

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
    """Settings of MoCoUTRL. Settings that are None have the value of the variant."""

    citations: ClassVar[tuple[str, ...]] = ("zou2023mocoutrl",)

    name: Literal["mocoutrl"] = "mocoutrl"
    balance: float = Field(0.5, ge=0, le=1)
    """Weight of the sentence loss (lambda); the token loss has weight 1 - balance."""
    temperature: float = Field(0.07, gt=0)
    """Softmax temperature: cosine similarities are divided by it. Lower values put more weight on hard negatives."""
    momentum: float = Field(0.999, ge=0, le=1)
    """Momentum of the dictionary: the share of its values that is kept per step (eq. 1)."""
    dictionary_views: bool | None = None
    """Embed x+ and x- with the dictionary. If False, with the trained embeddings, as the released code does."""
    projectors: bool | None = None
    """Use two-layer projectors with GELU for sentence embeddings (SLD) and replaced words (TLD), in training only."""
    sentence_loss: Literal["eq6", "nt_xent"] | None = None
    """Sentence loss. `eq6`: negatives are antonym sentences only. `nt_xent`: negatives are all sentences."""
    token_loss: Literal["eq10", "triplet", "rows"] | None = None
    """Token loss. `eq10`: as printed, without lower bound. `triplet`: eq. 10 with a margin. `rows`: as in the released
    code, on the first sentence only."""
    margin: float = Field(1.0, gt=0)
    """Margin of the token loss `triplet`, in squared distances between unit vectors (0 to 4)."""
    perturbation: bool | None = None
    """Normalise the target, the dictionary's row, to unit length and add Gaussian noise (eq. 21; the last ablation of
    Table 3). If False, it is used unchanged."""
    mean_with_padding: bool | None = None
    """Average over 200 positions, including padding, for sentence embeddings in training."""

    @property
    def choices(self) -> Choices:
        """Return the settings, with the variant's values for settings that are None."""
        own = {name: value for name in Choices._fields if (value := getattr(self, name)) is not None}
        return VARIANTS[self.variant]._replace(**own)

    def check_settings(self) -> None:
        """Raise ValueError if a setting has no effect."""
        token = ["token_loss", "margin", "perturbation"]
        if self.balance == 1:
            refuse_idle(self, token, "the token loss has weight 0; set method.balance below 1", "method.")
        if self.choices.token_loss != "triplet":
            refuse_idle(self, ["margin"], "only the token loss 'triplet' has one; set method.token_loss triplet", "method.")
        if self.choices.token_loss == "rows" and self.perturbation:  # False is what happens
            refuse_idle(self, ["perturbation"], "the token loss 'rows' uses the dictionary unchanged", "method.")

    def check(self, recipe: RecipeParts, encoder: Any) -> None:
        """Check the kind of the stream, and the positions for `mean_with_padding`."""
        stream: Any = recipe.streams["text"]
        if not stream.is_a("triplet"):
            raise ValueError(
                f"streams.text.kind={stream.kind!r}: the method needs sentences with a synonym and an antonym of a word; "
                "use the kind 'triplet'"
            )
        if not self.choices.mean_with_padding:
            return
        if stream.max_length > PADDED:
            raise ValueError(
                f"streams.text.max_length={stream.max_length} is larger than the {PADDED} positions over which "
                f"method.mean_with_padding averages; set at most {PADDED}"
            )
        if encoder is not None and positions(encoder) < PADDED:
            raise ValueError(
                f"encoder.path has {positions(encoder)} positions, but method.mean_with_padding averages over {PADDED}; "
                f"set method.mean_with_padding False, or choose an encoder with at least {PADDED}"
            )

    def build(self, encoder: TextEncoder) -> MoCoUTRL:
        """Return MoCoUTRL with `encoder`."""
        return MoCoUTRL(encoder, self)


class MoCoUTRL(Method):
    """MoCoUTRL on the stream ``text`` of triplets x, x+, x-.

    The batch contains ``input_ids``, ``attention_mask``, ``word_mask`` (B, 3, L) and ``candidate`` (B,).
    """

    sentence_encoder: TextEncoder
    dictionary: Tensor
    """(V, d), a moving average of the word embeddings; saved in checkpoints, without gradient."""

    def __init__(self, encoder: TextEncoder, config: MoCoUTRLConfig) -> None:
        super().__init__()
        self.sentence_encoder, self.config, self.choices = encoder, config, config.choices
        self.register_buffer("dictionary", self.table.weight.detach().clone())
        size, words = encoder.hidden_size, self.table.weight.shape[1]
        if size != words and not (self.choices.projectors and self.choices.token_loss != "rows"):
            raise ValueError(
                f"encoder.path: word embeddings have {words} dimensions but hidden states {size}, so the token loss cannot "
                "compare them; set method.projectors True, with method.token_loss 'eq10' or 'triplet'"
            )
        self.sld: nn.Module = nn.Identity()
        self.tld: nn.Module = nn.Identity()
        if self.choices.projectors:
            self.sld = nn.Sequential(Head(size, size, nn.GELU()), Head(size, size, nn.GELU()))
        if self.choices.projectors and config.balance < 1:
            self.tld = nn.Sequential(Head(size, size, nn.GELU()), Head(size, words, nn.GELU()))

    @property
    def table(self) -> nn.Embedding:
        """Return the trained word embeddings."""
        return word_embeddings(self.sentence_encoder)

    @property
    def loss_weights(self) -> dict[str, float]:
        """Return the weights of the sentence loss ``long`` and the loss ``token``."""
        return {"long": self.config.balance, "token": 1 - self.config.balance}

    def after_step(self, step: int) -> None:
        """Update the dictionary."""
        losses.move(self.dictionary, self.table.weight, self.config.momentum)

    def encode(self, stream: str, batch: Batch) -> dict[str, Tensor]:
        """Return ``z``, embeddings (B, 3, d) of x, x+ and x-, and ``w``, states at the word.

        ``w`` is (B, 3, d), the mean over sub-tokens; or (B, 3, L, d), all token states, for the token loss `rows`.
        """
        (ids, mask, host_mask), marks = batch.texts(), batch["word_mask"]
        if self.choices.mean_with_padding:
            ids = _padded(ids, self.sentence_encoder.tokenizer.pad_token_id)
            mask, marks = _padded(mask), _padded(marks)
        if not self.choices.dictionary_views:
            words = self.table(ids)
        else:
            # Through the module, which may do more than a lookup: Gemma's also scales.
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
        """Return the losses ``long`` (sentences) and ``token``."""
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
        """Return the token loss: the mean over the samples of all workers that contain their word in all three views."""
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
    """Return the word embedding table of an encoder; raise ValueError if it has none."""
    try:
        table = encoder.model.get_input_embeddings()
    except NotImplementedError:
        table = None
    if not isinstance(table, nn.Embedding):
        raise ValueError(
            f"encoder.path: a {encoder.config.model_type!r} model has no word embedding table for the dictionary; choose "
            "for example a BERT, RoBERTa, DeBERTa, DistilBERT or MPNet model"
        )
    return table


def mean_of_marked(states: Tensor, marks: Tensor) -> Tensor:
    """Return the mean (..., d) over marked positions, or zero if no position is marked.

    Args:
        states: (..., L, d).
        marks: (..., L), 1 at marked positions and 0 elsewhere.
    """
    marks = marks.to(states)
    return torch.einsum("...ld,...l->...d", states, marks) / marks.sum(-1, keepdim=True).clamp(min=1)
