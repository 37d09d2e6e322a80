"""GCLSR (Applied Sciences 2023): word vectors, augmented word by word, a TextCNN, and SimSiam on groups of dimensions."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from multicse.data.streams.base import Batch
from multicse.models.pwva import pwva
from multicse.trainers import losses
from multicse.trainers.method import Method, MethodConfig, RecipeParts, StepOutput, check_texts

if TYPE_CHECKING:
    from multicse.models.word_encoder import WordEncoder


class GroupsConfig(BaseModel):
    """Settings of what the two views of a sentence go through to be compared, group by group."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    place: ClassVar[str] = "method.groups"

    width: int = Field(4096, gt=0)
    """Width of the projector's three layers, which serve training only."""
    bottleneck: int = Field(1024, gt=0)
    """Width of the predictor's hidden layer."""
    group_size: int | None = Field(16, gt=0)
    """Dimensions of a group, whose cosine is one term of the loss; none: one cosine over all."""
    stop_gradient: bool = True
    """Whether targets are constants. Without, the vectors collapse [errata 5.4]."""

    def check_settings(self) -> None:
        """Raise ValueError, which names the setting, for settings that contradict each other."""
        if self.group_size is not None and self.width % self.group_size:
            raise ValueError(
                f"{self.place}.group_size={self.group_size} does not divide {self.place}.width={self.width}; "
                "all groups have one size"
            )


class GCLSRConfig(GroupsConfig, MethodConfig):
    """Settings of GCLSR. The filters are the encoder's (`encoder.regions`, `encoder.filters`)."""

    citations: ClassVar[tuple[str, ...]] = ("wang2023grouped",)
    encoder_kind: ClassVar[str] = "word vectors"
    place: ClassVar[str] = "method"

    name: Literal["gclsr"] = "gclsr"
    """Name of the method; fixed, since the other settings belong to it."""
    augmentation: Literal["pwva", "none"] = "pwva"
    """`pwva`: partial word vector augmentation makes the views. `none`: they are the texts themselves."""
    partial: float = Field(0.5, ge=0, le=1)
    """Share of words whose vector is augmented; 1: full augmentation. The paper does not say it."""
    kinds: tuple[float, float, float, float] = (0.5, 0.2, 0.2, 0.1)
    """How often Gaussian noise, zeros, background noise and the Fourier transform are drawn (released code)."""
    noise: float = Field(0.1, ge=0)
    """Lambda, the strength of the Gaussian noise in `paper`, which does not say it."""
    dropout: float = Field(0.1, ge=0, lt=1)
    """Share of components that `paper` sets to zero, which does not say it either."""
    attention: Literal["none", "training", "always"] | None = None
    """Parameter-free attention before the filters. None: in training only, in `paper` always [errata 5.1]."""
    weighting: Literal["importance", "softmax"] = "importance"
    """What attention makes of a word: its vector times its importance (Algorithm 1); or, as BERT, the mean of all words by
    the softmax of their scores, with which section 3.2 compares it."""

    def check_settings(self) -> None:
        super().check_settings()
        if not all(0 <= kind < math.inf for kind in self.kinds) or not sum(self.kinds) > 0:
            raise ValueError(f"method.kinds={self.kinds}: frequencies are at least 0, and one of them is more")
        if self.weighting == "softmax" and self.attention == "none":
            raise ValueError("method.weighting='softmax' is a form of attention; method.attention='none' leaves it out")
        if self.variant != "paper" and (self.noise, self.dropout) != (0.1, 0.1):
            raise ValueError(
                f"method.noise={self.noise}, method.dropout={self.dropout}: only method.variant='paper' has these; "
                f"{self.variant!r} scales its noise to the word and zeroes runs of components"
            )

    @property
    def batch_norm(self) -> bool:
        return True

    def check(self, recipe: RecipeParts, encoder: Any) -> None:
        hint = "one column, txt, or two views of it, original and translation"
        check_texts(recipe, "text", (1, 2), f"method.name={self.name!r}", hint)
        stream: Any = recipe.streams["text"]
        words: Any = recipe.encoder
        if stream.max_length > words.max_words:  # a longer sentence would be cut twice, the first time by the stream
            raise ValueError(
                f"streams.text.max_length={stream.max_length} is more than encoder.max_words={words.max_words}, which every "
                "sentence is cut at; give at most that"
            )

    def build(self, encoder: WordEncoder) -> GCLSR:
        return GCLSR(encoder, self)


class Groups(nn.Module):
    """SimSiam's projector and predictor, and the loss of two views behind them: cosines of groups of dimensions."""

    def __init__(self, size: int, config: GroupsConfig, norm_at_end: bool = True) -> None:
        super().__init__()
        self.config = config
        w, h = config.width, config.bottleneck
        last = _layer(w, w)[:-1] if norm_at_end else (nn.Linear(w, w),)
        self.projector = nn.Sequential(*_layer(size, w), *_layer(w, w), *last)
        self.predictor = nn.Sequential(*_layer(w, h), nn.Linear(h, w))

    def projections(self, views: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
        """Projections z and predictions p (B, 2, width) of one or two views (B, d), each alone, so that BatchNorm sees them
        apart, as SimSiam does."""
        found = []
        for y in views:
            z = self.projector(y)
            found.append((z, self.predictor(z)))
        z, p = (torch.stack(part, 1) for part in zip(*found, strict=True))
        return z.expand(-1, 2, -1), p.expand(-1, 2, -1)

    def compare(self, views: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
        """The loss of one or two views (B, d), and their projections (B, 2, width)."""
        z, p = self.projections(views)
        target = z.detach() if self.config.stop_gradient else z
        return losses.grouped_cosine(p, target.flip(1), self.config.group_size), z  # D(p1, z2) and D(p2, z1)


class GCLSR(Method):
    """One stream ``text``: ``input_ids``, ``attention_mask`` (B, V, L), V = 1, or 2 views made before (EDA, translation)."""

    sentence_encoder: WordEncoder

    def __init__(self, encoder: WordEncoder, config: GCLSRConfig) -> None:
        super().__init__()
        self.sentence_encoder, self.config = encoder, config
        self.attention = config.attention or ("always" if config.variant == "paper" else "training")
        encoder.attention, encoder.softmax = self.attention == "always", config.weighting == "softmax"
        # [errata 5.3] Whether there is a BatchNorm behind the last layer.
        self.groups = Groups(encoder.hidden_size, config, norm_at_end=config.variant != "paper")

    def encode(self, stream: str, batch: Batch) -> dict[str, Tensor]:
        """Embeddings (B, d) of the ``first`` and the ``second`` view; of the first alone where they are the same."""
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
            else:  # padding as well, which is not looked at: a GPU would be waited for to leave it out
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
        loss, z = self.groups.compare(features["text"].values())
        seen = {"embedding_spread": features["text"]["first"], "projection_spread": z[:, 0]}
        return StepOutput({"text": loss}, {name: losses.spread(vectors.detach()) for name, vectors in seen.items()})

    def param_groups(self, update: str) -> dict[str, list[nn.Parameter]]:
        predictor = list(self.groups.predictor.parameters())
        known = {id(p) for p in predictor}
        return {"base": [p for p in self.parameters() if id(p) not in known], "predictor": predictor}


def _layer(d_in: int, d_out: int) -> tuple[nn.Module, ...]:
    """Linear, BatchNorm, which makes a bias pointless, ReLU."""
    return nn.Linear(d_in, d_out, bias=False), nn.BatchNorm1d(d_out), nn.ReLU()
