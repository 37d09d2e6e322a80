"""The table of a sweep: on a terminal, on a stream that is none, and when the sweep has ended."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
from typing import Any

import pytest
from rich.console import Console

from pipelines.sweep_table import SweepTable, final_table, status_line
from tests.conftest import ROOT
from trainers.tuning.trials import Status, Trial

METRIC = "lee-dev/spearman"


def trial(number: int, score: float | None, status: Status = "finished", **kept: Any) -> Trial:
    """By default at its end; numbers above 0 change two parameters."""
    changes = {"optim.text.lr": number * 1e-5, "method.image.loss": f"loss{number}"} if number else {}
    curve = () if score is None else ((4, score),)
    given: dict[str, Any] = {"pipeline": "visualcse", "changes": changes, "step": 8, "steps": 8, "curve": curve} | kept
    return Trial(number=number, status=status, best=score, **given)


SWEEP = [
    trial(0, 40.0),
    trial(1, 44.25),
    trial(2, 42.0, "stopped", step=2),
    trial(3, 41.0, "running", step=4),
    trial(4, None, "failed", error="Traceback\n  File ...\nNonFiniteLoss: text is [bold]nan[/bold]\n"),
    trial(5, None, "waiting", step=0),
]


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def screen(text: str) -> list[str]:
    """What a terminal shows of this, by a naive one that knows new lines, carriage returns, cursor up and erase line."""
    lines, row, column = [""], 0, 0
    for code, plain in re.findall(r"(\x1b\[[0-9;?]*[A-Za-z])|([^\x1b])", text):
        if code.endswith("A"):
            row -= int(code[2:-1] or 1)
            assert row >= 0
        elif code == "\x1b[2K":
            lines[row] = ""
        elif plain == "\n":
            row += 1
            lines += [""] * (row == len(lines))
            column = 0
        elif plain == "\r":
            column = 0
        elif plain:
            lines[row] = lines[row].ljust(column)[:column] + plain + lines[row][column + 1 :]
            column += 1
    return [line.rstrip() for line in lines]


def terminal(width: int = 100, height: int = 30) -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, force_terminal=True, width=width, height=height, color_system="standard"), file


def test_status_line() -> None:
    assert status_line(SWEEP, 16, 200.0) == (
        "trial 4/16  1 running  1 stopped early  1 failed  best 44.25 (trial 1)  3 min left"
    )
    assert status_line([], 16) == "trial 0/16"
    assert status_line([*SWEEP, trial(6, 50.0, pipeline="audiocse")], 2).startswith("trial 5/7")
    assert "best 50.00 (trial 6 of audiocse)" in status_line([*SWEEP, trial(6, 50.0, pipeline="audiocse")], 2)


def test_the_table_on_a_terminal() -> None:
    console, file = terminal()
    with SweepTable(METRIC, 16, console) as table:
        table.update(SWEEP)
    shown = screen(file.getvalue())
    assert shown[0] == "trial 4/16  1 running  1 stopped early  1 failed  best 44.25 (trial 1)"
    assert [line.split() for line in shown[1:3]] == [
        ["text.", "image."],
        ["trial", "status", "step", "now", "best", "lr", "loss"],
    ]
    assert [line.split() for line in shown[3:8]] == [  # the running one, then by score, then what has none
        ["3", "running", "4/8", "41.00", "41.00", "3e-05", "loss3"],
        ["1", "finished", "8/8", "44.25", "44.25", "1e-05", "loss1"],
        ["2", "stopped", "early", "2/8", "42.00", "42.00", "2e-05", "loss2"],
        ["0", "finished", "8/8", "40.00", "40.00", "-", "-"],
        ["4", "failed", "8/8", "-", "-", "4e-05", "loss4"],
    ]
    assert shown[8] == f"score: {METRIC}; trial 4 failed: NonFiniteLoss: text is [bold]nan[/bold]"
    assert shown[9:] == [""]
    assert file.getvalue().endswith("\x1b[?25h")  # the cursor is back


def test_a_terminal_is_rewritten_in_place_once_a_second() -> None:
    console, file = terminal()
    clock = Clock()
    table = SweepTable(METRIC, 16, console, clock)
    table.update(SWEEP[:1])
    first = len(file.getvalue())
    clock.now += 0.9
    table.update(SWEEP[:2])
    assert len(file.getvalue()) == first
    clock.now += 0.2
    table.update(SWEEP[:3])
    shown = screen(file.getvalue())
    assert [line.split()[0] for line in shown if line] == ["trial", "text.", "trial", "1", "2", "0", "score:"]
    table.update(SWEEP)  # too early to be shown, but not lost
    table.close()
    table.close()
    after = file.getvalue()
    assert len([line for line in screen(after) if line]) == 9
    table.update(SWEEP[:1])
    assert file.getvalue() == after


@pytest.mark.parametrize(("height", "rows"), [(60, 20), (16, 9), (5, 1)])
def test_long_sweeps_and_low_terminals(height: int, rows: int) -> None:
    console, file = terminal(height=height)
    many = [trial(i, 40.0 + i, "running" if i == 3 else "finished") for i in range(40)]
    with SweepTable(METRIC, 40, console) as table:
        table.update(many)
    shown = [line.split() for line in screen(file.getvalue()) if line]
    assert [int(line[0]) for line in shown[3:-1]] == [3, *range(39, 0, -1)][:rows]
    assert " ".join(shown[-1]) == f"score: {METRIC}; {40 - rows} more trials"


def test_parameters_that_do_not_fit_are_counted() -> None:
    names = [f"method.part{i}.temperature" for i in range(9)]
    console, file = terminal(width=80)
    with SweepTable(METRIC, 1, console) as table:
        table.update([trial(1, 40.0, changes=dict.fromkeys(names, 0.5)), trial(2, 41.0, pipeline="audiocse")])
    shown = screen(file.getvalue())
    assert all(len(line) <= 80 for line in shown) and [line.count("part") for line in shown[1:2]] == [2]
    assert shown[-2] == f"score: {METRIC}; 9 more parameters"  # 7 of the parts and the two of the other
    assert "visualcse" in shown[4] and "audiocse" in shown[3]


def test_elsewhere_one_line_every_twenty_seconds() -> None:
    file, clock = io.StringIO(), Clock()
    with SweepTable(METRIC, 4, Console(file=file, width=40), clock) as table:
        for second in range(0, 51, 5):
            clock.now = 100.0 + second
            running = trial(1, 41.0, "running", step=second // 10)
            table.update([trial(0, 40.0), running])
        table.update([trial(0, 40.0), trial(1, 44.25), trial(2, 42.0, "stopped"), trial(3, None, "failed")])
    assert file.getvalue().splitlines() == [
        "trial 1/4  1 running  best 41.00 (trial 1)",
        # trial 0 was there before: a quarter of a trial in 20 s, and 2.75 to go
        "trial 1/4  1 running  best 41.00 (trial 1)  4 min left",
        # half a trial in 40 s, 2.5 to go
        "trial 1/4  1 running  best 41.00 (trial 1)  3 min left",
        "trial 4/4  1 stopped early  1 failed  best 44.25 (trial 1)",
    ]


def test_without_an_update_nothing_is_shown() -> None:
    for console, file in (terminal(), (Console(file=(plain := io.StringIO())), plain)):
        SweepTable(METRIC, 4, console).close()
        assert file.getvalue() == ""


def test_the_table_is_closed_when_the_sweep_breaks() -> None:
    console, file = terminal()
    with pytest.raises(KeyboardInterrupt), SweepTable(METRIC, 4, console) as table:
        table.update(SWEEP)
        raise KeyboardInterrupt
    assert file.getvalue().endswith("\x1b[?25h")


PROGRAM = f"""
from tests.pipelines.test_sweep_table import SWEEP, SweepTable
import sys, time
with SweepTable({METRIC!r}, 16) as table:
    table.update(SWEEP[:2])
    print("a line of something else")
    time.sleep(1.1)
    table.update(SWEEP)
