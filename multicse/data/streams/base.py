"""The settings of every stream, the four steps from a raw sample to a batch on the device, and the batch."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, PositiveFloat

from multicse import plugins
from multicse.data.errors import DataError
from multicse.data.order import batches_of, segment_count
from multicse.data.settings import Machine, Settings, Shards, refuse_idle
from multicse.data.shard_urls import sizes
from multicse.data.shards import RawSample, ShardSet
from multicse.data.streams import decode

if TYPE_CHECKING:
    import torch
    from torch import Tensor

# Reading tasks import the modules of streams, so only functions that a trainer calls import torch, which takes seconds.

Row = dict[str, Any]
Tokenize = Callable[..., "dict[str, Tensor]"]
"""Function from N texts to token tensors (N, L). With `spans`, the characters (start, stop) of a word in each text, the
result also has ``word_mask`` (N, L)."""


@dataclass(frozen=True)
class Batch:
    """Named tensors of one batch of one stream.

    Axis 0 of every tensor is the sample. If the tensor has views, axis 1 is the view, also for a single view: ``input_ids``
    and ``attention_mask`` (B, V, L), ``image`` (B, V, C, H, W), ``waveform`` (B, V, T), ``spectrogram`` (B, V, frames,
    bins), ``label`` (B,), and ``draws`` (B, ...), the random numbers for views that are made on the device.
    """

    tensors: dict[str, Tensor]
    """Tensors by name."""
    keys: list[str] = field(default_factory=list)
    """Names of the samples, for error messages."""
    host_mask: Tensor | None = None
    """``attention_mask`` on the CPU, if the batch is on another device."""

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def __len__(self) -> int:
        return len(next(iter(self.tensors.values())))

    def to(self, device: torch.device | str) -> Batch:
        """Return the batch with every tensor on `device`; the host does not wait for copies from pinned memory."""
        moved = {name: t.to(device, non_blocking=True) for name, t in self.tensors.items()}
        return replace(self, tensors=moved, host_mask=self.texts()[2] if "attention_mask" in self else None)

    def pin_memory(self) -> Batch:
        """Return the batch with every tensor in page-locked memory."""
        return replace(self, tensors={name: t.pin_memory() for name, t in self.tensors.items()})

    def texts(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return ``input_ids`` and ``attention_mask``, (B, V, L), and the mask once more, on the CPU.

        The mask on the CPU gives the number of tokens without waiting for a GPU.
        """
        mask = self["attention_mask"]
        return self["input_ids"], mask, mask if self.host_mask is None else self.host_mask

    def rows(self, start: int, stop: int) -> Batch:
        """Return a part of the batch.

        Args:
            start: First sample.
            stop: Sample after the last one; the part is shorter if the batch ends before it.
        """
        host_mask = None if self.host_mask is None else self.host_mask[start:stop]
        return Batch({name: t[start:stop] for name, t in self.tensors.items()}, self.keys[start:stop], host_mask)

    def replace(self, **tensors: Tensor) -> Batch:
        """Return the batch with some tensors replaced or added."""
        return replace(self, tensors={**self.tensors, **tensors})


