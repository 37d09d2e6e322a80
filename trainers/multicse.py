"""MultiCSE: the published methods added up. Contrast of text (SimCSE), unpaired images and sounds (NonLing-CSE), guidance by
a frozen copy (SG-BERT), synonyms and antonyms (MoCoUTRL), groups of dimensions (GCLSR), cycles between modalities (CyCLIP).
"""

from __future__ import annotations

from itertools import combinations
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from multicse.data.streams.base import Batch
from multicse.models.text_encoder import TextEncoder
from multicse.trainers import losses
from multicse.trainers.clip import CLIPConfig
from multicse.trainers.gather import gather, offset
from multicse.trainers.gclsr import GCLSRConfig, Groups, GroupsConfig
from multicse.trainers.method import RecipeParts, Schedule, StepOutput, decay
from multicse.trainers.mocoutrl import MoCoUTRLConfig
from multicse.trainers.nonling import AudioConfig, ImageConfig, NonLingCSE, NonLingSettings
from multicse.trainers.sgbert import SelfGuidance, SGBERTConfig
from multicse.trainers.simcse import SimCSEConfig


class MultiCSEConfig(NonLingSettings):
    """Which parts there are and what they weigh. A part of weight 0 costs nothing.

    Synonyms and antonyms are the text stream's: of kind `triplet`, with `text.supervised`.
    """

    citations: ClassVar[tuple[str, ...]] = tuple(
        key
        for method in (SimCSEConfig, NonLingSettings, SGBERTConfig, MoCoUTRLConfig, GCLSRConfig, CLIPConfig)
        for key in method.citations
    )

    name: Literal["multicse"] = "multicse"
    """Name of the method; fixed, since the other settings belong to it."""
    variant: Literal["fixed"] = "fixed"
    image: ImageConfig | None = None
    audio: AudioConfig | None = None
    summed: bool = True
    """On: one update and one optimizer for the weighted sum of all parts. Off: an update each for text, images and audio."""
    schedule: Schedule = "constant"
    """How the weights of images, sounds and cycles fall over the run: not at all, or to 0."""
    antonyms: bool = True
    """Whether antonym sentences are hard negatives of all; off: synonym sentences are positives, and that is all."""
    shrinkage: float | None = Field(None, ge=0, le=1)
    """Whitening before the cosine of the text's contrast, by the batch's mean and covariance; of the latter this share is
    replaced by a multiple of the identity. 1: the mean is taken off and no more. None: neither."""
    guidance: float = Field(0.0, ge=0)
    """Weight of self-guidance, and of its L_reg beside its own."""
    guide: SGBERTConfig = SGBERTConfig(head_width=768, temperature=0.05)
    """What guides, and how."""
    grouped: float = Field(0.0, ge=0)
    """Weight of the cosine by groups of dimensions."""
    groups: GroupsConfig = GroupsConfig(width=512, bottleneck=128)
    """What two views go through before it."""
    cyclic: float = Field(0.0, ge=0)
    """Weight of cyclic consistency: two views of a sentence are equally near to two views of an image or a sound."""

    @property
    def batch_norm(self) -> bool:
        return self.grouped > 0

    def check_settings(self) -> None:
        self.guide.check_settings()
        self.groups.check_settings()
        if self.guide.positive != "teacher":
            raise ValueError(
                f"method.guide.positive={self.guide.positive!r} takes a second text, which goes through the contrast here; "
                "set method.guide.positive 'teacher'"
            )
        alone = {"guidance": self.guidance, "cyclic": self.cyclic, "schedule": self.schedule != "constant"}
        for name in (name for name, given in alone.items() if given and not self.summed):
            raise ValueError(
                f"method.{name}={getattr(self, name)!r} weights one loss against others of the same update; set "
                f"method.summed True, or leave method.{name} out"
            )
        if self.cyclic and not self.nonling:
            raise ValueError(
                f"method.cyclic={self.cyclic}: a cycle takes two modalities; give method.image or method.audio, or "
                "method.cyclic 0"
            )

    def check(self, recipe: RecipeParts, encoder: Any) -> None:
        super().check(recipe, encoder)
        if encoder is not None and self.guidance:
            self.guide.check_depth(int(encoder.num_hidden_layers))

    def build(self, encoder: TextEncoder) -> MultiCSE:
        return MultiCSE(encoder, self)


