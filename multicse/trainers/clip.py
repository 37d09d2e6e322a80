"""CLIP, CyCLIP and CLAP with sentence losses (Zhao et al. 2023, On the language encoder of contrastive cross-modal models).

Training uses pairs of an image or audio clip and a caption, cyclic consistency, and SimCSE on captions or on NLI.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from multicse.data.settings import refuse_idle
from multicse.data.streams.base import Batch
from multicse.models.text_folders import has_dropout
from multicse.models.tower import AnyTower, Projection
from multicse.models.towers import ViTTower
from multicse.trainers import losses
from multicse.trainers.gather import gather, offset, world_size
from multicse.trainers.method import Method, MethodConfig, RecipeParts, StepOutput, check_texts, named_updates
from multicse.trainers.simcse import NegativesConfig, judged_by

if TYPE_CHECKING:
    from multicse.models.dual_encoder import DualEncoder
    from multicse.models.text_encoder import TextEncoder


class CLIPConfig(MethodConfig):
    """Settings of the whole family. A model of the paper is a set of loss weights; a loss with weight 0 is not computed.

    CLIP and CLAP use `contrastive` only; Cy... adds `i_cyclic` and `c_cyclic`, ...s adds `captions`, ...n `nli`, and ...e
    `nli_sentences`.
    """

    citations: ClassVar[tuple[str, ...]] = ("zhao2024language",)

    name: Literal["clip"] = "clip"
    tower: AnyTower = ViTTower()
    """Encoder of images (`vit`, `resnet`) or audio (`htsat`, `ast`)."""
    embed_dim: int = Field(512, gt=0)
    """Dimensions of the joint embedding space."""
    projection: Projection = "linear"
    """Projection into the joint space: `linear` (CLIP) or `mlp` (CLAP)."""
    contrastive: float = Field(1.0, ge=0)
    """Weight of the symmetric contrastive loss between items and captions."""
    i_cyclic: float = Field(0.0, ge=0)
    """Weight of CyCLIP's in-modal consistency (lambda_I)."""
    c_cyclic: float = Field(0.0, ge=0)
    """Weight of CyCLIP's cross-modal consistency (lambda_C)."""
    captions: float = Field(0.0, ge=0)
    """Weight of SimCSE on the captions (L_s). The first encoding of a caption is also used for the contrastive loss."""
    nli: float = Field(0.0, ge=0)
    """Weight of supervised SimCSE on NLI (L_n), from a stream `nli` of pairs or triples."""
    nli_sentences: float = Field(0.0, ge=0)
    """Weight of SimCSE on single NLI sentences (the `e` models), from a stream `nli_sentences`."""
    temperature: float = Field(0.05, gt=0)
    """Softmax temperature of the sentence losses. The temperature of the contrastive loss is learned."""
    negatives: NegativesConfig = NegativesConfig()
    """Masking of false negatives and weights of hard negatives, in the sentence losses."""

    @property
    def weights(self) -> dict[str, float]:
        """Weights of the losses that are computed."""
        names = ("contrastive", "i_cyclic", "c_cyclic", "captions", "nli", "nli_sentences")
        return {name: weight for name in names if (weight := float(getattr(self, name)))}

    @property
    def batch_norm(self) -> bool:
        """Return True if the tower contains BatchNorm."""
        return self.tower.batch_norm

    def updates(self) -> dict[str, tuple[str, ...]]:
        """Return one update with the pairs and the NLI streams that are used."""
        return named_updates(("pairs", *(name for name in ("nli", "nli_sentences") if name in self.weights)))

    def vectors(self) -> dict[str, tuple[str, ...]]:
        """Return the embeddings of texts and items."""
        return {"pairs": ("texts", "items"), "nli": ("texts",), "nli_sentences": ("texts",)}

    def vector_size(self, encoder: Any) -> int:
        """Return the dimension of the joint space."""
        return self.embed_dim

    def check_settings(self) -> None:
        """Raise ValueError if no loss connects items with captions, or settings of sentence losses have no effect."""
        if not {"captions", "nli", "nli_sentences"} & set(self.weights):
            why = "no sentence loss has a weight; set method.captions, method.nli or method.nli_sentences"
            refuse_idle(self, ["negatives", "temperature"], why, "method.")
        if not {"contrastive", "i_cyclic", "c_cyclic"} & set(self.weights):
            raise ValueError(
                "method.contrastive=0: no loss connects items with captions; set a weight above 0, or use SimCSE"
            )

    def check(self, recipe: RecipeParts, encoder: Any) -> None:
        """Check the streams, the tower, the encoder's dropout and the projections."""
        self._check_streams(recipe)
        if recipe.run.mini_batch_size is not None and self.batch_norm:
            raise ValueError(
                f"run.mini_batch_size={recipe.run.mini_batch_size}: method.tower.kind={self.tower.kind!r} contains "
                "BatchNorm, which would use the statistics of the mini-batch; set run.mini_batch_size None, or choose the "
                "tower 'vit' or 'ast'"
            )
        if encoder is None:
            return
        self.tower.check()
        if self.variant == "released" and encoder.model_type != "clip_text_model":
            raise ValueError(
                f"encoder.path is a {encoder.model_type!r} model, but method.variant='released' (CyCLIP's code) requires "
                "CLIP's text transformer; choose a CLIP model, or set method.variant to 'fixed'"
            )
        sentences = next((name for name in ("captions", "nli_sentences") if name in self.weights), None)
        start: Any = recipe.encoder
        rates = (start.hidden_dropout, start.attention_dropout)
        if sentences is not None and not (start.lora.dropout or has_dropout(encoder, *rates)):
            raise ValueError(
                f"method.{sentences} compares two encodings of a text, which are identical without dropout; set "
                "encoder.hidden_dropout to 0.1, or encoder.lora.dropout with encoder.lora.rank, or "
                f"method.{sentences} to 0"
            )
        self.negatives.check(recipe, "method.negatives")
        from multicse.models.dual_encoder import check_projection  # sentence-transformers would delay --help by seconds

        own = None if start.scratch else start.path
        check_projection("encoder.path", own, "text", self.projection, self.embed_dim)
        path = getattr(self.tower, "path", None)
        check_projection("method.tower.path", path, self.tower.modality, self.projection, self.embed_dim)

    def _check_streams(self, recipe: RecipeParts) -> None:
        """Check that pairs have the tower's modality and preprocessing, and sentences the right number of columns."""
        stream: Any = recipe.streams["pairs"]
        kind = {"image": "image_text", "audio": "audio_text"}[self.tower.modality]
        if not stream.is_a(kind):
            raise ValueError(
                f"streams.pairs.kind={stream.kind!r}: method.tower.kind={self.tower.kind!r} needs {self.tower.modality} "
                f"with captions; use the kind {kind!r}, or another tower"
            )
        given, wanted = stream.input.model_dump(), self.tower.input.model_dump()
        for name in given:
            if given[name] != wanted[name]:
                raise ValueError(
                    f"streams.pairs.input.{name}={given[name]!r} does not match method.tower.input.{name}={wanted[name]!r}: "
                    "training and evaluation would use different inputs; make both equal"
                )
        if "nli" in self.weights:
            check_texts(recipe, "nli", (2, 3), f"method.nli={self.nli}", "a pair or a triple: sent0 sent1 hard_neg")
        if "nli_sentences" in self.weights:
            check_texts(recipe, "nli_sentences", (1,), f"method.nli_sentences={self.nli_sentences}", "one column")

    def build(self, encoder: TextEncoder) -> CLIP:
        """Return the dual encoder of `encoder` and the tower, with its losses."""
        return CLIP(encoder, self)


