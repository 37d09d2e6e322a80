"""Where the loop runs: in this process, or in a worker of Ray Train."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist

from multicse.trainers.engine.checkpoint import Store, WriteFiles, remove, step_of
from multicse.trainers.engine.cluster import to_foreground
from multicse.trainers.engine.progress import Board


class Host(Protocol):
    """Where the loop runs: inside a Ray Train worker or plainly in this process."""

    rank: int
    world_size: int
    local_size: int
    """Workers on this machine."""
    device: torch.device
    inline: bool

    def checkpoint(self) -> contextlib.AbstractContextManager[Path | None]:
        """The folder to resume from, if any."""
        ...

    def save(self, write_files: WriteFiles | None, metrics: dict[str, float], last: bool) -> None:
        """Keep a checkpoint; called by every rank, on rank 0 with what writes its files into a folder.

        metrics: ``step``, and where a development task is selected on its ``score`` now and the ``best`` so far, with the
        sign turned where lower is better. last: whether training ends here; else it may be written while it goes on.
        """
        ...

    def stopping(self) -> bool:
        """Whether the run is to end after this step, the same on every rank; called by every rank after every step.

        Several ranks exchange it about once a second, so a signal may take effect some steps later.
        """
        ...


class Stopped(Exception):
    """Training ended before its last step because it was asked to; its checkpoint is kept."""


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


class StopQuestion:
    """Ask all ranks whether one of them is to stop: about once a second, at most every `MOST` steps, in the same steps.

    Every rank calls it after every step. The answer of the steps between is no.
    """

    MOST = 10

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        """Take a group of ranks that exchange what is on a CPU; if None, the default one."""
        self._group, self._every, self._left, self._since = group, 1, 1, time.monotonic()

    def __call__(self, mine: bool, world_size: int) -> bool:
        """Return whether a rank is to stop."""
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


class LocalHost:
    """The loop in this process (`run.num_workers=0`): streams are read inline.

    stop: whether somebody asked to stop. gpu: whether it runs on the GPU.
    """

    rank, world_size, local_size, inline = 0, 1, 1, True

    def __init__(self, store: Store, stop: Callable[[], bool] = lambda: False, gpu: bool = False) -> None:
        self.device = torch.device("cuda" if gpu else "cpu")
        self.store, self._stop, self._question = store, stop, StopQuestion()

    @contextlib.contextmanager
    def checkpoint(self) -> Iterator[Path | None]:
        self.store.tidy()
        yield self.store.newest()

    def save(self, write_files: WriteFiles | None, metrics: dict[str, float], last: bool) -> None:
        if write_files is not None:
            self.store.save(int(metrics["step"]), write_files, last)

    def stopping(self) -> bool:
        return self._question(self._stop(), self.world_size)


class RayHost:
    """The loop inside a Ray Train worker. Rank 0 looks every second whether `board` asks it to stop."""

    inline = False

    def __init__(self, store: Store, board: Board) -> None:
        import ray.train
        import ray.train.torch

        to_foreground()
        context = ray.train.get_context()
        self.rank, self.world_size = context.get_world_rank(), context.get_world_size()
        self.local_size, self._local_rank = context.get_local_world_size(), context.get_local_rank()
        self.device: torch.device = ray.train.torch.get_device()
        self.store, self._stop = store, threading.Event()
        # Of their own, since to ask a GPU would be to wait for it after every step.
        gpus = self.world_size > 1 and self.device.type == "cuda"
        self._question = StopQuestion(dist.new_group(backend="gloo") if gpus else None)
        if self.rank == 0:
            store.tidy()
            threading.Thread(target=self._listen, args=(board,), daemon=True, name="listen").start()

    def _listen(self, board: Board) -> None:
        import ray

        with contextlib.suppress(ray.exceptions.RayError):  # the cluster is gone
            while not self._stop.wait(1.0):
                if board.stopping():
                    self._stop.set()

    @contextlib.contextmanager
    def checkpoint(self) -> Iterator[Path | None]:
        """That which rank 0 takes. From a URL it is fetched once for all workers of a node."""
        found = self.store.newest() if self.rank == 0 else None
        name = from_all_ranks(found and found.name, self)[0]
        if name is None:
            yield None
            return
        shared = self.store.remote and self._local_rank
        if found is None and not shared:
            found = self.store.get(step_of(name))
        from_all_ranks(None, self)  # it is there on every node
        folder = found or self.store.local / name
        yield folder
        from_all_ranks(None, self)  # all have read it
        if self.store.remote and not shared:
            remove(folder)
            if self.rank:
                self.store.local.rmdir()

    def save(self, write_files: WriteFiles | None, metrics: dict[str, float], last: bool) -> None:
        import ray.train

        if write_files is not None:
            self.store.save(int(metrics["step"]), write_files, last)
        ray.train.report(metrics)

    def stopping(self) -> bool:
        return self._question(self._stop.is_set(), self.world_size)
