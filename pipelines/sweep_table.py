"""The trials of a sweep while it runs, and the best of them when it has ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import accumulate
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from evaluation.tables import layout
from trainers.engine.progress import duration
from trainers.tuning.trials import Trial, best_trial, ranked, short_names, show, varied

ROWS = 20  # of the live table at most
REWRITTEN, PRINTED = 1.0, 20.0  # seconds between two looks on a terminal, and between two lines elsewhere
SOONEST = 5.0  # seconds before the time left is estimated
AS_IT_STANDS = "the recipe as it stands"
HEADS = ("trial", "pipeline", "status", "step", "now", "best")
STYLES = {"running": "cyan", "finished": "green", "stopped": "yellow", "failed": "red", "waiting": "dim"}


class SweepTable:
    """On a terminal a table that is rewritten in place, at most once a second; elsewhere one line every 20 seconds.

    A context manager: it is closed, with a last look, however the sweep ends.
    """

    def __init__(
        self, metric: str, total: int, console: Console | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`total` trials are expected; `clock` gives seconds."""
        self._metric, self._total, self._clock = metric, total, clock
        self._console = console or Console()
        self._terminal = self._console.is_terminal and not self._console.is_dumb_terminal
        self._live: Live | None = None
        self._trials: list[Trial] = []
        self._shown: float | None = None
        self._line = ""
        self._start: tuple[float, float] | None = None
        self._closed = False

    def update(self, trials: Sequence[Trial]) -> None:
        """Take the trials as they are now, and show them when it is time."""
        if self._closed:
            return
        self._trials = list(trials)
        now = self._clock()
        if self._start is None:  # what an earlier driver finished says nothing about how fast this one is
            self._start = (now, _work(trials))
        if self._shown is None or now - self._shown >= (REWRITTEN if self._terminal else PRINTED):
            self._shown = now
            self._show()

    def close(self) -> None:
        """Show the last state and give the terminal back. Closing again does nothing."""
        if self._closed:
            return
        self._closed = True
        if self._start is not None:
            self._show()
        if self._live is not None:
            self._live.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _show(self) -> None:
        line = status_line(self._trials, self._total, self._left())
        if self._terminal:
            rows = max(1, min(ROWS, self._console.height - 7))  # beside them: title, head, note, the prompt
            table = _table(self._trials, self._metric, line, rows, self._console.width)
            if self._live is None:
                self._live = Live(table, console=self._console, auto_refresh=False)
                self._live.start()
            self._live.update(table, refresh=True)
        elif line != self._line:
            # Not through the console, which would break lines at the 80 columns that it assumes.
            print(line, file=self._console.file, flush=True)
        self._line = line

    def _left(self) -> float | None:
        """Seconds until all trials have ended at the speed so far; None while that is unknown, and at the end."""
        assert self._start is not None
        began, before = self._start
        elapsed, done = self._clock() - began, _work(self._trials)
        if done <= before or elapsed < SOONEST or done >= self._total:
            return None
        return elapsed * (self._total - done) / (done - before)


def status_line(trials: Sequence[Trial], total: int, left: float | None = None) -> str:
    """``trial 7/16  2 running  5 stopped early  best 48.30 (trial 4)  3 min left``: 7 have ended; `left` in seconds."""
    counts = {status: sum(trial.status == status for trial in trials) for status in ("running", "stopped", "failed")}
    parts = [f"trial {sum(trial.ended for trial in trials)}/{max(total, len(trials))}"]
    names = {"running": "running", "stopped": "stopped early", "failed": "failed"}
    parts += [f"{count} {names[status]}" for status, count in counts.items() if count]
    if best := best_trial(trials):
        parts.append(f"best {best.score:.2f} ({_who(best, trials)})")
    if left is not None:
        parts.append(f"{duration(left)} left")
    return "  ".join(parts)


def final_table(trials: Sequence[Trial], metric: str, n: int = 10) -> str:
    """The `n` best trials with what they change, then the recipe as it stands if it is none of them, then what failed."""
    order = ranked(trials)
    kept = order[:n] + [trial for trial in order[n:] if trial.as_it_stands]
    names = short_names(varied(kept))
    several = len({trial.pipeline for trial in trials}) > 1
    seeds = any(trial.seeds > 1 for trial in kept)
    head = ["trial", *["pipeline"] * several, "status", "step", *["seeds"] * seeds, metric, *names.values()]
    rows = [head]
    for trial in kept:
        cells = [str(trial.number), *[trial.pipeline] * several, _status(trial), f"{trial.step}/{trial.steps}"]
        cells += [*[str(trial.seeds)] * seeds, f"{trial.score:.2f}"]
        rows.append(cells + [show(trial.changes[path]) if path in trial.changes else "-" for path in names])
    lines = [layout(rows)] if kept else [f"no trial has a score ({metric})"]
    standing = [_who(trial, trials) for trial in kept if trial.as_it_stands]
    if standing:
        lines.append(f"{', '.join(standing)}: {AS_IT_STANDS}; -: not changed")
    if len(order) > len(kept):
        lines.append(f"{_more(len(order) - len(kept), 'trial')} with lower scores")
    lines += [f"{_who(trial, trials)} failed: {_reason(trial)}" for trial in trials if trial.status == "failed"]
    return "\n".join(lines)


