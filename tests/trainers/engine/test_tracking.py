"""Tracker with a real MLflow on SQLite: every line of the journal is in the run exactly once."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import signal
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from io import FileIO
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from multicse.trainers.engine import record
from multicse.trainers.engine.journal import Journal
from multicse.trainers.engine.launch import run_recipe
from multicse.trainers.engine.mlflow_server import TrackingError, connect, metric_name, register, resolve_uri
from multicse.trainers.engine.stop import Interrupted
from multicse.trainers.engine.tracking import RunHandle, Sender, Tracker, open_run, sync
from multicse.trainers.method import Method
from multicse.trainers.recipe import Recipe
from tests import worlds

WITHOUT = "import sys; sys.modules['ray'] = sys.modules['mlflow'] = None; import multicse; "
"""Start of a program in an environment without Ray and MLflow."""
Points = list[tuple[int, float]]


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return one database for the module, since creating its tables takes seconds."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow') / 'mlflow.db'}"


@pytest.fixture
def run(uri: str) -> RunHandle:
    return open_run(uri, "paper", "a-run", {"lr": 1e-3})


def history(run: RunHandle, key: str) -> Points:
    return worlds.history(run.uri, run.run_id, key)


def content(run: RunHandle) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(run.uri).get_run(run.run_id)


def test_a_run_has_its_parameters_environment_and_data_sets_without_secrets(uri: str) -> None:
    """Once, also if it is opened again; MLflow's limits on names and lengths are kept."""
    url, hidden = "s3://me:hidden@bucket/x.tar?token=hidden", "s3://***@bucket/x.tar?token=***"
    params = {f"p{i}": i for i in range(150)} | {"long": "x" * 7000, "optim.image+text.lr": None, "shards": url}
    row = {"stream": "text", "name": "wiki", "place": "s3://bucket/wiki", "digest": "0123456789abcdef", "samples": 20}
    sets = [{**row, "licence": "CC BY-SA 4.0", "source": "here", "languages": ("en",)}]
    run = open_run(uri, "many", "b-run", params, {"identity": "abc", "changed.shards": url}, data=sets)
    open_run(uri, "many", "b-run", params, run_id=run.run_id, data=sets)
    data, inputs = content(run).data, content(run).inputs.dataset_inputs
    assert len(data.params) == 153
    assert data.params["p149"] == "149" and data.params["optim.image_text.lr"] == "None"
    assert data.params["long"] == "x" * 6000
    assert data.params["shards"] == data.tags["changed.shards"] == hidden
    assert data.tags["identity"] == "abc" and data.tags["mlflow.runName"] == "b-run"
    assert {"mlflow.user", "mlflow.source.name", "version.torch"} <= set(data.tags)
    ((kept, tags),) = ((one.dataset, {tag.key: tag.value for tag in one.tags}) for one in inputs)
    assert (kept.name, kept.digest, kept.source_type) == ("wiki", "0123456789abcdef", "s3")
    assert json.loads(kept.source) == {"uri": "s3://bucket/wiki"} and json.loads(kept.profile)["num_rows"] == 20
    assert tags == {"mlflow.data.context": "training", "stream": "text", "licence": "CC BY-SA 4.0"}


def test_the_default_is_a_database_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert resolve_uri(None) == resolve_uri("sqlite:///mlflow.db") == f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://host:5000")
    assert resolve_uri("") == "http://host:5000"
    assert resolve_uri("databricks") == "databricks"


SECRETS = ["https://me:secret@host", "redis://me:secret@host", "postgresql://host/db?user=me&password=secret"]


@pytest.mark.parametrize("bad", ["mlruns", "s3://bucket/x", "sqlite:///:memory:", *SECRETS])
def test_unsupported_uris_are_named(bad: str) -> None:
    with pytest.raises(TrackingError, match=r"run\.tracking_uri=") as error:
        resolve_uri(bad)
    assert "secret" not in str(error.value)


def test_an_unreachable_server_is_an_error_before_training() -> None:
    with pytest.raises(TrackingError, match=r"run.tracking_uri"):
        open_run("http://127.0.0.1:9", "paper", "run", {})


def _open(uri: str) -> str:
    experiment_id: str = content(open_run(uri, "race", "run", {"a": 1})).info.experiment_id
    return experiment_id


@pytest.mark.cluster
def test_several_drivers_create_one_database(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path / 'fresh.db'}"
    context = get_context("forkserver")
    context.set_forkserver_preload(["tests.conftest", "mlflow.store.tracking.sqlalchemy_store"])
    with ProcessPoolExecutor(3, mp_context=context) as pool:
        experiments = set(pool.map(_open, [uri] * 3))
    assert len(experiments) == 1


