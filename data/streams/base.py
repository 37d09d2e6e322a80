"""Settings that every stream of a recipe has, the four steps from a raw sample to a batch on the device, and the batch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, PositiveFloat

from multicse.data.errors import DataError
from multicse.data.shard_urls import sizes
from multicse.data.shards import RawSample, ShardSet
from multicse.data.streams import decode

if TYPE_CHECKING:
    import torch
    from torch import Tensor

# Reading tasks import the streams' modules, so torch is imported where a trainer calls: it costs a process seconds to start.

Row = dict[str, Any]
Tokenize = Callable[..., "dict[str, Tensor]"]
"""Texts -> token tensors (N, L); with `spans`, characters (start, stop) of a word in each, also ``word_mask`` (N, L)."""


@dataclass(frozen=True)
class Batch:
    """Named tensors of one batch of one stream.

    Axis 0 of every tensor is the sample. Where views exist, axis 1 is the view, and it is always there, of size 1 for a
    single view: ``input_ids`` and ``attention_mask`` (B, V, L), ``image`` (B, V, C, H, W), ``waveform`` (B, V, T),
    ``spectrogram`` (B, V, frames, bins), ``label`` (B,), and ``draws`` (B, ...), the random numbers for views that are
    made on the device.

    ``keys`` name the samples (for error messages and for randomness that belongs to a sample).
    """

    tensors: dict[str, Tensor]
    keys: list[str] = field(default_factory=list)
    host_mask: Tensor | None = None
    """``attention_mask`` on the CPU, of a batch that is on another device."""

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def __len__(self) -> int:
        return len(next(iter(self.tensors.values())))

    def to(self, device: torch.device | str) -> Batch:
        """The same batch with every tensor on `device`; from pinned memory the host does not wait for the copies."""
        moved = {name: t.to(device, non_blocking=True) for name, t in self.tensors.items()}
        return replace(self, tensors=moved, host_mask=self.texts()[2] if "attention_mask" in self else None)

    def pin_memory(self) -> Batch:
        """Return the batch with every tensor in memory that a GPU can read itself."""
        return replace(self, tensors={name: t.pin_memory() for name, t in self.tensors.items()})

    def texts(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return ``input_ids`` and ``attention_mask``, (B, V, L), and the mask once more, on the CPU.

        The last one tells how many tokens there are without waiting for a GPU.
        """
        mask = self["attention_mask"]
        return self["input_ids"], mask, mask if self.host_mask is None else self.host_mask

    def rows(self, start: int, stop: int) -> Batch:
        """The samples from `start` up to `stop`, or to the end if there are fewer."""
        host_mask = None if self.host_mask is None else self.host_mask[start:stop]
        return Batch({name: t[start:stop] for name, t in self.tensors.items()}, self.keys[start:stop], host_mask)

    def replace(self, **tensors: Tensor) -> Batch:
        """The same batch with some tensors replaced or added."""
        return replace(self, tensors={**self.tensors, **tensors})


