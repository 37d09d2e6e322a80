"""Streams of pictures or sounds with one caption each (Zhao et al. 2023): CLIP, CyCLIP, CLAP, CyCLAP.

The same preprocessing serves training, evaluation and the exported model: `prepare_images` and `prepare_sounds` are its
deterministic form.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import soxr
from PIL import Image
from pydantic import Field, model_validator

from data.errors import DecodeError
from data.shards import RawSample, ShardSet
from data.streams import decode, views
from data.streams.base import Row, StreamConfig, Tokenize
from data.streams.inputs import AudioInput, ImageInput

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from data.batch import Batch

# Reading tasks import this module, so torch is imported where a trainer calls: it costs a process seconds to start.

PLACEHOLDERS = ("{}", "{label}")
"""What stands for the class name in a template."""


def fill(template: str, name: str) -> str:
    """The template with the class name in every place that is marked `{}` or `{label}`; other braces stay."""
    for mark in PLACEHOLDERS:
        template = template.replace(mark, name)
    return template


def words(name: str) -> str:
    """A class name as text: "drinking_sipping" is "drinking sipping"."""
    return " ".join(name.replace("_", " ").split())


def misnamed(named: Sequence[str], given: Sequence[str]) -> str | None:
    """What is wrong with the names `given` to the class numbers 0, 1, ... of shards that call them `named`; None where
    nothing is: other words for them, or shards without names, are right.

    Wrong are another number of names, and the same names in another order; underscores are read as blanks, upper and lower
    case are alike.
    """
    ours, theirs = ([words(name) for name in names] for names in (given, named))
    if theirs and len(ours) != len(theirs):
        return (
            f"{len(ours)} classes are given, but the shards have {len(theirs)} ({', '.join(theirs[:3])}, ...); the names "
            "must be those of their class numbers 0, 1, ..., all of them and in that order"
        )
    pairs = [(a.lower(), b.lower()) for a, b in zip(ours, theirs, strict=False)]
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    if at is None or sorted(a for a, _ in pairs) != sorted(b for _, b in pairs):
        return None
    return (
        f"the classes are in another order than the shards': number {at} is {theirs[at]!r} there and {ours[at]!r} here, so "
        "names would go to the wrong classes; give the shards' order"
    )


class CaptionedStream(StreamConfig):
    """One item and one text of every sample: the text is a caption, or made from the sample's class by a template.

    A sample with several captions gives another one in every pass: the draw depends on the seed, the stream, the pass and
    the sample, so a run can be repeated and continued exactly.
    """

    captions: Literal["random", "first"] = "random"
    """Which caption (or template) a pass sees: one drawn at random, or always the first."""
    templates: tuple[str, ...] = ()
    """Texts like `a photo of a {}.`, whose `{}` or `{label}` is the class name: captions are made from class numbers
    (class-conditional zero-shot sets). Empty: the samples have captions."""
    classes: tuple[str, ...] = ()
    """Names of the classes 0, 1, ...; with `templates` only."""
    label: str = "cls"
    """With `templates`: field that holds the integer class."""
    max_length: int = Field(77, gt=2)
    """Tokens that are kept of a caption."""

    @model_validator(mode="after")
    def _templates_and_classes(self) -> Self:
        if bool(self.templates) != bool(self.classes):
            raise ValueError(
                f"templates and classes belong together: {len(self.templates)} templates and {len(self.classes)} classes "
                "are given; name both (captions from class names), or none (captions of the samples)"
            )
        if bad := [text for text in self.templates if not any(mark in text for mark in PLACEHOLDERS)]:
            raise ValueError(f"templates: {bad[0]!r} has no place for the class name; write {{}} or {{label}} there")
        if any(not name.strip() for name in self.classes):
            raise ValueError(f"classes: the name of class {[bool(n.strip()) for n in self.classes].index(False)} is empty")
        return self

    @property
    def texts(self) -> bool:
        return True

    def needs(self) -> list[tuple[str, tuple[str, ...]]]:
        return [("label", (self.label, "json")) if self.templates else ("captions", ("json", "txt"))]

    def check(self, shards: ShardSet) -> None:
        super().check(shards)
        # Captions made from class numbers name the classes that the shards mean, whose names are those of the field cls.
        if self.templates and self.label == "cls" and (wrong := misnamed(shards.classes, self.classes)):
            raise ValueError(f"classes: {wrong}: {self.shards}")

    def row(self, sample: RawSample, rng: np.random.Generator) -> Row:
        return {"text": self._caption(sample, rng), **self.item(sample, rng)}

    @abstractmethod
    def item(self, sample: RawSample, rng: np.random.Generator) -> Row:
        """The picture or sound of a sample, one view of it; raises DecodeError for a bad one."""

    def _caption(self, sample: RawSample, rng: np.random.Generator) -> str:
        if not self.templates:
            return self._one(decode.captions(sample.fields, sample.key), rng)
        number = decode.label(sample.fields, self.label, sample.key)
        if number >= len(self.classes):
            raise DecodeError(
                f"sample {sample.key!r}: {self.label!r} is {number}, but `classes` names {len(self.classes)} classes, "
                f"0 to {len(self.classes) - 1}",
                "bad class",
            )
        return fill(self._one(self.templates, rng), self.classes[number])

    def _one(self, texts: Sequence[str], rng: np.random.Generator) -> str:
        return texts[int(rng.integers(len(texts))) if self.captions == "random" else 0]

    def tokens(self, rows: dict[str, Any], tokenize: Tokenize | None) -> dict[str, Tensor]:
        """``input_ids`` and ``attention_mask`` (B, 1, L) of the drawn captions."""
        if tokenize is None:
            raise ValueError(f"a stream of kind {type(self).model_fields['kind'].default!r} needs a tokenizer")
        found = tokenize([str(text) for text in rows["text"]])
        return {name: found[name][:, None] for name in ("input_ids", "attention_mask") if name in found}


class ImageTextStream(CaptionedStream):
    """Pictures with a caption: ``image`` (B, 1, 3, size, size), ``input_ids`` and ``attention_mask`` (B, 1, L)."""

    kind: Literal["image_text"] = "image_text"
    input: ImageInput = ImageInput()
    """Size and normalisation; the tower's are the same."""
    augment: Literal["none", "crop"] = "none"
    """`none`: resize and centre crop, as in evaluation; CLIP and CyCLIP as Zhao et al. trains them have no augmentation.
    `crop`: open_clip's random resized crop of 90 to 100 % of the area."""

    def needs(self) -> list[tuple[str, tuple[str, ...]]]:
        return [("kind", decode.IMAGES), *super().needs()]

    def item(self, sample: RawSample, rng: np.random.Generator) -> Row:
        picture = decode.image(decode.member(sample.fields, decode.IMAGES, sample.key), key=sample.key)
        if self.augment == "crop":
            return {"image": views.crop_view(picture, self.input.size, rng)}
        return {"image": views.center_view(picture, self.input.size)}

    def collate(self, rows: dict[str, Any], tokenize: Tokenize | None) -> dict[str, Tensor]:
        import torch

        return {"image": torch.from_numpy(np.stack(list(rows["image"]))), **self.tokens(rows, tokenize)}

    def on_device(self, batch: Batch, generator: torch.Generator) -> Batch:
        from data.streams import device

        return batch.replace(image=device.normalise(batch["image"], self.input.mean, self.input.std))


