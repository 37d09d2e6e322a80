"""Ctrl-C and SIGTERM: the step is finished, a checkpoint written, and the command ends. A second signal ends it at once."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any, Self

GRACE = 7.0
"""Seconds for a step and its checkpoint; schedulers and spot notices kill after 15 or more."""


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
