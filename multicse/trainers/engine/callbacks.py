"""Callbacks of users."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any, cast

import torch

from multicse.trainers.engine.checks import Callback, find_callback
from multicse.trainers.engine.guests import guest
from multicse.trainers.engine.store import CheckpointError


class Callbacks(dict[str, Callback]):
    """Callbacks by name. They may have states, with `state_dict` and `load_state_dict`.

    Args:
        names: Names, see `find_callback`.
    """

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__()
        for name in names:
            found = find_callback(name)
            with guest(f"run.callbacks: {name}", found, always=True):
                self[name] = found() if isinstance(found, type) else found

    def __call__(self, step: int, metrics: dict[str, float], engine: Any) -> None:
        """Call all of them; each may change its metrics."""
        for name, callback in self.items():
            with guest(f"run.callbacks: {name}", callback, always=True):
                callback(step, dict(metrics), engine)

    def state_dict(self) -> dict[str, Any]:
        """Return copies of their states. Raises CheckpointError if `torch.load` with `weights_only` cannot read one."""
        return {name: _state(name, one) for name, one in self.items() if hasattr(one, "state_dict")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the states of the callbacks that the run still has."""
        for name in self.keys() & state:
            with guest(f"run.callbacks: {name}", self[name], always=True):
                cast(Any, self[name]).load_state_dict(state[name])


def _state(name: str, callback: Any) -> Any:
    buffer = io.BytesIO()
    try:
        torch.save(callback.state_dict(), buffer)
        buffer.seek(0)
        return torch.load(buffer, map_location="cpu", weights_only=True)
    except Exception as error:  # of pickle, torch or the callback
        raise CheckpointError(
            f"run.callbacks: the state of {name!r} cannot be saved ({type(error).__name__}: {str(error)[:200]}); let "
            "state_dict() return numbers, texts, tensors, and lists and dicts of them"
        ) from None
