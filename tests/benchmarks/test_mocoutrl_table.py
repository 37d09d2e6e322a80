"""The table of MoCoUTRL's rows: which sentences and settings its runs have, and what becomes of their results."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import mocoutrl_table
from benchmarks.mocoutrl_table import GEOMETRY, LABELS, MEAN, STS, Arguments
from benchmarks.records import append_run, read_runs
from data.shards import ShardSet, read
from data.streams.triplets import TripletTextStream
from evaluation.load import load_model
from evaluation.registry import is_development
from evaluation.tasks.classification import ClassificationTask
from evaluation.tasks.labelled_texts import LabelledTask
from evaluation.tasks.sts import PairTask
from trainers.engine.preflight import check_settings
from trainers.mocoutrl import MoCoUTRLConfig
from trainers.recipe import EncoderConfig, OptimConfig
from trainers.simcse import SimCSEConfig

TEXT = "a man is playing the big guitar while his old dog sleeps under wooden table and it rains outside today"
WORDS = TEXT.split()
COARSE = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
LATE = " ".join(["the"] * 40) + " big"  # its one candidate comes after the words that are surely kept


def arguments(tmp_path: Path, **more: Any) -> Arguments:
    """Data sets of 30 sentences, of which 20 have a candidate; 40 pairs; 240 questions of 6 classes, two kinds of each."""
    data = tmp_path / "data"
    if not data.exists():
        (data / "text_unlabeled").mkdir(parents=True)
        with gzip.open(data / "text_unlabeled" / "wiki_combined.en.txt.gz", "wt", encoding="utf-8") as file:
            file.writelines(f"The {'big' if i % 3 else 'brown'} house number {i}.\n\n" for i in range(30))
            file.write(LATE + "\n")
        (data / "sts").mkdir()
        rng = np.random.default_rng(0)
        texts = [" ".join(rng.choice(WORDS, 10)) for _ in range(80)]
        rows = [f"{i % 6}\t{texts[2 * i]}\t{texts[2 * i + 1]}\tnews\n" for i in range(40)]
        for name in ("STS12", "STS13", "STS14", "STSB.dev", "STSB.test"):
            text = "score\tsentence1\tsentence2\tsubset\n" + "".join(rows)
            (data / "sts" / f"{name}.raw.tsv").write_text(text)
        trec = data / "senteval" / "downstream" / "TREC"
        trec.mkdir(parents=True)
        for file_name, count in (("train_5500.label", 240), ("TREC_10.label", 24)):
            lines = [
                f"{COARSE[i % 6]}:{'xy'[i // 6 % 2]} {WORDS[i % 6]} {' '.join(rng.choice(WORDS, 5))} ?" for i in range(count)
            ]
            (trec / file_name).write_bytes("\n".join([*lines, f"{COARSE[0]}:x  caf\xe9  ?"]).encode("latin-1"))
    return Arguments(data=data, out=tmp_path / "out.jsonl", **{"lexicon": "small", **more})


def texts(folder: Path) -> list[str]:
    shards = ShardSet.open(str(folder)).shards
    found = [sample for shard in shards for sample in read(shard, list(range(shard.samples)))]
    return sorted(sample.fields["txt"].decode() for sample in found)  # type: ignore[union-attr]


def test_all_rows_read_the_sentences_that_have_a_candidate(tmp_path: Path) -> None:
    a = arguments(tmp_path)
    folder = mocoutrl_table.prepare(a)
    assert texts(folder) == sorted(f"The big house number {i}." for i in range(30) if i % 3)
    assert mocoutrl_table.prepare(a) == folder  # there already
    assert len(texts(mocoutrl_table.prepare(arguments(tmp_path, max_length=128)))) == 21


def test_rows_differ_in_their_method_only(tmp_path: Path) -> None:
    a = arguments(tmp_path, steps=40, batch=8, lr=1e-3, temperature=0.1, balance=0.25, threads=2)
    shards = mocoutrl_table.prepare(a)
    recipes = {row: mocoutrl_table.recipe_of(row, 5, shards, a) for row in LABELS if row != "untrained"}
    for row, recipe in recipes.items():
        check_settings(recipe)
        assert recipe.evaluation.select is not None and is_development(recipe.evaluation.select)
        assert not any(map(is_development, STS))
        other, base = recipe.flat(), recipes["both"].flat()
        differing = {path for path in other.keys() | base.keys() if other.get(path) != base.get(path)}
        if row != "simcse":
            assert differing <= {"name", "run.output", "method.balance", "method.perturbation"}, row
        assert not any(path.startswith(("encoder", "optim", "evaluation")) for path in differing)
        assert recipe.steps(20) == 40 and (recipe.run.seed, recipe.run.workers, recipe.run.threads) == (5, 0, 2)
        optim, encoder, text = recipe.optim["text"], recipe.encoder, recipe.streams["text"]
        assert isinstance(optim, OptimConfig) and (optim.lr, optim.schedule) == (1e-3, "cosine")
        assert isinstance(encoder, EncoderConfig) and encoder.pooling == "mean"
        assert (text.batch_size, text.shards) == (8, str(shards))
    method, ours = recipes["simcse"].method, recipes["both"]
    assert isinstance(method, SimCSEConfig) and method.temperature == 0.1
    assert isinstance(ours.method, MoCoUTRLConfig) and (ours.method.temperature, ours.method.balance) == (0.1, 0.25)
    assert isinstance(ours.streams["text"], TripletTextStream)
    settings = {row: recipe.method.model_dump() for row, recipe in recipes.items() if row != "simcse"}
    assert {row: m["balance"] for row, m in settings.items()} == {
        "both": 0.25,
        "both-plain": 0.25,
        "long": 1.0,
        "token": 0.0,
        "token-plain": 0.0,
    }
    assert {row for row, m in settings.items() if m["perturbation"] is False} == {"both-plain", "token-plain"}


def test_unknown_rows(tmp_path: Path) -> None:
    assert arguments(tmp_path).rows == tuple(LABELS)
    assert arguments(tmp_path, only=("long", "simcse")).rows == ("simcse", "long")
    with pytest.raises(ValueError, match="--only moco; it is some of untrained, simcse, both"):
        _ = arguments(tmp_path, only=("moco",)).rows


def test_trec_with_its_fine_classes(tmp_path: Path) -> None:
    """Every question once, the byte that is no UTF-8 read, and every tenth of a class held out."""
    a = arguments(tmp_path)
    task = ClassificationTask.from_file(mocoutrl_table.trec_fine(a))
    assert task.name == "trec-fine" and len(task.data.classes) == 12
    assert {part: len(rows) for part, rows in task.data.parts.items()} == {"train": 217, "dev": 24, "test": 25}
    assert sum(row.label == "ABBR:x" for row in task.data.parts["dev"]) == 2
    assert any(row.text == "café ?" for row in task.data.parts["train"])


def test_trec_s_own_files(tmp_path: Path, datasets: Path) -> None:
    task = ClassificationTask.from_file(mocoutrl_table.trec_fine(Arguments(data=datasets, out=tmp_path / "out.jsonl")))
    sizes = {part: len(rows) for part, rows in task.data.parts.items()}
    assert sizes["train"] + sizes["dev"] == 5452 and sizes["test"] == 500 and len(task.data.classes) == 50
    assert 0.09 < sizes["dev"] / 5452 < 0.1  # the smallest classes have no tenth question


# ----------------------------------------------------------------------------------------------------------------- results


def record(a: Arguments, row: str, seed: int, value: float) -> dict[str, Any]:
    after: dict[str, Any] = {task: {"spearman": value + i, "pearson": 0.0} for i, task in enumerate(STS)}
    after |= {"trec": {"accuracy": value + 10}, "trec-fine": {"accuracy": value + 20, "f1": 1.0}}
    after[GEOMETRY] = {"alignment": value / 100, "uniformity": -value / 10}
    trained = {} if row == "untrained" else {"best_step": 100 * seed}
    return {**a.key, "row": row, "seed": seed, **trained, "after": after}


def cells(table: str) -> list[list[str]]:
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_table_over_seeds(tmp_path: Path) -> None:
    a = arguments(tmp_path)
    runs = [record(a, row, seed, value + seed) for row, value in (("both", 40.0), ("simcse", 20.0)) for seed in (1, 2, 3)]
    text = mocoutrl_table.table([record(a, "untrained", 1, 30.0), *runs], a)
    head, _, *rows = cells(text)
    assert head == ["", "STS12", "STS13", "STS14", "STS-B", MEAN, "TREC 6", "TREC 50"]
    assert [row[0] for row in rows] == ["untrained", "SimCSE", "MoCoUTRL, both losses"]
    assert rows[0][1:] == ["30.00", "31.00", "32.00", "33.00", "31.50", "40.00", "50.00"]
    assert rows[1][1] == "22.00 ± 1.00" and rows[2][1] == r"**42.00** ± 1.00\*\*" and rows[2][7] == r"**62.00** ± 1.00\*\*"
    assert r"p \< .01 for a difference from SimCSE" in text
    assert "500 steps of 32 sentences of at most 64 tokens, rate 0.0005, temperature 0.07, from small-bert-en." in text
    assert "SimCSE: 100, 200, 300; MoCoUTRL, both losses: 100, 200, 300" in text


def test_a_single_seed_is_tested_on_its_examples(tmp_path: Path) -> None:
    """Cosines that follow the ratings, and right answers, against some that do not."""
    a = arguments(tmp_path, seeds=(1,))
    rng = np.random.default_rng(0)
    for row, noise, right in (("untrained", 5.0, 0.5), ("simcse", 5.0, 0.5), ("both", 0.1, 1.0)):
        folder = mocoutrl_table.output_of(row, 1, a)
        folder.mkdir(parents=True)
        pairs: dict[str, Any] = {t.name: t.gold + noise * rng.normal(size=40) for t in a.tasks if isinstance(t, PairTask)}
        probes: dict[str, Any] = {name: rng.random(400) < right for name in ("trec", "trec-fine")}
        np.savez(folder / "examples.npz", **pairs, **probes)
    runs = [record(a, row, 1, v) for row, v in (("untrained", 1.0), ("simcse", 2.0), ("both", 3.0))]
    text = mocoutrl_table.table(runs, a)
    rows = {row[0]: row[1:] for row in cells(text)}
    assert [cell.endswith(r"\*\*") for cell in rows["MoCoUTRL, both losses"]] == [True] * 4 + [
        False,
        True,
        True,
    ]  # not the mean
    assert not any("\\*" in cell for cell in (*rows["SimCSE"], *rows["untrained"]))
    assert "paired bootstrap" in text


def test_a_stopped_table_goes_on(tmp_path: Path) -> None:
    a = arguments(tmp_path)
    assert read_runs(a.out, a.key) == []
    others = ({"steps": 9}, {"lr": 1.0}, {"encoder": tmp_path / "distilbert"}, {"batch": 8}, {"temperature": 0.2})
    for other in (a, *(arguments(tmp_path, **more) for more in others)):
        append_run(a.out, record(other, "simcse", 1, 2.0))
    with a.out.open("a") as out:
        out.write('{"row": "si')  # killed here
    append_run(a.out, record(a, "both", 1, 3.0))
    assert [found["row"] for found in read_runs(a.out, a.key)] == ["simcse", "both"]


def test_finished_runs_are_not_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    done: list[tuple[str, int]] = []

    def run(row: str, seed: int, shards: Path, a: Arguments) -> dict[str, Any]:
        done.append((row, seed))
        return record(a, row, seed, 10.0 * seed + len(row))

    monkeypatch.setattr(mocoutrl_table, "run", run)
    only = ("untrained", "simcse", "both")
    mocoutrl_table.main(arguments(tmp_path, seeds=(1, 2), only=only))
    mocoutrl_table.main(arguments(tmp_path, seeds=(2, 3), only=only))
    expected = [("untrained", 1), ("simcse", 1), ("both", 1), ("simcse", 2), ("both", 2), ("simcse", 3), ("both", 3)]
    assert done == expected  # the untrained encoder has no seeds
    mocoutrl_table.main(arguments(tmp_path, seeds=(3,), only=("simcse",)))
    assert done == expected
    assert "SimCSE: 2, MoCoUTRL, both losses: 2" in capsys.readouterr().out
    names = {path.name for path in (tmp_path / "out" / "figures").iterdir()}
    assert names == {f"mocoutrl_alignment_uniformity.{end}" for end in ("png", "svg")}


def test_the_untrained_encoder_is_measured(tmp_path: Path) -> None:
    """The same as evaluation's own, with what tests on single runs and figures need."""
    a = arguments(tmp_path)
    found = mocoutrl_table.run("untrained", 1, tmp_path, a)
    encoder = load_model(str(a.encoder), pooling="mean")
    assert found["after"].keys() == {*STS, "trec", "trec-fine", GEOMETRY}
    for task in a.tasks[:2]:
        assert found["after"][task.name] == pytest.approx(task.score(encoder).metrics, abs=1e-3)
    folder = mocoutrl_table.output_of("untrained", 1, a)
    assert {*STS, "trec", "trec-fine"} <= set(np.load(folder / "examples.npz"))
    (trec,) = (task for task in a.tasks if task.name == "trec")
    assert isinstance(trec, LabelledTask)
    vectors = np.load(folder / "trec-test.npy")
    assert vectors == pytest.approx(encoder.encode([row.text for row in trec.data.parts["test"]]), abs=1e-4)
    json.dumps(found)
    written = {path.name for path in mocoutrl_table.figures([found], a)}
    assert written >= {"mocoutrl_alignment_uniformity.png", "mocoutrl_angles_untrained.png"}


@pytest.mark.parametrize("row", ["simcse", "both"])
def test_a_row_is_trained_and_measured(row: str, tmp_path: Path) -> None:
    """Four steps, through everything that a run has."""
    a = arguments(tmp_path, steps=4, batch=8)
    found = mocoutrl_table.run(row, 1, mocoutrl_table.prepare(a), a)
    assert found["steps"] == 4 and 0 <= found["best_step"] <= 4
    assert found["after"].keys() == {*STS, "trec", "trec-fine", GEOMETRY}
    assert all(math.isfinite(value) for scores in found["after"].values() for value in scores.values())
    append_run(a.out, found)
    assert read_runs(a.out, a.key)[0]["after"] == found["after"]
