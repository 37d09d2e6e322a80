"""Files that other programs wrote: every reader gives the same for byte order marks, UTF-16 and Windows line ends."""

from __future__ import annotations

import codecs
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from multicse.commands.registry import from_file
from multicse.data.shards import ShardSet, read
from multicse.data.word_vectors import open_vectors
from multicse.evaluation.load import fit_sentences
from multicse.evaluation.report import Report
from multicse.evaluation.tasks.classification import read_labelled
from multicse.evaluation.tasks.zero_shot import read_prompts
from multicse.pipelines import simcse
from multicse.trainers.engine.checks import find_callback
from multicse.trainers.engine.mlflow_server import TrackingError, resolve_uri
from multicse.trainers.engine.tracking import find_runs, open_run
from tests.evaluation.evaluation_helpers import pair_task

LINES = ["Ein «Häuschen» am Fluß", 'it\'s a "quoted" text', "two", "three\u2028parts"]
TABLE = "\n".join(["sentence1\tsentence2\tscore", *(f"{a}\t{b}\t{n}" for n, (a, b) in enumerate(itertools.pairwise(LINES)))])
LABELLED = "\n".join(["label\ttext", *(f"{'ab'[n % 2]}\t{line}" for n, line in enumerate(LINES * 5))])


def _samples(file: Path) -> list[dict[str, bytes]]:
    shards = ShardSet.open(str(file))
    return [sample.fields for shard in shards.shards for sample in read(shard, range(shard.samples))]  # type: ignore[union-attr]


def _callback(file: Path) -> str:
    found: Any = find_callback(f"{file}:note")
    text: str = found(0, {}, None)
    return text


class _Named:
    name = "lee"


READERS: dict[str, tuple[str, str, Callable[[Path], Any]]] = {
    "prompts": (
        "p.json",
        json.dumps({"classes": LINES, "templates": ["ein {}"]}, indent=1, ensure_ascii=False),
        read_prompts,
    ),
    "recipe": ("recipe.json", simcse.smoke().to_json(), lambda file: from_file(file).to_json()),
    "callback": ("mine.py", f"def note(*_):\n    return {LINES[0]!r}\n", _callback),
    "report": ("r.json", '{"results": {\n"lee": {"ß": 1}}}', lambda file: Report.read(file, [_Named()]).results),  # type: ignore[list-item]
    "lines": ("x.txt", "\n".join(LINES), fit_sentences),
    "pairs": ("x.tsv", TABLE, lambda file: pair_task(file).pairs),
    "labels": ("x.tsv", LABELLED, lambda file: read_labelled(file, 0).hash),
    "vectors": ("x.vec", "2 2\nHäuschen 1 2\nFluß 3 4\n", lambda file: open_vectors(file).row),
    "text shards": ("x.txt", "\n".join(LINES), _samples),
    "csv shards": ("x.csv", 'text,n\n"a, b",1\nä,2\n', _samples),
    "jsonl shards": ("x.jsonl", "\n".join(json.dumps({"txt": line}, ensure_ascii=False) for line in LINES), _samples),
}
WRITERS: dict[str, Callable[[str], bytes]] = {
    "mark": lambda text: codecs.BOM_UTF8 + text.encode(),
    "Windows": lambda text: text.replace("\n", "\r\n").encode(),
    "both": lambda text: codecs.BOM_UTF8 + text.replace("\n", "\r\n").encode(),
    "UTF-16": lambda text: codecs.BOM_UTF16_LE + text.replace("\n", "\r\n").encode("utf-16-le"),
    "UTF-16 BE": lambda text: codecs.BOM_UTF16_BE + text.encode("utf-16-be"),
}


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize("writer", WRITERS)
def test_a_file_of_another_program_is_read_as_the_plain_one(kind: str, writer: str, tmp_path: Path) -> None:
    """Also in a folder with a blank, an apostrophe, quotation marks and brackets in its name."""
    name, text, reader = READERS[kind]
    plain, foreign = tmp_path / "plain" / name, tmp_path / "it's a \"[1] %41 & ü" / name
    for file, content in ((plain, text.encode()), (foreign, WRITERS[writer](text))):
        file.parent.mkdir()
        file.write_bytes(content)
    assert repr(reader(foreign)) == repr(reader(plain))


@pytest.mark.parametrize("value", ["it's", 'a "b"', 'it\'s a "b"', "back\\slash", "%_ ü", "`x`"])
def test_runs_are_found_by_tags_with_any_text(value: str, tracking_uri: str) -> None:
    run = open_run(tracking_uri, value, value, {}, {"key": value, "plain": "x"})
    open_run(tracking_uri, value, value, {}, {"key": "other", "plain": "x"})
    found = find_runs(tracking_uri, value, {"key": value, "plain": "x"})
    assert [one.run_id for one in found] == [run.run_id]
    assert find_runs(tracking_uri, value, {"key": value, "plain": "y"}) == []


def test_a_database_in_a_folder_with_a_question_mark_is_refused(tmp_path: Path) -> None:
    """SQLAlchemy would write to another file, without an error."""
    with pytest.raises(TrackingError, match="question mark"):
        resolve_uri(f"sqlite:///{tmp_path}/what?/mlflow.db")
    assert resolve_uri(f"sqlite:///{tmp_path}/it's #1 %41/mlflow.db") == f"sqlite:///{tmp_path}/it's #1 %41/mlflow.db"
