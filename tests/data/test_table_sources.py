"""Tables instead of shards: every row is a sample, in every format and store, and packs into a smaller file."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import datasets
import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from multicse.data import remote, tables
from multicse.data.errors import DataError, DecodeError
from multicse.data.shards import BadSample, RawSample, ShardSet, read
from multicse.data.streams.text import TextStream
from multicse.evaluation.tasks.paired_items import Samples
from tests.data.packing import png, run, samples

ROWS: list[dict[str, Any]] = [
    {"sentence": f'Sentence number {i}; it is\nabout "things".', "about": {"n": i % 3}} for i in range(50)
]


def test_a_text_table_is_packed_into_the_cache_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed again if the file has changed, or the packed one is cut. A line that is not a row is an error."""
    monkeypatch.setenv("MULTICSE_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "x.csv"
    for content, places in (("a,b\n1,2\n", 1), ("a,b\n1,2\n", 1), ("a,b\n3,4\n5,6\n", 2)):
        if not path.exists() or path.read_text() != content:
            path.write_text(content)
        found = [sample.fields for sample in samples(path)]
        assert found == [dict(zip("ab", line.split(","), strict=True)) for line in content.split("\n")[1:-1]]
        packed = {place: place.read_bytes() for place in (tmp_path / "cache").glob("tables/*.parquet")}
        assert len(packed) == places
    for place, whole in packed.items():  # cut by a full disk
        place.write_bytes(whole[:-20])
    tables.opened.cache_clear()
    assert ShardSet.open(str(path)).samples == 2 and sum(place.read_bytes() == packed[place] for place in packed) == 1
    path.write_text("a,b\n1,2\n1,2,3\n")
    with pytest.raises(DataError, match=r"x\.csv, line 3: 3 cells under 2 columns"):
        ShardSet.open(str(path))
    monkeypatch.setenv("MULTICSE_CACHE", str(path))
    path.write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match=r"cannot be written .*MULTICSE_CACHE"):
        ShardSet.open(str(path))


