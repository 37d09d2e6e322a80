"""UML (Gupta et al., 2025): text and images that are not paired pass through the same transformer layers.

Each modality has its own embedding of inputs, its own decoder and its own objective. Here text is contrasted as in SimCSE;
of an image, the pixels of masked patches are predicted from the other patches. Only the text encoder is exported.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from ray import tune
from torch import Tensor, nn

from multicse.data.streams.base import Batch
from multicse.data.streams.image import ImageStream
from multicse.models.text_encoder import TextEncoder, patch_width
from multicse.pipelines import parts
from multicse.trainers.method import MethodConfig, RecipeParts, StepOutput, named_updates
from multicse.trainers.nonling import ImagePatchesConfig
from multicse.trainers.recipe import OptimConfig, Recipe
from multicse.trainers.simcse import SimCSE, SimCSEConfig
from multicse.trainers.tuning.space import SearchSpace


class UMLImageConfig(ImagePatchesConfig):
    """Settings of the image update."""

    masked: float = Field(0.6, gt=0, lt=1)
    """Share of patches that are masked and predicted."""
    weight: float = Field(1.0, gt=0)
    """Weight of the loss (alpha). If the modalities alternate, it has almost no effect, since AdamW is scale-invariant."""


class UMLConfig(MethodConfig):
    """Settings of UML."""

    citations: ClassVar[tuple[str, ...]] = ("gupta2025better", "gao2021simcse")

    name: Literal["uml"] = "uml"
    variant: Literal["fixed"] = "fixed"
    text: SimCSEConfig = SimCSEConfig()
    """Settings of the text update."""
    image: UMLImageConfig = UMLImageConfig()
    """Settings of the image update."""
    summed: bool = True
    """Sum both losses in one update, as in the authors' code for self-supervised training. If False, the modalities
    alternate, as in the abstract, each with its own optimizer."""

    def updates(self) -> dict[str, tuple[str, ...]]:
        """Return an update of images followed by one of text, or a single one if `summed`."""
        return named_updates(("image", "text")) if self.summed else named_updates(("image",), ("text",))

    def vectors(self) -> dict[str, tuple[str, ...]]:
        """Return the embeddings of the text."""
        return self.text.vectors()

    def check(self, recipe: RecipeParts, encoder: Any) -> None:
        """Check the streams, and that the encoder accepts patches."""
        self.text.check(recipe, encoder, "method.text.supervised")
        self.image.check_all("image", "method.image", recipe, encoder, self.variant)

    def build(self, encoder: TextEncoder) -> UML:
        """Return UML with `encoder`."""
        return UML(encoder, self)


class UML(SimCSE):
    """UML on the streams ``text`` and ``image``, ``image`` (B, V, 3, size, size); labels are not used."""

    def __init__(self, encoder: TextEncoder, config: UMLConfig) -> None:
        super().__init__(encoder, config.text)
        self.config, image = config, config.image
        self.patches = image.patches(patch_width(encoder.config), config.variant)
        self.decoder = nn.Linear(encoder.hidden_size, 3 * image.patch_size**2)

    @property
    def loss_weights(self) -> dict[str, float]:
        """Return the weight of the image loss."""
        return {"image": self.config.image.weight}

    def encode(self, stream: str, batch: Batch) -> dict[str, Tensor]:
        """Return ``views`` (B, V, d) of text, and of images ``error`` (B,), the mean squared error of masked pixels.

        A masked patch has the mean colour, 0, so its embedding is a learned vector (the bias of the projection) plus its
        position. The authors' code (`UML.forward`) has a squared error of the next element of a sequence.
        """
        if stream == "text":
            return super().encode(stream, batch)
        images = batch["image"]
        pixels = images.flatten(0, 1)
        patches = self.config.image.tokens(self.config.variant) - 1
        chosen = max(1, round(self.config.image.masked * patches))
        draws = torch.rand(len(pixels), patches, device=pixels.device)
        masked = draws.argsort(1).argsort(1) < chosen
        error = (self.decoder(self._states(pixels, masked)) - self._tiles(pixels)).square().mean(-1)
        return {"error": ((error * masked).sum(1) / chosen).unflatten(0, images.shape[:2]).mean(1)}

    def losses(self, features: dict[str, dict[str, Tensor]], batches: dict[str, Batch]) -> StepOutput:
        """Return the losses ``text`` and ``image`` of the streams of the update."""
        found = super().losses(features, batches).losses if "text" in features else {}
        if "image" in features:
            found["image"] = features["image"]["error"].mean()
        return StepOutput(found)

    def _tiles(self, pixels: Tensor) -> Tensor:
        """Cut images (N, 3, size, size) into patches (N, P, 3 * patch_size^2), in the order of their embeddings."""
        size = self.config.image.patch_size
        return F.unfold(pixels, size, stride=size).mT

    def _states(self, pixels: Tensor, masked: Tensor) -> Tensor:
        """Return the states (N, P, d) of the patches of images (N, 3, size, size), some of them masked (N, P)."""
        size = self.config.image.patch_size
        kept = (self._tiles(pixels) * ~masked[..., None]).mT
        visible = F.fold(kept, pixels.shape[-2:], size, stride=size)
        return self.sentence_encoder.outputs(patches=self.patches(visible)).tokens[:, 1:]


ALTERNATING = {
    "method.summed": False,
    "optim": {"text": OptimConfig(lr=3e-5), "image": OptimConfig(lr=1e-6, schedule="cosine")},
}


def bert_base() -> Recipe:
    """Train BERT-base on one million sentences, batch 64, and images of 60 classes, batch 48; one optimizer, lr 3e-5."""
    return Recipe(
        name="uml/bert-base",
        method=UMLConfig(image=UMLImageConfig(path="auto")),
        encoder=parts.BERT_BASE,
        streams={
            "text": parts.wiki(64),
            "image": ImageStream(shards="shards/imagenet60", batch_size=48, n_views=1, label=None),
        },
        optim={"image+text": OptimConfig(lr=3e-5)},
        evaluation=parts.STS,
        run=parts.paper_run("uml/bert-base"),
    )


def demo() -> Recipe:
    """Train in minutes on a laptop, offline: Wikipedia sentences and scanned digits."""
    return parts.demo(
        "uml",
        UMLConfig(text=parts.SMALL_TEXT, image=UMLImageConfig(image_size=32, patch_size=8)),
        {"text": parts.offline_text(64), "image": parts.offline_digits(n_views=1, label=None)},
        {"image+text": parts.SMALL_OPTIM},
        steps=200,
        every=50,
    )


smoke = parts.smoke_of(demo)
DEMO_ALTERNATING = {
    "method.summed": False,
    "optim": {"text": parts.SMALL_OPTIM, "image": OptimConfig(lr=1.5e-5, schedule="cosine")},
}

RECIPES = {
    "demo": demo,
    "smoke": smoke,
    "bert-base": bert_base,
    **parts.rows(demo, {"demo-alternating": ("As demo; images alternate with text.", DEMO_ALTERNATING)}),
    **parts.rows(bert_base, {"bert-base-alternating": ("BERT-base; images alternate with text, lr 1e-6.", ALTERNATING)}),
}

wide: SearchSpace = {
    "optim.image+text.lr": tune.loguniform(1e-6, 1e-3),
    "method.image.weight": tune.loguniform(0.01, 10.0),
    "method.text.temperature": tune.loguniform(0.02, 0.5),
    "method.image.masked": tune.uniform(0.3, 0.9),
}
text: SearchSpace = {
    "streams.text.batch_size": tune.grid_search([64, 128, 256]),
    "optim.image+text.lr": tune.grid_search([1e-5, 2e-5, 3e-5]),
}
SPACES = {"text": text, "wide": wide}
