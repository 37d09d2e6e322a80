"""A stream that keeps a rank waiting is named, and in the end nobody waits for it any longer."""

from __future__ import annotations

import threading
import time

import pytest

from trainers.engine.watchdog import Watchdog


class Reader:
    waiting_since: float | None = None


def test_who_waits_for_what(caplog: pytest.LogCaptureFixture) -> None:
    text, image, gave_up = Reader(), Reader(), threading.Event()
    image.waiting_since = time.perf_counter()
    with Watchdog({"text": text, "image": image}, rank=3, limit=1.0, give_up=gave_up.set):
        assert gave_up.wait(30)
    warnings = [record.getMessage() for record in caplog.records]
    assert 2 <= len(warnings) <= 6 and all("rank 3" in line and "'image'" in line for line in warnings)
    assert "run.step_timeout" in warnings[0] and "the same command goes on" in warnings[-1].lower()
