"""Contract of all evaluation tasks: each kind and each name in the registry, including the kit's, on small data.

A kind is tested on all data below that it reads, so a new one needs no line here if it reads one of these forms.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multicse.evaluation.registry import absolute, found, kinds, known, make_tasks
from multicse.evaluation.report import Report, evaluate
from multicse.evaluation.tables import LOWER
from multicse.evaluation.task import EvaluationError, Task, encode_once, metric_name
from multicse.evaluation.tasks import sts
from tests.evaluation.evaluation_helpers import WORDS, Bag, rated, write_raw
from tests.evaluation.paired_helpers import decoded, image_shards, sound_shards
from tests.reproduction.miniatures import senteval

ITEMS = 60
CLASSES = WORDS[4:8]
TRAINED = {"finetune": "it trains the model of a folder; see tests/reproduction/test_finetune.py"}
KINDS = [kind for kind in kinds() if kind not in TRAINED]
PARTS = {"paired_items.CHUNK": 7, "retrieval.CELLS": 3, "zero_shot.PROMPTS": 1, "geometry.CHUNK": 5}
"""Sizes of the parts in which tasks compute."""


class Perfect(Bag):
    """A text is the mean of its words' vectors, an item its `caption`; only texts are remembered."""

    logit_scale = 20.0

    def encode(self, items: list[Any], modality: str = "text") -> np.ndarray:
        if modality != "text":
            return Bag(self.width).encode([caption(decoded(item)) for item in items])
        return super().encode([" ".join(re.findall(r"\w+", text)) for text in items])


class Constant(Perfect):
    """One vector for everything."""

    def encode(self, items: list[Any], modality: str = "text") -> np.ndarray:
        return np.tile([0.1, 0.7, 1 / 3, 2e-3], (len(items), 1))


class Narrow(Perfect):
    """Embeddings of texts and of items differ in dimension."""

    def encode(self, items: list[Any], modality: str = "text") -> np.ndarray:
        return super().encode(items, modality)[:, : 8 if modality == "text" else None]


class Changed(Perfect):
    """The vectors of `Perfect` after a change."""

    def __init__(self, change: Callable[[np.ndarray], np.ndarray]) -> None:
        super().__init__()
        self.change = change

    def encode(self, items: list[Any], modality: str = "text") -> np.ndarray:
        return self.change(super().encode(items, modality))


def caption(number: int) -> str:
    return f"{CLASSES[number % 4]} {CLASSES[number % 4]} {CLASSES[number % 4]} n{number}"


def write_rated(path: Path, shift: float = 0) -> None:
    """Pairs whose ratings are the cosines of `Perfect`, and one without a rating."""
    rows = [(a, b) for _, a, b in rated(ITEMS)]
    vectors = [Bag().encode([a, b]) for a, b in rows]
    cosines = [float(a @ b / np.linalg.norm(a) / np.linalg.norm(b)) + shift for a, b in vectors]
    lines = [f"{a}\t{b}\t{cosine!r}" for (a, b), cosine in zip(rows, cosines, strict=True)]
    path.write_text("\n".join(["sentence1\tsentence2\tscore", *lines, "no\trating\t"]))


