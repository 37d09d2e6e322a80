"""Sentences for fitting an export: a complete small data set, or a random sample of some shards of a large one."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from multicse.data.shard_writer import Target, UnpackedSample, pack
from multicse.evaluation.load import load_for
from multicse.evaluation.registry import make_tasks
from multicse.evaluation.report import evaluate
from multicse.trainers.engine import record, text_fit
from multicse.trainers.engine.text_fit import SHARDS, sentences, some_sentences
from multicse.trainers.recipe import Recipe
from tests.worlds import run, text_only


def test_evaluate_whitens_like_the_table_of_the_run(recipe: Recipe) -> None:
    """Also a model in the folder of a run, and another model with ``--fit RUN``: the same sentences give the same scores."""
    _, result, _ = run(recipe)
    folder, given = Path(recipe.run.output_dir), recipe.flat()
    encoder, pooling = str(given["encoder.path"]), str(given["encoder.pooling"])
    record.update(folder, {"recipe": json.loads(recipe.to_json())})
    shutil.copytree(encoder, folder / "export")
    tasks = make_tasks(["lee"])
    for spec, fit in (
        (f"{folder / 'export'}+whitening", None),
        (f"{encoder}+whitening", folder),
        (f"{encoder}+whitening:{folder}", None),
    ):
        model = load_for(tasks, spec, fit, text_of=text_fit.text_of_run, pooling=pooling, device="cpu")
        assert evaluate(tasks, model)["lee"]["spearman"] == pytest.approx(result["baseline"]["lee"]["spearman"], abs=1e-3)
        assert model.protocol["fitted_on"]["source"] == f"the training text of the run {folder}"


@pytest.fixture
def large(recipe: Recipe, tmp_path: Path) -> Recipe:
    """Return a recipe with 4,000 numbered sentences in 200 shards."""
    texts = (UnpackedSample({"txt": b"%04d" % number}) for number in range(4000))
    pack(texts, Target(tmp_path / "large", "large", shard_size=20, shuffle=False, form="parquet"))
    return text_only(recipe).replace("streams.text.shards", str(tmp_path / "large"))


def test_a_small_data_set_is_used_completely_and_in_order(recipe: Recipe, large: Recipe) -> None:
    assert [*some_sentences(recipe, 80)] == [*sentences(recipe)]
    assert [*some_sentences(large, 4000)] == [f"{number:04d}" for number in range(4000)]
    few = large.replace("streams.text.first", 30)
    assert [*some_sentences(few, 30)] == [*sentences(few)] and len(set(some_sentences(few, 10))) == 10


def test_only_some_shards_of_a_large_data_set_are_read(large: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: Counter[str] = Counter()

    def counted(shard: Any, positions: Any) -> Iterator[Any]:
        seen[shard.name] += len(positions)
        yield from read(shard, positions)

    read = text_fit.read
    monkeypatch.setattr(text_fit, "read", counted)
    found = [*some_sentences(large, 200)]
    assert len(set(found)) == len(found) == 200 and len(seen) <= SHARDS and seen.total() == 200
    assert [*some_sentences(large, 200)] == found, "the draws depend on the seed"
    assert {*some_sentences(large.replace("run.seed", 7), 200)} != {*found}
    seen.clear()
    assert len(set(some_sentences(large, 3000))) >= 2940 and 150 <= len(seen) < 200, (
        "shards are added until they contain enough samples"
    )


def test_all_samples_are_equally_likely(large: Recipe) -> None:
    """Over 100 seeds a sentence is drawn 10 times on average, with a binomial standard deviation of 3."""
    times = Counter(text for seed in range(100) for text in some_sentences(large.replace("run.seed", seed), 400))
    halves = [sum(times[f"{number:04d}"] for number in part) for part in (range(2000), range(2000, 4000))]
    assert times.total() == 100 * 400 and max(times.values()) < 10 + 7 * 3 and len(times) >= 3996
    assert abs(halves[0] - halves[1]) < 0.05 * times.total()
