"""Test the command line of pipelines: recipes by name or file, settings by dotted name, help, exit codes."""

from __future__ import annotations

import errno
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from multicse.commands import api, evaluate, read_options, registry, run
from multicse.commands.api import write_inputs
from multicse.commands.cli import main, parse, report
from multicse.data.errors import cli_errors
from multicse.pipelines import clap, cyclip, pretrain, simcse, visualcse
from multicse.trainers.engine.step import NonFiniteLoss
from multicse.trainers.engine.workers import LostWorker
from multicse.trainers.recipe import Recipe, RecipeError
from tests.conftest import ROOT


def visual(*arguments: str) -> Recipe:
    return parse(visualcse.RECIPES, "About.", list(arguments))


def test_the_first_argument_names_the_recipe() -> None:
    assert visual() == visualcse.demo()
    assert parse(pretrain.RECIPES, "", []) == pretrain.small()  # no demo: the first
    row = visualcse.RECIPES["roberta-base"]()
    assert visual("roberta-base") == row and visual("roberta-base", "--run.seed", "7") == row.replace("run.seed", 7)


@pytest.mark.parametrize(
    ("arguments", "path", "value"),
    [
        (["--optim.text.lr", "1e-5"], "optim.text.lr", 1e-5),
        (["--method.text.temperature=0.07"], "method.text.temperature", 0.07),
        (["--method.summed", "False"], "method.summed", False),
        (["--streams.image.scale", "0.5", "1"], "streams.image.scale", [0.5, 1.0]),
        (["--streams.text.on-bad-sample", "skip"], "streams.text.on_bad_sample", "skip"),  # hyphens as well
        (["--evaluation.final", "lee", "sts12"], "evaluation.final", ["lee", "sts12"]),
        (["--evaluation.select", "None"], "evaluation.select", None),
        (["--run.max_steps=None"], "run.max_steps", None),
        (["--evaluation.watch"], "evaluation.watch", []),
        (["--method.text.head", "none"], "method.text.head", "none"),
    ],
)
def test_a_dotted_name_changes_one_field(arguments: list[str], path: str, value: object) -> None:
    before, after = visualcse.demo().flat(), visual("demo", *arguments).flat()
    assert after.pop(path) == value
    before.pop(path)
    assert after == before


def test_settings_that_belong_together_are_changed_together() -> None:
    given = ["--streams.pairs.templates", "a {}.", "the {}.", "--streams.pairs.classes", "cat", "dog"]
    stream = parse(cyclip.RECIPES, "", ["smoke", *given]).flat()
    assert stream["streams.pairs.classes"] == ["cat", "dog"] and stream["streams.pairs.templates"] == ["a {}.", "the {}."]


def test_a_recipe_file_can_be_given_and_changed(tmp_path: Path) -> None:
    file = tmp_path / "recipe.json"
    written = visualcse.RECIPES["roberta-base"]().replace("optim.text.groups", {"weights": {"lr": 1e-6}})
    # Output folder and run.overwrite are not taken from the file.
    file.write_text(written.replace("run.output_dir", "/home").replace("run.overwrite", True).to_json())
    output = f"runs/visualcse-roberta-base-{written.identity()[:6]}"
    written = written.replace("run.output_dir", output)
    assert visual("--recipe", str(file)) == visual(f"--recipe={file}") == written
    assert visual("--recipe", str(file), "--run.overwrite") == written.replace("run.overwrite", True)
    assert visual("--run.seed", "3", "--recipe", str(file)) == written.replace("run.seed", 3)
    groups = visual("--recipe", str(file), "--optim.text.groups.weights.lr", "2e-6").optim["text"].groups
    assert groups["weights"].lr == 2e-6
    assert visual("--recipe", "smoke") == visualcse.smoke()


@pytest.mark.parametrize(
    ("make", "kinds"),
    [
        (cyclip.smoke, ["emoji-train", "emoji-val", "emoji-test"]),
        (clap.demo, ["sounds-train", "sounds-val", "sounds-test"]),
        (cyclip.RECIPES["cyclip-s"], None),
    ],
)
def test_offline_input_of_streams_and_tasks_is_made(
    make: Callable[[], Recipe], kinds: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(
        "multicse.data.offline.demo.write_demo_shards", lambda folder, kinds: made.append((str(folder), sorted(kinds)))
    )
    write_inputs(make())
    assert made == ([] if kinds is None else [("runs/offline", sorted(kinds))])


def test_help_lists_recipes_and_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        visual("roberta-base", "--help-all")
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert "About." in text and "--recipe" in text and "5e-07" in text  # values of the named recipe
    for name, make in visualcse.RECIPES.items():
        assert f"{name} " in text and (make.__doc__ or "?").splitlines()[0] in text
    unset = {f"optim.{update}.groups" for update in ("image", "text")}  # only in a file
    fixed = {"method.name", "method.text.name", "method.text.variant", "streams.text.kind", "streams.image.kind"}
    listed = {*re.findall(r"^  --(\S+) ", text, re.MULTILINE)}
    assert listed == visualcse.RECIPES["roberta-base"]().flat().keys() - unset - fixed
    with pytest.raises(SystemExit):
        visual("roberta-base", "--help")
    used = re.findall(r"^  --(\S+) ", text := capsys.readouterr().out, re.MULTILINE)
    assert {"encoder.path", "streams.image.shards", "optim.text.lr", "run.max_steps"} < {*used} < listed
    assert len(used) <= 14 and "--help-all" in text


def test_no_script_hides_a_library() -> None:
    """The folder of a script is first on sys.path, so `pipelines/datasets.py` would hide the library. `multicse` is imported
    after a script has replaced that entry."""
    libraries = set(packages_distributions()) - {"multicse"}
    assert not {place.stem for place in (ROOT / "pipelines").iterdir()} & libraries


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RecipeError("a setting"), 2),
        (FileNotFoundError("a file"), 2),
        (LostWorker("a worker"), 1),
        (NonFiniteLoss("a loss"), 1),
        (OSError(errno.ENOSPC, "No space left on device"), 1),
    ],
)
def test_exit_codes_of_pipelines_and_other_commands_are_the_same(
    error: Exception, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*arguments: object) -> int:
        raise error

    monkeypatch.setattr(sys, "argv", ["simcse", "smoke"])
    monkeypatch.setattr(api, "train", fail)
    with pytest.raises(SystemExit) as end:
        main(simcse.RECIPES, None)
    assert end.value.code == cli_errors(fail)([]) == code
    assert capsys.readouterr().err == f"error: {error}\n" * 2


