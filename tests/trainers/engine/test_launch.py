"""The whole way through Ray Train: checks, MLflow, workers, export, summary."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from data.errors import DataError
from tests.small import journal
from trainers.engine.launch import fit
from trainers.recipe import Recipe


def steps_of(run: Path, metric: str) -> list[int]:
    return [int(line["step"]) for line in journal(run) if metric in line.get("metrics", {})]  # type: ignore[call-overload, operator]


@pytest.mark.usefixtures("local_ray")
def test_one_worker_end_to_end(recipe: Recipe, tmp_path: Path) -> None:
    from mlflow import MlflowClient
    from sentence_transformers import SentenceTransformer

    summary = fit(recipe.replace("run.workers", 1))
    run = tmp_path / "run"
    assert json.loads((run / "summary.json").read_text()) == summary
    assert summary["steps"] == 6 and set(summary["after"]) == {"lee"}
    assert steps_of(run, "train/text") == [1, 2, 3, 4, 5, 6]

    client = MlflowClient(summary["tracking_uri"])
    logged = client.get_run(summary["mlflow_run_id"])
    assert logged.info.status == "FINISHED"
    metrics = logged.data.metrics
    for name in ("eval/lee-dev/spearman", "trained/lee/spearman", "train/lr/image", "data/text/wait_share"):
        assert name in metrics
    assert metrics["best/lee-dev/spearman"] == pytest.approx(summary["best_score"])
    # MLflow's page has a section for every prefix, in this order: single bars, as of step 0, follow the curves.
    sections = sorted({name.rpartition("/")[0] for name in metrics if not name.startswith("system/")})
    curves = {name.rpartition("/")[0] for name in metrics if client.get_metric_history(logged.info.run_id, name)[1:]}
    assert sections[-2:] == ["trained/lee", "untrained/lee"] and set(sections[:-2]) <= curves
    data = {one.dataset.name: one for one in logged.inputs.dataset_inputs}
    assert set(data) == {"text", "image", "audio"}
    assert data["text"].dataset.digest == recipe.streams["text"].open().digest
    assert {tag.key: tag.value for tag in data["text"].tags}["licence"] == "unknown"
    assert json.loads(data["text"].dataset.profile)["num_rows"] == 80
    description = logged.data.tags["mlflow.note.content"]
    assert "80 samples of text" in description and "`figures/" in description
    names = {item.path for item in client.list_artifacts(summary["mlflow_run_id"])}
    assert {"recipe.json", "export"} <= names

    model = SentenceTransformer(summary["export"], device="cpu")
    assert np.isfinite(model.encode(["the cat sees a dog", "a river"])).all()

    # What was exported is where a further run starts, and in-process training is the same training.
    further = fit(recipe.replace("encoder.path", summary["export"]).replace("run.output", str(tmp_path / "further")))
    assert further["before"]["lee"]["spearman"] == pytest.approx(summary["after"]["lee"]["spearman"], abs=1e-3)


@pytest.mark.usefixtures("local_ray")
def test_a_worker_s_error_is_the_user_s_error(recipe: Recipe, place: Path, tmp_path: Path) -> None:
    import tarfile

    from tests.small import add, write_images

    write_images(tmp_path / "image", 20)
    with tarfile.open(tmp_path / "image" / "image-train-000000.tar", "a") as tar:
        add(tar, "bad.png", b"no picture")
        add(tar, "bad.cls", b"0")
    broken = recipe.replace("run.workers", 1).replace("streams.image.shards", str(tmp_path / "image"))
    with pytest.raises(DataError, match=r"stream 'image'.*bad.*on_bad_sample"):
        fit(broken)
    skipping = broken.replace("streams.image.on_bad_sample", "skip").replace("streams.image.max_skipped_share", 0.1)
    summary = fit(skipping.replace("run.workers", 0))
    assert summary["skipped"]["image"] >= 1
    report = json.loads((tmp_path / "run" / "skipped.json").read_text())
    assert all("bad" in key for key, _ in report["image"])
