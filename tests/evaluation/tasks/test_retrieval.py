"""Ranks and the contrastive loss of pairs against naive versions, and paired shards."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, normalize

from multicse.evaluation.registry import absolute, make_tasks
from multicse.evaluation.report import evaluate
from multicse.evaluation.task import EvaluationError
from multicse.evaluation.tasks.retrieval import (
    RetrievalTask,
    map_at_10,
    read_captions,
)
from tests import worlds
from tests.evaluation.evaluation_helpers import unit
from tests.evaluation.paired_helpers import Coded, decoded, image_shards, picture, sound_shards


def random_pairs(items: int, counts: list[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Items (N, d), texts (T, d) near their items, owners (T,); item i has counts[i % len(counts)] captions."""
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((items, 8)).astype(np.float32)
    owners = np.repeat(np.arange(items), [counts[i % len(counts)] for i in range(items)])
    owners = rng.permutation(owners)  # the captions of an item need not stand together
    texts = vectors[owners] + rng.standard_normal((len(owners), 8)).astype(np.float32)
    return vectors, texts, owners


class Table:
    """Item i has row i of `items`, a text whose number is i row i of `texts`; lengths must not matter."""

    def __init__(self, items: np.ndarray, texts: np.ndarray, scale: float = 1.0) -> None:
        self.items, self.texts, self.logit_scale = 3 * items, 0.5 * texts, scale

    def encode(self, items: list[Any], modality: str = "text") -> np.ndarray:
        if modality == "text":
            assert not any(text.startswith("other") for text in items)  # the first caption only
            return self.texts[[int(text[1:]) for text in items]]
        return self.items[[decoded(item) for item in items]]


def naive(items: np.ndarray, texts: np.ndarray, carries: np.ndarray, modality: str = "image") -> dict[str, float]:
    """The definitions of section 4.5, in both directions, by sorting every row of the whole matrix.

    carries: (N, T), which texts are an item's own.
    """

    def numbers(scores: np.ndarray, relevant: np.ndarray) -> dict[str, float]:
        best, precision = [], []
        for row, wanted in zip(scores, relevant, strict=True):
            ranks = [r for r, column in enumerate(np.argsort(-row), 1) if wanted[column]]
            best.append(ranks[0])
            precision.append(sum(n / r for n, r in enumerate(ranks, 1) if r <= 10) / min(10, len(ranks)))
        found = {f"r{k}": 100 * float((np.array(best) <= k).mean()) for k in (1, 5, 10)}
        return {**found, "map10": 100 * float(np.mean(precision))}

    scores = unit(items) @ unit(texts).T
    there, back = numbers(scores, carries), numbers(scores.T, carries.T)
    both = {f"mean_{kind}": (there[kind] + back[kind]) / 2 for kind in ("r1", "map10")}
    both |= {f"{modality}_to_text_{kind}": value for kind, value in there.items()}
    return both | {f"text_to_{modality}_{kind}": value for kind, value in back.items()}


def ours(
    folder: Path, items: np.ndarray, texts: np.ndarray, owners: np.ndarray, make: Callable[..., Path] = image_shards
) -> dict[str, float]:
    captions = [[f"c{text}" for text in np.flatnonzero(owners == item)] for item in range(len(items))]
    return RetrievalTask("pairs", make(folder, captions)).score(Table(items, texts)).metrics


