"""The wheel, installed where a user's own folders have the names of our rooms; and a clone beside an installed copy."""

from __future__ import annotations

import os
import pickle
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from multicse.models.frozen import frozen
from tests.conftest import ROOMS, ROOT

SCRIPTS = [file for file in sorted((ROOT / "pipelines").glob("*.py")) if '__name__ == "__main__"' in file.read_text()]
SMOKE = ("visualcse", "smoke", "--run.output", "run", "--run.tracking_uri", "sqlite:///runs.db", "--run.workers")


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A user's folder. Its packages have the names of our rooms, and importing one of them is an error."""
    for room in ROOMS:
        (tmp_path / room).mkdir()
        (tmp_path / room / "__init__.py").write_text(f"raise ImportError('{room} of the user')\n")
    (tmp_path / "tests").mkdir()
    return tmp_path


def run(command: list[str | Path], folder: Path, *path: Path, **variables: str) -> str:
    """What a command prints that is run in a folder, with nothing but `path` on Python's path."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), **variables}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.mark.parametrize("workers", ["0", pytest.param("1", marks=pytest.mark.cluster)])
def test_the_installed_command_trains(workers: str, site: Path, elsewhere: Path) -> None:
    said = run([sys.executable, site / "bin" / "multicse", *SMOKE, workers], elsewhere, elsewhere, site)
    assert "before" in said and (elsewhere / "run" / "export" / "model.safetensors").is_file()


def test_the_wheel_holds_every_module_and_the_small_encoder(site: Path, elsewhere: Path) -> None:
    """Modules are importable, name no script that is not there, and carry the same code in exports as the clone's."""
    files = [file for room in ROOMS for file in (ROOT / room).rglob("*.py")]
    modules = [str(file.relative_to(ROOT).with_suffix("")).replace("/", ".").removesuffix(".__init__") for file in files]
    script = "import importlib, sys; [importlib.import_module(f'multicse.{name}') for name in sys.argv[1:]]"
    run([sys.executable, "-c", script, *modules], elsewhere, elsewhere, site)
    assert not [file for file in (site / "multicse").rglob("*.py") if "python pipelines/" in file.read_text()]
    for file in (ROOT / "models" / "small-bert-en").rglob("*"):
        assert file.is_dir() or (site / "multicse" / file.relative_to(ROOT)).read_bytes() == file.read_bytes()
    for name in ("models/dual_module.py", "models/resnet.py", "models/word_module.py", "data/streams/preprocess.py"):
        assert (site / "multicse" / name).read_bytes() == (ROOT / name).read_bytes()


@pytest.mark.cluster
def test_the_wheel_understands_the_commands_of_the_documentation(site: Path, elsewhere: Path) -> None:
    tests: list[str | Path] = [
        ROOT / "tests" / "test_docs_commands.py",
        "-k",
        "understood and not cluster",
        "-c",
        os.devnull,
    ]
    options: list[str | Path] = ["-q", "--noconftest", "-p", "no:cacheprovider", "--rootdir", elsewhere]
    run([sys.executable, "-P", "-m", "pytest", *tests, *options], elsewhere, elsewhere, site, MULTICSE_PACKAGE="multicse")


def test_the_installed_command_lists_papers_and_verbs(site: Path, elsewhere: Path) -> None:
    said = run([sys.executable, site / "bin" / "multicse", "--help"], elsewhere, site)
    assert {file.stem for file in SCRIPTS} <= {*said.split()} and "python" not in said


def test_a_script_runs_the_clone_that_it_stands_in(elsewhere: Path) -> None:
    """Not what is installed, nor the packages of the folder where it is called."""
    said = run([sys.executable, ROOT / "pipelines" / "visualcse.py", "--help"], elsewhere, elsewhere)
    assert "bert-base" in said


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda file: file.stem)
def test_every_script_does(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    runpy.run_path(str(script), run_name="read")
    assert sys.path[0] == str(ROOT)


@pytest.mark.cluster
def test_the_workers_of_a_script_run_its_clone(elsewhere: Path) -> None:
    said = run([sys.executable, ROOT / "pipelines" / "visualcse.py", *SMOKE[1:], "1"], elsewhere)
    assert "before" in said


def test_a_clone_has_the_names_of_the_package() -> None:
    """What is written for an installed copy finds the same objects, which are pickled by the clone's names."""
    from multicse.models import frozen as module
    from multicse.models.frozen import frozen as same

    assert same is frozen is module.frozen
    assert pickle.loads(pickle.dumps(same)) is frozen and same.__module__ == "multicse.models.frozen"