class MultiCSE(NonLingCSE):
    """Streams of `NonLingCSE`; ``text`` may be of triplets x, x+, x- with ``candidate`` (B,)."""

    config: MultiCSEConfig

    def __init__(self, encoder: TextEncoder, config: MultiCSEConfig) -> None:
        super().__init__(encoder, config)
        self.guide = SelfGuidance(encoder, config.guide) if config.guidance else None
        self.groups = Groups(encoder.hidden_size, config.groups) if config.grouped else None

    @property
    def loss_weights(self) -> dict[str, float]:
        config, left = self.config, decay(self.config.schedule, self.progress)
        return {
            **{name: left * weight for name, weight in super().loss_weights.items()},
            "cyclic": left * config.cyclic,
            "guidance": config.guidance,
            "regularisation": config.guidance * config.guide.regularisation,
            "grouped": config.grouped,
        }

    def encode(self, stream: str, batch: Batch) -> dict[str, Tensor]:
        """``views`` (B, V, d), which are compared; of the text also ``pooled`` (B, V, d), the sentence vectors, and, where
        something guides, ``guided`` (B, 1 + K, w): the first of them and its positives."""
        if stream != "text":
            return super().encode(stream, batch)
        pooled = self.pooled(batch)
        found = {"views": self.projected(pooled), "pooled": pooled}
        if self.guide is not None:
            own = self.guide.views(pooled[:, 0], *(tensor[:, 0] for tensor in batch.texts()))
            found["guided"] = self.guide.head(own)
        return found

    def losses(self, features: dict[str, dict[str, Tensor]], batches: dict[str, Batch]) -> StepOutput:
        out = dict(super().losses(features, batches).losses)  # text, image, audio
        text = features.get("text", {})
        if self.guide is not None:
            out["guidance"] = self.guide.loss(text["guided"][:, 0], text["guided"][:, 1:])
        if self.groups is not None and text:
            out["grouped"], _ = self.groups.compare(text["pooled"][:, :2].unbind(1))
        if self.config.cyclic:
            out["cyclic"] = self._cyclic({name: feature["views"][:, :2] for name, feature in features.items()})
        return StepOutput(out)

    def penalties(self) -> dict[str, Tensor]:
        return {} if self.guide is None else self.guide.distance(self.sentence_encoder.model)

    def text_loss(self, z: Tensor, batch: Batch) -> Tensor:
        """SimCSE, or with triplets MoCoUTRL's NT-Xent against all antonym sentences; of whitened vectors if asked for."""
        if self.config.shrinkage is not None:
            z = losses.whitened(z, gather(z), self.config.shrinkage)
        if "candidate" not in batch:
            return super().text_loss(z, batch)
        z_all, kept = gather(z), gather(batch["candidate"]) & self.config.antonyms
        t, first = self.text.temperature, offset(len(z))
        return losses.nt_xent_with_negatives(z[:, :2], z_all[:, :2], z_all[:, 2], t, first, kept)

    def _cyclic(self, views: dict[str, Tensor]) -> Tensor:
        """CyCLIP's two consistencies of every two modalities, views (B, 2, d). Nothing is paired but the views of one item:
        they take the place of a picture and its caption."""
        units = {name: F.normalize(z.float(), dim=-1) for name, z in views.items()}
        everywhere = {name: gather(z) for name, z in units.items()}
        return torch.stack(
            [
                consistency(*units[one].unbind(1), *everywhere[other].unbind(1))
                for one, other in combinations(units, 2)
                for consistency in (losses.i_cyclic, losses.c_cyclic)
            ]
        ).mean()
