"""The towers beside the text encoder: images or spectrograms to vectors, which a projection takes to the text's space.

CLIP's image towers (Radford et al. 2021), CLAP's HTSAT (Chen et al. 2022) and AST (Gong et al. 2021), as in
Zhao et al. 2023. The transformers among them are Hugging Face's, from a configuration or from a folder; their weights keep
their names, under ``model``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn
from transformers import (
    ASTConfig,
    ASTModel,
    AutoConfig,
    AutoModel,
    ClapAudioConfig,
    ClapAudioModel,
    ClapAudioModelWithProjection,
    ClapModel,
    CLIPModel,
    CLIPVisionConfig,
    CLIPVisionModel,
    PretrainedConfig,
)

from data.streams.inputs import AudioInput, ImageInput
from models.clip_layers import init_clip_vision, last_clip_layer
from models.hub_folders import TOWER
from models.resnet import ModifiedResNet, check_sizes

Modality = Literal["image", "audio"]

# Vision encoders, besides CLIP's, whose first token stands for the image, and how to build them without what is unused.
CLS_ENCODERS: dict[str, dict[str, Any]] = {
    "vit": {"add_pooling_layer": False},
    "deit": {"add_pooling_layer": False},
    "dinov2": {},
    "dinov2_with_registers": {},
}

# These interpolate their positions, so they take images of any size that is a multiple of the patch.
ANY_SIZE = ("dinov2", "dinov2_with_registers")

# Mean and standard deviation of spectrograms, for AST: its own of AudioSet (natural log); of decibels, those of
# environmental sounds (ESC-50's and Clotho's clips have means of -40 and -42 and deviations of 34 and 26).
STATISTICS = {"kaldi": (-4.2677393, 4.5689974), "clap": (-40.0, 30.0)}


class Tower(nn.Module):
    """Images (B, 3, size, size), or spectrograms (B, frames, bins), to vectors (B, width)."""

    modality: Modality
    width: int
    """Length of a vector."""
    projects: bool = False
    """The vectors are in the common space already, so that no projection follows."""
    shape: tuple[int, ...]
    """Of one item: (3, size, size) or (frames, bins)."""
    model: Any
    """What it is made of; a transformers model where there is one."""

    def _check(self, x: Tensor) -> None:
        if x.shape[1:] != self.shape:
            raise ValueError(
                f"method.tower.input: the tower takes {self.modality} items of shape {self.shape}, and was given "
                f"{tuple(x.shape[1:])}. Give the stream and the tower the same input."
            )


# ---- images ----------------------------------------------------------------------------------------------------------


class ViTTower(BaseModel):
    """CLIP's vision transformer; the defaults are ViT-B/32.

    `path` is a folder or hub name of CLIP (its image half) or of another vision encoder with a CLS token: ViT, DeiT, DINOv2.
    Its sizes and activations then come from there, and `input` must fit them; patch_size, width, layers and heads are not
    read.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["vit"] = "vit"
    input: ImageInput = ImageInput()
    patch_size: int = Field(32, gt=0)
    """Pixels of a patch's side."""
    width: int = Field(768, gt=0)
    layers: int = Field(12, gt=0)
    heads: int = Field(12, gt=0)
    dropout: float = Field(0.0, ge=0, lt=1)
    """Of the attention, in training; CLIP has none."""
    path: str | None = None

    @property
    def modality(self) -> Modality:
        return "image"

    def check(self) -> None:
        """Raise ValueError for sizes that cannot be, or a folder that cannot be used; reads configuration files only."""
        if self.path is not None:
            self._saved()
            return
        if self.input.size % self.patch_size:
            raise ValueError(
                f"method.tower.patch_size: {self.patch_size} does not divide method.tower.input.size {self.input.size}"
            )
        _check_heads(self.width, self.heads)

    def build(self, embed_dim: int) -> Tower:
        """The tower, whatever `embed_dim`: vectors of its own width, for a projection. From scratch the weights are drawn
        as CLIP's are. Raises ValueError as `check` does, and when weights are missing."""
        self.check()
        if self.path is None:
            return CLIPVision(_new_clip_vision(self), self.input.size)
        config = self._saved()
        if config.model_type == "clip":
            config.vision_config.attention_dropout = self.dropout
            model = _load(CLIPModel, self.path, config, "vision_model.").vision_model
        elif config.model_type == "clip_vision_model":
            config.attention_dropout = self.dropout
            model = _load(CLIPVisionModel, self.path, config)
        else:
            config.attention_probs_dropout_prob = self.dropout
            return CLSVision(_load(AutoModel, self.path, config, **CLS_ENCODERS[config.model_type]), self.input.size)
        return CLIPVision(model, self.input.size)

    def _saved(self) -> PretrainedConfig:
        """The folder's configuration, after a check."""
        config = _saved_config(self.path, ("clip", "clip_vision_model", *CLS_ENCODERS))
        vision = config.vision_config if config.model_type == "clip" else config
        theirs, patch = _side(vision.image_size), _side(vision.patch_size)
        if config.model_type in ANY_SIZE:
            if self.input.size % patch:
                raise ValueError(
                    f"method.tower.input.size: {self.input.size} is not a multiple of the patch of {self.path!r}, {patch}"
                )
        elif theirs != self.input.size:
            raise ValueError(
                f"method.tower.input.size: {self.input.size}, and {self.path!r} takes images of {theirs} pixels. Set "
                f"method.tower.input.size and the stream's to {theirs}, or leave method.tower.path out (fresh weights)."
            )
        ours = {"image_mean": self.input.mean, "image_std": self.input.std}
        _check_preprocessor(self.path, {name: list(value) for name, value in ours.items()})
        return config


