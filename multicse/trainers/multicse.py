"""MultiCSE: the published methods combined, each with a weight.

The parts are contrastive text training (SimCSE), unpaired images and audio (NonLing-CSE), guidance by a frozen copy
(SG-BERT), synonyms and antonyms (MoCoUTRL), groups of dimensions (GCLSR), and cycles between modalities (CyCLIP).
"""

from __future__ import annotations

from itertools import combinations
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from multicse.data.settings import refuse_idle
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
from multicse.trainers.simcse import SimCSEConfig, judged_by


class MultiCSEConfig(NonLingSettings):
    """Settings and weights of the parts. A part with weight 0 is not computed.

    Synonyms and antonyms come from a text stream of kind `triplet`, with `text.supervised`.
    """

    citations: ClassVar[tuple[str, ...]] = tuple(
        key
        for method in (SimCSEConfig, NonLingSettings, SGBERTConfig, MoCoUTRLConfig, GCLSRConfig, CLIPConfig)
        for key in method.citations
    )

    TAKEN: ClassVar[tuple[str, ...]] = (*NonLingSettings.TAKEN, "cyclic", "guidance", "regularisation", "grouped")

    name: Literal["multicse"] = "multicse"
    variant: Literal["fixed"] = "fixed"
    image: ImageConfig | None = None
    audio: AudioConfig | None = None
    summed: bool = True
    """If True, one optimizer step on the weighted sum of all parts. If False, one per stream."""
    schedule: Schedule = "constant"
    """Schedule of the weights of images, audio and cycles: constant, or linear or cosine decay to 0."""
    antonyms: bool = True
    """Use antonym sentences as hard negatives of all sentences. If False, only synonym sentences are used, as positives."""
    shrinkage: float | None = Field(None, ge=0, le=1)
    """Whiten text views with the mean and covariance of the batch before the contrastive loss; this share (0 to 1) of the
    covariance is replaced by a multiple of the identity. With 1 the views are only centred. If None, no whitening."""
    guidance: float = Field(0.0, ge=0)
    """Weight of self-guidance. Its L_reg has this weight times its own."""
    guide: SGBERTConfig = SGBERTConfig(head_width=768, temperature=0.05)
    """Settings of self-guidance."""
    grouped: float = Field(0.0, ge=0)
    """Weight of the cosine loss on groups of dimensions."""
    groups: GroupsConfig = GroupsConfig(width=512, bottleneck=128)
    """Settings of the projector, the predictor and the groups."""
    cyclic: float = Field(0.0, ge=0)
    """Weight of cyclic consistency: two views of a sentence should be equally similar to two views of another item."""

    @property
    def batch_norm(self) -> bool:
        """Return True if the grouped loss, whose projector contains BatchNorm, is used."""
        return self.grouped > 0

    def check_settings(self) -> None:
        """Check that the parts can be combined."""
        super().check_settings()
        self.guide.check_settings()
        self.groups.check_settings()
        if self.guide.positive != "teacher":
            raise ValueError(
                f"method.guide.positive={self.guide.positive!r} requires a second text, which MultiCSE uses for the "
                "contrastive loss; set method.guide.positive 'teacher'"
            )
        if not self.guidance:
            refuse_idle(self, ["guide"], "self-guidance has weight 0; set method.guidance", "method.")
        if not self.grouped:
            refuse_idle(self, ["groups"], "the grouped loss has weight 0; set method.grouped", "method.")
        if not self.nonling:
            refuse_idle(self, ["schedule"], "there is only text; set method.image, audio or modalities", "method.")
        alone = {"guidance": self.guidance, "cyclic": self.cyclic, "schedule": self.schedule != "constant"}
        for name in (name for name, given in alone.items() if given and not self.summed):
            raise ValueError(
                f"method.{name}={getattr(self, name)!r} weights losses of one optimizer step against each other; set "
                f"method.summed True, or omit method.{name}"
            )
        if self.cyclic and not self.nonling:
            raise ValueError(
                f"method.cyclic={self.cyclic}: a cycle requires two modalities; set method.image, audio or modalities, or "
                "method.cyclic 0"
            )

    def check(self, recipe: RecipeParts, encoder: Any) -> None:
        """Check the streams, the encoder, and the number of layers for self-guidance."""
        super().check(recipe, encoder)
        triplets = recipe.streams["text"].is_a("triplet")
        if not triplets:
            refuse_idle(self, ["antonyms"], "the text has none; set streams.text.kind triplet", "method.")
        elif self.text.hard_negative_log_weight:
            why = "antonym sentences are negatives of all sentences, with equal weights"
            refuse_idle(self.text, ["hard_negative_log_weight"], why, "method.text.")
        if encoder is not None and self.guidance:
            self.guide.check_depth(int(encoder.num_hidden_layers))

    def build(self, encoder: TextEncoder) -> MultiCSE:
        """Return MultiCSE with `encoder`."""
        return MultiCSE(encoder, self)