@pytest.mark.parametrize(
    ("counts", "cells", "modality"),
    [([5], 3, "image"), ([1], 2**20, "audio"), ([1, 4, 2], 3, "audio")],
    ids=["five", "one", "mixed"],
)
def test_against_the_whole_matrix(
    tmp_path: Path, counts: list[int], cells: int, modality: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("multicse.evaluation.tasks.retrieval.CELLS", cells)
    items, texts, owners = (x.astype(np.float64) for x in random_pairs(70, counts))  # two chunks of items
    want = naive(items, texts, np.arange(70)[:, None] == owners, modality)
    assert 5 < want["mean_r1"] < 95 and 5 < want["mean_map10"] < 95  # neither trivial
    make = image_shards if modality == "image" else sound_shards
    assert ours(tmp_path, items, texts, owners, make) == pytest.approx(want, abs=1e-9)


def test_random_embeddings_are_found_by_chance_and_the_released_script_says_80(tmp_path: Path) -> None:
    """The trap of CyCLIP's script: one rank slot for each of the 5 N rows, every fifth filled, and 0 is a hit."""
    rng = np.random.default_rng(0)
    n = 250
    items, texts = rng.standard_normal((n, 16)), rng.standard_normal((5 * n, 16))
    owners = np.repeat(np.arange(n), 5)

    rows = np.repeat(items, 5, axis=0)
    slots = np.zeros(len(rows))
    for index in range(0, len(rows), 5):
        ranking = np.argsort(-(rows[index] @ texts.T))
        slots[index] = np.flatnonzero((index <= ranking) & (ranking <= index + 4))[0]
    assert 79.9 < 100 * (slots < 1).mean() < 81

    found = ours(tmp_path, items, texts, owners)
    assert found["image_to_text_r1"] < 100 * 5 / n and found["text_to_image_r1"] < 100 * 3 / n
    assert found["text_to_image_r10"] == pytest.approx(100 * 10 / n, abs=1)


# ------------------------------------------------------------------------------------------------------------------ shards


@pytest.mark.parametrize("make", [image_shards, sound_shards])
@pytest.mark.parametrize("shared", [False, True])
def test_a_perfect_encoder_reaches_100_whatever_is_there_twice(make: Any, shared: bool, tmp_path: Path) -> None:
    """Equal items in several samples, equal captions of an item, and of different items; some of more than ten items."""
    rng = np.random.default_rng(int(shared))
    kinds, forms = rng.integers(0, 3, 90).tolist(), rng.integers(0, 14, 90).tolist()

    def content(i: int) -> bytes:
        """An item with the number of its kind, in one of 14 forms."""
        if make is sound_shards:
            return worlds.sound(
                np.r_[np.full(80, kinds[i] / 256), np.full(forms[i], 0.5)].astype(np.float32), subtype="FLOAT"
            )
        return worlds.png(np.r_[np.full(57, kinds[i]), [0, 0, forms[i]]].reshape(5, 4, 3).astype(np.uint8))

    captions = [[f"c{kind}"] * (1 + i % 2) for i, kind in enumerate(kinds)]
    folder = image_shards(tmp_path, captions, content=("wav" if make is sound_shards else "png", content))
    score = RetrievalTask("x", folder, shared=shared).score(Coded())
    assert set(score.metrics.values()) == {100.0} and len(score.metrics) == 10
    assert (score.details["samples"], score.details["items"]) == (90, len(set(zip(kinds, forms, strict=True))))


def test_items_in_several_samples_against_the_whole_matrix(tmp_path: Path) -> None:
    """The same numbers as a table with one row per item, and those of the naive version."""
    items, texts, owners = (x.astype(np.float64) for x in random_pairs(30, [5]))
    owners = owners.astype(int)
    rows = image_shards(
        tmp_path / "rows", [[f"c{i}"] for i in range(150)], content=("png", lambda i: picture(int(owners[i])))
    )
    order = list(dict.fromkeys(owners.tolist()))  # of the first samples, as `Table` does not need it
    found = RetrievalTask("x", rows).score(Table(items, texts))
    want = naive(items[order], texts, np.array(order)[:, None] == owners)
    assert found.metrics == pytest.approx(want, abs=1e-9) and 5 < want["mean_r1"] < 95
    assert found.metrics == pytest.approx(ours(tmp_path / "items", items, texts, owners), abs=1e-9)
    assert (found.details["items"], found.details["fewest_captions"]) == (30, 5)


def test_one_item_in_all_samples_is_told(tmp_path: Path) -> None:
    folder = image_shards(tmp_path, [["c1"], ["c2"]], content=("png", lambda i: picture(1)))
    with pytest.raises(EvaluationError, match="all 2 samples are the same image"):
        RetrievalTask("x", folder).score(Coded())
    with pytest.raises(EvaluationError, match="task x: the shards contain 1 item"):
        RetrievalTask("x", image_shards(tmp_path / "one", [["c0"]]))


def test_shared_texts_against_a_naive_version(tmp_path: Path) -> None:
    """Items of one to three of 11 texts, of which one is there twice, near their first text."""
    rng = np.random.default_rng(0)
    carried = [[(i * (j + 2) + j) % 11 for j in range(1 + i % 3)] for i in range(80)]
    texts = rng.standard_normal((11, 64))
    items = texts[[own[0] for own in carried]] + 5 * rng.standard_normal((80, 64))
    shards = image_shards(tmp_path, [[f"c{k}" for k in (*own, own[0])] for own in carried])
    shared, plain = make_tasks([f"retrieval:{shards}?shared=true", f"retrieval:{shards}"])
    want = naive(items, texts, np.array([[k in own for k in range(11)] for own in carried]))
    assert 5 < want["mean_r1"] < 95
    score = shared.score(Table(items, texts))
    assert score.metrics == pytest.approx(want, abs=1e-9)
    counts = {"captions": sum(map(len, carried)) + 80, "distinct_captions": 11, "fewest_captions": 2, "most_captions": 4}
    assert score.details == {"samples": 80, "items": 80, **counts}
    assert shared.name == plain.name + "-shared"  # its numbers are others than those of the plain task
    order = [k for own in carried for k in (*own, own[0])]  # captions, each a query and a row
    want = naive(items, texts[order], np.array([[k in own for k in order] for own in carried]))
    assert plain.score(Table(items, texts)).metrics == pytest.approx(want, abs=1e-9)


def test_options_of_a_name(tmp_path: Path) -> None:
    shards = image_shards(tmp_path / "clotho-val", [["c0"], ["c1"]])
    (task,) = make_tasks([f"retrieval:{shards}?primary=mean_map10"])
    assert (task.name, task.primary) == ("retrieval:clotho-val", "mean_map10")
    metrics = task.score(Coded()).metrics
    assert metrics["mean_map10"] == (metrics["image_to_text_map10"] + metrics["text_to_image_map10"]) / 2
    assert absolute("retrieval:x?shared=true").endswith("/x?shared=true")


@pytest.mark.parametrize(
    "change",
    [{}, {"json": b'{"captions": [null, " "]}'}, {"json": b"{"}, {"txt": b" "}, {"png": b"no picture", "txt": b"c1"}],
    ids=["none", "empty", "broken json", "empty txt", "no picture"],
)
def test_bad_samples_are_named(tmp_path: Path, change: dict[str, bytes]) -> None:
    folder = image_shards(tmp_path, [["c0"], [], ["c2"]], change={1: change})
    with pytest.raises(EvaluationError, match=r"task x: shard x-000: .*sample '0001'"):
        RetrievalTask("x", folder).score(Coded())


# -------------------------------------------------------------------------------------------------------- validation loss


@pytest.mark.parametrize("make", [image_shards, sound_shards])
def test_batches_against_torch(tmp_path: Path, make: Any) -> None:
    """Batches of two sizes are two results; the usual one changes no name."""
    rng = np.random.default_rng(0)
    items, texts = rng.standard_normal((73, 6)), rng.standard_normal((73, 6))
    shards = make(tmp_path / "pairs", [[f"c{i}", f"other {i + 1}"] for i in range(73)])
    tasks = make_tasks([f"contrastive:{shards}{options}" for options in ("?batch=20", "?batch=80")])
    assert [task.name for task in tasks] == ["contrastive:pairs-batch20", "contrastive:pairs"]
    score = tasks[0].score(Table(items, texts, 7.0))
    a, b = (normalize(torch.from_numpy(x), dim=1) for x in (items, texts))
    want = []
    for start in (0, 20, 40):  # the last 13 are left out
        logits = 7.0 * a[start : start + 20] @ b[start : start + 20].T
        want.append((cross_entropy(logits, torch.arange(20)) + cross_entropy(logits.T, torch.arange(20))).item() / 2)
    assert score.metrics["loss"] == pytest.approx(np.mean(want))
    assert (score.details["batches"], score.details["left_out"], score.details["batch"]) == (3, 13, 20)
    assert set(evaluate(tasks, Table(items, texts, 7.0))) == {task.name for task in tasks}
    with pytest.raises(EvaluationError, match="'contrastive:pairs'"):
        make_tasks([f"contrastive:{shards}", f"contrastive:{shards}?batch=80"])
    with pytest.raises(EvaluationError, match="the encoder has no logit scale"):
        tasks[0].score(Coded())


def test_read_captions(tmp_path: Path) -> None:
    plain, packed, table = tmp_path / "a.txt", tmp_path / "a.txt.gz", tmp_path / "a.tsv"
    plain.write_text("a dog\n\n a cat \n", encoding="utf-8")
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    table.write_text("file\tone\ttwo\nx\ta dog\ta man\ny\ta cat\t\n", encoding="utf-8")
    assert read_captions(plain) == read_captions(packed) == read_captions(table, ["one"]) == ["a dog", "a cat"]
    assert read_captions(table, ["two", "one"]) == ["a man", "a dog", "a cat"]


def test_ten_of_twelve_captions_on_the_first_places_are_perfect() -> None:
    assert map_at_10(np.arange(1, 13), np.zeros(12, int)) == pytest.approx(100)
