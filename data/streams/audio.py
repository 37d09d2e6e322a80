"""Streams of sounds without text: a log-mel filter bank of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field

from multicse.data.shards import RawSample
from multicse.data.streams import decode, preprocess
from multicse.data.streams.base import Batch, LabelledStream, Row, Tokenize

if TYPE_CHECKING:
    import torch
    from torch import Tensor

MIXUP_ALPHA = 10
"""Of the Beta distribution of a clip's share."""


class AudioStream(LabelledStream):
    """One log-mel filter bank per clip (NonLing-CSE): ``spectrogram`` (B, 1, frames, bins)."""

    kind: Literal["audio"] = "audio"
    """Kind of the stream; fixed, since its other settings belong to it."""
    rate: int = Field(16000, gt=0)
    """Samples per second that every clip is resampled to."""
    bins: int = Field(128, gt=0)
    """Mel filters; low rates allow fewer, and a filter that would always be empty is refused."""
    frames: int = Field(1024, gt=0)
    """Frames of 10 ms; longer clips are cut, shorter ones padded with silence."""
    mixup_probability: float = Field(0.0, ge=0, le=1)
    """Share of clips that are mixed with another one of the whole set (released NonLing-CSE: 0.5; the paper: none)."""
    mask_bins: int = Field(0, ge=0)
    """SpecAugment: widest band of bins that is masked (released: 48)."""
    mask_frames: int = Field(0, ge=0)
    """SpecAugment: longest stretch of frames that is masked (released: 192)."""

    @property
    def samples(self) -> int:
        """Waveform samples that `frames` frames of 25 ms at steps of 10 ms cover."""
        return preprocess.samples_for(self.rate, self.frames)

    def needs(self) -> list[tuple[str, tuple[str, ...]]]:
        return [("kind", decode.SOUNDS), *super().needs()]

    def check_settings(self) -> None:
        try:
            preprocess.mel_filters(self.rate, self.bins)
        except ValueError as error:
            raise ValueError(f"bins={self.bins}, rate={self.rate}: {error}") from None
        for setting, value, most in (
            ("mask_bins", self.mask_bins, self.bins),
            ("mask_frames", self.mask_frames, self.frames),
        ):
            if value > most:
                raise ValueError(f"{setting}={value} is more than {setting.removeprefix('mask_')}={most}; lower it")

    def row(self, sample: RawSample, rng: np.random.Generator) -> Row:
        extension, data = decode.member_with_extension(sample.fields, decode.SOUNDS, sample.key)
        wave = decode.audio(data, extension, self.rate, sample.key, self.samples)
        length = min(len(wave), self.samples)
        return {"waveform": preprocess.crop_or_pad(wave, self.samples), "length": length, **self.label_of(sample)}

    @property
    def mixes(self) -> bool:
        return self.mixup_probability > 0

    def mixup_index(self, samples: int, rng: np.random.Generator) -> int | None:
        mixes = self.mixup_probability and rng.random() < self.mixup_probability
        return int(rng.integers(samples)) if mixes else None

    def mixed(self, sample: RawSample, other: RawSample, rng: np.random.Generator) -> Row:
        """The released mix-up of NonLing-CSE: share * clip + (1 - share) * other, both minus their means, the other cut
        or padded to the clip's length, share ~ Beta(10, 10); the class is that of the larger share."""
        row, partner = self.row(sample, rng), self.row(other, rng)
        share = rng.beta(MIXUP_ALPHA, MIXUP_ALPHA)
        blend = share * _centred(row) + (1 - share) * _centred(partner)
        blend[:, row["length"] :] = 0
        wave = np.clip(np.rint(blend), -32768, 32767).astype(np.int16)
        return {**(row if share >= 0.5 else partner), "waveform": wave, "length": row["length"]}

    def collate(self, rows: dict[str, Any], tokenize: Tokenize | None) -> dict[str, Tensor]:
        import torch

        wave = torch.from_numpy(rows["waveform"])
        return {"waveform": wave, "length": torch.from_numpy(rows["length"]), **self.labels(rows)}

    def draws(self, samples: int, generator: torch.Generator) -> dict[str, Tensor]:
        from multicse.data.streams.device import mask_draws

        return {"draws": mask_draws(samples, generator=generator)} if self.mask_bins or self.mask_frames else {}

    def on_device(self, batch: Batch) -> Batch:
        from multicse.data.streams import device

        wave, lengths = batch["waveform"], batch["length"]
        spectrogram = preprocess.log_mel(wave, rate=self.rate, bins=self.bins, frames=self.frames, lengths=lengths)
        if "draws" in batch:
            spectrogram = device.spec_augment(spectrogram, self.mask_frames, self.mask_bins, batch["draws"])
        label = {"label": batch["label"]} if "label" in batch else {}
        return Batch({"spectrogram": spectrogram, **label}, batch.keys)


def _centred(row: Row) -> np.ndarray:
    """A clip (1, T) minus its mean; the silence behind it stays 0."""
    wave, length = row["waveform"].astype(float), row["length"]
    wave[:, :length] -= wave[:, :length].mean()
    return wave