class MultiCSE(NonLingCSE):
    """MultiCSE on the streams of `NonLingCSE`; ``text`` may contain triplets x, x+, x- with ``candidate`` (B,)."""

    config: MultiCSEConfig

    def __init__(self, encoder: TextEncoder, config: MultiCSEConfig) -> None:
        super().__init__(encoder, config)
        self.guide = SelfGuidance(encoder, config.guide) if config.guidance else None
        self.groups = Groups(encoder.hidden_size, config.groups) if config.grouped else None

    @property
    def loss_weights(self) -> dict[str, float]:
        """Return the weights of all parts at the current progress of the run."""
        config, left = self.config, decay(self.config.schedule, self.progress)
        return {
            **{name: left * weight for name, weight in super().loss_weights.items()},
            "cyclic": left * config.cyclic,
            "guidance": config.guidance,
            "regularisation": config.guidance * config.guide.regularisation,
            "grouped": config.grouped,
        }

    def encode(self, stream: str, batch: Batch) -> dict[str, Tensor]:
        """Return ``views`` (B, V, d) for the contrastive loss; of text also ``pooled`` (B, V, d), the sentence embeddings.

        With self-guidance, ``guided`` (B, 1 + K, w) is the embedding of the first view and its positives.
        """
        if stream != "text":
            return super().encode(stream, batch)
        pooled = self.pooled(batch)
        found = {"views": self.projected(pooled), "pooled": pooled, **judged_by(self.judge, batch)}
        if self.guide is not None:
            own = self.guide.views(pooled[:, 0], *(tensor[:, 0] for tensor in batch.texts()))
            found["guided"] = self.guide.head(own)
        return found

    def losses(self, features: dict[str, dict[str, Tensor]], batches: dict[str, Batch]) -> StepOutput:
        """Return the losses of `NonLingCSE`, and ``guidance``, ``grouped`` and ``cyclic``."""
        out = dict(super().losses(features, batches).losses)  # text, image, audio
        text = features.get("text", {})
        if self.guide is not None:
            out["guidance"] = self.guide.loss(text["guided"][:, 0], text["guided"][:, 1:])
        if self.groups is not None and text:
            out["grouped"], _ = self.groups.compare(text["pooled"][:, :2].unbind(1))
        if self.config.cyclic:
            out["cyclic"] = self._cyclic({name: feature["views"][:, :2] for name, feature in features.items()})
        return StepOutput(out)

    def truncated_losses(self, features: dict[str, dict[str, Tensor]], batches: dict[str, Batch]) -> dict[str, Tensor]:
        """Return the losses of `NonLingCSE`: the others do not use the views (B, V, d) that `run.matryoshka` truncates."""
        return super().losses(features, batches).losses

    def penalties(self) -> dict[str, Tensor]:
        """Return L_reg of self-guidance."""
        return {} if self.guide is None else self.guide.distance(self.sentence_encoder.model)

    def text_loss(self, features: dict[str, Tensor], batch: Batch) -> Tensor:
        """Compute SimCSE, or for triplets MoCoUTRL's NT-Xent against all antonym sentences; optionally on whitened views."""
        z = features["views"]
        if self.config.shrinkage is not None:
            z = losses.whitened(z, gather(z), self.config.shrinkage)
        if "candidate" not in batch:
            return super().text_loss({**features, "views": z}, batch)
        z_all, kept = gather(z), gather(batch["candidate"]) & self.config.antonyms
        negatives, first, left_out = self.text.negatives, offset(len(z)), None
        if negatives.margin is not None:
            judged = features.get("judged", z).detach()
            judged_all = gather(judged)
            own = torch.arange(2 * len(z), device=z.device) + 2 * first
            candidates = torch.cat([judged_all[:, :2].flatten(0, 1), judged_all[:, 2]])
            left_out = negatives.false_negatives(judged[:, :2].flatten(0, 1), candidates, own ^ 1)
        return losses.nt_xent_with_negatives(
            z[:, :2], z_all[:, :2], z_all[:, 2], self.text.temperature, first, kept, negatives.hardness, left_out
        )

    def _cyclic(self, views: dict[str, Tensor]) -> Tensor:
        """Return the mean of CyCLIP's two consistencies over all pairs of modalities, for views (B, 2, d).

        Items are not paired, so two views of one item replace an image and its caption.
        """
        units = {name: F.normalize(z.float(), dim=-1) for name, z in views.items()}
        everywhere = {name: gather(z) for name, z in units.items()}
        return torch.stack(
            [
                losses.consistency(*units[one].unbind(1), *everywhere[other].unbind(1)[::order])
                for one, other in combinations(units, 2)
                for order in (1, -1)
            ]
        ).mean()
