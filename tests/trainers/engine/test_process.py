"""Which scheduling policy the processes of a run have."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from multicse.trainers.engine.process import in_background, to_foreground

pytestmark = pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="SCHED_BATCH exists on Linux only")
POLICY = [sys.executable, "-c", "import os; print(os.sched_getscheduler(0))"]


def test_background_is_inherited_and_left_by_the_training_thread() -> None:
    before = os.sched_getscheduler(0)
    with in_background():
        child = int(subprocess.run(POLICY, capture_output=True, check=True).stdout)
        to_foreground()
        training = os.sched_getscheduler(0)
    assert (child, training, os.sched_getscheduler(0)) == (os.SCHED_BATCH, os.SCHED_OTHER, before)