class ResNetTower(BaseModel):
    """CLIP's modified ResNet; the defaults are RN50, from scratch. Its attention pool is its projection."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["resnet"] = "resnet"
    input: ImageInput = ImageInput()
    width: int = Field(64, gt=0)
    """Channels behind the stem, even."""
    blocks: tuple[int, int, int, int] = (3, 4, 6, 3)
    """Bottleneck blocks of each stage."""

    @property
    def modality(self) -> Modality:
        return "image"

    def check(self) -> None:
        """Raise ValueError for sizes that cannot be."""
        check_sizes(self.input.size, self.width, self.blocks, "method.tower.")

    def build(self, embed_dim: int) -> Tower:
        """The tower: vectors of length `embed_dim`, which need no projection."""
        self.check()
        return ResNet(ModifiedResNet(embed_dim, self.input.size, self.width, self.blocks), embed_dim)


class CLIPVision(Tower):
    """CLIP's vision transformer: the CLS token of the last layer, normalised."""

    modality = "image"

    def __init__(self, model: Any, size: int) -> None:
        super().__init__()
        self.model = model
        self.width, self.shape = model.config.hidden_size, (3, size, size)

    def forward(self, x: Tensor) -> Tensor:
        self._check(x)
        states = self.model.pre_layrnorm(self.model.embeddings(x))
        *layers, last = self.model.encoder.layers
        for layer in layers:
            states = layer(states, None)
        cls = states.new_zeros(len(states), dtype=torch.long)
        return self.model.post_layernorm(last_clip_layer(last, states, cls))


class CLSVision(Tower):
    """Another vision transformer: the CLS token of its output."""

    modality = "image"

    def __init__(self, model: Any, size: int) -> None:
        super().__init__()
        self.model = model
        self.width, self.shape = model.config.hidden_size, (3, size, size)
        for name, parameter in model.named_parameters():
            if name.endswith("mask_token"):  # for pretraining by masks; an optimizer must not wait for its gradient
                parameter.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        self._check(x)
        return self.model(pixel_values=x).last_hidden_state[:, 0]


