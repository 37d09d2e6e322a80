"""What describe says of shards and recipes, against what is known about them."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from multicse.pipelines import describe, parts
from tests.data.packing import run, write_pictures, write_text
from tests.small import write_encoder


def test_shards_are_shown(tmp_path: Path) -> None:
    pictures = write_pictures(tmp_path / "pictures")
    run("images", pictures, "--out", tmp_path / "images", "--shard-size", 6, "--licence", "CC0-1.0", "--no-shuffle")
    said = describe.describe_shards(str(tmp_path / "images"), 7)
    for expected in ("12 samples in 2 shards", "cls, jpg, png", "CC0-1.0", "3: 0 bird.s, 1 cat, 2 dog"):
        assert expected in said
    assert said.count("images-train-000001/") == 1


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
    ("damage", "said"),
    [
        (_flipped, f"{SHARD}: sha256"),
        (lambda file: os.truncate(file, 4000), f"{SHARD}: 4,000 bytes, dataset.json says"),
        (lambda file: shutil.copy(file, file.parent / "out-train-000009.tar"), "out-train-000009.tar is not listed"),
        (Path.unlink, f"{SHARD} is listed in dataset.json, but is missing"),
        (_counted, f"{SHARD}: 9 samples, dataset.json says 10"),
        (lambda file: (file.parent / "dataset.json").unlink(), "no dataset.json"),
    ],
    ids=["flip", "cut", "extra", "missing", "count", "manifest"],
)
def test_verify_finds_every_difference(
    tmp_path: Path, damage: Callable[[Path], object], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    run("text", write_text(tmp_path / "wiki.txt"), "--format", "tar", "--out", out, "--shard-size", 9)
    damage(out / SHARD)
    capsys.readouterr()
    assert describe.main([str(out), "--verify"]) == 1
    assert said in capsys.readouterr().err


def test_a_recipe_is_shown_with_its_steps_and_parameters(
    tmp_path: Path, offline: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(offline)
    encoder = parts.SMALL.model_copy(update={"path": write_encoder(tmp_path / "encoder")})
    monkeypatch.setattr(parts, "SMALL", encoder)
    changed = ["--run.max_steps", "5"]
    assert describe.main(["visualcse:smoke", *changed]) == 0
    said = capsys.readouterr().out
    assert "visualcse/smoke" in said and "1,797 samples of runs/offline/image" in said  # digits of scikit-learn
    assert re.search(r"steps +5\n", said) and re.search(r"parameters +[\d,]+ trained, 0 frozen", said)
    assert describe.main(["runs/offline/image", *changed]) == 2 and "--run.max_steps" in capsys.readouterr().err
