"""Bad inputs, and the setting or the sample that each error names. Those that can be typed are in
test_bad_inputs_commands.py."""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from data.shards import ShardSet
from data.stream import Reader
from data.streams.text import TextStream
from tests.small import add, write_images, write_sounds, write_text
from trainers.engine.launch import resolve
from trainers.engine.preflight import check, check_kept
from trainers.recipe import Recipe, RecipeError


@dataclass
class Bench:
    """A recipe that works, a folder to break things in, and a cluster."""

    recipe: Recipe
    folder: Path
    cluster: dict[str, Any] = field(default_factory=lambda: {"cpus": 4.0, "gpus": 0.0, "nodes": 1})

    def set(self, path: str, value: Any) -> None:
        self.recipe = self.recipe.replace(path, value)

    def shards(self, stream: str, folder: Path | str) -> None:
        self.set(f"streams.{stream}.shards", str(folder))


def attempt(bench: Bench) -> None:
    """What a run does before its first step: the checks, then every sample of every stream, in this process."""
    check(bench.recipe, **bench.cluster)
    for name, config in bench.recipe.streams.items():
        shards = ShardSet.open(config.shards)
        whole = config.model_copy(update={"batch_size": shards.samples})
        reader = Reader(whole, name, shards, seed=0, rank=0, world_size=1, tokenize=tokens, start=0, batches=1, inline=True)
        try:
            next(reader)
        finally:
            reader.close()


def tokens(texts: list[str]) -> dict[str, torch.Tensor]:
    return {"input_ids": torch.ones(len(texts), 1), "attention_mask": torch.ones(len(texts), 1)}


# ---- how to make it wrong


def several(**values: Any) -> Callable[[Bench], None]:
    """Settings whose dots are written as two underscores."""

    def spoil(bench: Bench) -> None:
        for path, value in values.items():
            bench.set(path.replace("__", "."), value)

    return spoil


def cluster(**values: Any) -> Callable[[Bench], None]:
    return lambda bench: bench.cluster.update(values)


def pickled_encoder(bench: Bench) -> None:
    shutil.copytree(bench.recipe.encoder.path, bench.folder / "old")  # type: ignore[union-attr]
    (bench.folder / "old" / "model.safetensors").rename(bench.folder / "old" / "pytorch_model.bin")
    bench.set("encoder.path", str(bench.folder / "old"))


def gap_in_range(bench: Bench) -> None:
    write_text(bench.folder / "text", (20, 20))
    bench.shards("text", bench.folder / "text" / "text-train-{000000..000002}.tar")


def one_bad(stream: str, **fields: bytes) -> Callable[[Bench], None]:
    """Good shards with one more sample, `spoilt`, of these fields."""

    def spoil(bench: Bench) -> None:
        folder = bench.folder / stream
        writers: dict[str, Callable[[Path], str]] = {"text": write_text, "image": write_images, "audio": write_sounds}
        writers[stream](folder)
        with tarfile.open(sorted(folder.glob("*.tar"))[-1], "a") as tar:
            for extension, content in fields.items():
                add(tar, f"spoilt.{extension}", content)
        bench.shards(stream, folder)

    return spoil


def too_many_skipped(bench: Bench) -> None:
    one_bad("text", txt=b"")(bench)
    bench.set("streams.text.on_bad_sample", "skip")


def no_pairs(bench: Bench) -> None:
    folder = bench.folder / "nli"
    folder.mkdir()
    with tarfile.open(folder / "nli-train-000000.tar", "w") as tar:
        for i in range(18):
            record = {"sent0": f"a {i}", "sent1": f"b {i}"} if i else {"sent0": "alone"}
            add(tar, f"{i}.json", json.dumps(record).encode())
    stream = TextStream(shards=str(folder), batch_size=16, columns=("sent0", "sent1"))
    bench.set("method.text.supervised", True)
    bench.set("streams.text", stream.model_dump())


# ---- the table: how to make it wrong, what the message must name

