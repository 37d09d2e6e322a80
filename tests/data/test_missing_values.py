"""One rule for values that are missing or empty, and one decision per table about what a column is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import multicse
from multicse.data.errors import DataError, DecodeError
from multicse.data.shards import RawSample, ShardSet, read
from multicse.data.streams.image import ImageStream
from multicse.data.streams.inputs import ImageInput
from multicse.data.streams.pairs import AudioTextStream, ImageTextStream
from multicse.data.streams.text import TextStream
from multicse.evaluation.registry import make_tasks
from multicse.evaluation.task import EvaluationError
from tests.data.packing import png, samples
from tests.data.test_columns import FORMS
from tests.worlds import sound, write_tar

Row = dict[str, Any]


@pytest.mark.parametrize("form", ["x.parquet", "x.arrow", "x.tar"])
@pytest.mark.parametrize("gaps", [20, 300])
def test_a_missing_file_is_a_bad_sample_that_says_so(form: str, gaps: int, tmp_path: Path) -> None:
    """Also if the first rows have none: the type, or the first row with a value, shows what the column contains."""
    contents = {"image": png, "audio": lambda i: sound(np.full(900, i / 999, np.float32))}
    for kind, content in contents.items():
        rows: list[Row] = [
            {"caption": f"a {kind} {i}", "thing": None if i < gaps else {"bytes": content(i % 200), "path": f"{i}.x"}}
            for i in range(gaps + 3)
        ]
        if form == "x.tar":
            ending = "png" if kind == "image" else "wav"
            members = [
                (f"{i:04d}.{name}", value)
                for i, row in enumerate(rows)
                for name, value in ((ending, (row["thing"] or {"bytes": b""})["bytes"]), ("txt", row["caption"].encode()))
            ]
            write_tar(tmp_path / form, members)
        else:
            FORMS[form](tmp_path / form, rows)
        config: Any = ImageTextStream if kind == "image" else AudioTextStream
        stream = config(shards=str(tmp_path / form), batch_size=1)
        stream.check(shards := stream.open())
        for number, sample in enumerate(read(shards.shards[0], range(gaps + 3))):
            assert isinstance(sample, RawSample) and stream.sentences(sample) == [f"a {kind} {number}"]
            if number >= gaps:
                stream.row(sample, np.random.default_rng(0))
                continue
            with pytest.raises(DecodeError, match=rf"sample '0+{number or ''}': its {kind} is missing"):
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


@pytest.mark.parametrize("start", ["ID3 tags are", "OggS and others", "fLaC is lossless", "RIFFabcdWAVE", "RIFFabcdWEBP"])
@pytest.mark.parametrize("column", ["text", "body"])
def test_a_binary_text_is_no_file_however_it_begins(start: str, column: str, tmp_path: Path) -> None:
    texts = [f"{start} {i}" for i in range(3)]
    pq.write_table(pa.table({column: [text.encode() for text in texts]}), tmp_path / "x.parquet")
    shards = ShardSet.open(str(tmp_path / "x.parquet"))
    assert shards.fields == tuple(sorted({column, "txt"}))
    assert [sample.fields["txt"] for sample in samples(tmp_path / "x.parquet")] == texts


@pytest.mark.parametrize("content", [b"ID3\4\0\0 not UTF-8 \xff", b"\xff\xfe\0", b"\x89PNG"])
def test_a_column_named_text_is_never_a_file(content: bytes, tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": [content, b"plain"]}), tmp_path / "x.parquet")
    damaged, plain = read(ShardSet.open(str(tmp_path / "x.parquet")).shards[0], range(2))
    assert isinstance(plain, RawSample) and plain.fields["txt"] == "plain"
    assert isinstance(damaged, RawSample) and not {"jpg", "png", "mp3"} & set(damaged.fields)
    with pytest.raises(DecodeError, match="'text' is not UTF-8"):
        TextStream(shards="", columns=("text",)).row(damaged, np.random.default_rng(0))


# --------------------------------------------------------------------------------------------------- lines of a caption file


def test_lines_next_to_an_image_are_captions_as_in_json(tmp_path: Path) -> None:
    """As CLIP_benchmark writes and reads them. The text of a sample without a file, and of a table, is one text."""
    texts = [f"caption {i} of a dog" for i in range(5)]
    lines = "\r\n".join(["", *texts[:2], " ", *texts[2:]]) + "\n"
    forms = {"lines": ("txt", lines), "json": ("json", json.dumps({"captions": texts}))}
    for name, (field, content) in forms.items():
        write_tar(tmp_path / f"{name}.tar", [("0.png", png(0)), (f"0.{field}", content.encode())])
    stream = ImageTextStream(shards="", batch_size=1)
    drawn = {name: set[str]() for name in forms}
    for name in forms:
        sample = ShardSet.open(f"{tmp_path}/{name}.tar").sample(0)
        assert isinstance(sample, RawSample)
        for seed in range(60):
            drawn[name].add(str(stream.row(sample, np.random.default_rng(seed))["text"]))
    assert drawn["lines"] == drawn["json"] == set(texts)
    write_tar(tmp_path / "text.tar", [("0.txt", b"one\nsentence\n")])
    pq.write_table(pa.table({"image": [png(0)], "text": ["one\nsentence"]}), tmp_path / "table.parquet")
    for name in ("text.tar", "table.parquet"):
        sample = ShardSet.open(f"{tmp_path}/{name}").sample(0)
        assert isinstance(sample, RawSample) and TextStream(shards="").sentences(sample) == ["one sentence"]
    assert isinstance(sample, RawSample) and stream.sentences(sample) == ["one sentence"]


def test_packing_keeps_a_caption_with_a_line_end_one_caption(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(1))
    (tmp_path / "list.csv").write_text('file,caption\na.png,"one\ncaption"\n')
    multicse.pack("images", tmp_path / "list.csv", tmp_path / "out", captions=("caption",))
    sample = ShardSet.open(str(tmp_path / "out")).sample(0)
    assert isinstance(sample, RawSample) and ImageTextStream(shards="", batch_size=1).sentences(sample) == ["one caption"]
