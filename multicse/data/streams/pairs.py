"""Streams of images or audio clips with one caption each (Zhao et al. 2023): CLIP, CyCLIP, CLAP, CyCLAP.

Training, evaluation and the exported model share the preprocessing in `data/streams/preprocess.py`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np
from PIL import Image
from pydantic import Field, model_validator

from multicse.data.errors import DecodeError
from multicse.data.settings import EachOnce, refuse_idle
from multicse.data.shards import RawSample, ShardSet
from multicse.data.streams import decode, preprocess
from multicse.data.streams.base import Batch, Row, StreamConfig, Tokenize
from multicse.data.streams.image import random_resized_crop
from multicse.data.streams.inputs import AudioInput, ImageInput

if TYPE_CHECKING:
    from torch import Tensor

PLACEHOLDERS = ("{}", "{label}")
"""Placeholders of the class name in a template."""


def fill(template: str, name: str) -> str:
    """Replace every `{}` and `{label}` of a template by the class name; other braces stay."""
    for mark in PLACEHOLDERS:
        template = template.replace(mark, name)
    return template


def words(name: str) -> str:
    """Return a class name as text, for example "drinking sipping" for "drinking_sipping"."""
    return " ".join(name.replace("_", " ").split())


def class_name_mismatch(named: Sequence[str], given: Sequence[str]) -> str | None:
    """Describe a different number of class names than in the shards, or equal names in a different order; otherwise None.

    Underscores are read as blanks, and case is ignored.

    Args:
        named: Names of the classes 0, 1, ... in the shards. If empty, nothing is a mismatch.
        given: Names of the classes 0, 1, ... in the settings.
    """
    ours, theirs = ([words(name) for name in names] for names in (given, named))
    if theirs and len(ours) != len(theirs):
        return (
            f"{len(ours)} classes are given, but the shards have {len(theirs)} ({', '.join(theirs[:3])}, ...); name all "
            "classes of the shards in the order of their numbers 0, 1, ..."
        )
    pairs = [(a.lower(), b.lower()) for a, b in zip(ours, theirs, strict=False)]
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    if at is None or sorted(a for a, _ in pairs) != sorted(b for _, b in pairs):
        return None
    return (
        f"the classes are in a different order than in the shards: number {at} is {theirs[at]!r} there and {ours[at]!r} "
        "here, so classes would get wrong names; use the order of the shards"
    )


class CaptionedStream(StreamConfig):
    """Samples of one item and one text, which is a caption or made from the class of the sample by a template.

    A sample with several captions has a random one in every epoch.
    """

    captions: Literal["random", "first"] = "random"
    """Choice of a caption (or template) in each epoch. `random`: a random one. `first`: always the first."""
    templates: Annotated[tuple[str, ...], EachOnce] = ()
    """Templates such as `a photo of a {}.`, in which `{}` or `{label}` is replaced by the class name, to make captions from
    class numbers. If empty, the samples contain captions."""
    classes: tuple[str, ...] = ()
    """Names of the classes 0, 1, ...; required with `templates`, otherwise not allowed."""
    label: str = "cls"
    """Field with the integer class; only used with `templates`."""
    max_length: int = Field(77, gt=2)
    """Largest number of tokens of a caption; the rest is cut off."""

    @model_validator(mode="after")
    def _templates_and_classes(self) -> Self:
        if bool(self.templates) != bool(self.classes):
            raise ValueError(
                f"templates and classes belong together, but {len(self.templates)} templates and {len(self.classes)} "
                "classes are given; set both (captions from class names), or none (captions of the samples)"
            )
        if bad := [text for text in self.templates if not any(mark in text for mark in PLACEHOLDERS)]:
            raise ValueError(f"templates: {bad[0]!r} has no placeholder of the class name; insert {{}} or {{label}}")
        if any(not name.strip() for name in self.classes):
            raise ValueError(f"classes: the name of class {[bool(n.strip()) for n in self.classes].index(False)} is empty")
        return self

    @property
    def texts(self) -> bool:
        """Return True."""
        return True

    def needs(self) -> list[tuple[str, tuple[str, ...]]]:
        """Require captions, or with templates a class."""
        return [("label", (self.label, "json")) if self.templates else ("captions", ("captions", "caption", "json", "txt"))]

    def check_settings(self) -> None:
        """Check also that `label` and `captions` are used."""
        super().check_settings()
        if not self.templates:
            refuse_idle(self, ["label"], "captions are read from the samples; set templates and classes")
        if len(self.templates) == 1:
            refuse_idle(self, ["captions"], "there is one template; add templates")

    def check(self, shards: ShardSet) -> None:
        """Check also that the class names match the names in the shards."""
        super().check(shards)
        # The class names in the shards belong to the field cls.
        if self.templates and self.label == "cls" and (wrong := class_name_mismatch(shards.classes, self.classes)):
            raise ValueError(f"classes: {wrong}: {self.shards}")

    def sentences(self, sample: RawSample) -> list[str]:
        """Return one of the captions, or of the texts that templates make from the class."""
        return [self._caption(sample, np.random.default_rng(0))]

    def row(self, sample: RawSample, rng: np.random.Generator) -> Row:
        """Return the caption ``text`` and the item."""
        return {"text": self._caption(sample, rng), **self.item(sample, rng)}

    @abstractmethod
    def item(self, sample: RawSample, rng: np.random.Generator) -> Row:
        """Decode one view of the image or audio clip of a sample: arrays (1, ...) by name; see `row`."""

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
        """Return ``input_ids`` and ``attention_mask`` (B, 1, L) of the captions of a batch."""
        assert tokenize is not None  # streams with texts get a tokenizer
        found = tokenize([str(text) for text in rows["text"]])
        return {name: found[name][:, None] for name in ("input_ids", "attention_mask") if name in found}


class ImageTextStream(CaptionedStream):
    """Images with a caption: ``image`` (B, 1, 3, size, size), ``input_ids`` and ``attention_mask`` (B, 1, L)."""

    kind: Literal["image_text"] = "image_text"
    """Kind of the stream; it cannot be changed."""
    input: ImageInput = ImageInput()
    """Preprocessing of the images, which must be equal to the preprocessing of the tower."""
    augment: Literal["none", "crop"] = "none"
    """Augmentation of images in training. `none`: resize and centre crop, as in evaluation and in Zhao et al. `crop`: random
    resized crop of 90 to 100 % of the area, as in open_clip."""

    def needs(self) -> list[tuple[str, tuple[str, ...]]]:
        """Require an image field, and a text."""
        return [("kind", decode.IMAGES), *super().needs()]

    def item(self, sample: RawSample, rng: np.random.Generator) -> Row:
        """Return ``image``, uint8 (1, 3, size, size)."""
        image = decode.image(decode.member(sample.fields, decode.IMAGES, sample.key), key=sample.key)
        size = self.input.size
        if self.augment == "crop":
            image = random_resized_crop(image, size, rng, (0.9, 1.0), resample=Image.Resampling.BICUBIC)
        else:
            image = preprocess.resize_center_crop(image, size)
        return {"image": np.ascontiguousarray(preprocess.to_chw(image))[None]}

    def collate(self, rows: dict[str, Any], tokenize: Tokenize | None) -> dict[str, Tensor]:
        """Return ``image``, uint8 (B, 1, 3, size, size), and the tokens of the captions."""
        import torch

        return {"image": torch.from_numpy(rows["image"]), **self.tokens(rows, tokenize)}

    def on_device(self, batch: Batch) -> Batch:
        """Normalise the images."""
        return batch.replace(image=preprocess.normalise(batch["image"], self.input.mean, self.input.std))


class AudioTextStream(CaptionedStream):
    """Audio clips with a caption: ``spectrogram`` (B, 1, frames, bins), ``input_ids`` and ``attention_mask`` (B, 1, L).

    Longer audio is cut to a random part. Shorter audio is repeated as often as it fits and then padded with silence (CLAP's
    "rand_trunc" and "repeatpad"); with Kaldi's features it is not repeated, but its frames are padded with zeros (as for
    AST). SpecAugment is a part of the tower.
    """

    kind: Literal["audio_text"] = "audio_text"
    """Kind of the stream; it cannot be changed."""
    input: AudioInput = AudioInput()
    """Preprocessing of the audio, which must be equal to the preprocessing of the tower."""

    def needs(self) -> list[tuple[str, tuple[str, ...]]]:
        """Require an audio field, and a text."""
        return [("kind", decode.SOUNDS), *super().needs()]

    def check_settings(self) -> None:
        """Check also, with a silent clip, that no filter is empty and that a clip is long enough for a frame."""
        super().check_settings()
        import torch

        try:
            self._features(torch.zeros(1, 1, self.input.samples))
        except ValueError as error:
            raise ValueError(f"input: {error}") from None

    def item(self, sample: RawSample, rng: np.random.Generator) -> Row:
        """Return ``waveform``, int16 (1, T), and its ``length`` without padding."""
        extension, data = decode.member_with_extension(sample.fields, decode.SOUNDS, sample.key)
        wave = decode.audio(data, extension, rate=self.input.rate, key=sample.key)
        samples = self.input.samples
        view = preprocess.crop_or_pad(wave, samples, rng, "silence" if self.input.features == "kaldi" else "repeat")
        return {"waveform": view, "length": min(len(wave), samples)}

    def collate(self, rows: dict[str, Any], tokenize: Tokenize | None) -> dict[str, Tensor]:
        """Return ``waveform`` (B, 1, T), ``length`` (B,) and the tokens of the captions."""
        import torch

        lengths = torch.from_numpy(rows["length"])
        return {"waveform": torch.from_numpy(rows["waveform"]), "length": lengths, **self.tokens(rows, tokenize)}

    def on_device(self, batch: Batch) -> Batch:
        """Replace the waveforms by spectrograms."""
        tensors = {name: tensor for name, tensor in batch.tensors.items() if name not in ("waveform", "length")}
        tensors["spectrogram"] = self._features(batch["waveform"], batch["length"])
        return replace(batch, tensors=tensors)

    def _features(self, waveform: Tensor, lengths: Tensor | None = None) -> Tensor:
        lengths = lengths if self.input.features == "kaldi" else None
        return preprocess.log_mel(waveform, lengths=lengths, **self.input.model_dump(exclude={"seconds"}))
