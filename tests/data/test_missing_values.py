"""One rule for values that are missing or empty, and one decision per table about what a column is."""

from __future__ import annotations

import json
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import multicse
from multicse.data.errors import DataError, DecodeError
from multicse.data.shards import RawSample, ShardSet, read
from multicse.data.streams import decode
from multicse.data.streams.image import ImageStream
from multicse.data.streams.inputs import ImageInput
from multicse.data.streams.pairs import AudioTextStream, ImageTextStream
from multicse.data.streams.text import TextStream
from multicse.evaluation.registry import make_tasks
from multicse.evaluation.task import EvaluationError
from tests.data.packing import png
from tests.data.test_columns import FORMS
from tests.worlds import sound, write_tar

Row = dict[str, Any]


CONTENT = {"image": ("png", png()), "audio": ("wav", sound(np.full(900, 0.5, np.float32)))}


@pytest.mark.parametrize("form", ["x.parquet", "x.arrow", "x.tar"])
@pytest.mark.parametrize("kind", CONTENT)
def test_a_missing_file_is_a_bad_sample_that_says_so(form: str, kind: str, tmp_path: Path) -> None:
    """Also if the first rows have none: the type, or the first row with a value, shows what the column contains."""
    ending, content = CONTENT[kind]
    if form == "x.tar":
        texts = [((f"{i:04d}.{ending}", content if i >= 300 else b""), (f"{i:04d}.txt", b"a thing")) for i in range(303)]
        write_tar(tmp_path / form, chain.from_iterable(texts))
    else:
        thing = {"bytes": content, "path": "x"}
        FORMS[form](tmp_path / form, [{"caption": "a thing", "thing": thing if i >= 300 else None} for i in range(303)])
    config: Any = ImageTextStream if kind == "image" else AudioTextStream
    stream = config(shards=str(tmp_path / form), batch_size=1)
    stream.check(shards := stream.open())
    for number, sample in enumerate(read(shards.shards[0], range(303))):
        assert isinstance(sample, RawSample) and stream.sentences(sample) == ["a thing"]
        missing = pytest.raises(DecodeError, match=rf"sample '0+{number or ''}': its {kind} is missing")
        with missing if number < 300 else nullcontext():
            stream.row(sample, np.random.default_rng(0))
    (task,) = make_tasks([f"retrieval:{tmp_path / form}"])
    assert getattr(task, "modality", "") == kind
    with pytest.raises(EvaluationError, match=f"its {kind} is missing"):
        task.score(object())  # type: ignore[arg-type]  # no encoder is reached


def test_an_image_of_one_kind_replaces_a_missing_one_of_another(tmp_path: Path) -> None:
    """Shards of several kinds have a column for each."""
    rows = [{"jpg": None, "png": png(1)}, {"jpg": png(2), "png": None}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet")
    stream = ImageStream(shards=str(tmp_path / "x.parquet"), size=4, label=None, batch_size=1)
    for sample in read(stream.open().shards[0], range(2)):
        assert isinstance(sample, RawSample) and "image" in stream.row(sample, np.random.default_rng(0))


# ---------------------------------------------------------------------------------------------------- once for all rows


def test_keys_of_objects_that_are_data_do_not_fill_every_row(tmp_path: Path) -> None:
    rows: list[Row] = [{"text": f"one {i}", "counts": {f"word{i}": 1, f"other{i}": 2}} for i in range(1000)]
    del rows[7]["text"]
    FORMS["x.jsonl"](tmp_path / "x.jsonl", rows)
    shards = ShardSet.open(str(tmp_path / "x.jsonl"))
    assert "txt" in shards.fields and len(shards.fields) < 600
    for number in (7, 999):
        sample = shards.sample(number)
        assert isinstance(sample, RawSample) and len(sample.fields) < 600
        assert sample.fields["txt"] == (None if number == 7 else "one 999")


def test_two_columns_of_images_are_told_and_one_can_be_named(tmp_path: Path) -> None:
    """Not the first of each row: rows with a JPEG in one column and a PNG in the other would mix them."""
    rows = [{"photo": png(1), "mask": png(2), "text": "a"}, {"photo": None, "mask": png(3), "text": "b"}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet")
    with pytest.raises(DataError, match=r"columns photo and mask contain images; name the one to read by #png=photo"):
        ShardSet.open(str(tmp_path / "x.parquet"))
    stream = ImageTextStream(shards=f"{tmp_path}/x.parquet#png=photo", batch_size=1, input=ImageInput(size=4))
    one, two = read(stream.open().shards[0], range(2))
    assert isinstance(one, RawSample) and isinstance(two, RawSample)
    assert (one.fields["png"], one.fields["mask"]) == (png(1), png(2))
    with pytest.raises(DecodeError, match="its image is missing"):
        stream.row(two, np.random.default_rng(0))


def test_lines_next_to_an_image_are_captions_as_in_json(tmp_path: Path) -> None:
    """As CLIP_benchmark writes and reads them. Every other text, also one that was packed as a caption, is one text."""
    two = json.dumps({"captions": ["one dog", "two dogs"]}).encode()
    write_tar(tmp_path / "lines.tar", [("0.png", png()), ("0.txt", b"\r\none dog\r\n \r\ntwo\tdogs\n")])
    write_tar(tmp_path / "json.tar", [("0.png", png()), ("0.json", two)])
    write_tar(tmp_path / "text.tar", [("0.txt", b"one\nsentence\n")])
    pq.write_table(pa.table({"image": [png()], "text": ["one\nsentence"]}), tmp_path / "x.parquet")
    (tmp_path / "a.png").write_bytes(png())
    (tmp_path / "list.csv").write_text('file,caption\na.png,"one\nsentence"\n')
    multicse.pack("images", tmp_path / "list.csv", tmp_path / "packed", captions=("caption",))

    def pair(sample: RawSample) -> list[str]:
        return decode.captions(sample.fields, sample.key)

    text = TextStream(shards="").sentences
    for name, act, texts in (
        ("lines.tar", pair, ["one dog", "two dogs"]),
        ("json.tar", pair, ["one dog", "two dogs"]),
        ("text.tar", text, ["one sentence"]),
        ("x.parquet", text, ["one sentence"]),
        ("x.parquet", pair, ["one sentence"]),
        ("packed", pair, ["one sentence"]),
    ):
        sample = ShardSet.open(f"{tmp_path}/{name}").sample(0)
        assert isinstance(sample, RawSample) and act(sample) == texts, name
