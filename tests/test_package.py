"""Test the wheel in a folder with packages named like ours, and a clone next to an installed copy."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from multicse.commands.run import VERBS
from multicse.data.errors import command
from tests.conftest import PACKAGE, ROOMS, ROOT, copy_code

PLACES = sorted(file for room in ("pipelines", "reproduction") for file in (ROOT / room).glob("*.py"))
SCRIPTS = [file for file in PLACES if '__name__ == "__main__"' in file.read_text()]
MODULES = sorted(PACKAGE.rglob("*.py"))
NAMES = [str(file.relative_to(ROOT).with_suffix("")).replace("/", ".").removesuffix(".__init__") for file in MODULES]
IMPORT_ALL = f"import importlib, sys; [importlib.import_module(name) for name in {NAMES}]"
SMOKE = ("visualcse", "smoke", "--run.output_dir", "run", "--run.tracking_uri", "sqlite:///runs.db", "--run.num_workers")
UNTRACKED = ("--run.report_to", "none", "--run.max_steps", "2")  # of a run that shows which code its workers import


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
def test_the_installed_command_trains(workers: str, site: Path, elsewhere: Path, request: pytest.FixtureRequest) -> None:
    if int(workers):  # the other makes its own shards
        request.getfixturevalue("with_shards")
    options = UNTRACKED if int(workers) else ()
    output = run([sys.executable, site / "bin" / "multicse", *SMOKE, workers, *options], elsewhere, elsewhere, site)
    assert "before" in output and (elsewhere / "run" / "export" / "model.safetensors").is_file()


def test_the_wheel_is_the_package(site: Path, elsewhere: Path) -> None:
    """It contains each file of the clone's package once, and all modules can be imported."""
    run([sys.executable, "-c", IMPORT_ALL], elsewhere, elsewhere, site)
    packed, own = (
        {
            file.relative_to(folder): file.read_bytes()
            for file in folder.rglob("*")
            if file.is_file() and file.suffix != ".pyc"
        }
        for folder in (site / "multicse", PACKAGE)
    )
    assert packed == own
    assert {place.name.partition("-")[0] for place in site.iterdir()} == {"multicse", "bin"}


def test_the_installed_command_lists_all_scripts_and_uses_its_name(site: Path, elsewhere: Path) -> None:
    output = run([sys.executable, site / "bin" / "multicse", "--help"], elsewhere, site)
    assert {file.stem for file in SCRIPTS} - {"run"} <= {*output.split()}
    assert command("pack") == "python pipelines/pack.py"
    script = "from multicse.data.errors import command; print(command('pack'))"
    assert run([sys.executable, "-c", script], elsewhere, elsewhere, site) == "multicse pack\n"


def test_every_command_has_a_link_to_the_script_that_starts_it() -> None:
    """Papers have files of their own."""
    links = {file.stem: file.resolve().stem for file in (ROOT / "pipelines").iterdir() if file.is_symlink()}
    assert links == {name: "run" for name, module in VERBS.items() if module.startswith("multicse.commands.")}
    assert "usage: pipelines/track.py " in run([sys.executable, "pipelines/track.py", "--help"], ROOT)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda file: file.stem)
def test_a_script_imports_its_own_clone(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under its name at the top of the clone, and under that in the package; the processes that it spawns run it again."""
    for file in (script, script.resolve()):
        monkeypatch.setattr(sys, "path", [str(file.parent), *sys.path])
        monkeypatch.delitem(sys.modules, "_clone", raising=False)
        runpy.run_path(str(file), run_name="read")
        assert sys.path[0] == str(ROOT)
        monkeypatch.delitem(sys.modules, "_clone", raising=False)
        runpy.run_path(str(file), run_name="__mp_main__")  # as `multiprocessing` does, with the path of the first process


def test_the_folder_of_a_job_contains_the_code_once(tmp_path: Path) -> None:
    """Ray's own code packs a clone and follows its links; scripts run in what it unpacks."""
    from ray._private.runtime_env.packaging import create_package, unzip_package

    clone, job = tmp_path / "clone", tmp_path / "working_dir_files" / "_ray_pkg_0123456789abcdef"
    copy_code(clone)
    for name in (".gitignore", ".rayignore"):
        shutil.copy(ROOT / name, clone)
    job.parent.mkdir()
    create_package(str(clone), tmp_path / "package.zip", include_gitignore=True)
    unzip_package(str(tmp_path / "package.zip"), str(job), remove_top_level_directory=False, unlink_zip=False)
    sent = Counter(file.resolve().read_bytes() for file in job.rglob("*") if file.is_file() and file.stat().st_size)
    assert {file.read_bytes() for file in PACKAGE.rglob("*") if file.suffix != ".pyc" and file.is_file()} <= {*sent, b""}
    twice = {file.parent.name for file in job.rglob("*") if file.is_file() and sent[file.read_bytes()] > 1}
    assert twice == {"pipelines", "reproduction"}
    for script in ("pipelines/simcse.py", "pipelines/describe.py", "reproduction/prepare.py"):
        assert "usage: " in run([sys.executable, script, "--help"], job)
    place = "import multicse; print(multicse.__file__, multicse.clone())"
    assert run([sys.executable, "-c", place], job) == f"{job}/multicse/__init__.py {job}\n"


@pytest.mark.cluster
@pytest.mark.usefixtures("with_shards")
def test_the_workers_of_a_script_run_its_clone(elsewhere: Path) -> None:
    """They do not import a package in the working directory, which comes first on the path of Ray's workers."""
    (elsewhere / "multicse").mkdir()
    (elsewhere / "multicse" / "__init__.py").write_text("raise ImportError('another clone')\n")
    output = run([sys.executable, ROOT / "pipelines" / "visualcse.py", *SMOKE[1:], "1", *UNTRACKED], elsewhere)
    assert "before" in output


def test_no_module_has_a_second_name() -> None:
    """With two names, objects of one module's classes would not be instances of the other module's classes."""
    script = f"""{IMPORT_ALL}
import contextlib, runpy
sys.argv[1:] = ["--help"]
sys.path[0] = "pipelines"
with contextlib.suppress(SystemExit):
    runpy.run_path("pipelines/visualcse.py", run_name="__main__")
print([name for name in sys.modules if name.partition(".")[0] in {ROOMS}])"""
    assert run([sys.executable, "-c", script], ROOT).endswith("\n[]\n")


def test_a_command_does_not_walk_through_all_objects_at_its_end() -> None:
    script = "import atexit, gc; from multicse.commands.run import main; gc.collect(); print(len(gc.get_objects()))"
    script += "; atexit.register(lambda: print(gc.get_freeze_count())); main()"
    objects, *_, frozen = run([sys.executable, "-c", script, "--help"], ROOT).split()
    assert int(frozen) >= int(objects)
