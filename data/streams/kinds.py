"""What a recipe says about its streams: where the shards are, which views are made, how large a batch is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field

from data.shards import RawSample
from data.streams import decode, views
from data.streams.base import Row, StreamConfig, Tokenize
from data.streams.pairs import AudioTextStream, ImageTextStream
from data.streams.text import TextStream, lexicon_of
from data.streams.triplets import TripletTextStream

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from data.batch import Batch
    from data.wordnet.lexicon import Lexicon

# Reading tasks import this module, so torch is imported where a trainer calls: it costs a process seconds to start.


class EDATextStream(TextStream):
    """Two independent EDA views of every sentence (paper 003's baseline): ``input_ids``, ``attention_mask`` (B, 2, L).

    They are made where the shards are read; the same seed, pass and sample give the same views.
    """

    kind: Literal["eda_text"] = "eda_text"  # type: ignore[assignment]  # the union tells streams apart by it
    columns: tuple[str] = ("txt",)
    """The one field that holds the sentence."""
    alpha: float = Field(0.1, ge=0, le=1)
    """Share of the words that each of the four edits is to change; 0: the sentence twice."""
    lexicon: str | None = None
    """Folder of WordNet's database files, or `small` for a table of some 200 words; none: where packages put WordNet."""

    @property
    def n_texts(self) -> int:
        return 2

    def row(self, sample: RawSample, rng: np.random.Generator) -> Row:
        from data.streams.eda import eda, remembered

        words = decode.text(sample.fields, self.columns, key=sample.key)[0].split()
        synonyms = remembered(self.open_lexicon())
        return {name: " ".join(eda(words, rng, synonyms, self.alpha)) for name in self._names}

    def open_lexicon(self) -> Lexicon:
        """Opened once in a process. ValueError where there is none: no fault of a sample, so no sample is skipped for it."""
        return lexicon_of("eda_text", self.lexicon)


class LabelledStream(StreamConfig):
    """A stream whose samples may carry a class."""

    label: str | None = "cls"
    """Field that holds the integer class; none: the samples have no label."""

    def label_of(self, sample: RawSample) -> Row:
        return {} if self.label is None else {"label": decode.label(sample.fields, self.label, key=sample.key)}

    def labels(self, rows: dict[str, Any]) -> dict[str, Tensor]:
        import torch

        return {} if self.label is None else {"label": torch.from_numpy(np.array(rows["label"], dtype=np.int64))}


class ImageStream(LabelledStream):
    """Two random views of every image, SimCLR's (paper 000, section 2.6): ``image`` (B, V, 3, size, size)."""

    kind: Literal["image"] = "image"
    size: int = Field(224, gt=0)
    """Pixels of a side of a view; the method's image_size is the same."""
    n_views: int = Field(2, gt=0)
    """Independent crops of every image."""
    scale: tuple[float, float] = (0.2, 1.0)
    """Smallest and largest share of the image's area in a crop."""
    flip: float = Field(0.5, ge=0, le=1)
    """Probability of a mirror image."""
    jitter: tuple[float, float, float, float] = (0.4, 0.4, 0.4, 0.1)
    """Largest change of brightness, contrast, saturation and hue."""
    jitter_probability: float = Field(0.8, ge=0, le=1)
    """Share of views whose colours are changed."""
    grayscale_probability: float = Field(0.2, ge=0, le=1)
    """Share of views without colour."""
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    """Of red, green, blue in 0 to 1; views are (x - mean) / std. The default is ImageNet's."""
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)

    def row(self, sample: RawSample, rng: np.random.Generator) -> Row:
        picture = decode.image(decode.member(sample.fields, decode.IMAGES, sample.key), key=sample.key)
        arrays = views.image_views(picture, self.n_views, size=self.size, scale=self.scale, flip=self.flip, rng=rng)
        return {"image": arrays, **self.label_of(sample)}

    def collate(self, rows: dict[str, Any], tokenize: Tokenize | None) -> dict[str, Tensor]:
        import torch

        return {"image": torch.from_numpy(np.stack(list(rows["image"]))), **self.labels(rows)}

    def on_device(self, batch: Batch, generator: torch.Generator) -> Batch:
        from data.streams import device

        image = batch["image"].flatten(0, 1).float() / 255
        brightness, contrast, saturation, hue = self.jitter
        image = device.color_jitter(
            image,
            generator,
            brightness=brightness,
            contrast=contrast,
            saturation=saturation,
            hue=hue,
            probability=self.jitter_probability,
        )
        image = device.random_grayscale(image, generator, probability=self.grayscale_probability)
        image = device.normalise(image, self.mean, self.std)
        return batch.replace(image=image.view(batch["image"].shape))


class AudioStream(LabelledStream):
    """One log-mel filter bank per clip (paper 000, section 2.6): ``spectrogram`` (B, 1, frames, bins)."""

    kind: Literal["audio"] = "audio"
    rate: int = Field(16000, gt=0)
    """Samples per second that every clip is resampled to."""
    bins: int = Field(128, gt=0)
    """Mel filters; low rates allow fewer, and a filter that would always be empty is refused."""
    frames: int = Field(1024, gt=0)
    """Frames of 10 ms; longer clips are cut, shorter ones padded with silence."""
    mixup_probability: float = Field(0.0, ge=0, le=1)
    """The released code mixes half of the clips with another one (0.5); the paper does not (0)."""
    mask_bins: int = Field(0, ge=0)
    """SpecAugment: widest band of bins that is masked (released: 48)."""
    mask_frames: int = Field(0, ge=0)
    """SpecAugment: longest stretch of frames that is masked (released: 192)."""

    @property
    def samples(self) -> int:
        """Waveform samples that `frames` frames of 25 ms at steps of 10 ms cover."""
        return (self.frames - 1) * (self.rate // 100) + self.rate * 25 // 1000

    def row(self, sample: RawSample, rng: np.random.Generator) -> Row:
        extension, data = decode.member_with_extension(sample.fields, decode.SOUNDS, sample.key)
        wave = decode.audio(data, extension, rate=self.rate, key=sample.key)
        length = min(len(wave), self.samples)
        return {"waveform": views.crop_or_pad(wave, self.samples, rng), "length": length, **self.label_of(sample)}

    def collate(self, rows: dict[str, Any], tokenize: Tokenize | None) -> dict[str, Tensor]:
        import torch

        wave = torch.from_numpy(np.stack(list(rows["waveform"])))
        return {"waveform": wave, "length": torch.from_numpy(np.array(rows["length"])), **self.labels(rows)}

    def on_device(self, batch: Batch, generator: torch.Generator) -> Batch:
        from data.batch import Batch
        from data.streams import device

        wave, lengths, label = batch["waveform"], batch["length"], batch.tensors.get("label")
        if self.mixup_probability:
            wave, label = device.mixup(wave, label, generator, probability=self.mixup_probability, lengths=lengths)
        spectrogram = device.log_mel(wave, rate=self.rate, bins=self.bins, frames=self.frames, lengths=lengths)
        if self.mask_bins or self.mask_frames:
            spectrogram = device.spec_augment(spectrogram, generator, freq=self.mask_bins, time=self.mask_frames)
        tensors = {"spectrogram": spectrogram} | ({} if label is None else {"label": label})
        return Batch(tensors, batch.keys)


AnyStream = Annotated[
    TextStream | EDATextStream | TripletTextStream | ImageStream | AudioStream | ImageTextStream | AudioTextStream,
    Field(discriminator="kind"),
]
