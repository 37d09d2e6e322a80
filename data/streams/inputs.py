"""How a picture or a sound becomes what a tower takes. A stream makes it in training, the model's export afterwards."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class ImageInput(BaseModel):
    """CLIP's preprocessing, the same in training and evaluation (Zhao et al. 2023): the shorter side resized to
    `size` (bicubic), the central square, (x - mean) / std. Tensors are float (B, 3, size, size)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    size: int = Field(224, gt=0)
    """Pixels of a side of the image."""
    mean: tuple[float, float, float] = (0.48145466, 0.4578275, 0.40821073)
    """Mean of red, green, blue in 0 to 1; the default is CLIP's."""
    std: tuple[float, float, float] = (0.26862954, 0.26130258, 0.27577711)
    """Standard deviation of red, green and blue."""


KALDI_RATE = 100
"""Samples per second of which one falls into the 10 ms between two windows."""


class AudioInput(BaseModel):
    """CLAP's preprocessing (Zhao et al. 2023), or AST's: cut or filled to `seconds`, then a log-mel spectrogram, float
    (B, frames, bins).

    A clip must be long enough for a frame: longer than half a window, whose edges are mirrored (`clap`), or a window.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    features: Literal["clap", "kaldi"] = "clap"
    """`clap`: Slaney mel filters in decibel, frames centred. `kaldi`: AST's and SSAST's filter bank (windows of 25 ms every
    10 ms, HTK mel, natural log), for the tower `ast`; n_fft, hop, low_hz and high_hz do not apply."""
    rate: int = Field(48000, gt=0)
    """Samples per second that every clip is resampled to."""
    seconds: float = Field(10.0, gt=0)
    """Length of a clip. A longer sound gives a part of it; a shorter one is repeated whole, then padded with silence
    (`kaldi`: its frames are followed by zeros)."""
    bins: int = Field(64, gt=0)
    """Mel filters of a spectrogram."""
    n_fft: int = Field(1024, gt=1)
    """Samples of a window of the Fourier transform."""
    hop: int = Field(480, gt=0)
    """Samples from one window to the next."""
    low_hz: float = Field(50.0, ge=0)
    """Lower edge of the first filter."""
    high_hz: float = Field(14000.0, gt=0)
    """Upper edge of the last filter."""

    @model_validator(mode="after")
    def _long_enough(self) -> Self:
        if self.features == "kaldi" and self.rate < KALDI_RATE:
            raise ValueError(f"rate={self.rate}: Kaldi's windows are 10 ms apart, so rate must be at least {KALDI_RATE}")
        cause, least, way = f"n_fft={self.n_fft}", (self.n_fft + 1) // 2 + 1, ", or lower n_fft"
        if self.features == "kaldi":
            cause, least, way = "a window of 25 ms", self.rate * 25 // 1000, ""
        if self.samples < least:
            raise ValueError(
                f"rate={self.rate} x seconds={self.seconds:g} is a clip of {self.samples} samples, and {cause} needs "
                f"{least} or more; raise seconds or rate{way}"
            )
        return self

    @property
    def samples(self) -> int:
        """Samples of a clip."""
        return round(self.rate * self.seconds)

    @property
    def frames(self) -> int:
        """Frames of its spectrogram."""
        if self.features == "clap":
            return self.samples // self.hop + 1
        window, hop = self.rate * 25 // 1000, self.rate // 100
        return max(0, (self.samples - window) // hop + 1)
