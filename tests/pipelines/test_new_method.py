"""Test docs/how-to/custom-method.md: a method in a user's file is checked and trained as on the page."""

from __future__ import annotations

import math
import os
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import mlflow
import pytest
import torch
from torch import Tensor

from multicse import plugins
from multicse.commands import sweep
from multicse.commands.registry import load
from multicse.commands.run import main
from multicse.trainers.engine.tracking import RunHandle
from multicse.trainers.recipe import Recipe
from multicse.trainers.tuning.sweep import plan_of
from tests.conftest import ROOT
from tests.models import tiny_encoder

FILE = ROOT / "examples/new_method.py"


@pytest.fixture(scope="module")
def esimcse() -> ModuleType:
    return load(str(FILE))


def test_the_page_shows_the_file() -> None:
    file = FILE.read_text()
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/how-to/custom-method.md").read_text(), re.S)
    shown = [part for block in blocks for part in block.split("\n    ...\n")]
    assert shown and all(part.strip("\n") in file for part in shown)
    assert len(file.splitlines()) <= 120


def naive(z: Tensor, negatives: Tensor, t: float) -> float:
    def similarity(a: Tensor, b: Tensor) -> float:
        return math.exp((a @ b / (a.norm() * b.norm())).item() / t)

    total = 0.0
    for i in range(len(z)):
        below = sum(similarity(z[i, 0], other) for other in (*z[:, 1], *negatives))
        total -= math.log(similarity(z[i, 0], z[i, 1]) / below)
    return total / len(z)


def test_the_loss_against_loops_and_the_queue_of_earlier_sentences(esimcse: ModuleType) -> None:
    method = esimcse.ESimCSEConfig(queue=10, temperature=0.2).build(tiny_encoder.encoder()).double()
    torch.manual_seed(0)
    seen = torch.zeros(0, 16, dtype=torch.float64)
    for _ in range(4):
        views, slow = torch.randn(4, 2, 16).double(), torch.randn(4, 16).double()
        loss = method.losses({"text": {"views": views, "slow": slow}}, {}).losses["text"]
        assert loss.item() == pytest.approx(naive(views, seen, 0.2), rel=1e-10)
        seen = torch.cat([slow, seen])[:10]
        assert torch.equal(method.queue[: method.filled], seen)