class StreamConfig(Settings):
    """Settings of every stream. A subclass defines `kind`, which identifies it in a recipe."""

    plugin: ClassVar = ("stream", "kind")

    shards: Shards
    """Shard URLs: a path, a folder, a brace range, or several of these joined by `::`."""
    first: int | None = Field(None, gt=0)
    """Use only the first N samples of the shards. If None, all samples are used."""
    weights: tuple[PositiveFloat, ...] = ()
    """Weights of the sets that are joined by `::` in `shards`, for example 3 1: the ratio of the sets in `window` samples.
    If empty, every sample is used once per epoch."""
    batch_size: int = Field(64, gt=0)
    """Number of samples of the contrastive batch, summed over all workers."""
    shuffle: bool = True
    """Shuffle the shards in every epoch and the samples within each window. If False, samples are in file order."""
    window: int = Field(1024, gt=0)
    """Number of samples that are shuffled together, over all segments, at least one batch (with `weights`: two batches); a
    reading task keeps this number of samples in memory."""
    segments: int = Field(8, gt=0)
    """Number of segments into which the samples are cut, equal for all numbers of workers. A global batch contains equally
    many samples of each, so the number used is the largest divisor that also divides `batch_size`. Numbers of workers that
    divide it train on the same global batches. With 1, `shuffle` False gives file order, but only one worker can train."""
    read_ahead: int | None = Field(None, gt=0)
    """Number of reading tasks of a worker that may be ahead of training. If None, two more than the CPUs per worker."""
    on_bad_sample: Literal["raise", "skip"] = "raise"
    """Treatment of samples that cannot be read. `raise`: the run stops. `skip`: they are skipped, counted and reported."""
    max_skipped_share: float = Field(0.01, ge=0, lt=1)
    """Largest share of skipped samples per epoch, with `on_bad_sample` `skip`: above it, the run stops."""
    cpus: Machine[float] = Field(0.25, gt=0)
    """Number of logical CPUs of a reading task."""
    kind: str

    def is_a(self, kind: str) -> bool:
        """Return True for a stream of a kind, also one of a user's own that derives from it."""
        return isinstance(self, plugins.get("stream", kind))

    @property
    def texts(self) -> bool:
        """Return True if the stream needs a tokenizer."""
        return False

    def needs(self) -> list[tuple[str, tuple[str, ...]]]:
        """Return the settings that name fields, each with a list of fields; a sample must have at least one."""
        return []

    def defaults(self) -> dict[str, str]:
        """Return the files and folders that the stream reads in place of settings that are None, by setting."""
        return {}

    def open(self) -> ShardSet:
        """Open the shards of the stream.

        Raises:
            DataError: If the shards cannot be opened, contain fewer than `first` samples, or do not match `weights`.
        """
        shards = ShardSet.open(self.shards)
        if self.first is not None and self.first > shards.samples:
            raise DataError(f"first={self.first} is more than the {shards.samples} samples of {self.shards}; lower it")
        parts = sizes(self.shards) if self.weights else ()
        if len(parts) != len(self.weights):
            raise DataError(
                f"weights={self.weights}, but {self.shards} contains {len(parts)} sets joined by `::`; give one weight each"
            )
        return replace(shards, first=self.first, parts=parts)

    def check_settings(self) -> None:
        """Check the settings against each other, without reading files.

        Raises:
            ValueError: If settings contradict each other; the message starts with the name of the setting.
        """
        if self.weights and (self.first is not None or not self.shuffle):
            raise ValueError(f"weights={self.weights} mixes several sets, which requires shuffle=True and first=None")
        if self.on_bad_sample == "raise":
            refuse_idle(self, ["max_skipped_share"], "the first bad sample stops the run; set on_bad_sample skip")

    def check(self, shards: ShardSet) -> None:
        """Check the settings against the shards. Raises ValueErrors as `check_settings`."""
        count = segment_count(self.segments, self.batch_size, self._fewest(shards))
        share = self.batch_size // count
        batches = batches_of(math.ceil(self.window / count), share)
        ends = list(accumulate(shards.parts, initial=0))
        for (begin, end), weight in zip(pairwise(ends), self.weights, strict=True):
            there_are, taken = sum(shards.counts[begin:end]), weight / sum(self.weights) * self.batch_size
            own = there_are // count  # in a segment; a set of fewer than a window is repeated in it, up to rounding
            if own < batches * share and taken / count + len(self.weights) / batches > own:
                raise DataError(
                    f"weights={self.weights}: batches would take {taken:.0f} samples each of a set of {there_are}, some of "
                    f"them twice; lower the weight of the set, or batch_size"
                )
        there = set(shards.fields)  # empty if the manifest of another tool does not list the fields
        for setting, fields in self.needs():
            if there and there.isdisjoint(fields):
                raise DataError(
                    f"{setting} requires the field {' or '.join(fields)}, but the shards contain "
                    f"{', '.join(sorted(there))}: {self.shards}. Name one of these, choose other shards or pack them with it"
                    f"{decode.dotted(there, fields) or '.'}"
                )

    def segments_per_worker(self, shards: ShardSet, workers: int) -> int:
        """Return the number of segments that each worker reads.

        Args:
            shards: Samples of the stream.
            workers: Number of workers.

        Raises:
            DataError: If the segments cannot be distributed equally; the message starts with the name of the setting.
        """
        samples = self._fewest(shards)
        count = segment_count(self.segments, self.batch_size, samples)
        if count % workers:
            allowed = ", ".join(str(number) for number in range(1, count + 1) if count % number == 0)
            raise DataError(
                f"segments={self.segments} with batch_size={self.batch_size} and {samples} samples gives {count} segments, "
                f"which cannot be distributed equally to run.num_workers={workers}. Use {allowed} workers, or set segments "
                f"to a multiple of {workers} that divides batch_size"
            )
        return count // workers

    @staticmethod
    def _fewest(shards: ShardSet) -> int:
        """Return the number of samples, of the smallest set if there are several."""
        ends = accumulate(shards.parts, initial=0)
        return min((sum(shards.counts[begin:end]) for begin, end in pairwise(ends)), default=shards.samples)

    def sentences(self, sample: RawSample) -> list[str]:
        """Return the texts of a sample, for callers that read the shards before training."""
        return []

    @abstractmethod
    def row(self, sample: RawSample, rng: np.random.Generator) -> Row:
        """Decode one sample and make its geometric views: arrays (V, ...), which become columns (B, V, ...), by name.

        Args:
            sample: Fields of the sample as bytes.
            rng: Source of all randomness.
        """

    @property
    def mixes(self) -> bool:
        """Return True if a row may be mixed from a sample and any other sample of the set."""
        return False

    def mixup_index(self, samples: int, rng: np.random.Generator) -> int | None:
        """Draw the number of the sample with which `mixed` mixes this one, or None to leave it alone.

        Args:
            samples: Number of samples of the set.
            rng: Source of all randomness.
        """
        return None

    def mixed(self, sample: RawSample, other: RawSample, rng: np.random.Generator) -> Row:
        """Return the row of a sample and its partner, which `mixup_index` drew.

        Args:
            sample: The sample itself.
            other: The partner.
            rng: Source of all randomness.

        Returns:
            Values by name, as in `row`.

        Raises:
            DecodeError: If one of the two samples is bad.
        """
        raise NotImplementedError  # streams that mix override it

    @abstractmethod
    def collate(self, rows: dict[str, Any], tokenize: Tokenize | None) -> dict[str, Tensor]:
        """Convert the columns of a batch (B, ...) to tensors (B, V, ...); without views (B, ...).

        Args:
            rows: Columns of the rows.
            tokenize: Function from texts to token tensors (N, L). If None, the stream has no texts.
        """

    def draws(self, samples: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Draw the random numbers of `on_device`, which are part of the batch: ``draws`` (B, ...), or nothing.

        Args:
            samples: Number of samples of the batch, B.
            generator: Generator of the CPU, so that the numbers do not depend on the device, and the host does not wait.
        """
        return {}

    def on_device(self, batch: Batch) -> Batch:
        """Make the views that are computed in batch on the device of the trainer, without waiting for the device."""
        return batch


class LabelledStream(StreamConfig):
    """Settings of streams whose samples may have a class."""

    label: str | None = "cls"
    """Field with the integer class. If None, the samples have no class."""

    def needs(self) -> list[tuple[str, tuple[str, ...]]]:
        """Return the setting `label` and its fields, if classes are read."""
        return [] if self.label is None else [("label", (self.label, "json"))]

    def label_of(self, sample: RawSample) -> Row:
        """Return the class of a sample as ``label``, or nothing if the samples have no class."""
        return {} if self.label is None else {"label": decode.label(sample.fields, self.label, key=sample.key)}

    def labels(self, rows: dict[str, Any]) -> dict[str, Tensor]:
        """Return ``label``, int64 (B,), of the columns of a batch, or nothing if the samples have no class."""
        import torch

        return {} if self.label is None else {"label": torch.from_numpy(np.array(rows["label"], dtype=np.int64))}
