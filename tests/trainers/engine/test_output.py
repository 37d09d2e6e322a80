"""Output folder of a run: dead runs are resumed, finished runs are kept, other files are not changed."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from multicse.trainers.engine import deliver, record
from multicse.trainers.engine.export import HubError
from multicse.trainers.engine.inputs import inputs
from multicse.trainers.engine.launch import run_recipe
from multicse.trainers.engine.loop import Engine
from multicse.trainers.engine.record import DRIVER, locked
from multicse.trainers.engine.stop import Interrupted, Stop, former_handlers
from multicse.trainers.engine.store import CheckpointError, Store, WriteFiles
from multicse.trainers.method import Method
from multicse.trainers.recipe import Recipe, RecipeError
from multicse.trainers.simcse import NegativesConfig, SimCSEConfig
from tests.worlds import history, text_only


@pytest.fixture(autouse=True)
def _no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliver, "draw_figures", lambda *_: None)


class Died(BaseException):
    """Exception that our code does not catch, like the death of a process."""


def dies(monkeypatch: pytest.MonkeyPatch, recipe: Recipe, step: int) -> None:
    """Run a recipe up to a step and end like a killed process, without a report to MLflow."""

    def after_step(method: Method, done: int) -> None:
        if done == step:
            raise Died

    def whole(store: Store, at: int, write_files: WriteFiles, wait: bool = False) -> None:
        save(store, at, write_files, wait=True)  # not killed in a checkpoint

    save = Store.save
    with monkeypatch.context() as patch:
        patch.setattr(Method, "after_step", after_step)
        patch.setattr(Store, "save", whole)
        patch.setattr("multicse.trainers.engine.tracking.RunHandle.finish", lambda *_: None)
        with pytest.raises(Died):
            run_recipe(recipe)


def runs(recipe: Recipe) -> dict[str, str]:
    """Return the status of all MLflow runs by run ID."""
    from mlflow import MlflowClient

    client = MlflowClient(recipe.run.tracking_uri)
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    return {run.info.run_id: run.info.status for run in client.search_runs(experiments)}


def losses(recipe: Recipe, run_id: str) -> list[tuple[int, float]]:
    return history(recipe.run.tracking_uri or "", run_id, "train/text")


@pytest.fixture
def resumed_at(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which the first step of every run is appended."""
    steps, load = list[int](), Engine._load

    def seen(engine: Engine, folder: Path) -> None:
        load(engine, folder)
        steps.append(engine.step)

    monkeypatch.setattr(Engine, "_load", seen)
    return steps


def files_of(folder: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file() and not file.name.endswith(".lock")}


def weights(output: Path) -> bytes:
    return (output / "export" / "model.safetensors").read_bytes()