class ResNet(Tower):
    """CLIP's modified ResNet."""

    modality = "image"
    projects = True

    def __init__(self, model: ModifiedResNet, embed_dim: int) -> None:
        super().__init__()
        self.model = model
        self.width, self.shape = embed_dim, (3, model.size, model.size)

    def forward(self, x: Tensor) -> Tensor:
        self._check(x)
        return self.model(x)


def _new_clip_vision(tower: ViTTower) -> CLIPVisionModel:
    """From scratch, its weights drawn as OpenAI draws them."""
    config = CLIPVisionConfig(
        image_size=tower.input.size,
        patch_size=tower.patch_size,
        hidden_size=tower.width,
        intermediate_size=4 * tower.width,
        num_hidden_layers=tower.layers,
        num_attention_heads=tower.heads,
        attention_dropout=tower.dropout,
        hidden_act="quick_gelu",
    )
    model = CLIPVisionModel(config)
    init_clip_vision(model)
    return model


# ---- sound -----------------------------------------------------------------------------------------------------------


class HTSATTower(BaseModel):
    """CLAP's HTSAT, a Swin transformer on a folded spectrogram; the defaults are HTSAT-tiny.

    `path` is a folder or hub name of CLAP (its audio half) without fusion. Its sizes then come from there, and `input` must
    fit them; spec_size, patch_size, embed, depths, heads and window are not read.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["htsat"] = "htsat"
    input: AudioInput = AudioInput()
    spec_size: int = Field(256, gt=0)
    """Side of the square that a spectrogram is folded to: spec_size / bins strips of spec_size frames, so it must be a
    multiple of the bins, and spec_size^2 / bins at least the frames (fewer are stretched)."""
    patch_size: int = Field(4, gt=0)
    """Side of a patch of the square."""
    embed: int = Field(96, gt=0)
    """Channels of the first stage; they double from stage to stage, to 768."""
    depths: tuple[int, ...] = Field((2, 2, 6, 2), min_length=1)
    """Blocks of each stage."""
    heads: tuple[int, ...] = (4, 8, 16, 32)
    """Of each stage."""
    window: int = Field(8, gt=0)
    """Side of an attention window in patches."""
    drop_path: float = Field(0.1, ge=0, lt=1)
    """Share of samples for which a branch of the last block is left out in training; it falls to 0 in the first."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Of the perceptrons, in training; LAION's CLAP has none."""
    mask_bins: int = Field(8, ge=0)
    """SpecAugment in training: two bands of fewer than so many bins are set to 0, the mean (0: none)."""
    mask_frames: int = Field(64, ge=0)
    """Likewise two stretches of fewer than so many frames."""
    path: str | None = None

    @property
    def modality(self) -> Modality:
        return "audio"

    def check(self) -> None:
        """Raise ValueError for sizes that cannot be, or a folder that cannot be used; reads configuration files only."""
        _check_masks(self)
        if self.path is not None:
            self._saved()
            return
        _check_fold(self.spec_size, self.input, "")
        if len(self.heads) != len(self.depths) or min(*self.depths, *self.heads) < 1:
            raise ValueError(
                f"method.tower.heads: {self.heads} for depths {self.depths}; give one number of at least 1 per stage"
            )
        for stage, heads in enumerate(self.heads):
            _check_heads(self.embed * 2**stage, heads)
        self._check_grid()

    def _check_grid(self) -> None:
        """Every stage but the last halves the grid of patches; the last must hold a window and all strips."""
        unit = self.patch_size * 2 ** (len(self.depths) - 1)
        if self.spec_size % unit:
            raise ValueError(
                f"method.tower.spec_size: {self.spec_size} is not a multiple of {unit}, which is patch_size "
                f"{self.patch_size} doubled in every stage but the last"
            )
        last, strips = self.spec_size // unit, self.spec_size // self.input.bins
        if last < self.window:
            raise ValueError(
                f"method.tower.window: {self.window} is larger than the last stage, {last} x {last} patches (spec_size "
                f"{self.spec_size} / {unit}); give a window of at most {last}, fewer stages or a larger spec_size"
            )
        if last % strips:
            raise ValueError(
                f"method.tower.spec_size: {self.spec_size} is {strips} strips of {self.input.bins} bins, which do not "
                f"divide the last stage of {last} x {last} patches; give fewer stages, or a smaller patch_size or spec_size"
            )

    def build(self, embed_dim: int) -> Tower:
        """The tower, whatever `embed_dim`: vectors of its own width, for a projection.

        Raises ValueError as `check` does, and when weights are missing.
        """
        self.check()
        if self.path is None:
            return HTSAT(ClapAudioModel(self._new()), self)
        config = self._saved()
        if config.model_type == "clap":
            _set_htsat_dropouts(config.audio_config, self)
            return HTSAT(_load(ClapModel, self.path, config, "audio_model.").audio_model, self)
        _set_htsat_dropouts(config, self)
        if "ClapAudioModelWithProjection" in (config.architectures or ()):
            return HTSAT(_load(ClapAudioModelWithProjection, self.path, config, "audio_model.").audio_model, self)
        return HTSAT(_load(ClapAudioModel, self.path, config), self)

    def _new(self) -> ClapAudioConfig:
        return ClapAudioConfig(
            spec_size=self.spec_size,
            num_mel_bins=self.input.bins,
            patch_size=self.patch_size,
            patch_stride=(self.patch_size, self.patch_size),
            patch_embeds_hidden_size=self.embed,
            hidden_size=self.embed * 2 ** (len(self.depths) - 1),
            depths=list(self.depths),
            num_hidden_layers=len(self.depths),
            num_attention_heads=list(self.heads),
            window_size=self.window,
            drop_path_rate=self.drop_path,
            hidden_dropout_prob=self.dropout,
            attention_probs_dropout_prob=0.0,
        )

    def _saved(self) -> PretrainedConfig:
        """The folder's configuration, after a check."""
        config = _saved_config(self.path, ("clap", "clap_audio_model"))
        audio = config.audio_config if config.model_type == "clap" else config
        if audio.enable_fusion:
            raise ValueError(
                f"method.tower.path: {self.path!r} is a CLAP with fusion, which takes four spectrograms of a sound; this "
                "tower takes one. Choose a CLAP without fusion (`enable_fusion` false), such as "
                "laion/clap-htsat-unfused (converted: docs/papers/clip.md)."
            )
        if (features := _features_of(str(self.path))) != self.input.features:
            raise ValueError(
                f"method.tower.input.features: {self.input.features!r}, and the weights of {self.path!r} were trained on "
                f"{features!r}; give {features!r} here and in the stream's input, or leave method.tower.path out"
            )
        if audio.num_mel_bins != self.input.bins:
            raise ValueError(
                f"method.tower.input.bins: {self.input.bins}, and {self.path!r} takes {audio.num_mel_bins}; make them equal"
            )
        _check_fold(audio.spec_size, self.input, f" of {self.path!r}")
        ours: dict[str, Any] = {
            "sampling_rate": self.input.rate,
            "hop_length": self.input.hop,
            "fft_window_size": self.input.n_fft,
        }
        ours |= {"frequency_min": self.input.low_hz, "frequency_max": self.input.high_hz}
        _check_preprocessor(self.path, ours)
        return config