def test_a_run_is_continued_by_its_id(uri: str) -> None:
    from mlflow import MlflowClient

    run = open_run(uri, "gone", "a-run", {"lr": 1e-3})
    run.finish("FAILED")
    assert content(run).info.status == "FAILED"
    again = open_run(uri, "gone", "ignored", {"lr": 5, "a driver died before": 1}, run_id=run.run_id)
    assert again.run_id == run.run_id
    assert content(run).info.status == "RUNNING" and content(run).data.params == {"lr": "0.001", "a driver died before": "1"}
    with pytest.raises(TrackingError, match="nothere"):
        open_run(uri, "gone", "x", {}, run_id="nothere")
    MlflowClient(uri).delete_experiment(content(run).info.experiment_id)
    with pytest.raises(TrackingError, match=r"run.experiment='gone'"):
        open_run(uri, "gone", "run", {})


def test_metrics_reach_the_run(run: RunHandle, tmp_path: Path) -> None:
    path, values = tmp_path / "journal.jsonl", {0: 1.5, 1: math.nan, 2: math.inf, 3: -2.0}
    with Tracker(path, run.uri, run.run_id) as tracker:
        for step, value in values.items():
            tracker.log(step, {"train/text": value, "odd name: (a+b)": step})
    assert [step for step, _ in history(run, "train/text")] == [0, 1, 2, 3]
    assert dict(history(run, "train/text"))[3] == -2.0
    assert dict(history(run, "train/text"))[2] > 1e300  # MLflow's infinity
    assert content(run).data.metrics["odd name: _a_b_"] == 3 and len(metric_name("x" * 300)) == 250


def test_more_metrics_than_fit_into_a_request(run: RunHandle, tmp_path: Path) -> None:
    """Everything is sent again without querying the server, which stores equal metrics once."""
    book = Journal(tmp_path / "j.jsonl", run.run_id, run.uri)
    book.append({"step": 1, "time": 5, "metrics": {f"k{i}": float(i) for i in range(1700)}})
    for step in range(2, 702):
        book.append({"step": step, "time": 5 + step, "metrics": {"k0": 0.5, "k1": math.nan}})
    for _ in range(2):
        sender = Sender(book, run.uri, run.run_id)
        sender._known = {}
        sender.send()
        assert len(history(run, "k0")) == len(history(run, "k1")) == 701 and history(run, "k1699") == [(1, 1699.0)]


@pytest.mark.parametrize("arrives", [False, True], ids=["request", "answer"])
@pytest.mark.parametrize("failing", [0, 1, 2])
def test_a_request_that_fails_is_sent_again(
    run: RunHandle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int, arrives: bool
) -> None:
    """By the same sender, also if only the answer is lost; every value is on the server once."""
    from mlflow import MlflowClient

    book, sizes, whole = Journal(tmp_path / "j.jsonl", run.run_id, run.uri), list[int](), MlflowClient.log_batch

    def log_batch(client: MlflowClient, run_id: str, metrics: list[Any]) -> None:
        sizes.append(len(metrics))
        fails = len(sizes) == failing + 1
        if arrives or not fails:
            whole(client, run_id, metrics=metrics)
        if fails:
            raise ConnectionError("the connection is lost")

    monkeypatch.setattr(MlflowClient, "log_batch", log_batch)
    sender = Sender(book, run.uri, run.run_id)
    for steps in (range(1, 601), range(601, 801), range(801, 802)):
        for step in steps:
            book.append({"step": step, "time": step, "metrics": {"a": float(step), "b": -float(step)}})
        with contextlib.suppress(ConnectionError):
            sender.send()
    assert history(run, "a") == [(step, float(step)) for step in range(1, 802)]
    assert history(run, "b") == [(step, -float(step)) for step in range(1, 802)]
    assert sum(sizes) - (0 if arrives else sizes[failing]) == 2 * 801, "something that the server had was sent again"


class Attempt(NamedTuple):
    """A process that resumes from the newest checkpoint on one of two machines, until it is killed."""

    machine: Literal["a", "b"]
    steps: Literal[2, 3, 4, 5, 6]
    stores: Literal[2, 3, 4, 5]
    """Number of steps after which it writes a checkpoint, if it gets there."""
    away: bool
    """MLflow does not respond."""
    full: bool
    """The disk is full in its first step."""
    torn: bool
    """It is killed while it writes a line."""