class AudioTextStream(CaptionedStream):
    """Sounds with a caption: ``spectrogram`` (B, 1, frames, bins), ``input_ids`` and ``attention_mask`` (B, 1, L).

    Of a longer sound a random part is taken, a shorter one is repeated whole and then followed by silence (CLAP's
    "rand_trunc" and "repeatpad"). SpecAugment belongs to the tower.
    """

    kind: Literal["audio_text"] = "audio_text"
    input: AudioInput = AudioInput()
    """Rate, length and spectrogram; the tower's are the same."""

    def needs(self) -> list[tuple[str, tuple[str, ...]]]:
        return [("kind", decode.SOUNDS), *super().needs()]

    def check_settings(self) -> None:
        """One silent clip shows whether there is a spectrogram: filters are not empty, the clip is long enough."""
        import torch

        from data.streams import device

        try:
            device.audio_features(torch.zeros(1, 1, self.input.samples), self.input)
        except ValueError as error:
            raise ValueError(f"input: {error}") from None

    def item(self, sample: RawSample, rng: np.random.Generator) -> Row:
        extension, data = decode.member_with_extension(sample.fields, decode.SOUNDS, sample.key)
        wave = decode.audio(data, extension, rate=self.input.rate, key=sample.key)
        return {"waveform": views.crop_or_pad(wave, self.input.samples, rng, "random", pad="repeat")}

    def collate(self, rows: dict[str, Any], tokenize: Tokenize | None) -> dict[str, Tensor]:
        import torch

        return {"waveform": torch.from_numpy(np.stack(list(rows["waveform"]))), **self.tokens(rows, tokenize)}

    def on_device(self, batch: Batch, generator: torch.Generator) -> Batch:
        from data.batch import Batch
        from data.streams import device

        tensors = {name: tensor for name, tensor in batch.tensors.items() if name != "waveform"}
        return Batch({"spectrogram": device.audio_features(batch["waveform"], self.input), **tensors}, batch.keys)


