"""Pairs from Hugging Face datasets, tested on folders written here: the Hub itself is not asked."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from multicse.evaluation.task import EvaluationError
from multicse.evaluation.tasks.hub import SHORT, hub_pairs
from tests.evaluation.evaluation_helpers import Bag, rated

ROWS = rated(20)


def records(names: str, rows: list[tuple[str, str, str]] = ROWS) -> list[dict[str, Any]]:
    """Records with the columns of `names`: score, sentence, sentence."""
    return [dict(zip(names.split(), (float(s), a, b), strict=True)) for s, a, b in rows]


def write(folder: Path, split: str, items: list[dict[str, Any]], form: str = "jsonl") -> Path:
    folder.mkdir(exist_ok=True)
    if form == "parquet":
        parquet.write_table(pa.Table.from_pylist(items), folder / f"{split}.parquet")
    else:
        lines = "".join(json.dumps(item) + "\n" for item in items).encode()
        (folder / f"{split}.{form}").write_bytes(gzip.compress(lines) if form.endswith("gz") else lines)
    return folder


@pytest.mark.parametrize("form", ["jsonl", "jsonl.gz", "parquet"])
@pytest.mark.parametrize(
    "names",
    [
        "score sentence1 sentence2",
        "relatedness_score sentence_A sentence_B",
    ],
)
def test_a_local_folder(tmp_path: Path, form: str, names: str) -> None:
    folder = write(tmp_path / "my set", "test", records(names), form)
    write(folder, "validation", records(names, rated(7, seed=1)), form)
    task = hub_pairs(str(folder))
    assert task.name == "my-set-test"
    assert [*zip(task.pairs.gold, task.pairs.first, task.pairs.second, strict=True)] == [
        (float(s), a, b) for s, a, b in ROWS
    ]
    assert task.score(Bag()).metrics["spearman"] != 0
    dev = hub_pairs(f"{folder}:validation")
    assert (dev.name, len(dev.pairs)) == ("my-set-validation", 7)


def test_the_entailment_label_of_sick_is_not_its_rating(tmp_path: Path) -> None:
    items = [{"label": i % 3, **item} for i, item in enumerate(records("relatedness_score sentence_A sentence_B"))]
    assert hub_pairs(str(write(tmp_path / "sick", "test", items))).pairs.gold == tuple(float(s) for s, _, _ in ROWS)


@pytest.mark.parametrize(
    "items",
    [
        records("score premise sentence2"),
        [{"score": "good", "sentence1": "a", "sentence2": "b"}],
        records("label sentence1 sentence2", [("-1", "a", "b")] * 3),
    ],
    ids=["no sentences", "no number", "hidden ratings"],
)
def test_bad_columns(tmp_path: Path, items: list[dict[str, Any]]) -> None:
    with pytest.raises(EvaluationError):
        hub_pairs(str(write(tmp_path / "set", "test", items)))


def test_bad_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path / "set", "train", records("score sentence1 sentence2"))
    for spec in (str(folder), "someone/no-such-set", "", "a:b:c:d", "a::test"):
        with pytest.raises(EvaluationError):
            hub_pairs(spec)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(EvaluationError, match="pip install datasets"):
        hub_pairs("sts12")


@pytest.mark.parametrize(
    ("spec", "name", "asked"),
    [
        ("sts12", "sts12", ("mteb/sts12-sts", None, "test")),
        ("stsb-dev", "stsb-dev", ("mteb/stsbenchmark-sts", None, "validation")),
        ("someone/set", "set-test", ("someone/set", None, "test")),
        ("someone/set:dev", "set-dev", ("someone/set", None, "dev")),
        ("someone/set:de:dev", "set-de-dev", ("someone/set", "de", "dev")),
    ],
)
def test_what_is_asked_of_the_hub(monkeypatch: pytest.MonkeyPatch, spec: str, name: str, asked: tuple[str, ...]) -> None:
    import datasets

    calls: list[tuple[Any, ...]] = []

    def load(path: str, config: str | None = None, **settings: Any) -> Any:
        assert set(settings) <= {"split", "streaming"}  # never trust_remote_code
        calls.append((path, config, settings["split"]))
        return datasets.Dataset.from_list(records("score sentence1 sentence2"))

    monkeypatch.setattr(datasets, "load_dataset", load)
    task = hub_pairs(spec)
    assert (task.name, calls) == (name, [asked])


def test_short_names_are_the_sets_of_mteb() -> None:
    mteb = pytest.importorskip("mteb")
    names = {**{f"sts{year}": f"STS{year}" for year in range(12, 17)}, "stsb-test": "STSBenchmark", "sickr": "SICK-R"}
    for ours, theirs in names.items():
        assert SHORT[ours] == mteb.get_task(theirs).metadata.dataset["path"] + ":test"
