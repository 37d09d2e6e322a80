"""Streams of audio clips without text, as log-mel filter banks."""

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
"""Parameter of the Beta distribution of the share of a clip."""


class AudioStream(LabelledStream):
    """Audio clips, each as one log-mel filter bank (NonLing-CSE): ``spectrogram`` (B, 1, frames, bins)."""

    kind: Literal["audio"] = "audio"
    """Kind of the stream; it cannot be changed."""
    rate: int = Field(16000, gt=0)
    """Sampling rate in Hz to which every clip is resampled."""
    bins: int = Field(128, gt=0)
    """Number of mel filters. Low sampling rates allow fewer: filters that would always be empty raise an error."""
    frames: int = Field(1024, gt=0)
    """Number of frames of 10 ms. Longer clips are cut, shorter ones are padded with silence."""
    mixup_probability: float = Field(0.0, ge=0, le=1)
    """Share of clips that are mixed with a random clip of the set (0.5 in NonLing-CSE's released code, 0 in the paper)."""
    mask_bins: int = Field(0, ge=0)
    """SpecAugment masks a band of fewer than this number of bins (48 in NonLing-CSE's released code). 0: no mask."""
    mask_frames: int = Field(0, ge=0)
    """SpecAugment masks a stretch of fewer than this number of frames (192 in NonLing-CSE's released code). 0: no mask."""

    @property
    def samples(self) -> int:
        """Return the number of waveform samples that `frames` frames of 25 ms at steps of 10 ms cover."""
        return preprocess.samples_for(self.rate, self.frames)

    def needs(self) -> list[tuple[str, tuple[str, ...]]]:
        """Require an audio field, and the class if it is read."""
        return [("kind", decode.SOUNDS), *super().needs()]

    def check_settings(self) -> None:
        """Check also that no mel filter is empty and that the masks fit into the spectrogram."""
        super().check_settings()
        try:
            preprocess.mel_filters(self.rate, self.bins)
        except ValueError as error:
            raise ValueError(f"bins={self.bins}, rate={self.rate}: {error}") from None
        for setting, value, most in (
            ("mask_bins", self.mask_bins, self.bins),
            ("mask_frames", self.mask_frames, self.frames),
        ):
            if value == 1:
                raise ValueError(f"{setting}=1 has no effect: masks are smaller than it; set 0, or 2 or more")
            if value > most:
                raise ValueError(f"{setting}={value} is more than {setting.removeprefix('mask_')}={most}; lower it")

    def row(self, sample: RawSample, rng: np.random.Generator) -> Row:
        """Decode the start of a clip to ``waveform`` int16 (1, T), with its ``length`` without padding."""
        extension, data = decode.member_with_extension(sample.fields, decode.SOUNDS, sample.key)
        wave = decode.audio(data, extension, self.rate, sample.key, self.samples)
        length = min(len(wave), self.samples)
        return {"waveform": preprocess.crop_or_pad(wave, self.samples), "length": length, **self.label_of(sample)}

    @property
    def mixes(self) -> bool:
        """Return True if clips may be mixed."""
        return self.mixup_probability > 0

    def mixup_index(self, samples: int, rng: np.random.Generator) -> int | None:
        """Draw a partner from the whole set with `mixup_probability`."""
        mixes = self.mixup_probability and rng.random() < self.mixup_probability
        return int(rng.integers(samples)) if mixes else None

    def mixed(self, sample: RawSample, other: RawSample, rng: np.random.Generator) -> Row:
        """Mix two clips as the released code of NonLing-CSE: share * clip + (1 - share) * other with share ~ Beta(10, 10).

        The means of both clips are subtracted, the other clip is cut or padded to the length of the first, and the class is
        taken from the clip with the larger share.
        """
        row, partner = self.row(sample, rng), self.row(other, rng)
        share = rng.beta(MIXUP_ALPHA, MIXUP_ALPHA)
        blend = share * _centred(row) + (1 - share) * _centred(partner)
        blend[:, row["length"] :] = 0
        wave = np.clip(np.rint(blend), -32768, 32767).astype(np.int16)
        return {**(row if share >= 0.5 else partner), "waveform": wave, "length": row["length"]}

    def collate(self, rows: dict[str, Any], tokenize: Tokenize | None) -> dict[str, Tensor]:
        """Return ``waveform`` (B, 1, T), ``length`` (B,) and, if the samples have classes, ``label`` (B,)."""
        import torch

        wave = torch.from_numpy(rows["waveform"])
        return {"waveform": wave, "length": torch.from_numpy(rows["length"]), **self.labels(rows)}

    def draws(self, samples: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Draw the numbers of SpecAugment's masks, if there are masks."""
        from multicse.data.streams.device import mask_draws

        return {"draws": mask_draws(samples, generator=generator)} if self.mask_bins or self.mask_frames else {}

    def on_device(self, batch: Batch) -> Batch:
        """Compute the filter banks and mask them."""
        from multicse.data.streams import device

        wave, lengths = batch["waveform"], batch["length"]
        spectrogram = preprocess.log_mel(wave, rate=self.rate, bins=self.bins, frames=self.frames, lengths=lengths)
        if "draws" in batch:
            spectrogram = device.spec_augment(spectrogram, self.mask_frames, self.mask_bins, batch["draws"])
        label = {"label": batch["label"]} if "label" in batch else {}
        return Batch({"spectrogram": spectrogram, **label}, batch.keys)


def _centred(row: Row) -> np.ndarray:
    """Return a clip (1, T) minus its mean; the silence after it stays 0."""
    wave, length = row["waveform"].astype(float), row["length"]
    wave[:, :length] -= wave[:, :length].mean()
    return wave
