"""Run several functions at a time, each in a process, or one after the other in this process."""

from __future__ import annotations

import multiprocessing
from collections import defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any, Self, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Pool:
    """Calls functions in at most `jobs` processes; with one job, in this process.

    Functions, arguments and results must be picklable. As a context manager it ends the processes.

    Args:
        jobs: Number of processes.
    """

    def __init__(self, jobs: int = 1) -> None:
        spawned = multiprocessing.get_context("spawn")  # a forked process cannot use torch's threads, nor a GPU
        self._processes = ProcessPoolExecutor(jobs, spawned) if jobs > 1 else None
        self._folders: dict[Path, Lock] = defaultdict(Lock)
        self._error: BaseException | None = None
        self._lock = Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._processes is not None:
            self._processes.shutdown(cancel_futures=True)

    def call(self, folder: Path, function: Callable[..., Result], *arguments: Any) -> Result:
        """Return ``function(*arguments)``, which writes to `folder`: calls for the same folder wait for each other."""
        if self._processes is None:
            return function(*arguments)
        with self._lock:
            one_at_a_time = self._folders[folder]
        with one_at_a_time:
            try:
                return self._processes.submit(function, *arguments).result()
            except BaseException as error:
                raise self._error or error from None  # what another thread met, if that ended the processes

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """Return ``function(item)`` for each item, in their order, in threads if there are several jobs.

        `function` may use this pool. The first exception ends all of it.
        """
        items = list(items)
        if self._processes is None or not items:
            return [function(item) for item in items]
        with ThreadPoolExecutor(len(items)) as threads:
            found = [threads.submit(function, item) for item in items]
            try:
                for one in as_completed(found):
                    one.result()
            except BaseException as error:
                self._error = self._error or error
                self._processes.shutdown(wait=False, cancel_futures=True)
                raise
        return [one.result() for one in found]
