"""GCLSR (Applied Sciences 2023): word vector augmentation, a TextCNN, and a SimSiam loss on groups of dimensions."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from multicse.data.settings import refuse_idle
from multicse.data.streams.base import Batch
from multicse.models.pwva import pwva
from multicse.models.sentence_encoder import Settings
from multicse.trainers import losses
from multicse.trainers.method import Method, MethodConfig, RecipeParts, StepOutput, check_texts

if TYPE_CHECKING:
    from multicse.models.word_encoder import WordEncoder


class GroupsConfig(Settings):
    """Settings of the projector, the predictor and the grouped loss, by which two views of a sentence are compared."""

    place: ClassVar[str] = "method.groups"

    width: int = Field(4096, gt=0)
    """Width of the projector's three layers, which are used in training only."""
    bottleneck: int = Field(1024, gt=0)
    """Width of the predictor's hidden layer."""
    group_size: int | None = Field(16, gt=0)
    """Dimensions per group, a divisor of width; each contributes one cosine to the loss. If None, one group."""
    stop_gradient: bool = True
    """Stop the gradient of the targets. Otherwise the embeddings collapse [errata 5.4]."""

    def check_settings(self) -> None:
        """Raise ValueError, which names the setting, if the groups do not divide the width."""
        if self.group_size is not None and self.width % self.group_size:
            raise ValueError(
                f"{self.place}.group_size={self.group_size} does not divide {self.place}.width={self.width}; "
                "choose a divisor"
            )


class GCLSRConfig(GroupsConfig, MethodConfig):
    """Settings of GCLSR. The filters are settings of the encoder (`encoder.regions`, `encoder.filters`)."""

    citations: ClassVar[tuple[str, ...]] = ("wang2023grouped",)
    encoder_kind: ClassVar[str] = "word vectors"
    place: ClassVar[str] = "method"
    parameter_groups: ClassVar[tuple[str, ...]] = ("base", "predictor")

    name: Literal["gclsr"] = "gclsr"
    augmentation: Literal["pwva", "none"] = "pwva"
    """How views are created. `pwva`: partial word vector augmentation. `none`: the texts themselves."""
    partial: float = Field(0.5, ge=0, le=1)
    """Share of words whose vector is augmented; 1 is full augmentation. The paper does not specify it."""
    kinds: tuple[float, float, float, float] = (0.5, 0.2, 0.2, 0.1)
    """Relative frequencies of Gaussian noise, zeros, background noise and Fourier transform, as in the released code."""
    noise: float = Field(0.1, ge=0)
    """Strength of the Gaussian noise (lambda) in the variant `paper`. The paper does not specify it."""
    dropout: float = Field(0.1, ge=0, lt=1)
    """Share of components set to zero in the variant `paper`. The paper does not specify it."""
    attention: Literal["none", "training", "always"] | None = None
    """When the parameter-free attention before the filters is used. If None, in training only; in the variant `paper`
    always [errata 5.1]."""
    weighting: Literal["importance", "softmax"] = "importance"
    """How attention changes a word vector. `importance`: it is multiplied by the word's importance (Algorithm 1).
    `softmax`: it is replaced by a mean over all words, weighted by the softmax of their scores as in BERT (compared in
    section 3.2)."""

    def check_settings(self) -> None:
        """Check groups, augmentation and attention."""
        super().check_settings()
        if not all(0 <= kind < math.inf for kind in self.kinds) or not sum(self.kinds) > 0:
            raise ValueError(f"method.kinds={self.kinds}: frequencies must be finite and at least 0, and one above 0")
        if self.augmentation == "none":
            idle = ["partial", "kinds", "noise", "dropout"]
            refuse_idle(self, idle, "words are not augmented; set method.augmentation pwva", "method.")
        if self.weighting == "softmax" and self.attention == "none":
            raise ValueError("method.weighting='softmax' requires attention; set method.attention to 'training' or 'always'")
        if self.variant != "paper" and (self.noise, self.dropout) != (0.1, 0.1):
            raise ValueError(
                f"method.noise={self.noise}, method.dropout={self.dropout}: only method.variant='paper' uses these; "
                f"{self.variant!r} scales the noise to the word and zeroes runs of components. Leave them at 0.1"
            )

    @property
    def batch_norm(self) -> bool:
        """Return True: projector and predictor contain BatchNorm."""
        return True

    def check(self, recipe: RecipeParts, encoder: Any) -> None:
        """Check the number of texts per sample, and their length."""
        hint = "one column, txt, or two views of it, original and translation"
        check_texts(recipe, "text", (1, 2), f"method.name={self.name!r}", hint)
        stream: Any = recipe.streams["text"]
        words: Any = recipe.encoder
        if stream.max_length > words.max_words:
            raise ValueError(
                f"streams.text.max_length={stream.max_length} is larger than encoder.max_words={words.max_words}, at which "
                "every sentence is truncated; set it to at most that"
            )

    def build(self, encoder: WordEncoder) -> GCLSR:
        """Return GCLSR with `encoder`."""
        return GCLSR(encoder, self)


