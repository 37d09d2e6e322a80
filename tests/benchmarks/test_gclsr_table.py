"""The table of GCLSR's rows: which sentences and settings its runs have, and what becomes of their results."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import gclsr_table
from benchmarks.gclsr_table import FINAL, LABELS, Arguments
from benchmarks.records import append_run, read_runs
from data.shards import ShardSet, read
from evaluation.encoders.word_vectors import WordVectors
from evaluation.figures.basic import save
from evaluation.registry import is_development
from trainers.engine.preflight import check_settings
from trainers.gclsr import GCLSRConfig
from trainers.recipe import SGDConfig, WordEncoderConfig

TEXT = "a man is playing the guitar while his dog sleeps under wooden table and it rains outside today"
WORDS = TEXT.split()


def arguments(tmp_path: Path, **more: Any) -> Arguments:
    """Data sets of 30 sentences and four pairs, vectors of 8 dimensions."""
    data, vectors = tmp_path / "data", tmp_path / "vectors.txt"
    if not data.exists():
        (data / "text_unlabeled").mkdir(parents=True)
        with gzip.open(data / "text_unlabeled" / "wiki_combined.en.txt.gz", "wt", encoding="utf-8") as file:
            file.writelines(f"sentence {i} of the wiki\n\n" for i in range(30))
        (data / "sts").mkdir()
        rng = np.random.default_rng(0)
        vectors.write_text("".join(f"{w} {' '.join(f'{x:.4f}' for x in rng.normal(size=8))}\n" for w in WORDS))
        pairs = [" ".join(rng.choice(WORDS, 10)) for _ in range(80)]
        rows = [f"{i % 6}\t{pairs[2 * i]}\t{pairs[2 * i + 1]}\tnews\n" for i in range(40)]
        for name in ("STS12", "STS13", "STS14", "STSB.dev", "STSB.test"):
            text = "score\tsentence1\tsentence2\tsubset\n" + "".join(rows)
            (data / "sts" / f"{name}.raw.tsv").write_text(text)
    return Arguments(data=data, vectors=vectors, out=tmp_path / "out.jsonl", **more)


def texts(folder: Path) -> list[str]:
    shards = ShardSet.open(str(folder)).shards
    found = [sample for shard in shards for sample in read(shard, list(range(shard.samples)))]
    return sorted(sample.fields["txt"].decode() for sample in found)  # type: ignore[union-attr]


def test_the_same_sentences_are_drawn_for_every_row(tmp_path: Path) -> None:
    some = gclsr_table.draw([str(i) for i in range(100)], 30)
    assert len(set(some)) == 30 and some == sorted(some, key=int) == gclsr_table.draw([str(i) for i in range(100)], 30)
    assert some != [str(i) for i in range(30)]
    assert gclsr_table.draw(["x", "y"], 10) == gclsr_table.draw(["x", "y"], "all") == ["x", "y"]
    ten = gclsr_table.prepare(arguments(tmp_path, sentences=10))
    every = gclsr_table.prepare(arguments(tmp_path, sentences="all"))
    assert len(set(texts(ten))) == 10 and len(set(texts(every))) == 30 and set(texts(ten)) < set(texts(every))
    assert gclsr_table.prepare(arguments(tmp_path, sentences=10)) == ten  # there already


def test_rows_differ_in_their_method_and_views_only(tmp_path: Path) -> None:
    a = arguments(tmp_path, sentences=20, epochs=3, batch=8, width=64, threads=2)
    shards = gclsr_table.prepare(a)
    recipes = {row: gclsr_table.recipe_of(row, 5, shards, a) for row in LABELS if row != "mean"}
    ours = recipes["pwva-att-gp"]
    assert isinstance(ours.method, GCLSRConfig) and (ours.method.width, ours.method.bottleneck) == (64, 16)
    assert isinstance(ours.encoder, WordEncoderConfig) and ours.encoder.vectors == str(a.vectors)
    assert ours.encoder.regions == (1, 1, 1, 6, 15, 20)
    optim = ours.optim["text"]
    assert isinstance(optim, SGDConfig) and optim.lr == pytest.approx(0.03 * 8 / 128)
    assert (ours.run.seed, ours.run.workers, ours.run.threads, ours.run.gpus_per_worker) == (5, 0, 2, 0)
    assert ours.steps(20) == 9 and ours.evaluation.every == 3  # a pass
    for row, recipe in recipes.items():
        check_settings(recipe)
        assert recipe.evaluation.select is not None and is_development(recipe.evaluation.select)
        assert recipe.evaluation.final == FINAL and not any(map(is_development, FINAL))
        other, base = recipe.flat(), ours.flat()
        changed = {path for path in other.keys() | base.keys() if other.get(path) != base.get(path)}
        allowed = ("name", "run.output", "method.augmentation", "method.attention", "method.group_size")
        eda = ("streams.text.kind", "streams.text.alpha", "streams.text.lexicon") if row.startswith("eda") else ()
        assert changed <= {*allowed, *eda}, row


def test_unknown_rows(tmp_path: Path) -> None:
    assert arguments(tmp_path).rows == tuple(LABELS)
    assert arguments(tmp_path, only=("pwva", "mean")).rows == ("mean", "pwva")
    with pytest.raises(ValueError, match="--only full; it is some of mean, base, pwva"):
        _ = arguments(tmp_path, only=("full",)).rows


# ----------------------------------------------------------------------------------------------------------------- results


def record(a: Arguments, row: str, seed: int, value: float) -> dict[str, Any]:
    after = {task: {"spearman": value + i, "pearson": 0.0} for i, task in enumerate(FINAL)}
    curve = [] if row == "mean" else [(0, 10.0), (3, value), (6, value - 1)]
    return {**a.key, "row": row, "seed": seed, "curve": curve, "after": after}


def cells(table: str) -> list[list[str]]:
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_table_over_seeds(tmp_path: Path) -> None:
    a = arguments(tmp_path)
    runs = [record(a, row, seed, value + seed) for row, value in (("pwva", 40.0), ("base", 20.0)) for seed in (1, 2, 3)]
    text = gclsr_table.table([record(a, "mean", 1, 30.0), *runs], a)
    head, _, *rows = cells(text)
    assert head == ["spearman", "STS12", "STS13", "STS14", "STS-B", "mean of the four"]
    assert [row[0] for row in rows] == ["mean of word vectors", "base", "+ PWVA"]
    assert rows[0][1:] == ["30.00", "31.00", "32.00", "33.00", "31.50"]
    assert rows[1][1] == "22.00 ± 1.00" and rows[2][1] == r"**42.00** ± 1.00\*\*"
    assert r"p \< .01 for a difference from base" in text


def test_a_single_seed_is_tested_on_its_pairs(tmp_path: Path) -> None:
    """Cosines that follow the ratings, against some that do not."""
    a = arguments(tmp_path, seeds=(1,))
    rng = np.random.default_rng(0)
    for row, noise in (("mean", 5.0), ("base", 5.0), ("pwva-att-gp", 0.1)):
        folder = gclsr_table.output_of(row, 1, a)
        folder.mkdir(parents=True)
        cosines: dict[str, Any] = {t.name: t.gold + noise * rng.normal(size=len(t.gold)) for t in a.tasks}
        np.savez(folder / "cosines.npz", **cosines)
    text = gclsr_table.table([record(a, row, 1, v) for row, v in (("mean", 1.0), ("base", 2.0), ("pwva-att-gp", 3.0))], a)
    rows = {row[0]: row[1:] for row in cells(text)}
    assert all(cell.endswith(r"\*\*") for cell in rows["+ PWVA, attention, groups"][:4])
    assert not any("\\*" in cell for cell in (*rows["base"], *rows["mean of word vectors"]))
    assert "paired bootstrap" in text


def test_a_stopped_table_goes_on(tmp_path: Path) -> None:
    a = arguments(tmp_path)
    assert read_runs(a.out, a.key) == []
    for other in (a, arguments(tmp_path, width=64), arguments(tmp_path, sentences="all"), arguments(tmp_path, epochs=2)):
        append_run(a.out, record(other, "base", 1, 2.0))
    with a.out.open("a") as out:
        out.write('{"row": "ba')  # killed here
    append_run(a.out, record(a, "pwva", 1, 3.0))
    assert [found["row"] for found in read_runs(a.out, a.key)] == ["base", "pwva"]


def test_finished_runs_are_not_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    done: list[tuple[str, int]] = []

    def run(row: str, seed: int, shards: Path, a: Arguments) -> dict[str, Any]:
        done.append((row, seed))
        return record(a, row, seed, 10.0 * seed + len(row))

    monkeypatch.setattr(gclsr_table, "run", run)
    only = ("mean", "base", "pwva")
    gclsr_table.main(arguments(tmp_path, seeds=(1, 2), only=only, sentences=10))
    gclsr_table.main(arguments(tmp_path, seeds=(2, 3), only=only, sentences=10))
    expected = [("mean", 1), ("base", 1), ("pwva", 1), ("base", 2), ("pwva", 2), ("base", 3), ("pwva", 3)]
    assert done == expected  # the mean has no seeds
    gclsr_table.main(arguments(tmp_path, seeds=(3,), only=("base",), sentences=10))
    assert done == expected
    assert "base: 2, + PWVA: 2" in capsys.readouterr().out
    names = {path.name for path in (tmp_path / "out" / "figures").iterdir()}
    assert names == {f"gclsr_{name}.{end}" for name in ("learning_curves", "attention") for end in ("png", "svg")}


def test_the_mean_of_word_vectors_is_measured(tmp_path: Path) -> None:
    """The same as evaluation's own, with a cosine for every pair."""
    a = arguments(tmp_path, sentences=10)
    found = gclsr_table.run("mean", 1, tmp_path, a)
    encoder = WordVectors(a.vectors, "gclsr")
    assert found["after"] == {task.name: task.score(encoder).metrics for task in a.tasks}
    cosines = np.load(gclsr_table.output_of("mean", 1, a) / "cosines.npz")
    assert set(cosines) == set(FINAL) and cosines["sts12"] == pytest.approx(a.tasks[0].similarities(encoder))
    json.dumps(found)