@pytest.mark.cluster
@pytest.mark.usefixtures("local_ray")
def test_run_in_two_workers_that_have_no_such_file(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``python pipelines/run.py examples/new_method.py smoke ...`` on shards and an encoder of a few weights."""
    from sentence_transformers import SentenceTransformer

    own = ["--encoder.path", str(place / "encoder"), "--streams.text.shards", str(place / "text"), "--run.max_steps", "3"]
    own += ["--run.output_dir", "run", "--run.tracking_uri", f"sqlite:///{tmp_path}/mlflow.db", "--method.queue", "20"]
    own += ["--evaluation.select", "None", "--evaluation.watch", "--evaluation.final", "lee", "--run.num_workers", "2"]
    monkeypatch.setattr(sys, "argv", ["pipelines/run.py", str(FILE), "smoke", *own])
    monkeypatch.chdir(tmp_path)
    assert main() == 0
    assert SentenceTransformer("run/export", device="cpu").encode(["a dog", "the cat runs"]).shape == (2, 16)


def test_as_part_of_the_repository_it_is_three_files(tmp_path: Path) -> None:
    """In a copy of the repository, the tests over all recipes, settings and spaces pass without other changes."""
    for entry in ROOT.iterdir():
        if entry.name in ("multicse", "tests"):
            shutil.copytree(entry, tmp_path / entry.name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        elif not entry.name.startswith((".", "mlflow", "mlartifacts", "runs")):
            (tmp_path / entry.name).symlink_to(entry.readlink() if entry.is_symlink() else entry)
    method, recipes = re.split(r"(?=^def bert_base)", FILE.read_text(), flags=re.M)
    imports = [line for line in method.splitlines() if line.endswith(("import parts", "import Recipe"))]
    method = method.replace(f"{imports[0]}\n", "")
    cited = 'citations: ClassVar = ("@misc{wu-etal-2022-esimcse}",)\n    name: Literal'
    method = method.replace("name: Literal", cited, 1).replace("import Any, Literal", "import Any, ClassVar, Literal")
    imports += ["from multicse.commands.cli import main", "from multicse.trainers.esimcse import ESimCSEConfig"]
    head = "if not __package__ and __name__ != '__mp_main__':  # run as a file\n    import _clone  # noqa: F401\n"
    end = 'if __name__ == "__main__":\n    main(RECIPES, __doc__)\n'
    space = "from ray import tune\n\nSPACES = {'esimcse': {'wide': {'optim.text.lr': tune.loguniform(1e-5, 1e-3)}}}\n"
    (tmp_path / "trainers" / "esimcse.py").write_text(method)
    (tmp_path / "pipelines" / "esimcse.py").write_text("\n".join(['"""ESimCSE."""', head, *imports, recipes, end]))
    (tmp_path / "tune_spaces" / "esimcse.py").write_text(space)
    table = (
        '[T1]\ntitle = "ESimCSE"\ncolumns = ["lee"]\nrows = [{label = "ESimCSE", recipe = "esimcse/smoke", paper = [50]}]\n'
    )
    (tmp_path / "reproduction" / "tables" / "esimcse.toml").write_text(table)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "PYTHONPATH"))}

    def run(*words: str) -> str:
        command = [sys.executable, *words]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    places = ("tests/pipelines/test_help.py", "tests/pipelines/test_cli.py", "tests/tune_spaces")
    assert " passed" in run("-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "esimcse", *places)
    assert "  esimcse         ESimCSE." in run("pipelines/run.py", "--help")
    assert "--method.repetition" in run("pipelines/esimcse.py", "--help-all")
    database = f"sqlite:///{tmp_path}/mlflow.db"
    options = ("--run.num_workers", "0", "--run.tracking_uri", database, "--run.output_dir", "run", "--run.max_steps", "2")
    run("pipelines/run.py", "esimcse", "smoke", *options)
    card = (tmp_path / "run" / "export" / "README.md").read_text()
    assert '"name": "esimcse"' in card and "wu-etal-2022-esimcse" in card
    (found,) = mlflow.MlflowClient(database).search_runs(
        [mlflow.MlflowClient(database).get_experiment_by_name("esimcse").experiment_id]
    )
    assert found.data.params["method.name"] == "esimcse" and found.data.params["method.repetition"] == "0.32"
    assert "ESimCSE" in run("reproduction/reproduce.py", "esimcse")
    assert "optim.text.lr" in run("-c", "from multicse import tune_spaces; print(tune_spaces.every()['esimcse'])")


def test_an_installed_package_adds_its_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_package.py").write_text(FILE.read_text().replace('"esimcse"', '"packaged"'))
    information = tmp_path / "my_package-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    points = "[multicse.methods]\npackaged = my_package:ESimCSEConfig\n[multicse.pipelines]\npackaged = my_package\n"
    (information / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert plugins.get("method", "packaged") is load("packaged").ESimCSEConfig
    assert Recipe.from_json(load("packaged").RECIPES["demo"]().to_json()).method.name == "packaged"


def test_a_sweep_takes_the_file(tmp_path: Path) -> None:
    file = tmp_path / "swept.py"
    space = 'from ray import tune\nSPACES = {"wide": {"method.momentum": tune.choice([0.9, 0.99])}}\n'
    file.write_text(FILE.read_text() + space)
    search, _ = sweep.make_sweep(sweep.Arguments(pipeline=str(file), recipe="smoke", trials=2), [])
    plan = plan_of(search, tmp_path, RunHandle("a run", ""))
    script = "import pickle, sys; plan, changes = pickle.load(sys.stdin.buffer); print(plan.recipe(changes).method)"
    worker = subprocess.run(
        [sys.executable, "-c", script], input=pickle.dumps((plan, {"method.momentum": 0.9})), capture_output=True, cwd=ROOT
    )
    assert "momentum=0.9\n" in worker.stdout.decode(), worker.stderr.decode()[-2000:]