class Groups(nn.Module):
    """SimSiam's projector and predictor for views of `size` dimensions, and a loss on cosines of groups of dimensions."""

    def __init__(self, size: int, config: GroupsConfig, norm_at_end: bool = True) -> None:
        super().__init__()
        self.config = config
        w, h = config.width, config.bottleneck
        last = _layer(w, w)[:-1] if norm_at_end else (nn.Linear(w, w),)
        self.projector = nn.Sequential(*_layer(size, w), *_layer(w, w), *last)
        self.predictor = nn.Sequential(*_layer(w, h), nn.Linear(h, w))

    def projections(self, views: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
        """Return projections z and predictions p, (B, 2, width) each, of one or two views (B, d).

        Each view is projected separately, so that BatchNorm has separate statistics, as in SimSiam.
        """
        found = []
        for y in views:
            z = self.projector(y)
            found.append((z, self.predictor(z)))
        z, p = (torch.stack(part, 1) for part in zip(*found, strict=True))
        return z.expand(-1, 2, -1), p.expand(-1, 2, -1)

    def compare(self, views: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
        """Return the symmetric loss of one or two views (B, d), a scalar, and their projections (B, 2, width)."""
        z, p = self.projections(views)
        target = z.detach() if self.config.stop_gradient else z
        return losses.grouped_cosine(p, target.flip(1), self.config.group_size), z  # D(p1, z2) and D(p2, z1)


class GCLSR(Method):
    """GCLSR on the stream ``text``: ``input_ids``, ``attention_mask`` (B, V, L); V is 1, or 2 for EDA and translations."""

    sentence_encoder: WordEncoder

    def __init__(self, encoder: WordEncoder, config: GCLSRConfig) -> None:
        super().__init__()
        self.sentence_encoder, self.config = encoder, config
        self.attention = config.attention or ("always" if config.variant == "paper" else "training")
        encoder.attention, encoder.softmax = self.attention == "always", config.weighting == "softmax"
        # [errata 5.3]
        self.groups = Groups(encoder.hidden_size, config, norm_at_end=config.variant != "paper")

    def encode(self, stream: str, batch: Batch) -> dict[str, Tensor]:
        """Return embeddings (B, d) of the ``first`` and the ``second`` view, or of the first only if both are identical."""
        ids, mask = batch["input_ids"], batch["attention_mask"]
        if self.config.augmentation != "none":
            ids, mask = ids.expand(-1, 2, -1), mask.expand(-1, 2, -1)
        names = ("first", "second")[: ids.shape[1]]
        return {name: self._view(ids[:, view], mask[:, view]) for view, name in enumerate(names)}

    def _view(self, ids: Tensor, mask: Tensor) -> Tensor:
        words = self.sentence_encoder.look_up(ids)
        if self.config.augmentation == "pwva":
            if words.device.type == "cpu":
                there = mask.bool()
                words[there] = self._augmented(words[there])
            else:  # including padding, which is ignored later; its exclusion would synchronise with the GPU
                words = self._augmented(words.flatten(0, 1)).view_as(words)
        return self.sentence_encoder.embed(words, mask, attention=self.attention != "none")

    def _augmented(self, words: Tensor) -> Tensor:
        generator = torch.Generator(words.device).manual_seed(int(torch.randint(2**62, ())))
        config = self.config
        return pwva(
            words,
            generator,
            kinds=config.kinds,
            partial=config.partial,
            form=config.variant,
            noise=config.noise,
            dropout=config.dropout,
        )

    def losses(self, features: dict[str, dict[str, Tensor]], batches: dict[str, Batch]) -> StepOutput:
        """Return the loss ``text``, with the spread of embeddings and projections as metrics."""
        loss, z = self.groups.compare(features["text"].values())
        seen = {"embedding_spread": features["text"]["first"], "projection_spread": z[:, 0]}
        return StepOutput({"text": loss}, {name: losses.spread(vectors.detach()) for name, vectors in seen.items()})

    def param_groups(self, update: str) -> dict[str, list[nn.Parameter]]:
        """Return the groups ``base`` and ``predictor``."""
        predictor = list(self.groups.predictor.parameters())
        known = {id(p) for p in predictor}
        return {"base": [p for p in self.parameters() if id(p) not in known], "predictor": predictor}


def _layer(d_in: int, d_out: int) -> tuple[nn.Module, ...]:
    """Return Linear, BatchNorm and ReLU; the linear layer has no bias, since BatchNorm would remove it."""
    return nn.Linear(d_in, d_out, bias=False), nn.BatchNorm1d(d_out), nn.ReLU()
