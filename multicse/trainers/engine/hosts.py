"""Host of the training loop: this process, or a worker of Ray Train."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from multicse.trainers.engine.progress import Board
from multicse.trainers.engine.ray_start import to_foreground
from multicse.trainers.engine.store import Store, WriteFiles, remove, step_of


class Stopped(Exception):
    """Training stopped before its last step on request; its checkpoint is kept."""


def from_all_ranks(mine: Any, host: Host) -> list[Any]:
    """Return the values of all ranks in the order of the ranks; a collective."""
    if host.world_size == 1:
        return [mine]
    everyone: list[Any] = [None] * host.world_size
    dist.all_gather_object(everyone, mine)
    return everyone


def mean_over_ranks(values: dict[str, float], host: Host) -> dict[str, float]:
    """Return the mean of each value over the ranks, which all have the same names; a collective."""
    everyone = from_all_ranks(values, host)
    return {name: sum(one[name] for one in everyone) / len(everyone) for name in values}


class StopQuestion:
    """Exchange of stop requests between the ranks of a group, about once per second and at least every `MOST` steps."""

    MOST = 10

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group, self._every, self._left, self._since = group, 1, 1, time.monotonic()

    def __call__(self, mine: bool, world_size: int) -> bool:
        """Return True if any of `world_size` ranks has requested a stop; every rank calls it after every step."""
        if world_size == 1:
            return mine
        self._left -= 1
        if self._left:
            return False
        now = time.monotonic()
        asked = torch.tensor([float(mine), (now - self._since) / self._every], dtype=torch.float64)
        dist.all_reduce(asked, dist.ReduceOp.MAX, group=self._group)
        stop, seconds = asked.tolist()
        self._every = self._left = max(1, min(self.MOST, int(1 / max(seconds, 1e-3))))
        self._since = now
        return bool(stop)


class Host:
    """Process that runs the training loop: this one (`run.num_workers=0`), which also reads the streams.

    Args:
        store: Checkpoints of the run.
        stop: Returns True once a stop was requested.
        gpu: Run on the GPU.
    """

    rank, world_size = 0, 1
    local_size = 1
    """Workers on this machine."""
    inline = True
    """Read the streams in this process, without Ray Data."""
    rescues = True
    """Write the last checkpoint to another folder if the store does not take it."""

    def __init__(self, store: Store, stop: Callable[[], bool] = lambda: False, gpu: bool = False) -> None:
        self.device = torch.device("cuda" if gpu else "cpu")
        self.store, self._stop, self._question = store, stop, StopQuestion()

    @contextlib.contextmanager
    def checkpoint(self) -> Iterator[Path | None]:
        """Provide the checkpoint folder to resume from, the latest of the store, or None."""
        self.store.tidy()
        yield self.store.newest()

    def save(self, write_files: WriteFiles | None, metrics: dict[str, float], last: bool) -> None:
        """Save a checkpoint to the store; every rank calls it.

        Args:
            write_files: Writes the files of the checkpoint into a folder; None on other ranks than 0.
            metrics: ``step``, and of a selected development task ``score`` and ``best``, negated if lower is better.
            last: Training ends here. Otherwise the checkpoint may be written while training continues.
        """
        if write_files is not None:
            self.store.save(int(metrics["step"]), write_files, last)

    def stopping(self) -> bool:
        """Return True, on all ranks in the same step, if the run must stop; every rank calls it after every step."""
        return self._question(self._stop(), self.world_size)


class RayHost(Host):
    """Host in a Ray Train worker, with a store per node. Rank 0 checks `board` every second for a stop request."""

    inline = False

    def __init__(self, store: Store, board: Board) -> None:
        import ray.train
        import ray.train.torch

        to_foreground()
        stopped = threading.Event()
        super().__init__(store, stopped.is_set)
        context = ray.train.get_context()
        self.rank, self.world_size = context.get_world_rank(), context.get_world_size()
        self.local_size, self._local_rank = context.get_local_world_size(), context.get_local_rank()
        self.device = ray.train.torch.get_device()
        # A group for CPU tensors: exchanging GPU tensors would wait for the device after every step.
        gpus = self.world_size > 1 and self.device.type == "cuda"
        self._question = StopQuestion(dist.new_group(backend="gloo") if gpus else None)
        if self.rank == 0:
            store.tidy()
            threading.Thread(target=_listen, args=(board, stopped), daemon=True, name="listen").start()

    @contextlib.contextmanager
    def checkpoint(self) -> Iterator[Path | None]:
        """Provide the latest checkpoint as seen by rank 0; from a URL it is downloaded once per node."""
        found = self.store.newest() if self.rank == 0 else None
        name = from_all_ranks(found and found.name, self)[0]
        if name is None:
            yield None
            return
        shared = self.store.remote and self._local_rank
        if found is None and not shared:
            found = self.store.get(step_of(name))
        from_all_ranks(None, self)  # every node has it now
        folder = found or self.store.local / name
        yield folder
        from_all_ranks(None, self)  # every rank has read it
        if self.store.remote and not shared:
            remove(folder)
            if self.rank:
                self.store.local.rmdir()

    def save(self, write_files: WriteFiles | None, metrics: dict[str, float], last: bool) -> None:
        """Save a checkpoint to the store and report the metrics to Ray."""
        import ray.train

        try:
            super().save(write_files, metrics, last)
        finally:  # the other ranks wait for this report
            ray.train.report(metrics)


def _listen(board: Board, stopped: threading.Event) -> None:
    """Wait for a stop request of the driver."""
    import ray

    with contextlib.suppress(ray.exceptions.RayError):  # the cluster is gone
        while not stopped.wait(1.0):
            if board.stopping():
                stopped.set()