class CLIP(Method):
    """CLIP on the streams ``pairs``, ``nli`` and ``nli_sentences``.

    ``pairs`` contains ``image`` (B, 1, 3, S, S) or ``spectrogram`` (B, 1, frames, bins), and the tokens (B, 1, L) of one
    caption; ``nli`` contains tokens (B, 2 or 3, L), and ``nli_sentences`` tokens (B, 1, L).
    """

    FIELDS = {"image": "image", "audio": "spectrogram"}
    sentence_encoder: DualEncoder

    def __init__(self, encoder: TextEncoder, config: CLIPConfig) -> None:
        from multicse.models.dual_encoder import DualEncoder

        super().__init__()
        self.config = config
        self.judge = config.negatives.load_guide(encoder)
        keeps_end = config.variant != "released" or encoder.pooling != "lasttoken"
        self.sentence_encoder = DualEncoder(encoder, config.tower, config.embed_dim, config.projection, keeps_end=keeps_end)
        # The other losses do not use the scale, and DDP waits for the gradient of every trained parameter.
        self.sentence_encoder.logit_scale.requires_grad_("contrastive" in config.weights)

    @property
    def loss_weights(self) -> dict[str, float]:
        """Return the weights of the settings."""
        return self.config.weights

    def encode(self, stream: str, batch: Batch) -> dict[str, Tensor]:
        """Return unit vectors: ``texts`` (B, V, d), all views in one forward pass, and for pairs ``items`` (B, d).

        Texts of a sentence loss also have ``judged`` (B, V, d'), the guide's embeddings, if there is one.
        """
        tokens, found = list(batch.texts()), {}
        if stream != "pairs" or "captions" in self.config.weights:
            found = judged_by(self.judge, batch)
            if tokens[0].shape[1] == 1:
                tokens = [tensor.expand(-1, 2, -1) for tensor in tokens]  # two dropout masks
        texts = self.sentence_encoder.texts(*(t.flatten(0, 1) for t in tokens)).unflatten(0, tokens[0].shape[:2])
        if stream != "pairs":
            return {"texts": texts, **found}
        inputs = batch[self.FIELDS[self.config.tower.modality]][:, 0]
        return {"texts": texts, "items": self.sentence_encoder.items(inputs), **found}

    def losses(self, features: dict[str, dict[str, Tensor]], batches: dict[str, Batch]) -> StepOutput:
        """Return the losses whose weight is above 0, with the logit scale as metric."""
        out: dict[str, Tensor] = {}
        weights = self.config.weights
        texts, items = features["pairs"]["texts"], features["pairs"]["items"]
        first, n = texts[:, 0], len(items)
        texts_all, items_all = gather(texts), gather(items)
        first_all = texts_all[:, 0]
        if "contrastive" in weights:
            scale = self.sentence_encoder.scale
            out["contrastive"] = losses.contrastive(items, first, items_all, first_all, scale, offset(n))
        if "i_cyclic" in weights:
            out["i_cyclic"] = losses.consistency(items, first, items_all, first_all)
        if "c_cyclic" in weights:
            out["c_cyclic"] = losses.consistency(items, first, first_all, items_all)
        if "captions" in weights:
            out["captions"] = self._sentences(features["pairs"], first, texts_all)
        for name in ("nli", "nli_sentences"):
            if name in weights:
                z = features[name]["texts"]
                out[name] = self._sentences(features[name], z[:, 0], gather(z))
        if self.config.variant == "paper":  # [errata 4.1, 4.2] sums over the batch and over the two directions
            out = {name: loss * world_size() * len(features[_stream(name)]["texts"]) for name, loss in out.items()}
            out |= {"contrastive": 2 * out["contrastive"]} if "contrastive" in out else {}
        return StepOutput(out, {"logit_scale": self.sentence_encoder.scale.detach()})

    def after_step(self, step: int) -> None:
        """Clamp the logit scale."""
        self.sentence_encoder.clamp_scale()

    def _sentences(self, features: dict[str, Tensor], anchors: Tensor, z_all: Tensor) -> Tensor:
        """Compute SimCSE of ``texts``, whose first views are the anchors, and z_all (M, V, d): V = 3 has contradictions."""
        config, hard = self.config, z_all[:, 2] if z_all.shape[1] == 3 else None
        left_out = config.negatives.left_out(features["texts"], features.get("judged"))
        n = offset(len(anchors))
        return losses.simcse(anchors, z_all[:, 1], hard, config.temperature, 0.0, n, config.negatives.hardness, left_out)


def _stream(loss: str) -> str:
    return loss if loss.startswith("nli") else "pairs"