def test_the_same_command_resumes_a_run(
    recipe: Recipe,
    tmp_path: Path,
    resumed_at: list[int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """From the last complete checkpoint, bit-identically, as the same MLflow run, with each step once; then never."""
    broken = recipe.replace("run.logging_steps", 2).replace("evaluation.keep", "last")
    expected = run_recipe(broken.replace("run.output_dir", str(tmp_path / "whole")))
    dies(monkeypatch, broken, 4)
    (dead,) = runs(recipe).keys() - {expected["mlflow_run_id"]}
    assert runs(recipe)[dead] == "RUNNING"
    summary = run_recipe(broken)
    assert resumed_at == [3] and summary["mlflow_run_id"] == dead
    assert "latest checkpoint: step 3" in capsys.readouterr().out
    assert runs(recipe) == {dead: "FINISHED", expected["mlflow_run_id"]: "FINISHED"}
    assert weights(tmp_path / "run") == weights(tmp_path / "whole") and summary["after"] == expected["after"]
    assert losses(recipe, dead) == losses(recipe, expected["mlflow_run_id"])
    assert [step for step, _ in losses(recipe, dead)] == [2, 4, 6]
    moved = (tmp_path / "run").rename(tmp_path / "moved")  # its summary names files that exist
    there = run_recipe(broken.replace("run.output_dir", str(moved)))
    assert there["export"] == str(moved / "export") and Path(there["checkpoint"]).is_dir()
    moved.rename(tmp_path / "run")
    assert run_recipe(broken) == summary == json.loads((tmp_path / "run" / "summary.json").read_text())
    again = run_recipe(broken.changed({"optim.text.lr": 2e-3, "run.overwrite": True}))
    assert again["identity"] != summary["identity"] and weights(tmp_path / "run") != weights(tmp_path / "whole")
    assert not Recipe.from_json((tmp_path / "run" / "recipe.json").read_text()).run.overwrite


@pytest.fixture
def short(recipe: Recipe) -> Recipe:
    """Text only, with a checkpoint after each of 6 steps."""
    return text_only(recipe).changed({"run.save_steps": 1, "run.keep_every": 2})


def saved(place: Path) -> list[str]:
    return sorted(folder.name[-1] for folder in place.glob("**/step-*"))


def test_a_checkpoint_of_other_inputs_is_refused(short: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the folder of the run is lost: digests are in the checkpoint.

    A teacher is not in it, so it is compared, even if nothing else is known of its encoder.
    """
    encoder = shutil.copytree(short.flat()["encoder.path"], tmp_path / "encoder")
    guided = SimCSEConfig(head="none", negatives=NegativesConfig(margin=0.1, guide="frozen"))
    remote = Recipe.model_validate(short.model_dump() | {"method": guided})
    remote = remote.changed({"run.storage": f"file://{tmp_path}/store", "encoder.path": str(encoder)})
    whole = run_recipe(remote.replace("run.output_dir", str(tmp_path / "whole")))
    dies(monkeypatch, remote, 5)
    shutil.rmtree(remote.run.output_dir)
    file, loop = encoder / "model.safetensors", "multicse.trainers.engine.loop.inputs"
    before = file.read_bytes()
    after = before[:-4] + b"\0\0\1\1"
    for content, replaced, value, named in (
        (before, "multicse.data.shards.ShardSet.digest", "another", r"^streams\.text\.shards has changed .*resume never"),
        (after, loop, inputs, r"^encoder\.path, frozen copy in method\.judge have changed .*run\.resume never"),
        (after, loop, lambda _: {}, r"^frozen copy in method\.judge has changed"),
    ):
        file.write_bytes(content)
        with monkeypatch.context() as patch, pytest.raises(CheckpointError, match=named):
            patch.setattr(replaced, value)
            run_recipe(remote)
    file.write_bytes(before)
    assert run_recipe(remote)["fingerprints"] == whole["fingerprints"]


Refusals = list[tuple[dict[str, Any], str]]
UNFINISHED = ({"run.seed": 7}, r"unfinished run .*run\.seed: 42 there, 7 here")
ELSEWHERE = r"run\.storage has changed .* are in this folder, not in file://.*run\.resume never"
PERMANENT = ({"run.resume": "never"}, r"permanent checkpoints .* of step 3, 2, 1\. .*run\.overwrite to delete")
OF_FINISHED_RUNS: Refusals = [
    ({"optim.text.lr": 2e-3}, r"finished run .*optim\.text\.lr: 0\.001 there, 0\.002 here.*run\.overwrite"),
    ({"export.whiten": True}, r"finished run with other settings: export\.whiten.* OUT --export\.whiten True$"),
]


def refused(recipe: Recipe, *refusals: tuple[dict[str, Any], str]) -> None:
    """Check that each change of a command is refused with a message, and that no file of the test changes."""
    place = Path((recipe.run.tracking_uri or "").removeprefix("sqlite:///")).parent
    for changes, named in refusals:
        before = files_of(place)
        with pytest.raises(RecipeError, match=named):
            run_recipe(recipe.changed(changes))
        assert files_of(place) == before, changes


def test_a_refused_command_changes_no_file(short: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names what differs and the way out; permanent checkpoints stay until a run is overwritten."""
    output, short = tmp_path / "run", short.replace("run.keep_every", 3)
    with locked(output):
        refused(short, ({}, rf"run\.output_dir=.*in use by process {os.getpid()} on"))
    (output / "export").mkdir()
    refused(short, ({}, r"run\.output_dir=.* contains export"))  # not written by a run
    (output / "export").rmdir()
    dies(monkeypatch, short.replace("run.keep_every", 1), 4)
    refused(short, PERMANENT)
    content = (output / "run.json").read_text()
    (output / "run.json").write_text('{"run": "of before"}')
    refused(short, ({}, r"another version.*run\.overwrite"))
    (output / "run.json").write_text(content)
    run_recipe(short)
    assert saved(output) == ["1", "2", "3", "5", "6"]
    refused(short, *OF_FINISHED_RUNS)
    for keep_every, kept in ((3, ["3", "5", "6"]), (None, ["5", "6"])):
        run_recipe(short.changed({"run.keep_every": keep_every, "run.overwrite": True}))
        assert saved(output) == kept


def test_a_storage_of_another_run_is_refused(short: Recipe, tmp_path: Path) -> None:
    """The last two parts of both outputs are equal; and a copy of an output folder has the ID of its run."""
    one, two = (
        short.changed({"run.storage": str(tmp_path / "store"), "run.output_dir": str(tmp_path / user / "runs" / "x")})
        for user in ("one", "two")
    )
    run_recipe(one)
    named = r"store.* contains the checkpoints of run \w+ in .*one/runs/x on .*two/"
    refused(two, ({}, named), ({"run.overwrite": True}, named))
    shutil.copytree(one.run.output_dir, two.run.output_dir)
    record.update(tmp_path / "two" / "runs" / "x", {"state": "trained"})
    refused(two, ({}, named), ({"run.overwrite": True}, named))


def test_starting_over_ends_the_dead_run(short: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = short.replace("run.keep_every", None)
    dies(monkeypatch, short, 5)
    (dead,) = runs(short)
    refused(short, UNFINISHED, ({"run.storage": (tmp_path / "store").as_uri()}, ELSEWHERE))
    summary = run_recipe(short.replace("run.resume", "never"))
    assert runs(short) == {dead: "KILLED", summary["mlflow_run_id"]: "FINISHED"}
    assert [step for step, _ in losses(short, summary["mlflow_run_id"])] == [*range(1, 7)]


@pytest.mark.parametrize("storage", [True, False])
def test_the_model_is_exported_if_checkpoints_cannot_be_written(
    short: Recipe, tmp_path: Path, storage: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Training says so in its progress, and the last checkpoint is written to another place."""
    if storage:
        short = short.replace("run.storage", str(tmp_path / "store"))
    place = tmp_path / ("store" if storage else "run")
    write = Store._write

    def full(store: Store, *given: Any) -> None:
        if Path(store.place).is_relative_to(place):
            raise OSError(errno.ENOSPC, "No space left on device")
        write(store, *given)

    monkeypatch.setattr(Store, "_write", full)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr("multicse.trainers.engine.progress.EVERY", 0)
    (tmp_path / "temporary").mkdir()
    summary = run_recipe(short)
    assert capsys.readouterr().out.count("NO CHECKPOINT could be written") >= 5
    assert (tmp_path / "run" / "export" / "model.safetensors").exists()
    found = Path(summary["checkpoint"])
    assert found.name == "step-00000006" and found.is_relative_to(tmp_path / ("run" if storage else "temporary"))


def test_an_export_uses_the_paths_of_this_machine(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last checkpoint is from a machine with the encoder in another place, which died before the export."""
    before, after = (tmp_path / place / "parent" / "encoder" for place in ("there", "here"))
    shutil.copytree(recipe.flat()["encoder.path"], before)
    remote = recipe.changed({"run.storage": f"file://{tmp_path}/store", "encoder.path": str(before)})
    with monkeypatch.context() as patch:
        patch.setattr("multicse.trainers.engine.deliver.write_export", lambda *_, **__: (_ for _ in ()).throw(Died()))
        with pytest.raises(Died):
            run_recipe(remote)
    after.parent.mkdir(parents=True)
    before.rename(after)
    moved = remote.replace("encoder.path", str(after))
    assert moved.identity() == remote.identity()
    assert run_recipe(moved)["steps"] == 6


def test_the_command_of_a_finished_run_does_what_is_new(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each once: what failed at the end, a lost export, registration, upload, another server, trackers."""
    from mlflow import MlflowClient

    from multicse.trainers.engine import run

    encoder, text = tmp_path / "encoder", tmp_path / "text"
    for there, here in {recipe.flat()["encoder.path"]: encoder, recipe.streams["text"].shards: text}.items():
        shutil.copytree(there, here)
    mine = text_only(recipe).changed({"encoder.path": str(encoder), "streams.text.shards": str(text), "run.max_steps": 2})
    client, output = MlflowClient(recipe.run.tracking_uri), tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr("multicse.trainers.engine.tracking.drain", lambda *_, **__: False)
        (run_id,) = {run_recipe(mine)["mlflow_run_id"]}
    assert runs(mine) == {run_id: "RUNNING"} and not client.list_artifacts(run_id)
    shutil.rmtree(text)  # a finished run does not need it

    def once(done: str, **settings: object) -> dict[str, object]:
        """Pass new settings to the finished run, twice; `done` is done, the first time."""
        changed = mine.changed({f"run.{name}": value for name, value in settings.items()})
        capsys.readouterr()
        summary = run_recipe(changed)
        assert f"Done for the finished run: {done}\n" in capsys.readouterr().out
        assert run_recipe(changed) == summary == json.loads((output / "summary.json").read_text())
        assert "Done" not in capsys.readouterr().out
        return summary

    once(f"tracking at {mine.run.tracking_uri}")
    assert runs(mine) == {run_id: "FINISHED"} and [step for step, _ in losses(mine, run_id)] == [1, 2]
    assert {file.path for file in client.list_artifacts(run_id)} >= {"export", "recipe.json"}
    before, ended = weights(output), client.get_run(run_id).info.end_time
    shutil.rmtree(output / "export")
    once("the export")
    assert weights(output) == before

    once("registration as later", register_as="later")
    (version,) = client.search_model_versions("name = 'later'")
    assert version.run_id == run_id and client.get_run(run_id).info.end_time == ended

    sent = list[tuple[str, set[str]]]()

    def push(folder: Path, name: str, files: list[str]) -> str:
        sent.append((name, set(files)))
        if len(sent) == 1:
            raise HubError("rejected")
        return f"https://hub/{name}"

    monkeypatch.setattr(run, "check_hub", lambda *_: None)
    monkeypatch.setattr(run, "push", push)
    (output / "export" / "thesis.txt").write_text("mine")
    with pytest.raises(HubError):
        run_recipe(mine.replace("run.push_to_hub", "me/model"))
    assert once("upload to me/model", push_to_hub="me/model")["hub"] == "https://hub/me/model"
    assert [name for name, _ in sent] == ["me/model"] * 2
    assert "model.safetensors" in sent[1][1] and "thesis.txt" not in sent[1][1]

    other = mine.replace("run.tracking_uri", f"sqlite:///{shutil.copy(tmp_path / 'mlflow.db', tmp_path / 'same.db')}")
    assert once(f"tracking at {other.run.tracking_uri}", tracking_uri=other.run.tracking_uri)["mlflow_run_id"] == run_id
    new = mine.replace("run.tracking_uri", f"sqlite:///{tmp_path / 'new.db'}")
    there = once(f"tracking at {new.run.tracking_uri}", tracking_uri=new.run.tracking_uri)["mlflow_run_id"]
    assert runs(new) == {there: "FINISHED"} and losses(new, str(there)) == losses(mine, run_id)

    run_recipe(new.changed({"run.keep_every": 1, "run.num_workers": 1}))
    assert "Without effect on a finished run: run.keep_every (--run.overwrite" in capsys.readouterr().out
    shutil.rmtree(output / "export")
    shutil.rmtree(encoder)
    with pytest.raises(RecipeError, match=r"is missing and cannot be written again: encoder\.path.* --run\.overwrite"):
        run_recipe(new)


def test_a_run_waits_for_a_worker_that_is_about_to_end(tmp_path: Path) -> None:
    """A worker can outlive its dead driver for a while; its lock ends with its process."""
    program = f"""
import sys
from pathlib import Path
from multicse.trainers.engine.record import locked
with locked(Path({str(tmp_path)!r})):
    print("held", flush=True)
    sys.stdin.read()
"""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe, text=True) as other:
        assert other.stdin is not None and other.stdout is not None and other.stdout.readline() == "held\n"
        with pytest.raises(RecipeError, match=rf"run\.output_dir=.* process {other.pid} on "), locked(tmp_path):
            pass
        threading.Timer(0.5, other.stdin.close).start()
        with locked(tmp_path, wait=300):
            assert (tmp_path / DRIVER).read_text().startswith(f"process {os.getpid()} on ")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_run_after_its_step(
    recipe: Recipe,
    number: signal.Signals,
    resumed_at: list[int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def after_step(method: Method, done: int) -> None:
        if done == 5:
            os.kill(os.getpid(), number)

    before = signal.getsignal(signal.SIGTERM)
    with monkeypatch.context() as patch:
        patch.setattr(Method, "after_step", after_step)
        with pytest.raises(Interrupted) as stopped:
            run_recipe(recipe)
    assert stopped.value.code == 128 + number and signal.getsignal(signal.SIGTERM) == before
    assert "Run the same command again" in capsys.readouterr().err
    assert [*runs(recipe).values()] == ["KILLED"]
    summary = run_recipe(recipe.replace("run.resume", "must"))
    assert resumed_at == [5] and runs(recipe) == {summary["mlflow_run_id"]: "FINISHED"}


def test_ray_s_exit_after_sigterm_has_our_exit_code() -> None:
    with pytest.raises(SystemExit) as ended, Stop():
        sys.exit(signal.SIGTERM)
    assert ended.value.code == 143


def test_former_signal_handlers_are_restored() -> None:
    """Also after Ray has replaced them; other threads than the main thread have no handlers to restore."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    former = [signal.getsignal(number) for number in numbers]
    for block in (Stop, former_handlers):
        with pytest.raises(KeyError), block():
            for number in numbers:
                signal.signal(number, lambda *_: None)
            raise KeyError
        assert [signal.getsignal(number) for number in numbers] == former

    def elsewhere() -> bool:
        with former_handlers() as main:
            return main

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(elsewhere).result() is False


def test_a_second_signal_ends_the_process() -> None:
    program = """
import os, signal, time
from multicse.trainers.engine.stop import Stop
with Stop() as stop, stop.patient():
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(os.getpid(), number)
        print(stop.asked, flush=True)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "15\n", "")
