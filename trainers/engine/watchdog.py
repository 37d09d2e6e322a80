"""Who waits for what, when a step takes longer than it should."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Protocol, Self

log = logging.getLogger(__name__)

EXIT = 75
"""Exit code of a process that waited too long: try again later (EX_TEMPFAIL)."""


class Waiting(Protocol):
    """A reader of a stream."""

    waiting_since: float | None
    """`time.perf_counter` when it began to wait for the batch that it has not got yet."""


def _give_up() -> None:
    os._exit(EXIT)  # whoever waits in Ray or in a system call cannot be interrupted in another way


class Watchdog:
    """A thread that looks at the readers of a rank: it names a stream that keeps the rank waiting, and in the end gives up.

    limit: seconds of waiting after which the process ends; the first warning comes after a tenth of it.
    """

    def __init__(
        self, readers: Mapping[str, Waiting], rank: int, limit: float, give_up: Callable[[], None] = _give_up
    ) -> None:
        self._readers, self._rank, self._limit, self._give_up = readers, rank, limit, give_up
        self._warned: dict[str, float] = {}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="watchdog")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(min(5.0, self._limit / 40)):
            for name, reader in self._readers.items():
                since = reader.waiting_since
                waited = 0.0 if since is None else time.perf_counter() - since
                if waited > self._limit:
                    text = "rank %d gives up: no batch of stream %r for %.0f s (run.step_timeout). %s"
                    log.critical(text, self._rank, name, waited, "The same command goes on from the last checkpoint")
                    self._give_up()
                    return
                if waited < self._limit / 10:
                    self._warned.pop(name, None)
                elif waited >= 2 * self._warned.get(name, 0.0):
                    text = "rank %d has waited %.0f s for a batch of stream %r; it gives up after %.0f (run.step_timeout)"
                    log.warning(text, self._rank, waited, name, self._limit)
                    self._warned[name] = waited
