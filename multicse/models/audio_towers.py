"""Audio towers: CLAP's HTSAT (Chen et al. 2022) and AST (Gong et al. 2021), as in Zhao et al. 2023."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch.nn.functional as F
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from multicse.data.settings import Place
from multicse.data.streams.device import mask_draws, spec_augment
from multicse.data.streams.inputs import AudioInput
from multicse.models.tower import Modality, Tower, TowerConfig, check_preprocessor, saved_config

if TYPE_CHECKING:
    from transformers import ClapAudioConfig

STATISTICS = (-4.2677393, 4.5689974)
"""Mean and standard deviation of AudioSet's spectrograms in AST."""
AST_RATE = 16_000
"""Sampling rate in Hz at which transformers' feature extractor for AST has windows of 25 ms."""


class AudioTower(TowerConfig):
    """Settings of both kinds of audio towers: input, SpecAugment and pretrained weights."""

    modality: ClassVar[Modality] = "audio"

    input: AudioInput = AudioInput()
    mask_bins: int = Field(8, ge=0)
    """SpecAugment in training: two bands of fewer than this number of bins are set to 0, the mean. 0 disables it."""
    mask_frames: int = Field(64, ge=0)
    """SpecAugment in training: two intervals of fewer than this number of frames are set to 0. 0 disables it."""
    path: Place | None = None
    """Folder or model ID of a pretrained tower. If None, weights are initialised randomly."""

    def check(self) -> None:
        """Check that masks are not larger than a spectrogram, then everything else."""
        for name, size in {"mask_bins": self.input.bins, "mask_frames": self.input.frames}.items():
            if getattr(self, name) == 1:
                raise ValueError(f"method.tower.{name}=1 has no effect: masks are smaller than it; set 0, or 2 or more")
            if getattr(self, name) > size:
                raise ValueError(
                    f"method.tower.{name}: {getattr(self, name)} is larger than a spectrogram, {size}; 0 disables it"
                )
        super().check()