class StreamConfig(BaseModel):
    """Fields that every stream has."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    shards: str
    """Shard URLs: a path, a folder, a brace range, or several joined by `::`."""
    first: int | None = Field(None, gt=0)
    """Only so many samples are used, those at the beginning of the shards; none: all."""
    weights: tuple[PositiveFloat, ...] = ()
    """Shares of the samples that come from each of the sets that `::` joins in `shards`, 3 1 for example; none: every sample
    comes once a pass."""
    batch_size: int = Field(64, gt=0)
    """Samples of one forward over all workers together (the contrastive batch)."""
    shuffle: bool = True
    """Visit shards in a fresh order each pass and shuffle within a window; off: the order of the files."""
    window: int = Field(1024, gt=0)
    """Samples that are shuffled together; also what one reading task holds in memory."""
    read_ahead: int | None = Field(None, gt=0)
    """Windows that a worker's reading tasks may be ahead of training, ready or in work. None: two more than there are CPUs
    for the worker."""
    on_bad_sample: Literal["raise", "skip"] = "raise"
    """What an unreadable sample does: stop the run, or be skipped, counted and reported."""
    max_skipped_share: float = Field(0.01, ge=0, lt=1)
    """With `skip`: the run stops when more than this share of a pass is lost."""
    cpus: float = Field(0.25, gt=0)
    """Logical CPUs of one reading task."""

    @property
    def texts(self) -> bool:
        """Whether the stream needs a tokenizer."""
        return False

    def needs(self) -> list[tuple[str, tuple[str, ...]]]:
        """Settings that name fields, each with the fields of which a sample must have one."""
        return []

    def open(self) -> ShardSet:
        """The samples that the stream reads. Raises DataError as `ShardSet.open`, and where there are not so many."""
        shards = ShardSet.open(self.shards)
        if self.first is not None and self.first > shards.samples:
            raise DataError(f"{self.shards} holds {shards.samples} samples, and first={self.first} are asked for; lower it")
        parts = sizes(self.shards) if self.weights else ()
        if len(parts) != len(self.weights):
            raise DataError(f"{self.shards} are {len(parts)} sets joined by `::`, and weights={self.weights}; give one each")
        return replace(shards, first=self.first, parts=parts)

    def check_settings(self) -> None:
        """Raise ValueError, which begins with the setting's name, for settings that contradict each other. Reads no file."""
        if self.weights and (self.first is not None or not self.shuffle):
            raise ValueError(f"weights={self.weights} mixes several sets, which takes shuffle=True and first=none")

    def check(self, shards: ShardSet) -> None:
        """Raise ValueError, which begins with the setting's name, where these shards cannot be streamed so."""
        ends = list(accumulate(shards.parts, initial=0))
        for (begin, end), weight in zip(pairwise(ends), self.weights, strict=True):
            share, there_are = weight / sum(self.weights) * self.batch_size, sum(shards.counts[begin:end])
            if share > there_are:
                raise DataError(
                    f"weights={self.weights}: of a set of {there_are} samples a batch would take {share:.0f}, so that it "
                    "would hold a sample twice; lower its weight, or batch_size"
                )
        there = set(shards.fields)  # none: a manifest of somebody else's
        for setting, fields in self.needs():
            if there and there.isdisjoint(fields):
                raise DataError(
                    f"{setting} wants the field {' or '.join(fields)}, and the shards hold {', '.join(sorted(there))}: "
                    f"{self.shards}. Name a field that is there, give other shards or pack them with it"
                    f"{decode.dotted(there, fields) or '.'}"
                )

    def sentences(self, sample: RawSample) -> list[str]:
        """The texts of a sample, for whoever reads the shards before training. Raises DecodeError for a bad one."""
        return []

    @abstractmethod
    def row(self, sample: RawSample, rng: np.random.Generator) -> Row:
        """Decode one sample and make its geometric views; raises DecodeError for a bad one."""

    @property
    def mixes(self) -> bool:
        """Return whether a row may be mixed from two samples, the second of which can be any of the set."""
        return False

    def mixup_index(self, samples: int, rng: np.random.Generator) -> int | None:
        """Draw the number, below `samples`, of the sample that this one is mixed with by `mixed`; None: it stays alone."""
        return None

    def mixed(self, sample: RawSample, other: RawSample, rng: np.random.Generator) -> Row:
        """The row of a sample and the one of its `mixup_index`; raises DecodeError for a bad one of the two."""
        raise NotImplementedError  # of streams that mix

    @abstractmethod
    def collate(self, rows: dict[str, Any], tokenize: Tokenize | None) -> dict[str, Tensor]:
        """Columns of a batch -> tensors, axis 0 the sample, axis 1 the view."""

    def draws(self, samples: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Draw the random numbers of `on_device` as ``draws`` (B, ...), which travel with the batch of B samples.

        The generator is a CPU's: its numbers are the same for every device, and nothing waits for them.
        """
        return {}

    def on_device(self, batch: Batch) -> Batch:
        """Make the views that are made in batch on the trainer's device; the host must not wait for the device in here."""
        return batch


class LabelledStream(StreamConfig):
    """A stream whose samples may carry a class."""

    label: str | None = "cls"
    """Field that holds the integer class; none: the samples have no label."""

    def needs(self) -> list[tuple[str, tuple[str, ...]]]:
        return [] if self.label is None else [("label", (self.label, "json"))]

    def label_of(self, sample: RawSample) -> Row:
        return {} if self.label is None else {"label": decode.label(sample.fields, self.label, key=sample.key)}

    def labels(self, rows: dict[str, Any]) -> dict[str, Tensor]:
        import torch

        return {} if self.label is None else {"label": torch.from_numpy(np.array(rows["label"], dtype=np.int64))}