def write_set(path: Path, shift: float = 0) -> None:
    """Write the rows as a folder of the library datasets."""
    path.mkdir()
    write_rated(path / "x.tsv", shift)
    rows = [line.split("\t") for line in (path / "x.tsv").read_text().splitlines()[1:]]
    (path / "x.tsv").unlink()
    records = ({"sentence1": a, "sentence2": b, "score": float(score or "nan")} for a, b, score in rows)
    (path / "test.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def write_labelled(path: Path, shift: float = 0) -> None:
    lines = [f"{CLASSES[i % 2]}\t{CLASSES[i % 2]} {CLASSES[i % 2]} n{i + shift}" for i in range(ITEMS)]
    path.write_text("\n".join(["label\ttext", *lines]))


def write_images(path: Path, shift: float = 0, make: Callable[..., Path] = image_shards) -> None:
    texts = [[caption(i), caption(i) + " more"] for i in range(ITEMS)]
    texts[0][1] += str(shift)
    make(path, texts, [i % 4 for i in range(ITEMS)])
    (path / "dataset.json").write_text(
        json.dumps({"shardlist": [{"url": "x-000.tar", "nsamples": ITEMS}], "classes": CLASSES})
    )


def write_sounds(path: Path, shift: float = 0) -> None:
    write_images(path, shift, sound_shards)


DATA: dict[str, Callable[..., None]] = {
    "rated.tsv": write_rated, "set": write_set, "labelled.tsv": write_labelled,
    "images": write_images, "sounds": write_sounds,
}  # fmt: skip
READ = (["rated.tsv"], ["set"], ["labelled.tsv"], ["images", "sounds"], ["labelled.tsv", "images", "sounds"])
COUNTED = {"rated.tsv": ITEMS, "set": ITEMS, "labelled.tsv": ITEMS // 10, "images": ITEMS, "sounds": ITEMS}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same data twice, in ``here`` and ``there``, other data in ``other``, and the data folders of names."""
    place = tmp_path_factory.mktemp("data")
    for folder, shift in (("here", 0), ("other", 1)):
        (place / folder).mkdir()
        for name, write in DATA.items():
            write(place / folder / name, shift)
    shutil.copytree(place / "here", place / "there")
    return place


@cache
def made(kind: str, folder: Path) -> dict[str, Task]:
    """The tasks of a kind, by the names of the data that it reads."""
    tasks = {}
    for name in DATA:
        try:
            (tasks[name],) = make_tasks([f"{kind}:{folder / name}"])
        except EvaluationError as error:
            assert Path(name).stem in str(error)  # which of several
    return tasks


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_reads_its_data_wherever_they_are(kind: str, world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task on images is one on sounds. Equal data have one hash, others another; the absolute name is of every folder."""
    here, there, other = (made(kind, world / folder) for folder in ("here", "there", "other"))
    assert [*here] in READ
    for name, task in here.items():
        assert task.hash == there[name].hash != other[name].hash  # type: ignore[attr-defined]
        assert re.fullmatch(r"[\w.:-]+", task.name), task.name
        monkeypatch.chdir(world / "here")
        place = absolute(f"{kind}:{name}")
        monkeypatch.chdir(world)
        if kind != "hub":  # whose places are names first
            assert make_tasks([place])[0].hash == task.hash  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", KINDS)
def test_a_perfect_encoder_is_rewarded_and_a_collapsed_one_is_not(kind: str, world: Path) -> None:
    """Points reach 100; a constant vector is at chance at best, and no number is infinite or NaN."""
    for name, task in made(kind, world / "here").items():
        best, worst = task.score(Perfect()), task.score(Constant())
        assert all(map(math.isfinite, [*best.metrics.values(), *worst.metrics.values()]))
        main = best.metrics[task.primary], worst.metrics[task.primary]
        if task.primary not in LOWER and not getattr(task, "lower_is_better", False):
            assert main[0] > 95 and main[1] <= 51, name
        elif task.primary == "loss":
            assert main[0] < main[1] == pytest.approx(worst.details["chance"])


@pytest.mark.parametrize("kind", KINDS)
def test_a_score_is_a_report(kind: str, world: Path) -> None:
    """It has the task's main metric, survives JSON, counts its examples, and is not different from itself."""
    for name, task in made(kind, world / "here").items():
        report = evaluate([task], Perfect())
        assert report == evaluate([task], Perfect()), "not by chance"
        assert task.primary in report[task.name] and all(type(value) is float for value in report[task.name].values())
        assert [metric_name(metric) for metric in report[task.name]] == [*report[task.name]]
        again = Report.of(json.loads(json.dumps(report.results)), report.examples)
        assert again[task.name].items() >= report[task.name].items() and again.results == report.results
        examples = report.examples.get(task.name)
        assert (examples is None) == (task.primary not in ("spearman", "pearson", "accuracy"))  # which can be tested
        assert examples is None or len(examples) == COUNTED[name]
        assert report.count(task.name) in (len(examples), ITEMS) if examples is not None else (ITEMS, None)
        change = report.changes(evaluate([task], Perfect(24)), [task])[task.name]
        assert change["metric"] == task.primary and ("p" in change) == (examples is not None)
        if examples is not None:
            assert change["low"] <= change["difference"] <= change["high"]
            assert report.changes(again, [task])[task.name]["p"] == 1


@pytest.mark.parametrize("kind", KINDS)
def test_the_encoder_gets_each_sentence_once(kind: str, world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one call for all tasks, if they know their sentences before; in parts of any size, with the same score."""
    for task in made(kind, world / "here").values():
        encoder = Perfect()
        encoded = encode_once([task], encoder)
        assert encoder.calls == bool(task.sentences()) and len(set(encoder.seen)) == len(encoder.seen)
        calls, whole = encoder.calls, task.score(encoded)
        assert not task.sentences() or encoder.calls == calls
        with monkeypatch.context() as small:
            for place, size in PARTS.items():
                small.setattr(f"multicse.evaluation.tasks.{place}", size)
            direct = Perfect()
            assert task.score(direct).metrics == pytest.approx(whole.metrics, abs=1e-5)
            assert len(set(direct.seen)) == len(direct.seen)


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_that_cannot_be_scored_are_refused(kind: str, world: Path) -> None:
    """NaN with the sentence or the number of the item; a vector too few, no rows, texts of another dimension than items."""

    def nan(vectors: np.ndarray) -> np.ndarray:
        vectors[-1] = np.nan
        return vectors

    for task in made(kind, world / "here").values():
        for change, said in (
            (nan, "1 of .* embeddings contain NaN or infinity, first for ('|the (image|audio) number)"),
            (lambda vectors: vectors[1:], "the encoder returned shape"),
            (lambda vectors: vectors[0], "the encoder returned shape"),
        ):
            with pytest.raises(EvaluationError, match=said):
                task.score(Changed(change))
        if hasattr(task, "modality"):
            with pytest.raises(EvaluationError, match=r"dimensions|shapes"):
                task.score(Narrow())


@pytest.mark.parametrize("kind", KINDS)
def test_data_and_options_that_cannot_be_used_are_named(kind: str, world: Path, tmp_path: Path) -> None:
    """A place that is missing, damaged (its end is lost) or empty, and an option that the kind does not have."""
    for name in made(kind, world / "here"):
        source, copy = world / "here" / name, tmp_path / name
        shutil.copytree(source, copy) if source.is_dir() else shutil.copy(source, copy)
        file = max(copy.iterdir(), key=lambda one: one.stat().st_size) if copy.is_dir() else copy
        half = file.read_bytes()[: file.stat().st_size // 2]
        for content in (half[: half.rindex(b"\t")] if file.suffix == ".tsv" else half, b""):
            file.write_bytes(content)
            with pytest.raises(EvaluationError, match=name):
                make_tasks([f"{kind}:{copy}"])[0].score(Perfect())
        for place, said in ((tmp_path / "absent", "absent"), (f"{source}?no-option=1", "unknown option 'no-option'")):
            with pytest.raises(EvaluationError, match=rf"task {kind}:.*{said}|{said}"):
                make_tasks([f"{kind}:{place}"])
    with pytest.raises(EvaluationError, match=f"task {kind}: lacks a place"):
        make_tasks([f"{kind}:"])


# ----------------------------------------------------------------------------------------------- names of the data folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Both layouts: raw tables of all sets of pairs, and SentEval's transfer tasks."""
    place = tmp_path_factory.mktemp("folders")
    for seed, file in enumerate(sts.FILES.values()):
        write_raw(place / file, rated(40, seed), ("one", "two"))
    return [place, senteval(place / "downstream")]


@pytest.mark.parametrize("name", known())
def test_a_name_is_a_task_with_the_data_of_a_folder(name: str, folders: list[Path]) -> None:
    """And is listed there; without a folder only the tasks whose data are installed are."""
    base = name.removesuffix("-geometry")
    if base not in sts.LEE:
        with pytest.raises(EvaluationError, match=r"^task \S+ needs data: .*--data DIR"):
            make_tasks([name])
    (data,) = [one for one in folders if name in found(one)] or [folders[0]]
    (task,) = make_tasks([name], None if base in sts.LEE else data)
    assert name in found(data) or "geometry" in name or base in sts.LEE
    encoder = Bag()
    score = evaluate([task], encoder)
    assert [*score] == [task.name] == [name] and task.primary in score[name]
    assert encoder.calls == 1 and len(set(encoder.seen)) == len(encoder.seen)
    assert all(map(math.isfinite, score[name].values())) and json.dumps(score.results)
    with pytest.raises(EvaluationError, match="unknown option 'no-option'"):
        make_tasks([f"{name}?no-option=1"], data)


def test_all_sets_of_pairs_share_one_call(folders: list[Path]) -> None:
    """They repeat each other's sentences, and the geometry of a set its own."""
    names, encoder = [*sts.FILES, *sts.LEE, "stsb-dev-geometry", "lee-geometry"], Bag()
    assert [*evaluate(make_tasks(names, folders[0]), encoder)] == names
    assert encoder.calls == 1 and len(set(encoder.seen)) == len(encoder.seen)