TABLE: list[tuple[Callable[[Bench], None], str]] = [
    # settings
    (lambda b: b.set("streams", {}), "streams.audio"),
    (lambda b: b.set("optim", {}), "optim.audio"),
    (pickled_encoder, "pytorch_model.bin"),
    (several(run__workers=1, run__precision="fp16"), "run.precision='fp16'"),
    (lambda b: b.set("run.push_to_hub", "no name"), "run.push_to_hub='no name'"),
    (lambda b: b.set("export.dimensions", 5), "export.whiten"),
    (lambda b: b.set("export", {"whiten": True, "dimensions": 17}), "export.dimensions=17"),
    # resources
    (several(run__workers=8, streams__text__batch_size=64), "run.workers=8"),
    (several(run__workers=1, run__gpus_per_worker=1), "run.gpus_per_worker=1"),
    (cluster(nodes=2), "run.storage=None"),
    # shards
    (gap_in_range, "text-train-000002.tar"),
    (lambda b: b.shards("text", b.recipe.streams["image"].shards), "streams.text.columns"),
    # samples
    (one_bad("image", png=b"no picture", cls=b"0"), "spoilt"),
    (one_bad("audio", wav=b"no sound", cls=b"0"), "spoilt"),
    (one_bad("text", txt=b" \n"), "spoilt"),
    (no_pairs, "sent1"),
    (too_many_skipped, "streams.text.max_skipped_share"),
]


@pytest.mark.parametrize(("spoil", "named"), TABLE, ids=[f"{row}-{named}" for row, (_, named) in enumerate(TABLE)])
def test_an_error_names_what_is_wrong(spoil: Callable[[Bench], None], named: str, recipe: Recipe, tmp_path: Path) -> None:
    bench = Bench(recipe, tmp_path)
    with pytest.raises(ValueError) as error:
        spoil(bench)
        attempt(bench)
    assert named in str(error.value)


def test_local_tracking_on_two_nodes(recipe: Recipe) -> None:
    shared = recipe.replace("run.storage", "s3://bucket/runs")
    with pytest.raises(ValueError, match=r"run\.tracking_uri"):
        check(shared, cpus=4, nodes=2)
    check(shared.replace("run.tracking_uri", "http://server:5000"), cpus=4, nodes=2)


def test_a_cached_data_set_on_two_nodes(recipe: Recipe, tmp_path: Path) -> None:
    """Hugging Face's library keeps it in the cache of the node that asked for it."""
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "train.jsonl").write_text("".join(f'{{"text": "Number {i}"}}\n' for i in range(64)))
    named = recipe.replace("streams.text.shards", f"hf://{tmp_path}/set")
    check(named, cpus=4)
    with pytest.raises(ValueError, match=r"streams\.text\.shards"):
        check(named.replace("run.storage", "s3://bucket/runs"), cpus=4, nodes=2)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({}, ["run.output", "run.tracking_uri"]),
        ({"run.output": "/home/me/run"}, ["run.tracking_uri"]),
        ({"run.tracking_uri": "http://host:5000"}, ["run.output"]),
        ({"run.storage": "s3://bucket/runs", "run.tracking_uri": "http://host:5000"}, []),
    ],
)
def test_a_job_that_would_lose_its_model_or_its_tracking(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], named: list[str]
) -> None:
    """A job with ``--working-dir`` starts in a folder of Ray's like this one, which is removed."""
    copy = tmp_path / "runtime_resources" / "working_dir_files" / "_ray_pkg_0123456789abcdef"
    copy.mkdir(parents=True)
    monkeypatch.chdir(copy)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for path, value in {"run.output": "runs/demo", "run.tracking_uri": None, **changes}.items():
        recipe = recipe.replace(path, value)
    recipe, said = resolve(recipe), ""
    try:
        check_kept(recipe, Path(recipe.run.output))
    except RecipeError as error:
        said = str(error)
    assert [name for name in ("run.output", "run.tracking_uri") if f"--{name} " in said] == named
