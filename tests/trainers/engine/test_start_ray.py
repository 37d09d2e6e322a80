"""Errors at the start of Ray name their cause."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

START = """
from types import SimpleNamespace
from multicse.trainers.engine.cluster import start_ray
start_ray(SimpleNamespace(run=SimpleNamespace(verbose=False)))
"""


def test_a_temporary_folder_with_too_long_a_name_is_named(tmp_path: Path) -> None:
    (place := tmp_path / ("a" * 100)).mkdir()
    unset = ("RAY_TMPDIR", "RAY_ADDRESS")
    environment = {name: value for name, value in os.environ.items() if name not in unset} | {"TMPDIR": str(place)}
    found = subprocess.run([sys.executable, "-c", START], env=environment, capture_output=True, text=True, check=False)
    assert found.returncode and "RecipeError" in found.stderr
    assert found.stderr.startswith("Starting Ray on this machine ...\n"), "announced, since it takes seconds"
    assert str(place) in found.stderr and "RAY_TMPDIR=/tmp" in found.stderr
