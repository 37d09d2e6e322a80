"""What a run measures between two reports."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor

from multicse.data.stream import Reader


class Window:
    """Means and times since the last report. Sums stay on the device until somebody asks for the means."""

    def __init__(self, readers: dict[str, Reader]) -> None:
        self.began, self.steps = time.perf_counter(), 0
        self.sums: dict[tuple[str, ...], Tensor] = {}
        self.rates: defaultdict[str, float] = defaultdict(float)
        """Sums of what the host knows."""
        self.waited = {name: reader.wait_seconds for name, reader in readers.items()}

    def add(self, values: dict[str, Tensor], share: float = 1.0) -> None:
        """Add `share` of each value, a scalar tensor, to the sum of its name."""
        names = tuple(values)
        added = torch.stack([value.detach().double() for value in values.values()]) * share
        self.sums[names] = self.sums[names].to(added.device) + added if names in self.sums else added

    def state(self) -> dict[str, Any]:
        """What was measured so far, for a run that goes on; waits for the device."""
        sums = {names: tensor.cpu() for names, tensor in self.sums.items()}
        return {"steps": self.steps, "sums": sums, "rates": dict(self.rates), "seconds": self.elapsed()}

    def restore(self, state: dict[str, Any] | None) -> None:
        """Go on with what another window measured."""
        if state is not None:
            self.steps, self.sums = state["steps"], dict(state["sums"])
            self.rates.update(state["rates"])
            self.began -= state["seconds"]

    def elapsed(self) -> float:
        return max(1e-9, time.perf_counter() - self.began)

    def means(self) -> dict[str, float]:
        """Mean of every value over the steps, as ``train/<name>``; waits for the device."""
        found = dict(self.rates)
        for names, sums in self.sums.items():
            found |= {f"train/{name}": value for name, value in zip(names, sums.tolist(), strict=True)}
        return {name: value / self.steps for name, value in found.items()}

    def wait_shares(self, readers: dict[str, Reader]) -> dict[str, float]:
        return {
            f"data/{name}/wait_share": (reader.wait_seconds - self.waited[name]) / self.elapsed()
            for name, reader in readers.items()
        }
