"""NonLing-CSE (Jian et al., NeurIPS 2022): SimCSE, and in every step a contrastive update on images or sounds that have
nothing to do with the sentences, through the same transformer layers. Only the text encoder is kept.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from multicse.data.streams.base import Batch
from multicse.models.patches import AudioPatches, ImagePatches, check_audio_patches, check_image_patches
from multicse.models.pooling import Head
from multicse.models.text_encoder import STACKS, TextEncoder
from multicse.trainers import losses
from multicse.trainers.gather import gather, offset, world_size
from multicse.trainers.method import MethodConfig, RecipeParts, StepOutput, Variant, named_updates
from multicse.trainers.simcse import SimCSE, SimCSEConfig


class NonLingStreamConfig(BaseModel):
    """How one stream of images or sounds is learned from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    loss: Literal["supcon", "simclr"] = "supcon"
    """`supcon` uses the labels (the variant says how), `simclr` does not."""
    temperature: float = Field(0.07, gt=0)
    """What cosines are divided by in the loss; a lower one weighs the nearest negatives more."""
    weight: float = Field(0.05, ge=0)
    """Factor of the loss. Nearly inert when the update has its own AdamW, which is scale-invariant [errata 2.5]."""
    SIZES: ClassVar[dict[str, str]]
    """Settings of the stream that must equal settings of the update."""

    path: str | None = None
    """Folder or hub name of pretrained patch embeddings (a ViT; an AST for sounds); none: fresh weights."""

    def check_stream(self, name: str, recipe: RecipeParts) -> None:
        """Raise ValueError unless the stream gives what the update takes."""
        stream: Any = recipe.streams[name]
        if stream.kind != name:
            raise ValueError(f"streams.{name}.kind={stream.kind!r} where the method takes {name}; use the kind {name!r}")
        for given, taken in self.SIZES.items():
            value, wanted = getattr(stream, given), getattr(self, taken)
            if value != wanted:
                raise ValueError(
                    f"streams.{name}.{given}={value} does not match method.{name}.{taken}={wanted}; give both the same value"
                )
        if getattr(stream, "n_views", 1) > 2:
            raise ValueError(f"streams.{name}.n_views={stream.n_views}: the losses compare two views; use 2 (or 1)")
        if self.loss == "supcon" and stream.label is None:
            raise ValueError(
                f"method.{name}.loss is 'supcon', which needs classes, and streams.{name}.label is none. Name the field of "
                f"the class (cls), or set method.{name}.loss to 'simclr'."
            )


