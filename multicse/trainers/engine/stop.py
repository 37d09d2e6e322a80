"""Stop a run before its last step: by a signal, or after waiting too long."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Self

from multicse.data.stream import Reader

log = logging.getLogger(__name__)

GRACE = 7.0
"""Seconds for a step and its checkpoint. Schedulers and spot instances kill after 15 s or more."""
EXIT = 75
"""Exit code of a process that waited too long (EX_TEMPFAIL: try again later)."""
STDERR = 2


class Interrupted(SystemExit):
    """A signal ended the run. The exit code is 130 for Ctrl-C, 143 for SIGTERM."""


@contextlib.contextmanager
def former_handlers() -> Iterator[bool]:
    """Restore the handlers of Ctrl-C and SIGTERM at the end, which Ray and others replace, and yield True.

    In other threads than the main thread, which cannot set handlers, yield False.
    """
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)} if main else {}
    try:
        yield main
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)  # None: not set by Python


class Stop:
    """Signal handling during a run, in the main thread; in other threads signals are left to the caller.

    After Ctrl-C or SIGTERM the current step is finished, a checkpoint is written and the command ends. A second signal ends
    the process immediately.
    """

    def __init__(self) -> None:
        self.asked: int | None = None
        """The first signal that was received."""
        self.main = threading.current_thread() is threading.main_thread()
        self._former = former_handlers()
        self._patient, self._late = False, False

    def __enter__(self) -> Self:
        self._former.__enter__()
        self.listen()
        return self

    def __exit__(self, _: object, error: object, trace: object) -> None:
        self._former.__exit__(None, None, None)
        if isinstance(error, SystemExit) and error.code == signal.SIGTERM:  # from Ray's handler, before `listen`
            raise Interrupted(128 + signal.SIGTERM) from None

    def listen(self) -> None:
        """Install the handlers, again after a library has replaced them."""
        for number in (signal.SIGINT, signal.SIGTERM) if self.main else ():
            signal.signal(number, self._receive)

    @contextlib.contextmanager
    def patient(self) -> Iterator[None]:
        """Delay `Interrupted` to the end of the body, by at most `GRACE` seconds; until then a signal only sets `asked`."""
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
    os._exit(EXIT)  # a wait in Ray or in a system call cannot be interrupted otherwise


class Watchdog:
    """Thread that watches the current step of a rank, including the wait for its batches.

    After a tenth of `limit` it logs the step and the streams without a batch, and Python's faulthandler prints the stack of
    every thread; a rank that waits for another rank is in a collective. After `limit` it does so again and ends the process.

    Args:
        readers: Readers of the streams by name.
        rank: Rank of this process.
        limit: Seconds that a step may take.
        give_up: Ends the process.
    """

    def __init__(
        self, readers: Mapping[str, Reader], rank: int, limit: float, give_up: Callable[[], None] = _give_up
    ) -> None:
        self._readers, self._rank, self._limit, self._give_up = readers, rank, limit, give_up
        self._step: int | None = None
        """Current step, or None between steps."""
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
        """Watch the body as step `number`."""
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
            if at != seen:  # a new step or a new batch
                seen, since = at, now
            seconds = now - since
            if number is None or seconds < (self._limit if warned == at else self._limit / 10):
                continue
            waiting = [repr(name) for name, reader in self._readers.items() if reader.waiting_since is not None]
            why = f"waiting for a batch of stream {', '.join(waiting)}" if waiting else "the step does not end"
            text = "Rank %d has been in step %d for %.0f s: %s. The process ends after %.0f s (run.step_timeout)"
            log.warning(text, self._rank, number, seconds, why, self._limit)
            faulthandler.dump_traceback(STDERR)
            warned = at
            if seconds >= self._limit:
                log.critical("Rank %d gives up. Run the same command again to resume from the last checkpoint", self._rank)
                self._give_up()
                return