class ASTTower(BaseModel):
    """The audio spectrogram transformer; the defaults are AST-base.

    `path` is a folder or hub name of an AST. Its sizes then come from there, and `input` must fit them; patch_size, stride,
    width, layers and heads are not read. A spectrogram with fewer frames than it has is followed by zeros, as AST does.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["ast"] = "ast"
    input: AudioInput = AudioInput()
    patch_size: int = Field(16, gt=0)
    """Bins and frames of a patch."""
    stride: int = Field(10, gt=0)
    """Bins and frames from patch to patch."""
    width: int = Field(768, gt=0)
    layers: int = Field(12, gt=0)
    heads: int = Field(12, gt=0)
    dropout: float = Field(0.0, ge=0, lt=1)
    """Of attention and hidden states, in training; AST has none."""
    mean: float | None = None
    """Of the spectrograms' values: the model gets (x - mean) / (2 std). None: see `STATISTICS`."""
    std: float | None = Field(None, gt=0)
    """Likewise."""
    mask_bins: int = Field(8, ge=0)
    """SpecAugment in training: two bands of fewer than so many bins are set to 0, the mean (0: none)."""
    mask_frames: int = Field(64, ge=0)
    """Likewise two stretches of fewer than so many frames."""
    path: str | None = None

    @property
    def modality(self) -> Modality:
        return "audio"

    @property
    def statistics(self) -> tuple[float, float]:
        """Mean and standard deviation."""
        mean, std = STATISTICS[self.input.features]
        return mean if self.mean is None else self.mean, std if self.std is None else self.std

    def check(self) -> None:
        """Raise ValueError for sizes that cannot be, or a folder that cannot be used; reads configuration files only."""
        _check_masks(self)
        if self.path is not None:
            self._saved()
            return
        if self.patch_size > min(self.input.frames, self.input.bins):
            raise ValueError(
                f"method.tower.patch_size: {self.patch_size} is larger than the spectrogram ({self.input.frames} frames x "
                f"{self.input.bins} bins)"
            )
        _check_heads(self.width, self.heads)

    def build(self, embed_dim: int) -> Tower:
        """The tower, whatever `embed_dim`: vectors of its own width, for a projection.

        Raises ValueError as `check` does, and when weights are missing.
        """
        self.check()
        if self.path is None:
            return AST(self._new(), self)
        config = self._saved()
        config.hidden_dropout_prob = config.attention_probs_dropout_prob = self.dropout
        return AST(_load(ASTModel, self.path, config), self)

    def _new(self) -> ASTModel:
        model: Any = ASTModel(
            ASTConfig(
                patch_size=self.patch_size,
                frequency_stride=self.stride,
                time_stride=self.stride,
                max_length=self.input.frames,
                num_mel_bins=self.input.bins,
                hidden_size=self.width,
                intermediate_size=4 * self.width,
                num_hidden_layers=self.layers,
                num_attention_heads=self.heads,
                hidden_dropout_prob=self.dropout,
                attention_probs_dropout_prob=self.dropout,
            )
        )
        # Hugging Face leaves them 0, and then the CLS and the distillation token would be the same for ever.
        made = model.embeddings
        for parameter in (made.cls_token, made.distillation_token, made.position_embeddings):
            nn.init.trunc_normal_(parameter, std=0.02)
        return model

    def _saved(self) -> PretrainedConfig:
        """The folder's configuration, after a check."""
        config = _saved_config(self.path, ("audio-spectrogram-transformer",))
        if config.num_mel_bins != self.input.bins or config.max_length < self.input.frames:
            raise ValueError(
                f"method.tower.input: {self.input.frames} frames x {self.input.bins} bins, and {self.path!r} takes up to "
                f"{config.max_length} frames x {config.num_mel_bins} bins; shorten input.seconds or set input.bins"
            )
        mean, std = self.statistics
        _check_preprocessor(self.path, {"mean": mean, "std": std, "sampling_rate": self.input.rate})
        return config