# ----------------------------------------------------------------------------------------------------------------- figures


def test_curve_of_a_journal(tmp_path: Path) -> None:
    lines = [
        {"step": 0, "metrics": {"eval/stsb-dev/spearman": 10.0}},
        {"step": 3, "metrics": {"train/text": -0.5}},
        {"step": 3, "metrics": {"eval/stsb-dev/spearman": 20.0, "eval/stsb-dev/pearson": 1.0}},
        {"step": 3, "metrics": {"eval/stsb-dev/spearman": 21.0}},  # repeated after a restart
        {"run_id": "x"},
    ]
    (tmp_path / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert gclsr_table.curve(tmp_path / "journal.jsonl") == [(0, 10.0), (3, 21.0)]


def test_learning_curves_are_means_over_seeds(tmp_path: Path) -> None:
    figure = gclsr_table.learning_curves({"base": [[(0, 10.0), (5, 20.0)], [(0, 20.0), (5, 40.0)]], "x": [[(0, 1.0)]]})
    (axes,) = figure.axes
    lines = {str(line.get_label()): line for line in axes.get_lines()}
    assert list(lines) == ["base", "x"]
    assert np.array_equal(lines["base"].get_xydata(), [[0, 15], [5, 30]])
    assert save(figure, tmp_path, "curves")[0].stat().st_size > 1000
    with pytest.raises(ValueError, match="different steps"):
        gclsr_table.learning_curves({"base": [[(0, 1.0)], [(5, 1.0)]]})
    with pytest.raises(ValueError, match="nothing to draw"):
        gclsr_table.learning_curves({})


def test_a_row_is_trained_and_measured(tmp_path: Path) -> None:
    """Two passes over ten sentences, through everything that a run has."""
    a = arguments(tmp_path, sentences=10, epochs=2, batch=5, width=32)
    shards = gclsr_table.prepare(a)
    found = gclsr_table.run("pwva-att-gp", 1, shards, a)
    assert found["steps"] == 4 and [step for step, _ in found["curve"]] == [0, 2, 4]
    assert set(found["after"]) == set(FINAL)
    append_run(a.out, found)
    assert read_runs(a.out, a.key)[0]["after"] == found["after"]
