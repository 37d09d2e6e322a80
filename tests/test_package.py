"""Test the wheel in a folder with packages named like ours, and a clone next to an installed copy."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from multicse.data.errors import command
from tests.conftest import ROOMS, ROOT

PLACES = sorted(file for room in ("pipelines", "reproduction") for file in (ROOT / room).glob("*.py"))
SCRIPTS = [file for file in PLACES if '__name__ == "__main__"' in file.read_text()]
MODULES = [file for room in ROOMS for file in (ROOT / room).rglob("*.py")]
NAMES = [str(file.relative_to(ROOT).with_suffix("")).replace("/", ".").removesuffix(".__init__") for file in MODULES]
IMPORT_ALL = f"import importlib, sys; [importlib.import_module(f'multicse.{{name}}') for name in {NAMES}]"
SMOKE = ("visualcse", "smoke", "--run.output_dir", "run", "--run.tracking_uri", "sqlite:///runs.db", "--run.num_workers")


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """Return a user's folder with packages named like ours, which raise an error when they are imported."""
    for room in ROOMS:
        (tmp_path / room).mkdir()
        (tmp_path / room / "__init__.py").write_text(f"raise ImportError('{room} of the user')\n")
    (tmp_path / "tests").mkdir()
    return tmp_path


def run(words: list[str | Path], folder: Path, *path: Path, **variables: str) -> str:
    """Return the output of a command in a folder, with only `path` on Python's path."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), **variables}
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.mark.parametrize("workers", ["0", pytest.param("1", marks=pytest.mark.cluster)])
def test_the_installed_command_trains(workers: str, site: Path, elsewhere: Path) -> None:
    output = run([sys.executable, site / "bin" / "multicse", *SMOKE, workers], elsewhere, elsewhere, site)
    assert "before" in output and (elsewhere / "run" / "export" / "model.safetensors").is_file()


def test_the_wheel_contains_every_module_and_the_small_encoder(site: Path, elsewhere: Path) -> None:
    """All modules can be imported, and all files equal those of the clone."""
    run([sys.executable, "-c", IMPORT_ALL], elsewhere, elsewhere, site)
    data = [ROOT / "trainers" / "papers.bib", ROOT / "trainers" / "engine" / "card.md", ROOT / "data" / "small_words.txt"]
    assert (site / "multicse" / "py.typed").is_file()  # type checkers read the annotations
    data += (ROOT / "reproduction").rglob("*.toml")
    for file in (*MODULES, *data, *(ROOT / "models" / "small-bert-en").rglob("*")):
        assert file.is_dir() or (site / "multicse" / file.relative_to(ROOT)).read_bytes() == file.read_bytes()


def test_the_installed_command_lists_all_scripts_and_uses_its_name(site: Path, elsewhere: Path) -> None:
    output = run([sys.executable, site / "bin" / "multicse", "--help"], elsewhere, site)
    assert {file.stem for file in SCRIPTS} - {"run"} <= {*output.split()}
    assert command("pack") == "python pipelines/pack.py"
    script = "from multicse.data.errors import command; print(command('pack'))"
    assert run([sys.executable, "-c", script], elsewhere, elsewhere, site) == "multicse pack\n"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda file: file.stem)
def test_a_script_imports_its_own_clone(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    runpy.run_path(str(script), run_name="read")
    assert sys.path[0] == str(ROOT)


@pytest.mark.cluster
def test_the_workers_of_a_script_run_its_clone(elsewhere: Path) -> None:
    """They do not import a package in the working directory, which comes first on the path of Ray's workers."""
    (elsewhere / "multicse").mkdir()
    (elsewhere / "multicse" / "__init__.py").write_text("raise ImportError('another clone')\n")
    output = run([sys.executable, ROOT / "pipelines" / "visualcse.py", *SMOKE[1:], "1"], elsewhere)
    assert "before" in output


def test_no_module_has_a_second_name() -> None:
    """With two names, objects of one module's classes would not be instances of the other module's classes."""
    script = f"""{IMPORT_ALL}
import contextlib, runpy
sys.argv[1:] = ["--help"]
with contextlib.suppress(SystemExit):
    runpy.run_path("pipelines/visualcse.py", run_name="__main__")
print([name for name in sys.modules if name.partition(".")[0] in {ROOMS}])"""
    assert run([sys.executable, "-c", script], ROOT).endswith("\n[]\n")