class HTSAT(Tower):
    """CLAP's audio transformer: the mean of its last states."""

    modality = "audio"

    def __init__(self, model: Any, config: HTSATTower) -> None:
        super().__init__()
        self.model = model
        audio = model.config
        self.width = audio.patch_embeds_hidden_size * 2 ** (len(audio.depths) - 1)
        self.shape, self.masks = (config.input.frames, config.input.bins), (config.mask_frames, config.mask_bins)
        for stage in model.audio_encoder.layers:
            for block in stage.blocks:  # HTSAT leaves out both branches of a block, transformers' the attention only
                block.output.dropout = nn.Sequential(block.output.dropout, block.drop_path)
        # SpecAugment belongs between this module and the folding, where the model's forward has no module of its own.
        model.audio_encoder.batch_norm.register_forward_hook(self._augment)

    def _augment(self, module: nn.Module, args: tuple[Any, ...], normed: Tensor) -> Tensor:
        """normed: (B, bins, frames, 1)."""
        if not self.training:
            return normed
        return spec_augment(normed.squeeze(-1).transpose(1, 2), *self.masks).transpose(1, 2)[..., None]

    def forward(self, x: Tensor) -> Tensor:
        self._check(x)
        return self.model(input_features=x[:, None]).pooler_output


class AST(Tower):
    """AST: the mean of its CLS and distillation tokens."""

    modality = "audio"

    def __init__(self, model: Any, config: ASTTower) -> None:
        super().__init__()
        self.model = model
        self.width, self.frames = model.config.hidden_size, model.config.max_length
        self.mean, self.std = config.statistics
        self.shape, self.masks = (config.input.frames, config.input.bins), (config.mask_frames, config.mask_bins)

    def forward(self, x: Tensor) -> Tensor:
        self._check(x)
        x = F.pad(x, (0, 0, 0, self.frames - x.shape[1]))
        x = (x - self.mean) / (2 * self.std)
        if self.training:
            x = spec_augment(x, *self.masks)
        return self.model(input_values=x).pooler_output


