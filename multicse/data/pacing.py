"""Limits of Ray Data's scheduling loop: how far reading tasks run ahead, how many run at once, how often the loop iterates.

The classes use Ray's execution callbacks and backpressure policies. They read private attributes of the executor
(`_output_node`, `_shutdown`), so tests/data/test_executor.py fails if a new version of Ray moves them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ray.data._internal.execution.backpressure_policy import ENABLED_BACKPRESSURE_POLICIES, BackpressurePolicy
from ray.data._internal.execution.execution_callback import ExecutionCallback
from ray.data._internal.execution.operators.input_data_buffer import InputDataBuffer

if TYPE_CHECKING:
    from ray.data import DataContext

PAUSE, LONG_PAUSE, POLL = 0.25, 2.0, 0.1
"""Seconds between two iterations of the loop while blocks are ready, with and without running tasks, and between two checks
whether the consumer took a block."""
GROW_AFTER = 1.0
"""Seconds that the consumer waits before the number of tasks that may run is doubled."""
KEY = "multicse.progress"


@dataclass
class Progress:
    """Position of the consumer in a plan, and the limits of the plan."""

    read_ahead: int
    """Number of tasks beyond the consumer's current task that may be finished or running."""
    readers: int
    """Number of tasks that may run at once while the consumer waits for data."""
    task: int = 0
    """Index in the plan of the consumer's current task."""


_progress: dict[int, Progress] = {}


def follow(context: DataContext, progress: Progress) -> None:
    """Apply the limits of `progress`, which the consumer updates in this process, to Datasets created under `context`."""
    _progress[id(progress)] = progress
    context.set_config(KEY, id(progress))  # not the object, since every Dataset copies its context
    context.set_config("backpressure_policies.enabled", [*ENABLED_BACKPRESSURE_POLICIES, ReadAhead])
    context.custom_execution_callback_classes = [Pace]


def forget(progress: Progress) -> None:
    """Drop a plan that has ended."""
    _progress.pop(id(progress), None)


class ReadAhead(BackpressurePolicy):
    """Policy that starts a reading task only if it is within the read-ahead.

    Initially one task runs at a time; their number doubles when the consumer has waited `GROW_AFTER` seconds more than not.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._plan = _progress[self._data_context.get_config(KEY)]
        self._running, self._waited, self._looked = 1, 0.0, time.monotonic()

    def can_add_input(self, op: Any) -> bool:
        """Return True if the operator `op` may start another task."""
        if isinstance(op, InputDataBuffer):
            return True
        if op.metrics.num_outputs_taken:  # before the first block, processes are still starting
            self._grow(self._topology[op].num_waiting_consumers > 0)
        started = op.metrics.num_tasks_submitted - self._plan.task
        return bool(started < self._plan.read_ahead and op.num_active_tasks() < self._running)

    def _grow(self, waiting: bool) -> None:
        now = time.monotonic()
        passed, self._looked = now - self._looked, now
        self._waited = max(0.0, self._waited + (passed if waiting else -passed))
        if self._waited > GROW_AFTER:
            self._running, self._waited = min(2 * self._running, self._plan.readers), 0.0


class Pace(ExecutionCallback):
    """Callback that pauses the loop while the consumer has blocks to take."""

    def on_execution_step(self, executor: Any) -> None:
        """Sleep until the consumer takes a block, or the pause is over."""
        op, state = executor._output_node
        held = len(state.output_queue)
        end = time.monotonic() + (PAUSE if op.num_active_tasks() else LONG_PAUSE)
        while held and len(state.output_queue) == held and time.monotonic() < end and not executor._shutdown:
            time.sleep(POLL)