def test_a_failing_store_and_a_full_disk_while_a_table_is_packed(
    memory: fsspec.AbstractFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is tried again and its errors name the table; the disk is not, and its error names the cache."""
    monkeypatch.setenv("MULTICSE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(remote, "PAUSE", 0)
    memory.pipe("/set/x.csv.gz", gzip.compress(b"a;b,c\n1;2\n"))
    url, opens, opened = "memory://set/x.csv.gz#separator=;", [], memory.open
    errors: list[OSError] = [FileNotFoundError(2, "gone")]

    def erring(path: str, *given: Any, **options: Any) -> Any:
        opens.append(path)
        if errors:
            raise errors.pop()
        return opened(path, *given, **options)

    monkeypatch.setattr(memory, "open", erring)
    with pytest.raises(DataError, match=r"x\.csv\.gz.* cannot be read: .*gone"):
        tables.table(url)
    with monkeypatch.context() as full:
        full.setattr(pq.ParquetWriter, "write_table", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
        opens.clear()
        with pytest.raises(DataError, match=r"cache.* cannot be written .*No space left.*MULTICSE_CACHE"):
            tables.table(url)
    assert len(opens) == 1
    errors.append(OSError(5, "Input/output error"))
    assert list(tables.rows(url)) == [(0, {"a": "1", "b,c": "2"})]


def test_rows_without_a_key_and_texts_with_a_zero_byte_are_bad(tmp_path: Path) -> None:
    rows = [{"__key__": "a", "txt": "one"}, {"__key__": None, "txt": "two"}, {"__key__": "c", "txt": "th\0ree"}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet")
    _, nameless, damaged = read(ShardSet.open(str(tmp_path / "x.parquet")).shards[0], [0, 1, 2])
    assert isinstance(nameless, BadSample) and "__key__ is empty" in nameless.reason and isinstance(damaged, RawSample)
    with pytest.raises(DecodeError, match=r"'c': 'txt' contains .* zero byte"):
        TextStream(shards="").row(damaged, np.random.default_rng(0))
    numbered = [{"__key__": 1, "txt": "one"}, {"__key__": None, "txt": "two"}]
    pq.write_table(pa.Table.from_pylist(numbered), tmp_path / "y.parquet")
    found = read(ShardSet.open(str(tmp_path / "y.parquet")).shards[0], [0, 1])
    assert [isinstance(sample, BadSample) for sample in found] == [False, True]


def test_damage_inside_a_table_is_told(tmp_path: Path) -> None:
    """pyarrow does not check offsets and UTF-8: it would read other memory, or raise an unexpected error."""
    texts = pa.array([f"sentence {i}" for i in range(300)])
    offsets = np.frombuffer(texts.buffers()[1], np.int32).copy()
    offsets[150] = 2**30
    damaged = pa.StringArray.from_buffers(300, pa.py_buffer(offsets), texts.buffers()[2])
    with pa.ipc.new_file(str(tmp_path / "x.arrow"), pa.schema({"txt": pa.string()})) as out:
        out.write_batch(pa.record_batch({"txt": damaged}))
    letters = texts.buffers()[2].to_pybytes().replace(b"sentence 200", b"\xff" * 12)
    damaged = pa.StringArray.from_buffers(300, texts.buffers()[1], pa.py_buffer(letters))
    pq.write_table(pa.table({"txt": damaged}), tmp_path / "x.parquet")
    with pa.ipc.new_stream(str(tmp_path / "y.arrow"), pa.schema({"txt": pa.string()})) as out:
        out.write_batch(pa.record_batch({"txt": texts}))
    with (tmp_path / "y.arrow").open("ab") as file:
        file.write(b"more")
    for name in ("x.arrow", "x.parquet", "y.arrow"):
        with pytest.raises(DataError, match=name):
            list(read(ShardSet.open(str(tmp_path / name)).shards[0], range(300)))


def test_a_saved_folder_is_what_its_files_list(tmp_path: Path) -> None:
    """In the order of `state.json`, without cached files of the library; one split of several is chosen."""
    rows, saved = datasets.Dataset.from_list(ROWS), tmp_path / "saved"
    splits = datasets.DatasetDict({"train": rows, "test": rows.select([3])})
    splits.save_to_disk(str(saved), num_shards={"train": 2, "test": 1})
    files = sorted((saved / "train").glob("*.arrow"))
    (saved / "train" / "cache-1.arrow").write_bytes(files[0].read_bytes())
    listed = {"_data_files": [{"filename": file.name} for file in reversed(files)]}
    (saved / "train" / "state.json").write_text(json.dumps(listed))
    for name in (f"{saved}#split=train,txt=sentence", f"{saved}/train#txt=sentence"):
        shards = ShardSet.open(name)
        found = [shards.sample(number).fields["txt"] for number in range(shards.samples)]  # type: ignore[union-attr]
        assert found == [row["sentence"] for row in ROWS[25:] + ROWS[:25]]
    for split in ("", "#split=dev"):
        with pytest.raises(DataError, match=r"the splits there are train, test; name one: .*saved#split=train"):
            ShardSet.open(f"{saved}{split}")
    with_indices = json.dumps({**listed, "_indices_data_files": [{"filename": "indices.arrow"}]})
    (saved / "train" / "state.json").write_text(with_indices)
    with pytest.raises(DataError, match="indices"):
        ShardSet.open(f"{saved}/train")
    (saved / "train" / "state.json").write_text(json.dumps(listed))
    files[0].unlink()
    with pytest.raises(DataError, match=rf"state\.json lists 2 files, but {files[0].name} does not exist"):
        ShardSet.open(f"{saved}/train")
    (saved / "train" / "state.json").write_text('{"_data_files": 3}')
    with pytest.raises(DataError, match=r"state\.json cannot be read"):
        ShardSet.open(f"{saved}/train")


def test_a_name_of_hugging_face(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own library finds it, here a folder of JSON lines, and keeps it as Arrow."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "test.jsonl").write_text("\n\n".join(json.dumps(row) for row in ROWS))
    name = f"hf://{tmp_path}/set#split=test,txt=sentence"
    assert ShardSet.open(name).samples == 50
    assert ShardSet.open(name).sample(7).fields["txt"] == ROWS[7]["sentence"]  # type: ignore[union-attr]
    assert run("table", name, "--columns", "txt", "--out", tmp_path / "out") == 0 and len(samples(tmp_path / "out")) == 50
    with pytest.raises(DataError, match="split=train"):
        ShardSet.open(f"hf://{tmp_path}/set")


def test_a_picture_that_is_only_named_keeps_its_name(tmp_path: Path) -> None:
    """In Hugging Face's form: it is packed by its name."""
    (tmp_path / "p.png").write_bytes(png(3))
    (tmp_path / "x.jsonl").write_text('{"photo": {"bytes": null, "path": "p.png"}}')
    assert run("images", tmp_path / "x.jsonl", "--file-column", "photo", "--out", tmp_path / "out") == 0
    assert samples(tmp_path / "out")[0].fields["png"] == png(3)


def test_options_are_no_part_of_a_files_name(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("title\nOne\n")
    whole = hashlib.sha256((tmp_path / "x.csv").read_bytes()).hexdigest()
    assert Samples("x", f"{tmp_path}/x.csv#txt=title").hash == hashlib.sha256(f"x.csv\0{whole}\0".encode()).hexdigest()
    assert ShardSet.open(f"{tmp_path}/x.csv#txt=title").sample(0).fields["txt"] == "One"  # type: ignore[union-attr]


def test_several_processes_pack_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multicse.data.pack.PART", 11)
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "x.parquet", row_group_size=9)
    common = ["table", tmp_path / "x.parquet", "--columns", "sentence", "--name", "x", "--shard-size", 20, "--out"]
    for workers in (1, 2):
        assert run(*common, tmp_path / str(workers), "--workers", workers) == 0
    one, two = ({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in "12")
    assert one == two and len(one) == 4