def spec_augment(x: Tensor, frames: int, bins: int) -> Tensor:
    """Two bands of bins and two stretches of frames of every spectrogram (B, frames, bins) set to 0 (Park et al. 2019).

    Each has a width uniform in 0 ... `bins` - 1 or `frames` - 1, and a start uniform where it fits; all from torch's random
    numbers of the device. Unlike `device.spec_augment` it passes gradients on, since it comes behind the BatchNorm.
    """
    time, band = _stripes(x, frames, x.shape[1]), _stripes(x, bins, x.shape[2])
    return x.masked_fill(time[:, :, None] | band[:, None, :], 0)


def _stripes(x: Tensor, most: int, size: int) -> Tensor:
    """(B, size), true within either of two stripes of fewer than `most` places."""
    draws = torch.rand(2, 2, len(x), 1, device=x.device)  # width and start, stripe, row
    width = (draws[0] * most).long()
    start = (draws[1] * (size - width + 1)).long()
    place = torch.arange(size, device=x.device)
    return ((place >= start) & (place < start + width)).any(0)


def _set_htsat_dropouts(config: PretrainedConfig, tower: HTSATTower) -> None:
    config.drop_path_rate, config.hidden_dropout_prob = tower.drop_path, tower.dropout


AnyTower = Annotated[ViTTower | ResNetTower | HTSATTower | ASTTower, Field(discriminator="kind")]


# ---- checks and folders ----------------------------------------------------------------------------------------------


def _check_heads(width: int, heads: int) -> None:
    if width % heads:
        raise ValueError(f"method.tower.heads: {heads} heads do not divide a width of {width}")


def _check_masks(tower: HTSATTower | ASTTower) -> None:
    sizes = {"mask_bins": (tower.mask_bins, tower.input.bins), "mask_frames": (tower.mask_frames, tower.input.frames)}
    for name, (mask, size) in sizes.items():
        if mask > size:
            raise ValueError(f"method.tower.{name}: {mask} is more than a spectrogram has, {size}; 0 turns it off")


