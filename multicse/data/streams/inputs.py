"""Settings of the preprocessing of images and audio for a tower, shared by a stream in training and the exported model."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, PositiveFloat, model_validator

from multicse.data.settings import Settings, refuse_idle
from multicse.data.streams.preprocess import window_and_hop


class ImageInput(Settings):
    """CLIP's preprocessing, equal in training and evaluation (Zhao et al. 2023), to float (B, 3, size, size).

    The shorter side is resized to `size` (bicubic), the central square is cropped, and the result is (x - mean) / std.
    """

    size: int = Field(224, gt=0)
    """Height and width of the image in pixels."""
    mean: tuple[float, float, float] = (0.48145466, 0.4578275, 0.40821073)
    """Mean of red, green, blue (0 to 1) that is subtracted from the pixels. The default is CLIP's."""
    std: tuple[PositiveFloat, PositiveFloat, PositiveFloat] = (0.26862954, 0.26130258, 0.27577711)
    """Standard deviation of red, green, blue (0 to 1) by which the pixels are divided. The default is CLIP's."""


KALDI_RATE = 100
"""Lowest sampling rate in Hz with a sample in the 10 ms between two windows."""


class AudioInput(Settings):
    """CLAP's preprocessing (Zhao et al. 2023), or AST's: a log-mel spectrogram, float (B, frames, bins).

    Audio is cut or padded to `seconds`. A clip must be long enough for a frame: longer than half a window, since the edges
    are mirrored (`clap`), or at least one window long (`kaldi`).
    """

    features: Literal["clap", "kaldi"] = "clap"
    """Kind of the spectrogram. `clap`: centred frames and Slaney's mel filters in decibels. `kaldi`: the filter bank of AST
    and SSAST (windows of 25 ms every 10 ms, HTK mel, natural log), for the tower `ast`; it does not use n_fft, hop, low_hz
    and high_hz."""
    rate: int = Field(48000, gt=0)
    """Sampling rate in Hz to which every clip is resampled."""
    seconds: float = Field(10.0, gt=0)
    """Length of a clip in seconds. Longer audio is cut. Shorter audio is repeated as often as it fits and then padded with
    silence (`kaldi`: padded with frames of zeros, without repetition)."""
    bins: int = Field(64, gt=0)
    """Number of mel filters of a spectrogram."""
    n_fft: int = Field(1024, gt=1)
    """Length of a window of the Fourier transform in samples."""
    hop: int = Field(480, gt=0)
    """Number of samples from the start of a window to the start of the next one."""
    low_hz: float = Field(50.0, ge=0)
    """Lower edge of the first mel filter in Hz."""
    high_hz: float = Field(14000.0, gt=0)
    """Upper edge of the last mel filter in Hz."""

    @model_validator(mode="after")
    def _long_enough(self) -> Self:
        if self.features == "kaldi" and self.rate < KALDI_RATE:
            raise ValueError(f"rate={self.rate}: Kaldi's windows are 10 ms apart, so rate must be at least {KALDI_RATE}")
        if self.features == "kaldi":
            refuse_idle(self, ["n_fft", "hop", "low_hz", "high_hz"], "features kaldi do not use it; set features clap")
        cause, least, way = f"n_fft={self.n_fft}", (self.n_fft + 1) // 2 + 1, ", or lower n_fft"
        if self.features == "kaldi":
            cause, least, way = "a window of 25 ms", window_and_hop(self.rate)[0], ""
        if self.samples < least:
            raise ValueError(
                f"rate={self.rate} x seconds={self.seconds:g} is a clip of {self.samples} samples, but {cause} requires "
                f"{least} or more; raise seconds or rate{way}"
            )
        return self

    @property
    def samples(self) -> int:
        """Return the number of samples of a clip."""
        return round(self.rate * self.seconds)

    @property
    def frames(self) -> int:
        """Return the number of frames of the spectrogram of a clip."""
        if self.features == "clap":
            return self.samples // self.hop + 1
        window, hop = window_and_hop(self.rate)
        return max(0, (self.samples - window) // hop + 1)