"""


def test_a_real_terminal_and_a_pipe() -> None:
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        environment.pop(name, None)
    command = [sys.executable, "-c", PROGRAM]
    piped = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert piped.stdout.splitlines() == [
        "trial 2/16  best 44.25 (trial 1)",
        "a line of something else",
        "trial 4/16  1 running  1 stopped early  1 failed  best 44.25 (trial 1)",
    ]
    master, slave = pty.openpty()
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=slave, stderr=subprocess.PIPE) as process:
        os.close(slave)
        output = b""
        while chunk := _read(master):
            output += chunk
        assert process.wait(60) == 0, process.stderr and process.stderr.read()
    os.close(master)
    shown = [line for line in screen(output.decode()) if line]
    assert shown[0] == "a line of something else"  # it stays above the table
    assert [line.split()[0] for line in shown[4:-1]] == ["3", "1", "2", "0", "4"] and len(shown) == 10


def _read(master: int) -> bytes:
    """The next output; nothing when the other end is closed, which Linux calls an error."""
    try:
        return os.read(master, 65536)
    except OSError:
        return b""


# ------------------------------------------------------------------------------------------------------------- the end


def test_final_table() -> None:
    lines = final_table(SWEEP, METRIC, n=2).splitlines()
    assert [line.split() for line in lines[:1] + lines[2:5]] == [
        ["trial", "status", "step", METRIC, "text.lr", "image.loss"],
        ["1", "finished", "8/8", "44.25", "1e-05", "loss1"],
        ["2", "stopped", "early", "2/8", "42.00", "2e-05", "loss2"],
        ["0", "finished", "8/8", "40.00", "-", "-"],  # the recipe as it stands is always there
    ]
    assert lines[5:] == [
        "trial 0: the recipe as it stands; -: not changed",
        "1 more trial with lower scores",
        "trial 4 failed: NonFiniteLoss: text is [bold]nan[/bold]",
    ]


def test_final_table_of_two_pipelines_and_seeds() -> None:
    others = [trial(10, 50.0, pipeline="audiocse", changes={}, seeds=3), trial(11, None, "failed", pipeline="audiocse")]
    lines = final_table([*SWEEP, *others], METRIC).splitlines()
    assert lines[0].split()[:5] == ["trial", "pipeline", "status", "step", "seeds"]
    assert lines[2].split() == ["10", "audiocse", "finished", "8/8", "3", "50.00", "-", "-"]
    assert lines[7].startswith("trial 10 of audiocse, trial 0 of visualcse: the recipe")
    assert lines[-1] == "trial 11 of audiocse failed: no reason is known"


def test_final_table_without_scores() -> None:
    assert final_table(SWEEP[4:], METRIC).splitlines() == [
        f"no trial has a score ({METRIC})",
        "trial 4 failed: NonFiniteLoss: text is [bold]nan[/bold]",
    ]