def _check_fold(spec_size: int, input: AudioInput, whose: str) -> None:
    """A spectrogram is stretched to spec_size / bins strips of spec_size frames, which are laid one below the other."""
    if spec_size % input.bins:
        raise ValueError(
            f"method.tower.spec_size: {spec_size}{whose} is not a multiple of method.tower.input.bins {input.bins}"
        )
    if input.frames > (most := spec_size * (spec_size // input.bins)):
        raise ValueError(
            f"method.tower.input: {input.frames} frames, and spec_size {spec_size}{whose} takes at most {most} of "
            f"{input.bins} bins; shorten input.seconds, raise input.hop, or raise spec_size"
        )


def _side(size: int | Iterable[int]) -> int:
    """Of a square, which a configuration gives as one number or as two equal ones."""
    return size if isinstance(size, int) else next(iter(size))


def _saved_config(path: str | None, kinds: tuple[str, ...]) -> PretrainedConfig:
    """A folder's configuration; ValueError where there is none, of another kind of model, or with pickled weights only."""
    folder = TOWER.folder(str(path), weights=False)
    try:
        config = AutoConfig.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise TOWER.cannot_load(str(path), error) from error
    if config.model_type not in kinds:
        raise ValueError(
            f"method.tower.path: {path!r} is a {config.model_type!r} model; this kind of tower takes {', '.join(kinds)}"
        )
    if list(folder.glob("*.safetensors")) or not Path(str(path)).is_dir():
        return config
    TOWER.refuse_pickles(str(path), folder)
    raise TOWER.cannot_load(str(path), FileNotFoundError("it has no safetensors file"))


def _load(kind: Any, path: str, config: PretrainedConfig, part: str = "", **options: Any) -> Any:
    """The model in float32, from safetensors; ValueError when weights whose name begins with `part` are missing."""
    try:
        model, report = kind.from_pretrained(
            TOWER.folder(path),
            config=config,
            use_safetensors=True,
            dtype=torch.float32,
            output_loading_info=True,
            **options,
        )
    except OSError as error:
        raise TOWER.cannot_load(path, error) from error
    if absent := sorted(name for name in report["missing_keys"] if name.startswith(part)):
        raise ValueError(
            f"method.tower.path: {path!r} lacks {len(absent)} weights of a {config.model_type!r} model, such as "
            f"{absent[0]!r}; they would be random. Is config.json that of these weights?"
        )
    return model


def _features_of(path: str) -> str:
    """Spectrograms that an HTSAT was trained on: CLAP's, but for a tower of this project's exports, which say it."""
    said = Path(path).resolve().parent / "dual_config.json"
    return str(json.loads(said.read_text())["input"].get("features", "clap")) if said.is_file() else "clap"


_FIELDS = {
    "image_mean": "method.tower.input.mean",
    "image_std": "method.tower.input.std",
    "sampling_rate": "method.tower.input.rate",
    "hop_length": "method.tower.input.hop",
    "fft_window_size": "method.tower.input.n_fft",
    "frequency_min": "method.tower.input.low_hz",
    "frequency_max": "method.tower.input.high_hz",
    "mean": "method.tower.mean",
    "std": "method.tower.std",
}


def _check_preprocessor(path: str | None, ours: dict[str, Any]) -> None:
    """Raise ValueError when the folder says that its inputs are made in another way than `method.tower.input` says."""
    folder = TOWER.folder(str(path), weights=False)
    theirs: dict[str, Any] = {}
    for file in (folder / "preprocessor_config.json", folder / "processor_config.json"):
        found = json.loads(file.read_text()) if file.is_file() else {}
        # A processor's file has that of its parts inside.
        theirs |= found | found.get("image_processor", {}) | found.get("feature_extractor", {})
    for name, value in ours.items():
        said = theirs.get(name)
        if said is not None and not torch.allclose(torch.tensor(said).float(), torch.tensor(value).float(), rtol=1e-3):
            raise ValueError(
                f"{_FIELDS[name]}: {value}, and the preprocessor of {path!r} says {name} {said}; the weights expect "
                "that, so give the same here and in the stream's input"
            )
