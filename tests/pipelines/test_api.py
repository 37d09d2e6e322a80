"""Test the Python API: import time, and all examples in docstrings and docs/reference/python.md."""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import multicse
from multicse.commands import cli
from multicse.data.errors import DataError
from multicse.evaluation.task import EvaluationError
from multicse.pipelines import pretrain, visualcse
from multicse.trainers.recipe import RecipeError
from tests.conftest import ROOT
from tests.evaluation.evaluation_helpers import Bag

PAGE = (ROOT / "docs/reference/python.md").read_text()
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-\d+)?")


@pytest.fixture
def place(tmp_path: Path, tracking_uri: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty working directory with a tracking database."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking_uri)
    return tmp_path


def test_the_import_is_light() -> None:
    """Listing the names loads no library. The time is the processor's, since other processes run; the shortest of three."""
    code = (
        "import sys, time; start = time.process_time(); import multicse; took = time.process_time() - start;"
        "assert set(multicse.__all__) <= set(dir(multicse)); loaded = {name.partition('.')[0] for name in sys.modules};"
        "print(took, *sorted(loaded & {'torch', 'ray', 'transformers', 'mlflow', 'pydantic', 'numpy', 'tyro'}))"
    )
    done = [subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True) for _ in range(3)]
    assert all(run.returncode == 0 for run in done), done[0].stderr
    seconds, *libraries = zip(*(run.stdout.split() for run in done), strict=True)
    assert min(map(float, seconds)) < 0.05 and not libraries


def test_names_that_do_not_exist() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'fit'"):
        multicse.fit  # noqa: B018


def test_options_of_pack_are_checked(tmp_path: Path) -> None:
    table, photos = tmp_path / "t.csv", tmp_path / "photos.csv"
    table.write_text("body,language\nA text.,en\nEin Text.,de\n")
    packed = multicse.pack("table", table, tmp_path / "one", columns="body", where="language=en")
    assert packed.record["nsamples"] == 1
    for option, value in {"format": "Parquet", "where": 3}.items():
        options: dict[str, Any] = {"columns": ("body",), option: value}
        with pytest.raises(DataError, match=f"{option}={value!r}: Input should be"):
            multicse.pack("table", table, tmp_path / "two", **options)
    photos.write_text("file\na.png\n")
    with pytest.raises(DataError, match=r"a\.png"):  # root may be a text
        multicse.pack("images", photos, tmp_path / "three", root=str(tmp_path), file_column="file")


def check(name: str, names: dict[str, Any]) -> None:
    """Run the example in a function's docstring."""
    function = getattr(multicse, name)
    (test,) = (found for found in doctest.DocTestFinder().find(function, name, globs=names) if found.examples)
    output: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=output.append, clear_globs=False)
    assert not output, "".join(output)
    names.update(test.globs)


def test_examples_of_the_docstrings(place: Path) -> None:
    names = {"multicse": multicse, "Path": Path}
    for name in ("load_recipe", "train", "evaluate", "pack"):
        check(name, names)


def blocks() -> list[tuple[str, str]]:
    """Return the code blocks of the page with the output that follows each."""
    return re.findall(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```)?", PAGE, re.MULTILINE | re.DOTALL)


def test_the_page(place: Path, sweeps: bool = False) -> None:
    """Run all blocks in order, or the sweep alone. The output matches the page, and scores differ by at most a point."""
    names: dict[str, Any] = {}
    assert len(blocks()) == PAGE.count("```python") == 8
    for code, wanted in blocks():
        if ("multicse.sweep(" in code) != sweeps and "import multicse" not in code:
            continue
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile(code, "docs/reference/python.md", "exec"), names)
        found = output.getvalue()
        if "multicse.train(" in code:
            assert re.match("step 2/8  image .*  text .*  lee-dev ", found) and re.match("step 2/8  image ", wanted)
            found, wanted = (re.sub(r"(?m)^step .*\n", "", text) for text in (found, wanted))
        if "multicse.embed(" in code:
            found = found.splitlines()[-1] + "\n"  # after the progress
        if "multicse.sweep(" in code:
            found = found.splitlines()[-1] + "\n"  # after Tune's tables
        assert NUMBER.sub("N", found) == NUMBER.sub("N", wanted)
        assert [*map(float, NUMBER.findall(found))] == pytest.approx([*map(float, NUMBER.findall(wanted))], abs=1.0)


@pytest.mark.cluster
def test_examples_of_sweeps(local_ray: None, place: Path) -> None:
    """The docstring's and the page's are the same sweep, which is finished when the page asks for it."""
    check("sweep", {"multicse": multicse})
    trials = place / "runs" / "sweep" / "trials.json"
    written = trials.stat().st_mtime_ns
    test_the_page(place, sweeps=True)
    assert trials.stat().st_mtime_ns == written


def test_recipes_by_name_and_by_file(tmp_path: Path) -> None:
    assert multicse.load_recipe("visualcse") == visualcse.demo() and multicse.load_recipe("pretrain") == pretrain.small()
    file = ROOT / "examples/new_method.py"
    assert (
        multicse.load_recipe(f"{file}/smoke").name == "esimcse/smoke" and multicse.load_recipe(file).name == "esimcse/demo"
    )
    saved = tmp_path / "recipe.json"
    saved.write_text(visualcse.smoke().to_json())
    wanted = cli.parse(visualcse.RECIPES, "", ["--recipe", str(saved), "--run.seed", "5"])
    assert multicse.load_recipe(saved, {"run.seed": 5}) == wanted


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("visualsce/demo", "Did you mean 'visualcse'"),
        ("visualcse/dmeo", "Did you mean 'demo'"),
        ("visualcse/", "recipe '' not found"),
        ("nowhere.py/demo", "file nowhere.py not found"),
        ("nowhere/recipe.json", "file nowhere/recipe.json not found"),
    ],
)
def test_recipes_that_do_not_exist(name: str, named: str) -> None:
    with pytest.raises(RecipeError, match=re.escape(named)) as error:
        multicse.load_recipe(name)
    assert "--recipe" not in str(error.value), "there is no such option in Python"


def test_a_user_defined_encoder_is_evaluated() -> None:
    """The scores are the scores of the task itself."""
    from multicse.evaluation.registry import make_tasks
    from multicse.evaluation.report import evaluate

    assert multicse.evaluate(Bag(), ["lee-dev"]) == evaluate(make_tasks(["lee-dev"]), Bag())
    with pytest.raises(EvaluationError, match="pooling='cls'"):
        multicse.evaluate(Bag(), ["lee-dev"], pooling="cls")
    with pytest.raises(EvaluationError, match="Did you mean 'lee-dev'"):
        multicse.evaluate(Bag(), ["lee-dve"])


def test_packing_with_a_wrong_kind_or_option(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="Did you mean 'text'"):
        multicse.pack("txt", "x.txt", tmp_path)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="Did you mean 'columns'"):
        multicse.pack("table", "x.csv", tmp_path, column=("a",))