def test_the_help_of_multicse_describes_every_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, code in ((["multicse", "--help"], 0), (["multicse"], 2)):
        monkeypatch.setattr(sys, "argv", arguments)
        assert run.main() == code
        shown = capsys.readouterr().out
        for name in {*registry.NAMES, *run.VERBS}:
            (line,) = re.findall(rf"^  {name} +(.*)$", shown, re.MULTILINE)
            assert re.fullmatch(r"[A-Z][^`]{9,110}\.", line), line
        assert "Exit codes: 0 success; 1 " in shown
    monkeypatch.setattr(sys, "argv", ["multicse", "evalute"])
    assert run.main() == 2 and "Did you mean 'evaluate'" in capsys.readouterr().err


@pytest.mark.parametrize("script", ["pipelines/visualcse.py", "pipelines/evaluate.py"])
def test_help_into_a_pipe_that_is_closed_ends_quietly(script: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([sys.executable, script, "--help"], cwd=ROOT, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")


SUMMARY = {"steps": 2, "train_seconds": 1.0, "skipped": {}, "mlflow_run_id": "x", "tracking_uri": "y"}


@pytest.mark.parametrize(("best_step", "warned"), [(0, True), (2, False)])
def test_a_training_without_improvement_is_reported(best_step: int, warned: bool, tmp_path: Path) -> None:
    scores = {when: {"lee": {"spearman": 41.0}} for when in ("before", "after")}
    found = report(SUMMARY | scores | {"export": str(tmp_path), "best_step": best_step, "best_score": 41.0})
    assert ("warning: training did not improve" in found) is warned


def test_the_end_of_a_run_shows_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    summary = SUMMARY | {"before": {}, "after": {}, "export": str(tmp_path / "runs/export"), "best_score": None}
    assert "model   runs/export   (SentenceTransformer('runs/export'))" in report(summary).splitlines()


def test_the_end_of_a_run_without_scores_shows_how_to_get_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    empty = SUMMARY | {"before": {}, "after": {}, "export": str(tmp_path / "my export"), "best_score": None}
    words = shlex.split(report(empty, str(tmp_path / "start")).splitlines()[-1])
    given = read_options(evaluate.Arguments, words[words.index("--tasks") :])
    assert given.compare == ("start=start", "ours=my export") and given.tasks == ("pairs:FILE.tsv",)
    scored = empty | {when: {"lee": {"spearman": 41.0}} for when in ("before", "after")}
    assert "not measured" not in report(scored) and "not measured" in report(empty)


def test_the_end_of_a_run_shows_the_average_over_tasks(tmp_path: Path) -> None:
    scores = {"sts12": {"spearman": 50.004}, "sickr": {"spearman": 60.0}, "mr": {"accuracy": 70.0}, "cr": {"accuracy": 81.0}}
    after = {task: {name: value + 1 for name, value in metrics.items()} for task, metrics in scores.items()}
    summary = SUMMARY | {"before": scores, "after": after, "export": str(tmp_path), "best_step": 2, "best_score": None}
    baseline = summary | {"baseline": {"sts12": {"spearman": 52.0}}, "tracking_uri": "http://mlflow:5000"}
    lines = [line.split() for line in report(summary).splitlines()]
    assert ["average", "of", "2", "spearman", "55.00", "56.00", "+1.00"] in lines
    assert ["transfer", "average", "of", "2", "accuracy", "75.50", "76.50", "+1.00"] in lines
    lines = [line.split() for line in report(baseline).splitlines()]
    assert ["sts12", "spearman", "50.00", "52.00", "51.00", "+1.00"] in lines
    assert ["mr", "accuracy", "70.00", "-", "71.00", "+1.00"] in lines
    assert [line[1] for line in lines if line[:1] == ["model"]] == [str(tmp_path), "runs:/x/export"], "pods are removed"
