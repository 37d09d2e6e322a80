"""Streams of pictures or sounds with one caption each (Zhao et al. 2023): CLIP, CyCLIP, CLAP, CyCLAP.

The same preprocessing serves training, evaluation and the exported model: `data/streams/preprocess.py`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from PIL import Image
from pydantic import Field, model_validator

from multicse.data.errors import DecodeError
from multicse.data.shards import RawSample, ShardSet
from multicse.data.streams import decode, preprocess
from multicse.data.streams.base import Batch, Row, StreamConfig, Tokenize
from multicse.data.streams.image import random_resized_crop
from multicse.data.streams.inputs import AudioInput, ImageInput

if TYPE_CHECKING:
    from torch import Tensor

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


def class_name_mismatch(named: Sequence[str], given: Sequence[str]) -> str | None:
    """Return how the names `given` to the class numbers 0, 1, ... contradict those of the shards (`named`), or None.

    Another number of names is a mismatch, and the same names in another order; underscores are read as blanks, upper and
    lower case are alike. Other words, and shards without names, are not.
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
        return [("label", (self.label, "json")) if self.templates else ("captions", ("captions", "caption", "json", "txt"))]

    def check(self, shards: ShardSet) -> None:
        super().check(shards)
        # Captions made from class numbers name the classes that the shards mean, whose names are those of the field cls.
        if self.templates and self.label == "cls" and (wrong := class_name_mismatch(shards.classes, self.classes)):
            raise ValueError(f"classes: {wrong}: {self.shards}")

    def sentences(self, sample: RawSample) -> list[str]:
        """One caption, or text made from the class, of those that there are."""
        return [self._caption(sample, np.random.default_rng(0))]

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
                f"0 to {len(self.classes) - 1}"
            )
        return fill(self._one(self.templates, rng), self.classes[number])

    def _one(self, texts: Sequence[str], rng: np.random.Generator) -> str:
        return texts[int(rng.integers(len(texts))) if self.captions == "random" else 0]

    def tokens(self, rows: dict[str, Any], tokenize: Tokenize | None) -> dict[str, Tensor]:
        """``input_ids`` and ``attention_mask`` (B, 1, L) of the drawn captions."""
        assert tokenize is not None  # a stream with texts is given one
        found = tokenize([str(text) for text in rows["text"]])
        return {name: found[name][:, None] for name in ("input_ids", "attention_mask") if name in found}


class ImageTextStream(CaptionedStream):
    """Pictures with a caption: ``image`` (B, 1, 3, size, size), ``input_ids`` and ``attention_mask`` (B, 1, L)."""

    kind: Literal["image_text"] = "image_text"
    """Kind of the stream; fixed, since its other settings belong to it."""
    input: ImageInput = ImageInput()
    """Size and normalisation; the tower's are the same."""
    augment: Literal["none", "crop"] = "none"
    """`none`: resize and centre crop, as in evaluation; CLIP and CyCLIP as Zhao et al. trains them have no augmentation.
    `crop`: open_clip's random resized crop of 90 to 100 % of the area."""

    def needs(self) -> list[tuple[str, tuple[str, ...]]]:
        return [("kind", decode.IMAGES), *super().needs()]

    def item(self, sample: RawSample, rng: np.random.Generator) -> Row:
        picture = decode.image(decode.member(sample.fields, decode.IMAGES, sample.key), key=sample.key)
        size = self.input.size
        if self.augment == "crop":
            picture = random_resized_crop(picture, size, rng, (0.9, 1.0), resample=Image.Resampling.BICUBIC)
        else:
            picture = preprocess.resize_center_crop(picture, size)
        return {"image": np.ascontiguousarray(preprocess.to_chw(picture))[None]}

    def collate(self, rows: dict[str, Any], tokenize: Tokenize | None) -> dict[str, Tensor]:
        import torch

        return {"image": torch.from_numpy(rows["image"]), **self.tokens(rows, tokenize)}

    def on_device(self, batch: Batch) -> Batch:
        return batch.replace(image=preprocess.normalise(batch["image"], self.input.mean, self.input.std))


class AudioTextStream(CaptionedStream):
    """Sounds with a caption: ``spectrogram`` (B, 1, frames, bins), ``input_ids`` and ``attention_mask`` (B, 1, L).

    Of a longer sound a random part is taken. A shorter one is repeated whole and then followed by silence (CLAP's
    "rand_trunc" and "repeatpad"); of Kaldi's features, its frames are followed by zeros (AST's). SpecAugment belongs to the
    tower.
    """

    kind: Literal["audio_text"] = "audio_text"
    """Kind of the stream; fixed, since its other settings belong to it."""
    input: AudioInput = AudioInput()
    """Rate, length and spectrogram; the tower's are the same."""

    def needs(self) -> list[tuple[str, tuple[str, ...]]]:
        return [("kind", decode.SOUNDS), *super().needs()]

    def check_settings(self) -> None:
        """One silent clip shows whether there is a spectrogram: filters are not empty, the clip is long enough."""
        import torch

        try:
            self._features(torch.zeros(1, 1, self.input.samples))
        except ValueError as error:
            raise ValueError(f"input: {error}") from None

    def item(self, sample: RawSample, rng: np.random.Generator) -> Row:
        extension, data = decode.member_with_extension(sample.fields, decode.SOUNDS, sample.key)
        wave = decode.audio(data, extension, rate=self.input.rate, key=sample.key)
        samples = self.input.samples
        view = preprocess.crop_or_pad(wave, samples, rng, "silence" if self.input.features == "kaldi" else "repeat")
        return {"waveform": view, "length": min(len(wave), samples)}

    def collate(self, rows: dict[str, Any], tokenize: Tokenize | None) -> dict[str, Tensor]:
        import torch

        lengths = torch.from_numpy(rows["length"])
        return {"waveform": torch.from_numpy(rows["waveform"]), "length": lengths, **self.tokens(rows, tokenize)}

    def on_device(self, batch: Batch) -> Batch:
        tensors = {name: tensor for name, tensor in batch.tensors.items() if name not in ("waveform", "length")}
        tensors["spectrogram"] = self._features(batch["waveform"], batch["length"])
        return replace(batch, tensors=tensors)

    def _features(self, waveform: Tensor, lengths: Tensor | None = None) -> Tensor:
        lengths = lengths if self.input.features == "kaldi" else None
        return preprocess.log_mel(waveform, lengths=lengths, **self.input.model_dump(exclude={"seconds"}))