class HTSATTower(AudioTower):
    """CLAP's HTSAT, a Swin transformer on a folded spectrogram; the defaults are HTSAT-tiny.

    `path` is a folder or model ID of CLAP without fusion. It defines the sizes, which `input` must match; spec_size,
    patch_size, embed, depths, heads and window are then not used.
    """

    batch_norm: ClassVar[bool] = True

    kind: Literal["htsat"] = "htsat"
    """Kind of the tower; fixed, since its other settings belong to it."""
    spec_size: int = Field(256, gt=0)
    """Height and width of the square that a spectrogram is folded to: spec_size / bins strips of spec_size frames. It must
    be a multiple of the bins, and spec_size^2 / bins at least the number of frames; fewer frames are stretched."""
    patch_size: int = Field(4, gt=0)
    """Height and width of a patch of the square."""
    embed: int = Field(96, gt=0)
    """Channels of the first stage; they double with each stage, up to 768 by default."""
    depths: tuple[PositiveInt, ...] = Field((2, 2, 6, 2), min_length=1)
    """Transformer blocks in each stage."""
    heads: tuple[PositiveInt, ...] = (4, 8, 16, 32)
    """Attention heads per stage."""
    window: int = Field(8, gt=0)
    """Height and width of an attention window in patches."""
    drop_path: float = Field(0.1, ge=0, lt=1)
    """Drop path: share of samples that skip a branch of the last block in training; it decreases to 0 in the first block."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout of the feed-forward networks in training; LAION's CLAP uses 0."""

    def check(self) -> None:
        """Check that transformers' feature extractor for CLAP can make the spectrograms, then everything else."""
        made = self.input
        if made.features != "clap" or made.seconds % 1 or made.rate % 2 or made.n_fft % 2:
            raise ValueError(
                "method.tower.input: an export makes HTSAT's spectrograms with the feature extractor of transformers' CLAP, "
                "which needs features 'clap', whole seconds, and even rate and n_fft; change streams.pairs.input, too"
            )
        super().check()

    def config(self) -> Any:
        """Return the configuration of the HTSAT."""
        config: Any = self._new_config() if self.path is None else self._saved_config(self.path)
        if config.spec_size % self.input.bins:
            raise ValueError(
                f"method.tower.spec_size: {config.spec_size} is not a multiple of method.tower.input.bins {self.input.bins}"
            )
        config.drop_path_rate, config.hidden_dropout_prob = self.drop_path, self.dropout
        return config

    def _new_config(self) -> ClapAudioConfig:
        from transformers import ClapAudioConfig  # here: takes a third of a second, too long for --help

        stages = len(self.depths)
        if len(self.heads) != stages:
            raise ValueError(f"method.tower.heads: {self.heads} for depths {self.depths}; specify one number per stage")
        unit = self.patch_size * 2 ** (stages - 1)
        last, strips = self.spec_size / unit, max(1, self.spec_size // self.input.bins)
        if last < self.window or last % strips:
            raise ValueError(
                f"method.tower.spec_size: {self.spec_size} with patch_size {self.patch_size}, doubled in each stage but the "
                f"last, gives a last stage with {last:g} patches per side; it must be at least the window {self.window} and "
                f"a multiple of the {strips} strips of {self.input.bins} bins; change patch_size, window or stages"
            )
        return ClapAudioConfig(
            spec_size=self.spec_size,
            num_mel_bins=self.input.bins,
            patch_size=self.patch_size,
            patch_stride=(self.patch_size, self.patch_size),
            patch_embeds_hidden_size=self.embed,
            hidden_size=self.embed * 2 ** (stages - 1),
            depths=list(self.depths),
            num_hidden_layers=stages,
            num_attention_heads=list(self.heads),
            window_size=self.window,
            attention_probs_dropout_prob=0.0,
        )

    def _saved_config(self, path: str) -> Any:
        config: Any = saved_config(path, ("clap", "clap_audio_model"), self.modality)
        if config.enable_fusion:
            raise ValueError(
                f"method.tower.path: {path!r} is a CLAP with fusion, which uses four spectrograms per audio clip; this "
                "tower uses one. Choose a CLAP without fusion (`enable_fusion` false), such as laion/clap-htsat-unfused "
                "(converted: docs/papers/clip.md)."
            )
        names = {"rate": "sampling_rate", "hop": "hop_length", "n_fft": "fft_window_size"}
        names |= {"low_hz": "frequency_min", "high_hz": "frequency_max"}
        ours = {f"input.{name}": (theirs, getattr(self.input, name)) for name, theirs in names.items()}
        check_preprocessor(path, self.modality, ours)
        return config

    def wrap(self, model: Any) -> Tower:
        """Return the tower for an HTSAT."""
        return HTSAT(model, self)


class ASTTower(AudioTower):
    """Audio spectrogram transformer; the defaults are AST-base.

    `path` is a folder or model ID of an AST. It defines the sizes, which `input` must match; patch_size, stride, width,
    layers and heads are then not used. Spectrograms with fewer frames are padded with zeros, as in AST.
    """

    kind: Literal["ast"] = "ast"
    """Kind of the tower; fixed, since its other settings belong to it."""
    patch_size: int = Field(16, gt=0)
    """Size of a patch in bins and frames."""
    stride: int = Field(10, gt=0)
    """Distance of patches in bins and frames."""
    width: int = Field(768, gt=0)
    """Dimension of the hidden states; a multiple of the heads."""
    layers: int = Field(12, gt=0)
    """Number of transformer layers."""
    heads: int = Field(12, gt=0)
    """Attention heads per layer."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout of attention weights and hidden states in training; AST uses 0."""
    mean: float | None = None
    """Mean of the spectrograms, which are normalised as (x - mean) / (2 std). If None, AST's mean for AudioSet."""
    std: float | None = Field(None, gt=0)
    """Standard deviation of the spectrograms. If None, AST's value for AudioSet."""

    def check(self) -> None:
        """Check that transformers' feature extractor for AST can make the spectrograms, then everything else."""
        if (self.input.features, self.input.rate) != ("kaldi", AST_RATE):
            raise ValueError(
                "method.tower.input: an export makes AST's spectrograms with the feature extractor of transformers, which "
                f"supports only features 'kaldi' at rate {AST_RATE}; set both, also in streams.pairs.input, or use tower "
                "'htsat'"
            )
        super().check()

    @property
    def statistics(self) -> tuple[float, float]:
        """Return mean and standard deviation for the normalisation."""
        mean, std = STATISTICS
        return mean if self.mean is None else self.mean, std if self.std is None else self.std

    def config(self) -> Any:
        """Return the configuration of the AST."""
        if self.path is None:
            if self.width % self.heads:
                raise ValueError(f"method.tower.heads: {self.heads} heads do not divide a width of {self.width}")
            from transformers import ASTConfig

            config: Any = ASTConfig(
                patch_size=self.patch_size,
                frequency_stride=self.stride,
                time_stride=self.stride,
                max_length=self.input.frames,
                num_mel_bins=self.input.bins,
                hidden_size=self.width,
                intermediate_size=4 * self.width,
                num_hidden_layers=self.layers,
                num_attention_heads=self.heads,
            )
        else:
            config = saved_config(self.path, ("audio-spectrogram-transformer",), self.modality)
            if config.num_mel_bins != self.input.bins or config.max_length < self.input.frames:
                raise ValueError(
                    f"method.tower.input: {self.input.frames} frames x {self.input.bins} bins, but {self.path!r} takes up "
                    f"to {config.max_length} frames x {config.num_mel_bins} bins; shorten input.seconds or set input.bins"
                )
            mean, std = self.statistics
            ours = {"mean": ("mean", mean), "std": ("std", std), "input.rate": ("sampling_rate", self.input.rate)}
            check_preprocessor(self.path, self.modality, ours)
        config.hidden_dropout_prob = config.attention_probs_dropout_prob = self.dropout
        return config

    def initialised(self, model: Any) -> Any:
        """Initialise tokens and positions, which Hugging Face sets to 0: CLS and distillation token would stay equal."""
        made = model.embeddings
        for parameter in (made.cls_token, made.distillation_token, made.position_embeddings):
            nn.init.trunc_normal_(parameter, std=0.02)
        return model

    def wrap(self, model: Any) -> Tower:
        """Return the tower for an AST."""
        return AST(model, self)


class HTSAT(Tower):
    """CLAP's audio transformer, pooled by the mean of its last states."""

    def __init__(self, model: Any, config: HTSATTower) -> None:
        width = model.config.patch_embeds_hidden_size * 2 ** (len(model.config.depths) - 1)
        super().__init__(model, width, (config.input.frames, config.input.bins))
        self.masks = config.mask_frames, config.mask_bins
        for stage in model.audio_encoder.layers:
            for block in stage.blocks:  # HTSAT drops both branches of a block, transformers only the attention
                block.output.dropout = nn.Sequential(block.output.dropout, block.drop_path)
        # SpecAugment must be applied after this module and before the folding, which is not a module.
        model.audio_encoder.batch_norm.register_forward_hook(self._augment)

    def _augment(self, module: nn.Module, args: tuple[Any, ...], normed: Tensor) -> Tensor:
        """Apply SpecAugment in training to normalised spectrograms (B, bins, frames, 1)."""
        if not self.training:
            return normed
        draws = mask_draws(len(normed), 2, device=normed.device)
        return spec_augment(normed.squeeze(-1).transpose(1, 2), *self.masks, draws).transpose(1, 2)[..., None]

    def forward(self, x: Tensor) -> Tensor:
        """Encode spectrograms (B, frames, bins) to vectors (B, width)."""
        return self.model(input_features=x[:, None]).pooler_output


class AST(Tower):
    """AST, pooled by the mean of its CLS and distillation tokens."""

    def __init__(self, model: Any, config: ASTTower) -> None:
        super().__init__(model, model.config.hidden_size, (config.input.frames, config.input.bins))
        self.frames, self.masks = model.config.max_length, (config.mask_frames, config.mask_bins)
        self.mean, self.std = config.statistics

    def forward(self, x: Tensor) -> Tensor:
        """Encode spectrograms (B, frames, bins) to vectors (B, width)."""
        x = F.pad(x, (0, 0, 0, self.frames - x.shape[1]))
        x = (x - self.mean) / (2 * self.std)
        if self.training:
            x = spec_augment(x, *self.masks, mask_draws(len(x), 2, device=x.device))
        return self.model(input_values=x).pooler_output
