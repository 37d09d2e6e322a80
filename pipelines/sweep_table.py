"""The trials of a sweep as a table: rewritten in place while it runs, and the best of them when it has ended."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from multicse.trainers.engine.progress import duration
from multicse.trainers.tuning.trials import Trial, best_trial, ranked, short_names, show, varied

EVERY = 20.0
"""Seconds between two lines where there is no terminal."""
SOONEST = 5.0
"""Seconds before the time left is estimated."""
STYLES = {"running": "cyan", "finished": "green", "stopped": "yellow", "failed": "red", "waiting": "dim"}


class SweepTable:
    """On a terminal a table that is rewritten in place; elsewhere a line now and then. `total`: trials that are expected."""

    def __init__(self, metric: str, total: int, console: Console | None = None) -> None:
        self.metric, self.total = metric, total
        self.console = console or Console()
        in_place = self.console.is_terminal and not self.console.is_dumb_terminal
        self.live = Live(console=self.console, auto_refresh=False, transient=True) if in_place else None
        self.began: tuple[float, float] | None = None
        self.printed = -math.inf

    def update(self, trials: Sequence[Trial]) -> None:
        """Show the trials as they are now."""
        now, done = time.monotonic(), _work(trials)
        if self.began is None:  # what an earlier driver finished says nothing about how fast this one is
            self.began = (now, done)
            if self.live is not None:
                self.live.start()
        line = status_line(trials, self.total, self._left(now, done))
        if self.live is not None:
            running = [trial for trial in trials if trial.status == "running"]
            ended = [trial for trial in trials if trial.ended]
            unscored = [trial for trial in ended if not trial.scored]
            self.live.update(Group(Text(line), table([*running, *ranked(ended), *unscored], self.metric)), refresh=True)
        elif now - self.printed >= EVERY:
            self.printed = now
            print(line, file=self.console.file, flush=True)  # the console would break it at the 80 columns that it assumes

    def close(self) -> None:
        """Give the terminal back."""
        if self.live is not None:
            self.live.stop()

    def _left(self, now: float, done: float) -> float | None:
        """Seconds until all trials have ended at the speed so far; None while that is unknown, and at the end."""
        assert self.began is not None
        elapsed, more = now - self.began[0], done - self.began[1]
        return elapsed * (self.total - done) / more if more > 0 and elapsed >= SOONEST and done < self.total else None


def status_line(trials: Sequence[Trial], total: int, left: float | None = None) -> str:
    """``trial 7/16  2 running  5 stopped early  best 48.30 (trial 4)  3 min left``: 7 have ended; `left` in seconds."""
    counts = {status: sum(trial.status == status for trial in trials) for status in ("running", "stopped", "failed")}
    parts = [f"trial {sum(trial.ended for trial in trials)}/{total}"]
    parts += [f"{count} {_worded(status)}" for status, count in counts.items() if count]
    if best := best_trial(trials):
        parts.append(f"best {best.score:.2f} ({best.label})")
    if left is not None:
        parts.append(f"{duration(left)} left")
    return "  ".join(parts)


def table(trials: Sequence[Trial], metric: str) -> Table:
    """A row a trial, in the order given, with what it changes; the best one is bold."""
    names, best = short_names(varied(trials)), best_trial(trials)
    found = Table(box=None, pad_edge=False, header_style="bold")
    for head in ("trial", "pipeline", "status", "step", "seeds", metric, *names.values()):
        found.add_column(Text(head), justify="left" if head in ("pipeline", "status") else "right")
    for trial in trials:
        cells = [str(trial.number), trial.pipeline, _worded(trial.status), f"{trial.step}/{trial.steps}", str(trial.seeds)]
        cells.append(f"{trial.score:.2f}" if trial.scored else "-")
        cells += [show(trial.changes[path]) if path in trial.changes else "-" for path in names]
        texts = [Text(cell, STYLES[trial.status] if place == 2 else "") for place, cell in enumerate(cells)]
        found.add_row(*texts, style="bold" if trial is best else None)
    return found


def final_table(trials: Sequence[Trial], metric: str, n: int = 10) -> Group:
    """The `n` best trials with what they change, then the recipe as it stands if it is none of them, then what failed."""
    order = ranked(trials)
    kept = order[:n] + [trial for trial in order[n:] if trial.as_it_stands]
    lines = [f"{trial.label}: the recipe of {trial.pipeline} as it stands" for trial in kept if trial.as_it_stands]
    if len(order) > len(kept):
        lines.append(f"trials with lower scores: {len(order) - len(kept)}")
    lines += [f"{trial.label} failed: {trial.error}" for trial in trials if trial.status == "failed"]
    return Group(table(kept, metric) if kept else Text(f"no trial has a score ({metric})"), *map(Text, lines))


def _worded(status: str) -> str:
    return "stopped early" if status == "stopped" else status


def _work(trials: Sequence[Trial]) -> float:
    """Trials' worth of work done: an ended one is 1, a running one the share of its steps."""
    running = (trial.step / trial.steps for trial in trials if trial.status == "running" and trial.steps)
    return sum(trial.ended for trial in trials) + sum(running)
