"""Samples of shards for evaluation: images, audio clips or texts with their captions or class, decoded in chunks."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from multicse.data.errors import DataError
from multicse.data.shards import BadSample, RawSample, ShardSet, read, size_and_sha256
from multicse.data.streams import decode
from multicse.evaluation.task import Encoder, EvaluationError, Sound, embed

CHUNK = 64  # samples decoded at a time: some 60 MB of images at 640 x 480, or 110 MB of ten-second audio clips


class Sample(NamedTuple):
    """One decoded sample."""

    where: str  # task and shard, for messages; errors of the data package name the sample
    item: Any  # uint8 RGB (H, W, 3), a `Sound`, or a text
    fields: Mapping[str, Any]
    key: str

    def captions(self) -> list[str]:
        """Return the captions, at least one."""
        with named(self.where):
            return decode.captions(self.fields, self.key)

    def label(self, classes: int | None = None) -> int:
        """Return the class number, from the field cls. Raises EvaluationError if it is not less than `classes`."""
        with named(self.where):
            label = decode.label(self.fields, "cls", self.key)
        if classes is not None and label >= classes:
            raise EvaluationError(
                f"{self.where}, sample {self.key!r}: class number {label}, but there are {classes} classes"
            )
        return label


class Samples:
    """Samples of shards, in order; errors name the task."""

    def __init__(self, task: str, shards: str | Path | Sequence[str]) -> None:
        self.task = f"task {task}"
        with named(self.task):
            self.shards = ShardSet.open(str(shards) if isinstance(shards, Path) else shards)
        self.classes = self.shards.classes
        self.modality = self._modality()

    def __len__(self) -> int:
        return self.shards.samples

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the contents of the shards, independent of their location."""
        digest = hashlib.sha256()
        for shard in self.shards.shards:
            known = shard.sha256 or size_and_sha256(shard.url)[1]
            digest.update(f"{shard.name}\0{known}\0".encode())
        return digest.hexdigest()

    def chunks(self, size: int = CHUNK) -> Iterator[list[Sample]]:
        """Yield all samples, at most `size` at a time. Raises EvaluationError for a sample that cannot be decoded."""
        samples = map(self._decoded, self._raw())
        while chunk := list(islice(samples, size)):
            yield chunk

    def _decoded(self, raw: RawSample | BadSample) -> Sample:
        where = f"{self.task}: shard {raw.shard}"
        if isinstance(raw, BadSample):
            raise EvaluationError(f"{where}, sample {raw.key!r}: {raw.reason}")
        with named(where):
            if self.modality == "text":
                item: Any = decode.text(raw.fields, ("txt",), raw.key)[0]
            elif self.modality == "image":
                item = np.asarray(decode.image(decode.member(raw.fields, decode.IMAGES, raw.key), raw.key))
            else:
                extension, data = decode.member_with_extension(raw.fields, decode.SOUNDS, raw.key)
                rate = decode.own_rate(data)  # encoders resample it once
                item = Sound(decode.audio(data, extension, rate, raw.key), rate)
        return Sample(where, item, raw.fields, raw.key)

    def _raw(self) -> Iterator[RawSample | BadSample]:
        with named(self.task):
            for shard in self.shards.shards:
                yield from read(shard, range(shard.samples))

    def _modality(self) -> str:
        fields = set(self.shards.fields)
        if not fields:  # a dataset.json made elsewhere may not list them
            first = next(self._raw())
            fields = set(first.fields) if isinstance(first, RawSample) else set()
        kinds = {"image": decode.IMAGES, "audio": decode.SOUNDS}
        found = [kind for kind, extensions in kinds.items() if fields & set(extensions)]
        if len(found) == 1 or (not found and "txt" in fields):
            return found[0] if found else "text"
        raise EvaluationError(
            f"{self.task}: the samples have the fields {', '.join(sorted(fields)) or 'none'}; expected images "
            f"({', '.join(decode.IMAGES)}), audio ({', '.join(decode.SOUNDS)}) or texts (txt)"
        )


class PairedTask:
    """Base class of tasks on images or audio.

    Args:
        name: Name of the task.
        shards: Folder, brace range or list of shards, as for `ShardSet.open`.
    """

    def __init__(self, name: str, shards: str | Path | Sequence[str]) -> None:
        self.name = name
        self.samples = Samples(name, shards)
        self.modality = self.samples.modality
        if self.modality == "text":
            raise EvaluationError(f"task {name}: the shards contain texts only; it needs images or audio")
        if len(self.samples) < 2:
            raise EvaluationError(f"task {name}: the shards contain 1 item; it needs at least two")

    @property
    def hash(self) -> str:
        """SHA-256 of the shards."""
        return self.samples.hash

    def sentences(self) -> list[str]:
        """Return an empty list: captions are read together with their items, and prompts are encoded in parts."""
        return []


class PairedItems(NamedTuple):
    """Distinct items and their captions."""

    items: np.ndarray
    """Embeddings of the items, (N, d)."""
    captions: list[str]
    """All captions, T of them, in the order of the samples."""
    owners: np.ndarray
    """Number of the item of each caption, (T,)."""

    @property
    def first(self) -> list[str]:
        """Return the first caption of every item."""
        return [self.captions[caption] for caption in np.unique(self.owners, return_index=True)[1]]


def encode_pairs(samples: Samples, encoder: Encoder) -> PairedItems:
    """Encode the items of samples. Samples with equal images or audio clips are one item, with the captions of all.

    Many data sets have a sample per caption, so that the same image is in several of them.
    """
    vectors: list[np.ndarray] = []
    captions: list[str] = []
    owners: list[int] = []
    numbers: dict[bytes, int] = {}
    for chunk in samples.chunks():
        new: list[Any] = []
        for sample in chunk:
            digest, before = content_digest(sample.item), len(numbers)
            number = numbers.setdefault(digest, before)
            new += [sample.item] if number == before else []
            own = sample.captions()
            captions += own
            owners += [number] * len(own)
        if new:
            vectors.append(embed(encoder, new, samples.modality))
    if len(numbers) < 2:
        raise EvaluationError(f"{samples.task}: all {len(samples):,} samples are the same {samples.modality}; it needs two")
    return PairedItems(np.concatenate(vectors), captions, np.asarray(owners))


def content_digest(item: Any) -> bytes:
    """Return 16 bytes that are equal for equal decoded images or audio clips."""
    values, *rate = item if isinstance(item, Sound) else (item,)
    digest = hashlib.blake2b(repr((values.shape, *rate)).encode(), digest_size=16)
    digest.update(values.tobytes())
    return digest.digest()


@contextlib.contextmanager
def named(where: str) -> Iterator[None]:
    """Convert a DataError into an EvaluationError that starts with `where`."""
    try:
        yield
    except DataError as error:
        raise EvaluationError(f"{where}: {error}") from error
