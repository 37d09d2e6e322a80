"""Who waits for what, when a step takes longer than it should."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Self

from multicse.data.stream import Reader

log = logging.getLogger(__name__)

EXIT = 75
"""Exit code of a process that waited too long: try again later (EX_TEMPFAIL)."""


def _give_up() -> None:
    os._exit(EXIT)  # whoever waits in Ray or in a system call cannot be interrupted in another way


class Watchdog:
    """A thread that looks at the readers of a rank and at its step: it names a stream that keeps the rank waiting, or the
    step and the line of code that does not end, and in the end gives up.

    Of two ranks one of which sleeps, the other's line is that of the collective in which it waits.

    limit: seconds of waiting after which the process ends; the first warning comes after a tenth of it.
    """

    def __init__(
        self, readers: Mapping[str, Reader], rank: int, limit: float, give_up: Callable[[], None] = _give_up
    ) -> None:
        self._readers, self._rank, self._limit, self._give_up = readers, rank, limit, give_up
        self._step: tuple[int, float] | None = None
        """Which step is carried out, and since when."""
        self._batch = 0.0
        """When a batch was waited for last; the time before that is not the step's."""
        self._warned: dict[str, float] = {}
        self._done = threading.Event()
        self._watched = threading.get_ident()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="watchdog")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    @contextlib.contextmanager
    def step(self, number: int) -> Iterator[None]:
        """A step, which may take as long as waiting may."""
        self._step = number, time.perf_counter()
        yield
        self._step = None

    def _watch(self) -> None:
        while not self._done.wait(min(5.0, self._limit / 40)):
            waits = self._waits()
            self._warned = {what: waited for what, waited in self._warned.items() if what in waits}
            for what, waited in waits.items():
                if waited > self._limit:
                    text = "rank %d gives up after %.0f s (run.step_timeout): %s%s. %s"
                    again = "The same command goes on from the last checkpoint"
                    log.critical(text, self._rank, waited, what, self._place(), again)
                    self._give_up()
                    return
                if waited >= max(self._limit / 10, 2 * self._warned.get(what, 0.0)):
                    text = "rank %d has waited %.0f s: %s%s; it gives up after %.0f (run.step_timeout)"
                    log.warning(text, self._rank, waited, what, self._place(), self._limit)
                    self._warned[what] = waited

    def _waits(self) -> dict[str, float]:
        """What the rank waits for, and for how many seconds; the step only when no batch is waited for."""
        now, step = time.perf_counter(), self._step
        since = {name: reader.waiting_since for name, reader in self._readers.items()}
        waits = {f"no batch of stream {name!r}": now - began for name, began in since.items() if began is not None}
        if waits:
            self._batch = now
        return waits or ({f"step {step[0]} does not end": now - max(step[1], self._batch)} if step else {})

    def _place(self) -> str:
        """Where the watched thread is: the innermost line of Python."""
        frame = sys._current_frames().get(self._watched)
        return f", in {frame.f_code.co_name} ({frame.f_code.co_filename}:{frame.f_lineno})" if frame else ""