@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(attempts=st.lists(st.builds(Attempt), min_size=1, max_size=5))
@example(attempts=[Attempt("a", 6, 2, False, False, False), Attempt("b", 5, 5, False, False, False)])
def test_every_step_is_sent_once_whatever_happens(
    attempts: list[Attempt], uri: str, tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture
) -> None:
    """A step that is repeated keeps its first value, in the machine's journal and on the server.

    In the example, six steps take more bytes than the seven of the checkpoint.
    """

    class Disk(FileIO):
        room = 5

        def write(self, content: Any) -> int:
            if not Disk.room:
                raise OSError(errno.ENOSPC, "No space left on device")
            taken = super().write(content[: Disk.room])
            Disk.room -= taken
            return taken

    def send(sender: Sender) -> None:
        if one.away:
            raise ConnectionError("MLflow is away")
        whole(sender)

    run, folder, whole = open_run(uri, "paper", "steps", {}), tmp_path_factory.mktemp("steps"), Sender.send
    known = {"a": dict[int, float](), "b": dict[int, float]()}
    server, checkpoint = dict[int, float](), dict[int, float]()
    (folder / "checkpoint").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("multicse.trainers.engine.journal.FileIO", Disk)
        patch.setattr(Sender, "send", send)
        for number, one in enumerate((*attempts, Attempt("a", 2, 2, away=False, full=False, torn=False)), start=1):
            caplog.clear()
            journal, begin = folder / one.machine / "j.jsonl", len(checkpoint)
            with Tracker(journal, uri, run.run_id) as tracker:
                tracker.resume(folder / "checkpoint")
                mine = known[one.machine] = max(known[one.machine], checkpoint.copy(), key=len)
                warned = one.full and begin == len(mine)
                for step in range(begin + 1, begin + one.steps + 1):
                    value = (40.0 * number + step) / (-3e199 if number % 2 else 1)  # odd attempts write more digits
                    Disk.room = 5 if one.full and step == begin + 1 else 10**6
                    tracker.log(step, {"m": value})
                    mine.setdefault(step, value)
                    if step == begin + one.stores:
                        tracker.store(folder / "checkpoint")
                        checkpoint = mine.copy()
                Disk.room = 10**6
            if not one.away:
                server |= {step: value for step, value in sorted(mine.items()) if step > max(server, default=0)}
            assert ("Training continues and metrics are kept in memory" in caplog.text) == warned
            assert {line["step"]: line["metrics"]["m"] for _, line in Journal(journal).lines()} == mine
            if one.torn:
                journal.write_bytes(journal.read_bytes() + b'{"step": 99, "ti')
    assert history(run, "m") == sorted(server.items()) and [*server] == [*range(1, len(server) + 1)]


def artifacts_of(run: RunHandle) -> Path:
    """Return the folder of a run's artifacts."""
    return Path(content(run).info.artifact_uri.removeprefix("file://"))


CARD = "---\nlicense: other\n---\n\n# our card\n\n## Numbers\n\n| task | before | after |\n\n## Training\n"


def test_the_folder_of_a_finished_run_can_be_sent_repeatedly(uri: str, tmp_path: Path) -> None:
    """Files, figures, scores of the card and the registered version, which is new only if the export has changed.

    The registered model gives the embeddings of the export.
    """
    import mlflow
    import torch
    from matplotlib.figure import Figure
    from mlflow import sentence_transformers as flavor
    from sentence_transformers import SentenceTransformer

    from tests.models.tiny_encoder import encoder

    run = open_run(uri, "finished", "whole", {}, journal=tmp_path / "journal.jsonl")
    encoder("mean").save(str(tmp_path / "export"))
    (tmp_path / "export" / "README.md").write_text(CARD)
    (tmp_path / "recipe.json").write_text("{}")
    record.update(tmp_path, {"recipe": {"run": {"register_as": "whole"}}})
    run.log_figure("alignment/uniformity", Figure())
    assert (tmp_path / "figures" / "alignment_uniformity.png").stat().st_size > 1000
    run.finish("KILLED")
    assert content(run).info.status == "KILLED" and not artifacts_of(run).exists()
    run.log_artifact(tmp_path / "export" / "README.md")
    run.finish()
    (tmp_path / "summary.json").write_text("{}")
    record.update(tmp_path, {"ended": 1e9})
    assert sync(tmp_path / "journal.jsonl")
    assert Path(uri.removeprefix("sqlite:///")).parent / "mlartifacts" / "finished" in artifacts_of(run).parents
    files = {"recipe.json", "summary.json", "export/README.md", "README.md"}
    figures = {f"figures/alignment_uniformity.{kind}" for kind in ("png", "svg")}
    assert files | figures <= {str(file.relative_to(artifacts_of(run))) for file in artifacts_of(run).rglob("*")}
    assert content(run).data.tags["mlflow.note.content"] == "| task | before | after |"
    assert content(run).info.status == "FINISHED"
    client = mlflow.MlflowClient(uri)
    assert [one.version for one in client.search_model_versions("name = 'whole'")] == [1]
    (tmp_path / "export" / "README.md").write_text(f"{CARD}more\n")
    assert sync(tmp_path / "journal.jsonl")
    assert {one.version: one.description for one in client.search_model_versions("name = 'whole'")} == dict.fromkeys(
        (1, 2), "| task | before | after |"
    )

    register(uri, run.run_id, tmp_path / "export", "whole", "best", "another description")
    found = client.get_model_version_by_alias("whole", "best")
    assert (found.version, found.run_id, found.description) == (2, run.run_id, "another description")
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(uri)
    try:
        loaded = flavor.load_model("models:/whole@best")
    finally:
        mlflow.set_tracking_uri(before)
    sentences = ["the dog sleeps on a street", "a woman plays"]
    want = SentenceTransformer(str(tmp_path / "export"), device="cpu").encode(sentences)
    np.testing.assert_allclose(torch.as_tensor(loaded.cpu().encode(sentences)).numpy(), want, atol=1e-5)
    assert any("# our card" in card.read_text() for card in artifacts_of(run).parents[1].rglob("models/**/README.md"))