# ---- without randomness: evaluation and export -------------------------------------------------------------------------


def prepare_images(items: Sequence[np.ndarray], input: ImageInput) -> Tensor:
    """What a picture tower takes: float32 (N, 3, size, size) on the CPU, of N pictures uint8 (H, W, 3).

    Resized and centre-cropped as in training without augmentation. Raises ValueError for an array of another kind.
    """
    import torch

    from data.streams import device

    square = np.empty((len(items), 3, input.size, input.size), np.uint8)
    for number, item in enumerate(items):
        if item.ndim != 3 or item.shape[-1] != 3 or item.dtype != np.uint8:
            raise ValueError(f"picture {number} is {item.dtype} {item.shape}; it must be uint8 RGB (H, W, 3)")
        square[number] = views.center_view(Image.fromarray(item), input.size)[0]
    return device.normalise(torch.from_numpy(square), input.mean, input.std)


def prepare_sounds(items: Sequence[tuple[np.ndarray, int]], input: AudioInput) -> Tensor:
    """What a sound tower takes: float32 (N, frames, bins) on the CPU, of N sounds (samples float (T,), samples per second).

    Resampled as in training, with 16 bits in between as there; the middle part of a longer sound, a shorter one repeated
    and padded. Raises ValueError for an empty sound, one that is not (T,), and samples that are infinite or no number.
    """
    import torch

    from data.streams import device

    waves = np.empty((len(items), 1, input.samples), np.int16)
    for number, (samples, rate) in enumerate(items):
        if samples.ndim != 1 or not len(samples) or rate <= 0:
            raise ValueError(f"sound {number} is {samples.shape} at rate {rate}; it must be (T,) with T and rate above 0")
        if bad := int((~np.isfinite(samples)).sum()):
            raise ValueError(f"sound {number}: {bad} of {len(samples)} samples are infinite or NaN; leave the sound out")
        wave = samples if rate == input.rate else soxr.resample(samples, rate, input.rate)
        if not len(wave):
            raise ValueError(f"sound {number} of {len(samples)} samples is empty at rate {input.rate}")
        waves[number] = views.crop_or_pad(wave, input.samples, mode="center", pad="repeat")
    return device.audio_features(torch.from_numpy(waves), input)[:, 0]
