"""Test describe.py on shards and recipes with known content."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from multicse.commands import describe
from multicse.pipelines import parts
from multicse.trainers.engine.cluster import hardware
from multicse.trainers.recipe import Recipe
from tests.cluster.servers import RayHead
from tests.conftest import ROOT
from tests.data.packing import run, write_pictures, write_text
from tests.worlds import write_encoder


def test_shards_are_shown(tmp_path: Path) -> None:
    pictures = write_pictures(tmp_path / "pictures")
    run("images", pictures, "--out", tmp_path / "images", "--shard-size", 6, "--licence", "CC0-1.0", "--no-shuffle")
    shown = describe.describe_shards(str(tmp_path / "images"), 7)
    for expected in ("12 samples in 2 shards", "cls, jpg, png", "CC0-1.0", "3: 0 bird.s, 1 cat, 2 dog"):
        assert expected in shown
    assert shown.count("images-train-000001/") == 1


def test_no_headers_of_a_packed_shard_are_read_to_show_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Manifest and index locate the first samples, so that a shard in a bucket is not downloaded."""
    run("text", write_text(tmp_path / "wiki.txt"), "--format", "tar", "--out", tmp_path / "out", "--shard-size", 9)
    monkeypatch.setattr("multicse.data.tar.read_headers", lambda url: pytest.fail(f"read {url}"))
    assert describe.describe_shards(str(tmp_path / "out"), 12).count("out-train-000001/") == 4


@pytest.mark.parametrize("left_out", [3, {"a": 3}, {"a": ["x", "y"]}, ["a"]])
def test_another_programs_left_out_is_no_error(tmp_path: Path, left_out: object) -> None:
    run("text", write_text(tmp_path / "wiki.txt"), "--out", tmp_path / "out")
    file = tmp_path / "out" / "dataset.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"left_out": left_out}))
    assert "left_out has an unknown form" in describe.describe_shards(str(tmp_path / "out"))


def _flipped(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[600] ^= 1
    file.write_bytes(data)


def _counted(file: Path) -> None:
    record = json.loads((file.parent / "dataset.json").read_text())
    record["shardlist"][1]["nsamples"] += 1
    (file.parent / "dataset.json").write_text(json.dumps(record))


SHARD = "out-train-000001.tar"


@pytest.mark.parametrize(
    ("damage", "difference"),
    [
        (_flipped, f"{SHARD}: sha256"),
        (lambda file: os.truncate(file, 4000), f"{SHARD}: 4,000 bytes, "),
        (lambda file: shutil.copy(file, file.parent / "out-train-000009.tar"), "out-train-000009.tar is not listed"),
        (Path.unlink, f"{SHARD} is listed in dataset.json, but is missing"),
        (_counted, f"{SHARD}: 9 samples, 10 in dataset.json"),
        (lambda file: (file.parent / "dataset.json").unlink(), "dataset.json not found"),
    ],
    ids=["flip", "cut", "extra", "missing", "count", "manifest"],
)
def test_verify_finds_every_difference(
    tmp_path: Path, damage: Callable[[Path], object], difference: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    run("text", write_text(tmp_path / "wiki.txt"), "--format", "tar", "--out", out, "--shard-size", 9)
    damage(out / SHARD)
    capsys.readouterr()
    assert describe.main([str(out), "--verify"]) == 1
    assert difference in capsys.readouterr().err


def test_a_recipe_is_shown_with_its_steps_and_parameters(
    tmp_path: Path, offline: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(offline)
    encoder = parts.SMALL.model_copy(update={"path": write_encoder(tmp_path / "encoder")})
    monkeypatch.setattr(parts, "SMALL", encoder)
    changed = ["--run.max_steps", "5"]
    assert describe.main(["visualcse:smoke", *changed]) == 0
    shown = capsys.readouterr().out
    assert "visualcse/smoke" in shown and "1,797 samples of runs/offline/image" in shown  # digits of scikit-learn
    assert re.search(r"steps +5\n", shown) and re.search(r"parameters +[\d,]+ trained, 0 frozen", shown)
    assert re.search(r"runs on +1 workers, each with 1 CPU and no GPU; precision fp32\n +GPUs ", shown)
    assert describe.main(["runs/offline/image", *changed]) == 2 and "--run.max_steps" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"run.num_workers": 0}, "this process, on the CPU; precision fp32"),
        ({"run.num_workers": 0, "run.gpus_per_worker": 1}, "this process, on the first GPU; precision fp32"),
        (
            {"run.num_workers": 4, "run.gpus_per_worker": 1, "run.precision": "bf16"},
            "4 workers, each with 1 CPU and 1 GPU; precision bf16",
        ),
    ],
)
def test_hardware_is_described(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, object], where: str
) -> None:
    """A script replaces nvidia-smi, which machines without a GPU do not have."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text(
        "#!/bin/sh\ntest \"$1\" = --query-gpu=name || exit 2\nprintf 'NVIDIA H100\\nNVIDIA H100\\nNVIDIA T4\\n'\n"
    )
    tool.chmod(0o755)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    found = hardware(recipe.changed(changes))
    assert found[0] == ("runs on", where)
    counted = f"torch {torch.__version__} sees {torch.cuda.device_count()}"
    assert found[1] == ("GPUs", f"2 x NVIDIA H100, 1 x NVIDIA T4; {counted}")
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert hardware(recipe)[1] == ("GPUs", f"none found by nvidia-smi; {counted}")


@pytest.mark.cluster
@pytest.mark.xdist_group("nodes")
@pytest.mark.timeout(300)
def test_the_cluster_of_a_job_is_described(offline: Path) -> None:
    head = RayHead(["--num-cpus=4", "--num-gpus=2", '--resources={"accelerator_type:H100": 1}'])
    try:
        head.start()
        command = [sys.executable, str(ROOT / "pipelines" / "describe.py"), "simcse:smoke"]
        env = {**head.env, "RAY_ADDRESS": head.address}
        done = subprocess.run(command, cwd=offline, env=env, capture_output=True, text=True)
    finally:
        head.kill()
    assert f"cluster     {head.address}: 1 nodes, 4 CPUs, 2 GPUs H100" in done.stdout, done.stdout + done.stderr[-3000:]
