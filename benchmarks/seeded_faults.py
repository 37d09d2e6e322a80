"""Put one fault at a time into a copy of the repository, and look whether tests catch it.

    python -m benchmarks.seeded_faults data [--tests tests/data/test_forms.py ...] [--only 3 7] [--every]

`benchmarks/faults/NAME.toml` lists the faults of a package: a file, a text that occurs in it once, and the text that
replaces it. The exit code is 1 if a fault is not caught, and 2 if the list or the tests do not fit the code.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

import tyro

ROOT = Path(__file__).parents[1]
SECONDS = 900
"""A test that takes longer has caught the fault: it hangs."""


@dataclass(frozen=True)
class Fault:
    """A replacement of a text in a file."""

    file: str
    old: str
    new: str
    what: str
    """What is wrong then, in a few words."""
    tests: tuple[str, ...] = ()
    """Tests to run instead of all tests of the package, which take longer."""

    def seeded(self, text: str) -> str:
        """Return the text of the file with the fault. Raises ValueError if the old text does not occur once."""
        if (times := text.count(self.old)) != 1:
            raise ValueError(f"{self.file} contains {self.old!r} {times} times, not once; adapt the fault {self.what!r}")
        return text.replace(self.old, self.new)


def read_faults(name: str) -> tuple[list[str], list[Fault]]:
    """Return the tests and the faults of a package."""
    record = tomllib.loads((ROOT / "benchmarks" / "faults" / f"{name}.toml").read_text(encoding="utf-8"))
    return record["tests"], [Fault(**fault | {"tests": tuple(fault.get("tests", ()))}) for fault in record["fault"]]


def run_tests(copy: Path, tests: list[str], every: bool) -> tuple[int, list[str]]:
    """Return pytest's exit code (0 if all passed), and the tests that failed."""
    stop = [] if every else ["-x"]
    command = [sys.executable, "-m", "pytest", *tests, *stop, "-q", "-n", "0", "-rfE", "--tb=no", "-p", "no:cacheprovider"]
    environment = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return 1, ["hangs"]
    if done.returncode < 0:
        return 1, ["the process dies"]
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    if done.returncode not in (0, 1) and not failed:
        raise ValueError(f"{' '.join(command)}: {(done.stdout + done.stderr)[-2000:]}")
    return done.returncode, failed


def main(name: str, /, tests: tuple[str, ...] = (), only: tuple[int, ...] = (), every: bool = False) -> int:
    """Print for each fault the first test that catches it, or all files of tests that do.

    Args:
        name: Name of the list, such as data.
        tests: Files of tests; by default those that the list names.
        only: Numbers of faults, from 1; by default all.
        every: Run all tests after one has failed, and print all files that catch the fault.
    """
    default, faults = read_faults(name)
    chosen = [(number, fault) for number, fault in enumerate(faults, 1) if not only or number in only]
    sound = {fault.file: (ROOT / fault.file).read_text(encoding="utf-8") for _, fault in chosen}
    seeded = {number: fault.seeded(sound[fault.file]) for number, fault in chosen}
    missed: list[int] = []
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place, "copy")
        left_out = shutil.ignore_patterns(".git", ".venv*", "__pycache__", "mlruns", "runs", ".*_cache")
        shutil.copytree(ROOT, copy, symlinks=True, ignore=left_out)
        needed = tests or tuple(dict.fromkeys(test for _, fault in chosen for test in fault.tests or default))
        code, failed = run_tests(copy, list(needed), every)
        if code:
            raise ValueError(f"without a fault, {', '.join(failed)} fails")
        for number, fault in chosen:
            (copy / fault.file).write_text(seeded[number], encoding="utf-8")
            start = time.perf_counter()
            code, failed = run_tests(copy, list(tests or fault.tests or default), every)
            (copy / fault.file).write_text(sound[fault.file], encoding="utf-8")
            missed += [] if code else [number]
            by = sorted({test.partition("::")[0] for test in failed}) if every else failed[:1]
            found = f"caught by {', '.join(by)}" if code else "MISSED"
            print(f"{number:3} {time.perf_counter() - start:5.0f} s  {fault.what}: {found}", flush=True)
    print(f"{len(chosen) - len(missed)} of {len(chosen)} faults are caught" + (f"; not: {missed}" if missed else ""))
    return 1 if missed else 0


if __name__ == "__main__":
    try:
        sys.exit(tyro.cli(main, description=__doc__))
    except ValueError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
