"""The grid of CLIP and CLAP models: what is packed and held out, the recipes of its rows, and the tables of its results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import clip_table
from benchmarks.clip_table import CONFIGS, Grid, Images, Sounds
from benchmarks.records import append_run, read_runs
from data.shards import ShardSet, read
from data.streams.pairs import AudioTextStream, ImageTextStream
from evaluation.registry import is_development, make_tasks
from models.towers import ASTTower, ViTTower
from pipelines import parts
from trainers.clip import CLIPConfig
from trainers.recipe import OptimConfig, Recipe


def samples(folder: Path) -> dict[str, dict[str, bytes]]:
    """Fields by key of all shards in a folder."""
    found = [sample for shard in ShardSet.open(str(folder)).shards for sample in read(shard, range(shard.samples))]
    return {sample.key: dict(sample.fields) for sample in found}  # type: ignore[union-attr]


def test_emoji_and_coco(datasets: Path, tmp_path: Path) -> None:
    clip_table.pack_emoji(datasets, tmp_path)
    parts = {part: samples(tmp_path / f"emoji-{part}") for part in ("train", "val", "test")}
    assert {part: len(found) for part, found in parts.items()} == {"train": 1144, "val": 100, "test": 200}
    assert len({key for found in parts.values() for key in found}) == 1444  # no picture in two parts
    names = {row["file"][:-4]: row["names"]["en"] for row in map(json.loads, (datasets / "emoji/emoji_names.jsonl").open())}
    assert all(fields["txt"].decode() == names[key] for found in parts.values() for key, fields in found.items())
    clip_table.pack_coco(datasets, tmp_path)
    coco = {part: samples(tmp_path / f"coco-{part}") for part in ("train", "test")}
    assert (len(coco["train"]), len(coco["test"])) == (80, 39)
    assert all(len(json.loads(fields["json"])["captions"]) == 5 for fields in coco["test"].values())
    assert {key.split("-")[1] for key in coco["train"]}.isdisjoint(key.split("-")[1] for key in coco["test"])


def test_cifar_classes_are_those_of_the_names(datasets: Path, tmp_path: Path) -> None:
    clip_table.pack_cifar(datasets, tmp_path)
    (task,) = make_tasks([f"zero-shot:{tmp_path / 'cifar10-test'}?templates={datasets / 'prompts' / 'imagenet.json'}"])
    assert task.name == "zero-shot:cifar10-test-imagenet"
    assert task.classes == tuple(json.loads((datasets / "cifar10" / "classes.json").read_text()))  # type: ignore[attr-defined]
    labels = [int(fields["cls"]) for fields in samples(tmp_path / "cifar10-test").values()]
    assert len(labels) == 1000 and np.bincount(labels).min() > 50


def test_sounds_of_one_recording_are_in_one_part(datasets: Path, tmp_path: Path) -> None:
    clip_table.pack_esc10(datasets, tmp_path)
    parts = {part: samples(tmp_path / f"esc10-{part}") for part in ("train", "val", "test")}
    assert sum(map(len, parts.values())) == 320 and len(parts["test"]) == 80 and 15 < len(parts["val"]) < 40
    assert all(key.startswith("4-") for key in parts["test"]) and not any(key.startswith("4-") for key in parts["train"])
    recordings = {part: {key.split("-")[1] for key in found} for part, found in parts.items()}
    assert recordings["train"].isdisjoint(recordings["val"])
    for part, count in (("train", 4), ("val", 1), ("test", 1)):
        shards = ShardSet.open(str(tmp_path / f"esc10-{part}"))
        for fields in parts[part].values():
            captions = json.loads(fields["json"])["captions"]
            assert len(captions) == count and captions[0] == f"This is a sound of {shards.classes[int(fields['cls'])]}"
    assert parts["train"]["1-100032-A"]["cls"] == b"3"  # a dog, of the sorted names


def test_nli(datasets: Path, tmp_path: Path) -> None:
    clip_table.pack_nli(datasets, tmp_path)
    assert ShardSet.open(str(tmp_path / "nli")).samples > 10_000
    assert set(json.loads(next(iter(samples(tmp_path / "nli").values()))["json"])) == {"sent0", "sent1", "hard_neg"}


# ----------------------------------------------------------------------------------------------------------------- recipes


def base(kind: str) -> Recipe:
    stream = ImageTextStream(shards="x", batch_size=8) if kind == "images" else AudioTextStream(shards="x", batch_size=8)
    tower = ViTTower() if kind == "images" else ASTTower()
    return Recipe(
        name="clap/demo",
        method=CLIPConfig(tower=tower, captions=0.5),
        encoder=parts.SMALL,
        streams={"pairs": stream},
        optim={"pairs": OptimConfig(lr=1e-3)},
        lead="pairs",
    )


def arguments(tmp_path: Path, kind: str = "images", **more: Any) -> Images | Sounds:
    return (Images if kind == "images" else Sounds)(data=tmp_path / "data", out=tmp_path / "out.jsonl", **more)


@pytest.mark.parametrize(
    ("config", "weights"),
    [
        ("plain", {"contrastive": 1.0}),
        ("plain-n", {"contrastive": 1.0, "nli": 0.1}),
        ("cyclic", {"contrastive": 1.0, "i_cyclic": 0.25, "c_cyclic": 0.25}),
        ("cyclic-s", {"contrastive": 1.0, "i_cyclic": 0.25, "c_cyclic": 0.25, "captions": 0.1}),
    ],
)
def test_rows_differ_in_weights_and_streams_only(tmp_path: Path, config: str, weights: dict[str, float]) -> None:
    grid = Grid("images", tmp_path / "shards", tmp_path / "data")
    a = arguments(tmp_path, steps=70, threads=2)
    recipe = clip_table.recipe_of(grid, base("images"), config, 5, a)
    assert recipe.method.weights == weights  # type: ignore[attr-defined]
    assert list(recipe.turns) == list(recipe.optim) == (["pairs+nli"] if config.endswith("-n") else ["pairs"])
    expected = OptimConfig(lr=1e-3, weight_decay=0.1, schedule="cosine", warmup=0.1)  # the same for every row
    assert recipe.optim == {next(iter(recipe.turns)): expected}
    assert set(recipe.streams) == set(next(iter(recipe.turns.values())))
    assert recipe.steps(1000) == 70 and (recipe.run.seed, recipe.run.workers, recipe.run.threads) == (5, 0, 2)
    same = clip_table.recipe_of(grid, base("images"), "plain", 5, a)
    changed = {path for path, value in recipe.flat().items() if same.flat().get(path) != value}
    allowed = ("name", "method.", "streams.nli.", "optim.", "run.output")
    assert all(path.startswith(allowed) for path in changed)


@pytest.mark.parametrize("kind", ["images", "sounds"])
def test_nothing_is_selected_on_what_is_reported(tmp_path: Path, kind: Any) -> None:
    grid = Grid(kind, tmp_path / "shards", tmp_path / "data")
    recipe = clip_table.recipe_of(grid, base(kind), "cyclic-n", 1, arguments(tmp_path, kind))
    evaluation = recipe.evaluation
    assert evaluation.select is not None and all(map(is_development, (evaluation.select, *evaluation.watch)))
    held_out = [task for task in evaluation.final if task != "stsb-dev"]  # STS-B dev chooses nothing here
    assert not any(map(is_development, held_out))
    chosen = [task.rpartition("/")[2].partition("?")[0] for task in (evaluation.select, *evaluation.watch)]
    trained = [url.rpartition("/")[2] for url in recipe.streams["pairs"].shards.split("::")]
    assert all(name.endswith("-val") for name in chosen) and all(name.endswith("-train") for name in trained)


@pytest.mark.parametrize("kind", ["images", "sounds"])
def test_tower_and_stream_take_the_same_input(tmp_path: Path, kind: Any) -> None:
    recipe = clip_table.recipe_of(
        Grid(kind, tmp_path, tmp_path), Grid(kind, tmp_path, tmp_path).base(), "plain-s", 1, arguments(tmp_path, kind)
    )
    given: Any = recipe.streams["pairs"].input  # type: ignore[union-attr]
    assert given == recipe.method.tower.input  # type: ignore[attr-defined]
    assert recipe.method.weights == {"contrastive": 1.0, "captions": 0.1}  # type: ignore[attr-defined]
    if kind == "sounds":
        assert given.seconds == 5 and given.frames == 157


def test_unknown_rows(tmp_path: Path) -> None:
    assert arguments(tmp_path).configs == tuple(CONFIGS)
    assert arguments(tmp_path, only=("cyclic-s", "plain")).configs == ("plain", "cyclic-s")
    with pytest.raises(ValueError, match="--only cyclic_s; it is some of plain, plain-s, plain-n, cyclic"):
        _ = arguments(tmp_path, only=("cyclic_s",)).configs


# ----------------------------------------------------------------------------------------------------------------- results


def scores(kind: str, value: float) -> dict[str, dict[str, float]]:
    modality = "image" if kind == "images" else "audio"
    ways = (f"{modality}_to_text", f"text_to_{modality}")
    retrieval = {f"{way}_{m}": value + k for k, way in enumerate(ways) for m in ("r1", "r5", "r10", "map10")}
    geometry = {"alignment": value / 100, "text_uniformity": -value / 10, f"{modality}_uniformity": -value / 20}
    sets = ("emoji", "coco") if kind == "images" else ("esc10",)
    return {
        **{name: {**retrieval, "mean_map10": value} for name in sets},
        "CIFAR-10" if kind == "images" else "ESC-10": {"accuracy": value},
        "geometry": geometry,
        "STS-B dev": {"spearman": value},
    }


def record(kind: str, config: str, seed: int, value: float, steps: int = 300) -> dict[str, Any]:
    both = {"before": scores(kind, 1.0), "after": scores(kind, value)}
    return {"grid": kind, "row": config, "seed": seed, "steps": steps, **both}


@pytest.mark.parametrize(("kind", "name"), [("images", "CLIP"), ("sounds", "CLAP")])
def test_tables(tmp_path: Path, kind: Any, name: str) -> None:
    grid = Grid(kind, tmp_path, tmp_path)
    records = [record(kind, "cyclic-s", 1, 30.0), record(kind, "plain", 1, 20.0), record(kind, "plain", 2, 22.0)]
    retrieval, rest = clip_table.tables(grid, records).split("\n\n")[::2]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in retrieval.splitlines()]
    assert [row[0] for row in rows[2:]] == [name, f"Cy{name}s", "untrained"]
    assert len(rows[0]) == 1 + 7 * (2 if kind == "images" else 1)
    assert rows[0][1].endswith("to text R@1") and rows[2][1] == "21.00 ± 1.41" and rows[3][1] == "**30.00**"
    assert rows[2][4] == "22.00 ± 1.41" and rows[4][1] == "1.00 ± 0.00"  # the other direction; two seeds before training
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in rest.splitlines()]
    assert table[0][1:] == [
        f"{'CIFAR' if kind == 'images' else 'ESC'}-10 zero-shot",
        "held-out alignment",
        "held-out text uniformity",
        f"held-out {'image' if kind == 'images' else 'audio'} uniformity",
        "STS-B dev",
    ]
    assert table[3][1:] == ["**30.00**", "0.300", "**-3.000**", "**-1.500**", "**30.00**"]


def test_marks_need_several_seeds(tmp_path: Path) -> None:
    grid = Grid("sounds", tmp_path, tmp_path)
    runs = [record("sounds", c, s, v + s) for c, v in (("plain", 20.0), ("cyclic", 40.0)) for s in (1, 2, 3)]
    text = clip_table.tables(grid, runs)
    assert r"**42.00** ± 1.00\*\*" in text and r"p \< .01 for a difference from CLAP" in text
    assert r"p \< " not in clip_table.tables(grid, runs[::3])


def test_a_stopped_grid_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "new" / "out.jsonl"
    assert read_runs(file, {"grid": "images", "steps": 300}) == []
    for item in (
        record("images", "plain", 1, 2.0),
        record("sounds", "plain", 1, 3.0),
        record("images", "plain", 1, 4.0, 10),
    ):
        append_run(file, item)
    with file.open("a") as out:
        out.write('{"grid": "ima')  # killed here
    assert [r["after"]["emoji"]["mean_map10"] for r in read_runs(file, {"grid": "images", "steps": 300})] == [2.0]
    append_run(file, record("images", "cyclic", 1, 5.0))
    assert [r["row"] for r in read_runs(file, {"grid": "images", "steps": 300})] == ["plain", "cyclic"]


def test_finished_runs_are_not_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    done: list[tuple[str, int]] = []

    def run(grid: Grid, recipe: Recipe, config: str, seed: int, a: Any) -> dict[str, Any]:
        done.append((config, seed))
        return record(grid.kind, config, seed, 10.0 * seed + len(config))

    monkeypatch.setattr(clip_table, "run", run)
    monkeypatch.setattr(Grid, "prepare", lambda self: None)
    monkeypatch.setattr(Grid, "base", lambda self: base(self.kind))
    clip_table.main(arguments(tmp_path, seeds=(1, 2), only=("plain", "cyclic-s")))
    clip_table.main(arguments(tmp_path, seeds=(1, 2, 3), only=("plain", "cyclic-s")))
    assert done == [("plain", 1), ("cyclic-s", 1), ("plain", 2), ("cyclic-s", 2), ("plain", 3), ("cyclic-s", 3)]
    clip_table.main(arguments(tmp_path, seeds=(3,), only=("plain",)))
    assert len(done) == 6
    assert "CyCLIPs: 3" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "out" / "figures").iterdir()} == {
        f"images_figure{n}.{end}" for n in (2, 3) for end in ("png", "svg")
    }
