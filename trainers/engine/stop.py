"""What ends a run before its last step: signals, and waiting that takes too long.

After Ctrl-C and SIGTERM the step is finished, a checkpoint written, and the command ends. A second signal ends it at once.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import signal
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
STDERR = 2


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
    """A thread that looks at the step of a rank, which includes waiting for its batches.

    After a tenth of `limit` seconds it names the step and the streams that keep it waiting, and Python's faulthandler prints
    where every thread is: of two ranks one of which sleeps, the other is in the collective in which it waits. After `limit`
    seconds it does so again and ends the process.
    """

    def __init__(
        self, readers: Mapping[str, Reader], rank: int, limit: float, give_up: Callable[[], None] = _give_up
    ) -> None:
        self._readers, self._rank, self._limit, self._give_up = readers, rank, limit, give_up
        self._step: int | None = None
        """Which step is running."""
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="watchdog")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    @contextlib.contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Watch the body, which is a step."""
        self._step = number
        yield
        self._step = None

    def _watch(self) -> None:
        warned: object = None
        seen: object = None
        since = time.perf_counter()
        while not self._done.wait(min(5.0, self._limit / 40)):
            number, now = self._step, time.perf_counter()
            at = number, [reader.position for reader in self._readers.values()]
            if at != seen:  # a step began, or a batch came
                seen, since = at, now
            seconds = now - since
            if number is None or seconds < (self._limit if warned == at else self._limit / 10):
                continue
            waiting = [repr(name) for name, reader in self._readers.items() if reader.waiting_since is not None]
            why = f"no batch of stream {', '.join(waiting)}" if waiting else "it does not end"
            text = "rank %d is in step %d for %.0f s: %s. After %.0f s (run.step_timeout) the process ends"
            log.warning(text, self._rank, number, seconds, why, self._limit)
            faulthandler.dump_traceback(STDERR)
            warned = at
            if seconds >= self._limit:
                log.critical("rank %d gives up. The same command goes on from the last checkpoint", self._rank)
                self._give_up()
                return
