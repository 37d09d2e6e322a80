"""Options ``name=value`` of tables and tasks: percent signs are decoded, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import quote

import pytest

from multicse.data.shard_urls import format_options, options_of, parse_options
from multicse.evaluation.registry import absolute, gold_of, make_tasks
from multicse.trainers.recipe import local_task
from tests.evaluation.paired_helpers import image_shards

pytest.importorskip("hypothesis", reason="random options are made by the package hypothesis (extra `test`)")
from hypothesis import given, settings
from hypothesis import strategies as st

NAMES = st.text(st.sampled_from("ab+ %&=#?,;ß漢"), max_size=6)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.dictionaries(NAMES, NAMES, max_size=3))
def test_options_are_read_as_they_are_written(options: dict[str, str]) -> None:
    assert parse_options(format_options(options)) == options
    columns = {name: value for name, value in options.items() if name.isidentifier() and value}
    written = "#" + ",".join(f"{name}={quote(value, safe='+ ')}" for name, value in columns.items())
    assert options_of(f"x.csv{written}" if columns else "x.csv") == columns


@pytest.mark.parametrize("name", ["C++", "a b", "a%2Bb", "50 %"])
def test_a_file_of_classes_may_have_any_name(name: str, tmp_path: Path) -> None:
    """A plus is a plus, in the task, in its absolute name and in the recipe's identity."""
    file = tmp_path / f"{name}.json"
    file.write_text(json.dumps(["cat", "dog"]))
    shards = image_shards(tmp_path / "x", [["c0"], ["c1"]], labels=[0, 1])
    task = f"zero-shot:{shards}?classes=" + str(file).replace("%", "%25")
    for asked in (task, absolute(task)):
        assert make_tasks([asked])[0].classes == ("cat", "dog")  # type: ignore[attr-defined]
    assert f"{name}.json" in local_task(absolute(task))
    assert local_task("pairs:/data/what?.tsv") == "pairs:data/what?.tsv", "a question mark of a file's name"


def test_a_set_says_what_its_ratings_are(tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_text("score\tsentence1\tsentence2\n1\ta\tb\n2\tc\td\n")
    name = f"pairs:{tmp_path}/x.tsv"
    for options, gold in {"": "ratings", "?gold=votes%20of%20readers": "votes of readers"}.items():
        (task,) = make_tasks([name + options])
        assert (task.name, task.gold_is, gold_of(name + options)) == ("x", gold, gold)  # type: ignore[attr-defined]
    assert gold_of("lee") == gold_of("stsb-dev") == "human ratings" and gold_of("lee-geometry") is None