@pytest.mark.parametrize("here", [True, False], ids=["driver's folder", "worker's folder"])
def test_the_journal_of_a_former_run_is_sent_without_the_folder_of_the_next_run(
    uri: str, tmp_path: Path, here: bool
) -> None:
    """The summary and export next to it belong to the next run, which has the steps up to the checkpoint."""
    journal = tmp_path / "journal.jsonl"
    (tmp_path / "checkpoint").mkdir()
    first = open_run(uri, "retired", "first", {}, journal=journal)
    with Tracker(journal, uri, first.run_id) as tracker:
        tracker.log(1, {"m": 1.0})
        tracker.store(tmp_path / "checkpoint")
        tracker.log(2, {"m": 2.0})
    second = open_run(uri, "retired", "second", {}, journal=journal if here else None)
    with Tracker(journal, uri, second.run_id) as tracker:
        tracker.resume(tmp_path / "checkpoint")
        tracker.log(2, {"m": 2.5})
    record.update(tmp_path, {"ended": 1e9})
    assert sync(tmp_path / f"journal-{first.run_id}.jsonl")
    assert (history(first, "m"), content(first).info.status) == ([(1, 1.0), (2, 2.0)], "RUNNING")
    assert history(second, "m") == [(1, 1.0), (2, 2.5)]
    assert (Journal(journal).header() or {})["run_id"] == second.run_id


def test_without_mlflow_a_run_has_its_journal_and_is_sent_later(recipe: Recipe, tmp_path: Path) -> None:
    """In an environment without Ray and MLflow, from the recipe to the export; a command with MLflow sends it once."""
    recipe = worlds.four_steps(recipe, tmp_path, {"run.report_to": "none"})
    (file := tmp_path / "run.json").write_text(recipe.to_json())
    code = f"{WITHOUT}print(multicse.train({str(file)!r}, {recipe.run.output_dir!r}).run_id)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "None", done.stderr
    journal = tmp_path / "run/journal.jsonl"
    logged = [line["step"] for _, line in Journal(journal).lines() if "train/text" in line["metrics"]]
    assert logged == [1, 2, 3, 4]
    with pytest.raises(TrackingError, match=r"run\.report_to none.*--run\.report_to mlflow"):
        sync(journal)
    assert run_recipe(recipe)["mlflow_run_id"] is None  # finished, and nothing to send
    assert not connect(str(recipe.run.tracking_uri)).search_experiments(filter_string="name = 'nonling'")
    sent = [run_recipe(recipe.replace("run.report_to", "mlflow")) for _ in range(2)]
    assert sent[0] == sent[1] and sent[0]["sent"]
    client = connect(sent[0]["tracking_uri"])
    (run,) = client.search_runs([client.get_experiment_by_name("nonling").experiment_id])
    assert run.info.run_id == sent[0]["mlflow_run_id"] and run.info.status == "FINISHED"
    assert [step for step, _ in worlds.history(sent[0]["tracking_uri"], run.info.run_id, "train/text")] == logged
    assert run_recipe(recipe)["mlflow_run_id"] == run.info.run_id  # back to none: nothing is lost


def test_a_run_changes_between_its_journal_and_mlflow_when_it_resumes(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the last command every step is in MLflow, whichever attempts were tracked."""
    monkeypatch.setattr(
        Method, "after_step", lambda method, done: os.kill(os.getpid(), signal.SIGTERM) if done < 4 else None
    )
    recipe = worlds.four_steps(recipe, tmp_path, {})
    for to in ("none", "mlflow", "none"):
        with pytest.raises(Interrupted):
            run_recipe(recipe.replace("run.report_to", to))
    summary = run_recipe(recipe.replace("run.report_to", "mlflow"))
    found = worlds.history(summary["tracking_uri"], summary["mlflow_run_id"], "train/text")
    assert [step for step, _ in found] == [1, 2, 3, 4]
