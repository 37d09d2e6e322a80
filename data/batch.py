"""The one thing that travels from a stream to a method."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """Named tensors of one batch of one stream.

    Axis 0 of every tensor is the sample. Where views exist, axis 1 is the view, and it is always there, of size 1 for a
    single view: ``input_ids`` and ``attention_mask`` (B, V, L), ``image`` (B, V, C, H, W), ``waveform`` (B, V, T),
    ``spectrogram`` (B, V, frames, bins), ``label`` (B,).

    ``keys`` name the samples (for error messages and for randomness that belongs to a sample).
    """

    tensors: dict[str, Tensor]
    keys: list[str] = field(default_factory=list)

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def __len__(self) -> int:
        return len(next(iter(self.tensors.values())))

    def to(self, device: torch.device | str) -> Batch:
        """The same batch with every tensor on `device`."""
        return Batch({name: t.to(device, non_blocking=True) for name, t in self.tensors.items()}, self.keys)

    def rows(self, start: int, stop: int) -> Batch:
        """The samples from `start` up to `stop`, or to the end if there are fewer."""
        return Batch({name: t[start:stop] for name, t in self.tensors.items()}, self.keys[start:stop])

    def replace(self, **tensors: Tensor) -> Batch:
        """The same batch with some tensors replaced or added."""
        return Batch({**self.tensors, **tensors}, self.keys)
