"""The varied parameters of a sweep as axes: which kind fits the values, where they lie, what is written beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.scale import LogTransform, SymmetricalLogTransform
from matplotlib.ticker import LogLocator, MaxNLocator

from trainers.tuning.trials import Trial, show, varied

LOG_SPAN = 30  # values that span more lie on a logarithmic axis
CHOICES = 8  # values tried again and again that can all be named beside an axis
LONGEST = 18  # characters of the name of a value


@dataclass(frozen=True)
class Parameter:
    """The values of one parameter, one a trial, and the axis they lie on."""

    path: str
    kind: Literal["linear", "log", "symlog", "choice"]
    places: np.ndarray
    """(N,) on the axis: the values, or the indices of choices; NaN where a trial has no value."""
    names: tuple[str, ...]
    """Of the choices, in order."""

    def scale(self, axes: Axes) -> None:
        """Make the x axis of a panel fit."""
        if self.kind == "choice":
            long = max(map(len, self.names)) * len(self.names) > 26
            turned: dict[str, Any] = {"rotation": 30, "ha": "right"} if long else {}
            axes.set_xticks(range(len(self.names)), self.names, fontsize=9, **turned)
            for label in axes.get_xticklabels():
                label.set_parse_math(False)
            axes.set_xlim(-0.5, len(self.names) - 0.5)
            return
        if self.kind == "symlog":
            axes.set_xscale("symlog", linthresh=self._smallest(), linscale=0.5)
        else:
            axes.set_xscale(self.kind)
        if (values := self._few(0.15)) is not None:
            axes.set_xticks(values, [show(float(value)) for value in values])
            axes.set_xticks([], minor=True)
        elif self.kind == "linear":
            axes.xaxis.set_major_locator(MaxNLocator(5))

    def heights(self) -> np.ndarray:
        """The places between 0, the lowest, and 1, the highest."""
        return self._height(self.places)

    def ticks(self) -> list[tuple[float, str]]:
        """Heights of the values to name, and their names."""
        if self.kind == "choice":
            return list(zip(self._height(np.arange(len(self.names))).tolist(), self.names, strict=True))
        values = self._few(0.05)
        if values is None:
            values = self._located(float(np.nanmin(self.places)), float(np.nanmax(self.places)))
        return [(float(self._height(np.array([value]))[0]), show(float(value))) for value in values]

    def _few(self, gap: float) -> np.ndarray | None:
        """The values themselves where they are at most 5, with a share of the axis between them."""
        values = np.unique(self.places[~np.isnan(self.places)])
        clear = len(values) <= 5 and np.diff(self._height(values)).min(initial=1.0) >= gap
        return values if clear else None

    def _located(self, low: float, high: float) -> np.ndarray:
        """Round values within the range."""
        if self.kind == "linear":
            values = np.asarray(MaxNLocator(6).tick_values(low, high))
        else:
            start = low or self._smallest()
            subs = (1.0,) if high / start > 100 else (1.0, 2.0, 5.0)
            values = np.array(LogLocator(subs=subs, numticks=7).tick_values(start, high))
            values = np.append(values, 0.0) if self.kind == "symlog" else values
        slack = 1e-9 * abs(high)
        return np.asarray(values[(values >= low - slack) & (values <= high + slack)])

    def _smallest(self) -> float:
        return float(np.min(self.places[self.places > 0]))

    def _height(self, places: np.ndarray) -> np.ndarray:
        bounds = np.array([np.nanmin(self.places), np.nanmax(self.places)])
        if self.kind == "choice":
            bounds = np.array([0, max(1, len(self.names) - 1)])
        low, high = self._warp(bounds)
        result: np.ndarray = (self._warp(places) - low) / ((high - low) or 1.0)
        return result if high > low else np.where(np.isnan(result), np.nan, 0.5)

    def _warp(self, places: np.ndarray) -> np.ndarray:
        values = np.asarray(places, dtype=float)
        if self.kind == "log":
            return np.asarray(LogTransform(10).transform(values))
        if self.kind == "symlog":
            return np.asarray(SymmetricalLogTransform(10, self._smallest(), 0.5).transform(values))
        return values


def parameter_axes(trials: Sequence[Trial], defaults: Mapping[str, Any]) -> list[Parameter]:
    """The parameters with at least two values; what a trial does not change has the value of the recipe."""
    found: list[Parameter] = []
    for path in varied(trials):
        values = [_plain(trial.changes[path] if path in trial.changes else defaults.get(path, ...)) for trial in trials]
        if len({value for value in values if value is not ...}) > 1:
            found.append(_parameter(path, values))
    return found


def _parameter(path: str, values: Sequence[Any]) -> Parameter:
    given = [value for value in values if value is not ...]
    if all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in given):
        parameter = Parameter(path, _kind(given), np.array([np.nan if v is ... else float(v) for v in values]), ())
        if not _crowded(parameter, given):
            return parameter
    choices = sorted(set(given), key=_order)
    if len(choices) > 3 * CHOICES:
        raise ValueError(f"{path} has {len(choices)} different values that are no numbers, too many for an axis")
    places = np.array([np.nan if value is ... else choices.index(value) for value in values])
    names = [show(choice) for choice in choices]
    return Parameter(path, "choice", places, tuple(n if len(n) <= LONGEST else n[: LONGEST - 1] + "…" for n in names))


def _kind(values: Sequence[float]) -> Literal["linear", "log", "symlog"]:
    above = [value for value in values if value > 0]
    if min(values) < 0 or max(above) / min(above) <= LOG_SPAN:
        return "linear"
    return "log" if len(above) == len(values) else "symlog"


def _crowded(parameter: Parameter, values: Sequence[float]) -> bool:
    """Whether these are a few values, tried again and again, that would lie on each other (0.9, 0.99, 0.999 from 0 on)."""
    different = sorted(set(values))
    if len(different) > min(CHOICES, len(values) // 2):
        return False
    return bool(np.diff(parameter._height(np.array(different))).min() < 0.05)


def _plain(value: Any) -> Any:
    """Lists, which cannot be told apart by hash, as tuples; other things without a hash as text."""
    if isinstance(value, (list, tuple)):
        return tuple(_plain(item) for item in value)
    return repr(value) if isinstance(value, (dict, set)) else value


def _order(value: Any) -> tuple[bool, float, str]:
    """Numbers in order, then the rest by name."""
    number = isinstance(value, (int, float))
    return (not number, float(value) if number else 0.0, str(value))