class ImageConfig(NonLingStreamConfig):
    """Images (B, 1 or 2, 3, image_size, image_size)."""

    SIZES: ClassVar[dict[str, str]] = {"size": "image_size"}

    image_size: int = Field(224, gt=0)
    """Pixels of a side of an image; the stream's size is the same."""
    patch_size: int = Field(16, gt=0)
    """Pixels of a side of the patches that an image is cut into; it divides image_size."""

    def patches(self, hidden_size: int, variant: Variant) -> nn.Module:
        return ImagePatches(hidden_size, self.image_size, self.patch_size, self.path)

    def tokens(self, variant: Variant) -> int:
        """Of an image: its patches and [CLS]."""
        return (self.image_size // self.patch_size) ** 2 + 1

    def check(self, hidden_size: int, variant: Variant) -> None:
        check_image_patches(hidden_size, self.image_size, self.patch_size, self.path)


class AudioConfig(NonLingStreamConfig):
    """Spectrograms (B, 1 or 2, frames, bins).

    [errata 2.2] `paper` and `released` have patches of 24, fresh, without positions and statistics (211 tokens); `fixed`
    has SSAST's own: patches of 16, positions, statistics, and pretrained weights where a path is given.
    """

    SIZES: ClassVar[dict[str, str]] = {"frames": "frames", "bins": "bins"}

    weight: float = Field(0.01, ge=0)
    frames: int = Field(1024, gt=0)
    """Frames of 10 ms of a spectrogram; the stream's frames are the same."""
    bins: int = Field(128, gt=0)
    """Mel filters of a spectrogram; the stream's bins are the same."""
    patch_size: int | None = Field(None, gt=0)
    """Frames and bins of a patch. None: 16 in the variant `fixed` (SSAST), else 24."""
    mean: float = -4.2677393
    """Mean of the log-mel values; the default is that of LibriSpeech."""
    std: float = Field(4.5689974, gt=0)
    """Their standard deviation: in the variant `fixed` the input is (x - mean) / (2 std), else x itself."""

    def patches(self, hidden_size: int, variant: Variant) -> nn.Module:
        fixed = variant == "fixed"
        return AudioPatches(
            hidden_size,
            self.frames,
            self.bins,
            self._patch_size(variant),
            positions=fixed,
            statistics=(self.mean, self.std) if fixed else None,
            path=self.path,
        )

    def check(self, hidden_size: int, variant: Variant) -> None:
        if self.path is not None and variant != "fixed":
            raise ValueError(
                f"method.audio.path={self.path!r}: variant={variant!r} has fresh patches [errata 2.2]; leave it out, "
                "or use the variant 'fixed'"
            )
        check_audio_patches(hidden_size, self.frames, self.bins, self._patch_size(variant), self.path)

    def tokens(self, variant: Variant) -> int:
        """Of a spectrogram: its patches and [CLS]."""
        size = self._patch_size(variant)
        return (self.frames // size) * (self.bins // size) + 1

    def _patch_size(self, variant: Variant) -> int:
        return self.patch_size or (16 if variant == "fixed" else 24)


class NonLingSettings(MethodConfig):
    """What VisualCSE, AudioCSE and both together have in common."""

    citations: ClassVar[tuple[str, ...]] = ("jian2022nonlinguistic",)

    text: SimCSEConfig = SimCSEConfig()
    image: ImageConfig | None = None
    audio: AudioConfig | None = None
    summed: bool = False
    """On: one update and one optimizer for the weighted sum of all losses (eq. 1). Off: an update each (Algorithm 1)."""

    @property
    def nonling(self) -> dict[str, ImageConfig | AudioConfig]:
        """The streams beside the text."""
        both = {"image": self.image, "audio": self.audio}
        return {name: stream for name, stream in both.items() if stream is not None}

    def updates(self) -> dict[str, tuple[str, ...]]:
        if self.summed:
            return named_updates((*self.nonling, "text"))
        nonling = [(name,) for name in self.nonling]
        # [errata 2.6] Algorithm 1 begins with the text, the released code with the images.
        return named_updates(("text",), *nonling) if self.variant == "paper" else named_updates(*nonling, ("text",))

    def vectors(self) -> dict[str, tuple[str, ...]]:
        return self.text.vectors()

    def check(self, recipe: RecipeParts, encoder: Any) -> None:
        self.text.check(recipe, encoder, "method.text.supervised")
        for name, config in self.nonling.items():
            config.check_stream(name, recipe)
        if encoder is None:
            return
        if encoder.model_type not in STACKS:
            raise ValueError(
                f"encoder.path: a {encoder.model_type!r} model cannot take image or audio patches; choose a model of type "
                f"{', '.join(STACKS)}"
            )
        for config in self.nonling.values():
            config.check(encoder.hidden_size, self.variant)

    def build(self, encoder: TextEncoder) -> NonLingCSE:
        return NonLingCSE(encoder, self)


class VisualCSEConfig(NonLingSettings):
    """Images alone."""

    name: Literal["visualcse"] = "visualcse"
    """Name of the method; fixed, since the other settings belong to it."""
    image: ImageConfig = ImageConfig()
    audio: None = None
    """VisualCSE takes no sounds."""


class AudioCSEConfig(NonLingSettings):
    """Sounds alone."""

    name: Literal["audiocse"] = "audiocse"
    """Name of the method; fixed, since the other settings belong to it."""
    audio: AudioConfig = AudioConfig()
    image: None = None
    """AudioCSE takes no images."""


class NonLingCSEConfig(NonLingSettings):
    """Images and sounds together."""

    name: Literal["nonling"] = "nonling"
    """Name of the method; fixed, since the other settings belong to it."""
    image: ImageConfig | None = ImageConfig()
    audio: AudioConfig | None = AudioConfig()


class NonLingCSE(SimCSE):
    """Streams ``text`` and ``image`` and/or ``audio``; those two with ``label`` (B,) when their loss is ``supcon``."""

    FIELDS = {"image": "image", "audio": "spectrogram"}

    def __init__(self, encoder: TextEncoder, config: NonLingSettings) -> None:
        super().__init__(encoder, config.text)
        self.config = config
        self.patches = nn.ModuleDict(
            {name: stream.patches(encoder.hidden_size, config.variant) for name, stream in config.nonling.items()}
        )
        self.heads = nn.ModuleDict({name: Head(encoder.hidden_size) for name in config.nonling})  # `image_mlp`

    @property
    def loss_weights(self) -> dict[str, float]:
        return {name: stream.weight for name, stream in self.config.nonling.items()}

    def encode(self, stream: str, batch: Batch) -> dict[str, Tensor]:
        if stream == "text":
            return super().encode(stream, batch)
        views = batch[self.FIELDS[stream]]
        views = views.expand(-1, 2, *views.shape[2:]) if views.shape[1] == 1 else views  # they differ by dropout only
        tokens = self.sentence_encoder.outputs(patches=self.patches[stream](views.flatten(0, 1))).tokens
        cls = tokens[:, 0]
        if self.text.supervised:  # CLS -> mlp, shared with the text -> image_mlp
            cls = self.sentence_encoder.project(cls)
        return {"views": self.heads[stream](cls).unflatten(0, views.shape[:2])}

    def losses(self, features: dict[str, dict[str, Tensor]], batches: dict[str, Batch]) -> StepOutput:
        # In the order of the update, which is the same on every worker: the losses gather.
        out: dict[str, Tensor] = {}
        for name, feature in features.items():
            if name == "text":
                out |= super().losses(features, batches).losses
            else:
                out[name] = self._nonling_loss(name, feature["views"], batches[name])
        if self.config.variant == "paper":  # eq. 2 to 7 are sums over the batch, of all workers together
            out = {name: loss * world_size() * len(features[name]["views"]) for name, loss in out.items()}
        return StepOutput(out)

    def _nonling_loss(self, name: str, z: Tensor, batch: Batch) -> Tensor:
        config, z_all, first = self.config.nonling[name], gather(z), offset(len(z))
        if config.loss == "simclr":
            return losses.info_nce(z[:, 0], z_all[:, 1], config.temperature, first)  # eq. 5, 7
        labels = gather(batch["label"])
        if self.config.variant == "fixed":
            return losses.supcon(z, z_all, labels, config.temperature, first)
        formula = losses.supcon_eq4 if self.config.variant == "paper" else losses.supcon_released  # [errata 2.3]
        return formula(z[:, 0], z_all[:, 1], labels, config.temperature, first)
