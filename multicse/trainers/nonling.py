"""NonLing-CSE (Jian et al., NeurIPS 2022): SimCSE, plus a contrastive update on unrelated images or audio in every step.

Images, audio and modalities of a user's own pass through the transformer layers of the text encoder. Only this encoder is
exported.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from operator import not_
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, SerializeAsAny
from torch import Tensor, nn

from multicse.data.settings import Mark, Settings, by_name
from multicse.data.streams.base import Batch
from multicse.models.patches import AudioPatches, ImagePatches, check_audio_patches, check_image_patches
from multicse.models.pooling import Head
from multicse.models.text_encoder import TextEncoder, patch_width
from multicse.trainers import losses
from multicse.trainers.gather import gather, offset, world_size
from multicse.trainers.method import MethodConfig, RecipeParts, StepOutput, Variant, named_updates
from multicse.trainers.simcse import SimCSE, SimCSEConfig


class PatchesConfig(Settings):
    """Settings of the patch embeddings of one stream without text: samples in, tokens for the transformer out."""

    STREAM: ClassVar[str]
    """Kind of the stream."""
    TENSOR: ClassVar[str]
    """Name of the samples in its batches, (B, V, ...): one view, which is encoded with two dropout masks, or two."""
    SIZES: ClassVar[dict[str, str]] = {}
    """Settings of the stream -> settings of the patches that must be equal to them."""

    @abstractmethod
    def patches(self, hidden_size: int, variant: Variant) -> nn.Module:
        """Return the module from samples (N, ...) to embeddings (N, tokens, hidden_size); the first one is [CLS]."""

    @abstractmethod
    def tokens(self, variant: Variant) -> int:
        """Return the number of tokens per sample, with [CLS]."""

    def check(self, hidden_size: int, variant: Variant) -> None:
        """Raise ValueError, which starts with the name of the setting, if the patches cannot be built for this width."""

    def check_stream(self, name: str, place: str, stream: Any) -> None:
        """Raise ValueError if the stream does not match.

        Args:
            name: Name of the stream.
            place: Path of these settings in the recipe.
            stream: Settings of the stream.
        """
        if not stream.is_a(self.STREAM):
            raise ValueError(f"streams.{name}.kind={stream.kind!r}: {place} needs a stream of the kind {self.STREAM!r}")
        for given, taken in self.SIZES.items():
            value, wanted = getattr(stream, given), getattr(self, taken)
            if value != wanted:
                raise ValueError(f"streams.{name}.{given}={value} does not match {place}.{taken}={wanted}; make both equal")

    def check_all(self, name: str, place: str, recipe: RecipeParts, encoder: Any, variant: Variant) -> None:
        """Check the stream and, unless `encoder` is None, the patches. Raises ValueError, which names the setting.

        Args:
            name: Name of the stream.
            place: Path of these settings in the recipe.
            recipe: Recipe with the stream.
            encoder: Configuration of the transformer.
            variant: Variant of the method.
        """
        self.check_stream(name, place, recipe.streams[name])
        if encoder is None:
            return
        width = patch_width(encoder, self.tokens(variant))
        try:
            self.check(width, variant)
        except ValueError as error:
            raise ValueError(f"{place}.{error}") from error


class ImagePatchesConfig(PatchesConfig):
    """Settings of the patch embeddings of images (B, V, 3, image_size, image_size)."""

    STREAM: ClassVar[str] = "image"
    TENSOR: ClassVar[str] = "image"
    SIZES: ClassVar[dict[str, str]] = {"size": "image_size"}

    path: Annotated[str, Mark("place", ("auto",))] | None = None
    """Folder or model ID of a ViT, whose patch embeddings are taken; `auto`: the authors' choice. If None, random
    initialisation."""
    image_size: int = Field(224, gt=0)
    """Side length of an image in pixels, equal to the stream's size."""
    patch_size: int = Field(16, gt=0)
    """Side length of a patch in pixels; it must divide image_size."""

    def patches(self, hidden_size: int, variant: Variant) -> nn.Module:
        """Return the patch embeddings for a transformer of width `hidden_size`."""
        return ImagePatches(hidden_size, self.image_size, self.patch_size, self.path)

    def tokens(self, variant: Variant) -> int:
        """Return the number of tokens per image: one per patch, plus [CLS]."""
        return (self.image_size // self.patch_size) ** 2 + 1

    def check(self, hidden_size: int, variant: Variant) -> None:
        """Raise ValueError if the patch embeddings cannot be built for a transformer of width `hidden_size`."""
        check_image_patches(hidden_size, self.image_size, self.patch_size, self.path)


class ModalityConfig(PatchesConfig):
    """Settings of a modality: its patches, and the contrastive loss on its stream.

    A subclass with a field `kind` is found by this name in `method.modalities` of a saved recipe.
    """

    plugin: ClassVar = ("modality", "kind")

    loss: Literal["supcon", "simclr"] = "supcon"
    """Contrastive loss. `supcon` uses class labels (in the form of the variant), `simclr` does not."""
    temperature: float = Field(0.07, gt=0)
    """Softmax temperature: cosine similarities are divided by it. Lower values put more weight on hard negatives."""
    weight: float = Field(0.05, ge=0)
    """Weight of the loss. It has almost no effect unless `summed` is set, since AdamW is scale-invariant [errata 2.5]."""

    def check_stream(self, name: str, place: str, stream: Any) -> None:
        """Also raise ValueError if its views or labels do not match."""
        super().check_stream(name, place, stream)
        if getattr(stream, "n_views", 1) > 2:
            raise ValueError(f"streams.{name}.n_views={stream.n_views}: the losses compare two views; use 2 (or 1)")
        if self.loss == "supcon" and getattr(stream, "label", None) is None:
            raise ValueError(
                f"{place}.loss='supcon' requires class labels, but streams.{name}.label is None. Set it to the field "
                f"of the class (cls), or set {place}.loss to 'simclr'."
            )


class ImageConfig(ModalityConfig, ImagePatchesConfig):
    """Settings of the images and their loss; a sample has one or two views."""


class AudioConfig(ModalityConfig):
    """Settings of the audio clips and their loss; spectrograms are (B, 1 or 2, frames, bins).

    The variants `paper` and `released` have randomly initialised patches of 24 x 24 without positions and normalisation (211
    tokens). `fixed` has SSAST's: patches of 16 x 16, positions, normalisation, and pretrained weights if a path is given
    [errata 2.2].
    """

    STREAM: ClassVar[str] = "audio"
    TENSOR: ClassVar[str] = "spectrogram"
    SIZES: ClassVar[dict[str, str]] = {"frames": "frames", "bins": "bins"}

    path: Annotated[str, Mark("place")] | None = None
    """Folder or model ID of an AST, whose patch embeddings are taken. If None, random initialisation."""
    weight: float = Field(0.01, ge=0)
    frames: int = Field(1024, gt=0)
    """Frames of 10 ms per spectrogram, equal to the stream's frames."""
    bins: int = Field(128, gt=0)
    """Mel filters per spectrogram, equal to the stream's bins."""
    patch_size: int | None = Field(None, gt=0)
    """Side length of a patch in frames and bins. If None, 16 in the variant `fixed` (SSAST), otherwise 24."""
    mean: float = -4.2677393
    """Mean of the log-mel values, used in the variant `fixed`. Default: mean of LibriSpeech."""
    std: float = Field(4.5689974, gt=0)
    """Standard deviation of the log-mel values. The variant `fixed` normalises the input to (x - mean) / (2 std)."""

    def patches(self, hidden_size: int, variant: Variant) -> nn.Module:
        """Return the patch embeddings of the variant for a transformer of width `hidden_size`."""
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
        """Raise ValueError if the variant has no pretrained patches, or the patch embeddings cannot be built."""
        if self.path is not None and variant != "fixed":
            raise ValueError(
                f"path={self.path!r}: variant={variant!r} has no pretrained patches [errata 2.2]; omit the "
                "path, or use the variant 'fixed'"
            )
        check_audio_patches(hidden_size, self.frames, self.bins, self._patch_size(variant), self.path)

    def tokens(self, variant: Variant) -> int:
        """Return the number of tokens per spectrogram: one per patch, plus [CLS]."""
        size = self._patch_size(variant)
        return (self.frames // size) * (self.bins // size) + 1

    def _patch_size(self, variant: Variant) -> int:
        return self.patch_size or (16 if variant == "fixed" else 24)


AnyModality = Annotated[SerializeAsAny[ModalityConfig], BeforeValidator(partial(by_name, base=ModalityConfig))]


class NonLingSettings(MethodConfig):
    """Settings that VisualCSE, AudioCSE and their combination share."""

    citations: ClassVar[tuple[str, ...]] = ("jian2022nonlinguistic",)
    TAKEN: ClassVar[tuple[str, ...]] = ("text", "image", "audio")
    """Names of streams and losses that a modality cannot have."""

    text: SimCSEConfig = SimCSEConfig()
    image: ImageConfig | None = None
    audio: AudioConfig | None = None
    modalities: dict[str, AnyModality] = Field({}, exclude_if=not_)
    """Further modalities by the names of their streams, each with your own class (docs/how-to/custom-modality.md)."""
    summed: bool = False
    """If True, one optimizer step on the weighted sum of all losses (eq. 1). If False, one per stream (Algorithm 1)."""

    @property
    def nonling(self) -> dict[str, ModalityConfig]:
        """Settings of the streams other than text, by name."""
        every = {"image": self.image, "audio": self.audio, **self.modalities}
        return {name: modality for name, modality in every.items() if modality is not None}

    def updates(self) -> dict[str, tuple[str, ...]]:
        """Return one update per stream, or a single one if `summed`.

        The paper's Algorithm 1 starts with text, the released code with images [errata 2.6].
        """
        if self.summed:
            return named_updates((*self.nonling, "text"))
        nonling = [(name,) for name in self.nonling]
        return named_updates(("text",), *nonling) if self.variant == "paper" else named_updates(*nonling, ("text",))

    def vectors(self) -> dict[str, tuple[str, ...]]:
        """Return the embeddings of the text."""
        return self.text.vectors()

    def check_settings(self) -> None:
        """Check that modalities have names that streams, losses and modules can have."""
        for name in self.modalities:
            if name in self.TAKEN or not name.isidentifier() or hasattr(nn.ModuleDict, name):
                raise ValueError(
                    f"method.modalities.{name}: the name is taken, or is no word of letters, digits and _; choose another"
                )

    def check(self, recipe: RecipeParts, encoder: Any) -> None:
        """Check the streams, and that the encoder accepts patches."""
        self.text.check(recipe, encoder, "method.text.supervised")
        for name, modality in self.nonling.items():
            place = f"method.modalities.{name}" if name in self.modalities else f"method.{name}"
            modality.check_all(name, place, recipe, encoder, self.variant)

    def build(self, encoder: TextEncoder) -> NonLingCSE:
        """Return NonLing-CSE with `encoder`."""
        return NonLingCSE(encoder, self)


class VisualCSEConfig(NonLingSettings):
    """Settings of VisualCSE: text and images."""

    name: Literal["visualcse"] = "visualcse"
    image: ImageConfig = ImageConfig()
    audio: None = None
    """Not available: VisualCSE does not use audio."""


class AudioCSEConfig(NonLingSettings):
    """Settings of AudioCSE: text and audio."""

    name: Literal["audiocse"] = "audiocse"
    audio: AudioConfig = AudioConfig()
    image: None = None
    """Not available: AudioCSE does not use images."""


class NonLingCSEConfig(NonLingSettings):
    """Settings of NonLing-CSE with text, images and audio."""

    name: Literal["nonling"] = "nonling"
    image: ImageConfig | None = ImageConfig()
    audio: AudioConfig | None = AudioConfig()


class NonLingCSE(SimCSE):
    """NonLing-CSE on the stream ``text`` and one stream per modality; the loss `supcon` needs their ``label`` (B,)."""

    def __init__(self, encoder: TextEncoder, config: NonLingSettings) -> None:
        super().__init__(encoder, config.text)
        self.config = config
        self.patches = nn.ModuleDict(
            {name: one.patches(patch_width(encoder.config), config.variant) for name, one in config.nonling.items()}
        )
        self.heads = nn.ModuleDict({name: Head(encoder.hidden_size) for name in config.nonling})  # `image_mlp`

    @property
    def loss_weights(self) -> dict[str, float]:
        """Return the weights of the streams other than text."""
        return {name: modality.weight for name, modality in self.config.nonling.items()}

    def encode(self, stream: str, batch: Batch) -> dict[str, Tensor]:
        """Return ``views`` (B, V, d) after the head of the stream."""
        if stream == "text":
            return super().encode(stream, batch)
        views = batch[self.config.nonling[stream].TENSOR]
        views = views.expand(-1, 2, *views.shape[2:]) if views.shape[1] == 1 else views  # two dropout masks
        tokens = self.sentence_encoder.outputs(patches=self.patches[stream](views.flatten(0, 1))).tokens
        cls = tokens[:, -1 if self.sentence_encoder.causal else 0]  # the token that all patches reach
        if self.text.supervised:  # CLS -> mlp, shared with the text -> image_mlp
            cls = self.sentence_encoder.project(cls)
        return {"views": self.heads[stream](cls).unflatten(0, views.shape[:2])}

    def losses(self, features: dict[str, dict[str, Tensor]], batches: dict[str, Batch]) -> StepOutput:
        """Return one loss per stream, named after it, in the order of the update, since workers communicate in it."""
        out: dict[str, Tensor] = {}
        for name, feature in features.items():
            if name == "text":
                out |= super().losses(features, batches).losses
            else:
                out[name] = self._nonling_loss(name, feature["views"], batches[name])
        if self.config.variant == "paper":  # eq. 2 to 7 are sums over the global batch
            out = {name: loss * world_size() * len(features[name]["views"]) for name, loss in out.items()}
        return StepOutput(out)

    def _nonling_loss(self, name: str, z: Tensor, batch: Batch) -> Tensor:
        config, z_all, first = self.config.nonling[name], gather(z), offset(len(z))
        if config.loss == "simclr":
            return losses.info_nce(z[:, 0], z_all[:, 1], config.temperature, first)  # SimCLR in one direction: eq. 5, 7
        labels = gather(batch["label"])
        if self.config.variant == "fixed":
            return losses.supcon(z, z_all, labels, config.temperature, first)
        formula = losses.supcon_eq4 if self.config.variant == "paper" else losses.supcon_released  # [errata 2.3]
        return formula(z[:, 0], z_all[:, 1], labels, config.temperature, first)