def _table(trials: Sequence[Trial], metric: str, line: str, rows: int, width: int) -> Group:
    """The running trials, then the others with the best first, then what has no score; `line` on top.

    Of the changed parameters those that fit a terminal of `width` characters.
    """
    running = [trial for trial in trials if trial.status == "running"]
    unscored = [trial for trial in trials if trial.ended and not trial.scored]
    listed = [*running, *ranked(trial for trial in trials if trial.ended), *unscored]
    several = len({trial.pipeline for trial in trials}) > 1
    columns = [[head, *(_cell(head, trial) for trial in listed[:rows])] for head in HEADS if several or head != "pipeline"]
    changed = [
        [_broken(name), *(show(trial.changes[path]) if path in trial.changes else "-" for trial in listed[:rows])]
        for path, name in short_names(varied(trials)).items()
    ]
    fitting = list(accumulate(map(_width, [*columns, *changed])))
    kept = changed[: sum(end <= width for end in fitting[len(columns) :])]
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    for head, *_ in [*columns, *kept]:
        left = head in ("pipeline", "status")
        table.add_column(Text(head), justify="left" if left else "right", no_wrap=True, vertical="bottom")
    best = best_trial(trials)
    for i, trial in enumerate(listed[:rows], 1):
        cells = [Text(column[i], STYLES[trial.status] if column[0] == "status" else "") for column in [*columns, *kept]]
        table.add_row(*cells, style="bold" if trial is best else None)
    note = _note(trials, metric, len(listed) - rows, len(changed) - len(kept))
    above, below = (Text(text, style, no_wrap=True, overflow="ellipsis") for text, style in ((line, "bold"), (note, "dim")))
    return Group(above, table, below)


def _note(trials: Sequence[Trial], metric: str, hidden: int, missing: int) -> str:
    """What the table leaves out, and why the last trial failed that did."""
    parts = [f"score: {metric}"]
    parts += [_more(hidden, "trial")] if hidden > 0 else []
    parts += [_more(missing, "parameter")] if missing else []
    parts += [f"{_who(trial, trials)} failed: {_reason(trial)}" for trial in trials if trial.status == "failed"][-1:]
    return "; ".join(parts)


def _cell(head: str, trial: Trial) -> str:
    now = trial.curve[-1][1] if trial.curve else None
    cells = {"trial": str(trial.number), "pipeline": trial.pipeline, "status": _status(trial)}
    cells |= {"step": f"{trial.step}/{trial.steps}", "now": _number(now), "best": _number(trial.best)}
    return cells[head]


def _broken(name: str) -> str:
    """A dotted name on two lines."""
    first, dot, last = name.rpartition(".")
    return f"{first}{dot}\n{last}" if first else last


def _width(column: Sequence[str]) -> int:
    """Of a column with the space beside it, in characters."""
    return 2 + max(len(line) for cell in column for line in cell.split("\n"))


def _reason(trial: Trial) -> str:
    """The last line of the error, which is the one that says what it was."""
    lines = (trial.error or "").strip().splitlines()
    return lines[-1].strip()[:200] if lines else "no reason is known"


def _who(trial: Trial, trials: Sequence[Trial]) -> str:
    """``trial 4``, with its pipeline where there are several."""
    several = len({other.pipeline for other in trials}) > 1
    return f"{trial.label} of {trial.pipeline}" if several else trial.label


def _status(trial: Trial) -> str:
    return "stopped early" if trial.status == "stopped" else trial.status


def _more(count: int, what: str) -> str:
    return f"{count} more {what}" + ("s" if count > 1 else "")


def _number(score: float | None) -> str:
    return "-" if score is None else f"{score:.2f}"


def _work(trials: Sequence[Trial]) -> float:
    """Trials' worth of work done: an ended one is 1, a running one the share of its steps."""
    running = (trial.step / trial.steps for trial in trials if trial.status == "running" and trial.steps)
    return sum(trial.ended for trial in trials) + sum(running)
