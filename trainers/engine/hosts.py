"""Where the loop runs: in this process, or in a worker of Ray Train."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist


class Host(Protocol):
    """Where the loop runs: inside a Ray Train worker or plainly in this process."""

    rank: int
    world_size: int
    device: torch.device
    inline: bool

    def checkpoint(self) -> contextlib.AbstractContextManager[Path | None]:
        """The folder to resume from, if any."""
        ...

    def save(self, folder: Path | None, metrics: dict[str, float]) -> None:
        """Keep a checkpoint; called by every rank, with a folder on rank 0 only.

        metrics: ``step``, and where a development task is selected on its ``score`` now and the ``best`` so far, with the
        sign turned where lower is better.
        """
        ...


def from_all_ranks(mine: Any, host: Host) -> list[Any]:
    """What every rank has, in the order of the ranks."""
    if host.world_size == 1:
        return [mine]
    everyone: list[Any] = [None] * host.world_size
    dist.all_gather_object(everyone, mine)
    return everyone


def mean_over_ranks(values: dict[str, float], host: Host) -> dict[str, float]:
    """The mean of each value over the ranks, which all have the same names."""
    if host.world_size == 1:
        return values
    tensor = torch.tensor(list(values.values()), device=host.device, dtype=torch.float64)
    dist.all_reduce(tensor)
    return dict(zip(values, (tensor / host.world_size).tolist(), strict=True))


class LocalHost:
    """The loop in this process (`run.workers=0`): streams are read inline, checkpoints are plain folders."""

    rank, world_size, inline = 0, 1, True

    def __init__(self, output: Path) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.folder = output / "checkpoint"

    @contextlib.contextmanager
    def checkpoint(self) -> Iterator[Path | None]:
        yield self.folder if self.folder.exists() else None

    def save(self, folder: Path | None, metrics: dict[str, float]) -> None:
        if folder is None:
            return
        fresh = self.folder.with_suffix(".new")
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.copytree(folder, fresh)
        old = self.folder.with_suffix(".old")
        if self.folder.exists():
            self.folder.rename(old)
        fresh.rename(self.folder)
        shutil.rmtree(old, ignore_errors=True)


class RayHost:
    """The loop inside a Ray Train worker."""

    inline = False

    def __init__(self) -> None:
        import ray.train
        import ray.train.torch

        context = ray.train.get_context()
        self.rank, self.world_size = context.get_world_rank(), context.get_world_size()
        self.device: torch.device = ray.train.torch.get_device()

    @contextlib.contextmanager
    def checkpoint(self) -> Iterator[Path | None]:
        import ray.train

        found = ray.train.get_checkpoint()
        if found is None:
            yield None
            return
        with found.as_directory() as folder:
            yield Path(folder)

    def save(self, folder: Path | None, metrics: dict[str, float]) -> None:
        import ray.train

        ray.train.report(metrics, checkpoint=ray.train.Checkpoint.from_directory(folder) if folder else None)
