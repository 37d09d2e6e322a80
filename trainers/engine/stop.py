"""What ends a run before its last step: signals, and waiting that takes too long.

After Ctrl-C and SIGTERM the step is finished, a checkpoint written, and the command ends. A second signal ends it at once.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

from multicse.data.stream import Reader

log = logging.getLogger(__name__)

GRACE = 7.0
"""Seconds for a step and its checkpoint; schedulers and spot notices kill after 15 or more."""
EXIT = 75
"""Exit code of a process that waited too long: try again later (EX_TEMPFAIL)."""


class Interrupted(SystemExit):
    """A signal ended the run; the exit code says which one (130: Ctrl-C, 143: SIGTERM)."""


class Stop:
    """Signals while a run is carried out, in the main thread; elsewhere they are left to whoever has them."""

    def __init__(self) -> None:
        self.asked: int | None = None
        """The signal, once one came."""
        self.main = threading.current_thread() is threading.main_thread()
        self._before: dict[int, Any] = {}
        self._patient, self._late = False, False

    def __enter__(self) -> Self:
        if self.main:
            self._before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
            self.listen()
        return self

    def __exit__(self, _: object, error: object, trace: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler or signal.SIG_DFL)  # none: not Python's
        if isinstance(error, SystemExit) and error.code == signal.SIGTERM:  # Ray's answer to it, before `listen` came again
            raise Interrupted(128 + signal.SIGTERM) from None

    def listen(self) -> None:
        """Take the signals, again after a library took them."""
        for number in (signal.SIGINT, signal.SIGTERM) if self.main else ():
            signal.signal(number, self._receive)

    @contextlib.contextmanager
    def patient(self) -> Iterator[None]:
        """In here a signal only sets `asked`, and `Interrupted` comes at the end, or `GRACE` seconds later."""
        self._patient = True
        try:
            yield
        finally:
            self._patient, self._late = False, False
        if self.asked is not None:
            raise Interrupted(128 + self.asked)

    def _receive(self, number: int, frame: object) -> None:
        if self.asked is not None and not self._late:
            os._exit(128 + number)
        self.asked = self.asked or number
        if not self._patient or self._late:
            raise Interrupted(128 + self.asked)
        timer = threading.Timer(GRACE, self._end)
        timer.daemon = True
        timer.start()

    def _end(self) -> None:
        if self._patient and self.asked is not None:
            self._late = True
            signal.pthread_kill(threading.main_thread().ident or 0, self.asked)


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
