"""Finding shards, reading any sample of them, and what happens when they are damaged."""

from __future__ import annotations

import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset

from multicse.data import limits
from multicse.data.errors import DataError, DecodeError
from multicse.data.remote import call_storage
from multicse.data.shard_urls import expand
from multicse.data.shards import BadSample, RawSample, Shard, ShardSet, read, scan
from multicse.data.streams.image import ImageStream
from tests.worlds import add


def write_tar(path: Path, members: list[tuple[str, bytes]], form: int = tarfile.USTAR_FORMAT) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=form) as tar:
        for name, data in members:
            add(tar, name, data)
    return str(path)


def numbered(count: int, size: int = 700) -> list[tuple[str, bytes]]:
    rng = np.random.default_rng(count)
    return [(f"{i:04d}.{end}", rng.bytes(size)) for i in range(count) for end in ("bin", "cls")]


def write_manifest(folder: Path, counts: dict[str, int], classes: list[str] | None = None, **more: object) -> None:
    """Write a list of shards with these numbers of samples, and what it says more of each."""
    shards = [{"url": name, "nsamples": count, **more} for name, count in counts.items()]
    (folder / "dataset.json").write_text(json.dumps({"wids_version": 1, "shardlist": shards, "classes": classes}))


# ------------------------------------------------------------------------------------------------------------ expand

SPARK = ["x-0.parquet/part-0.parquet", "x-0.parquet/part-1.parquet", "x-1.parquet"]
"""A folder that is called like a table, as Spark and Dask write one."""


@pytest.mark.parametrize(
    ("urls", "found"),
    [
        ("tars", ["tars/a-0.tar", "tars/a-1.tar", "tars/a-2.tar", "tars/b-0.tar"]),
        ("tars/a-{0..2}.tar", ["tars/a-0.tar", "tars/a-1.tar", "tars/a-2.tar"]),
        ("tars/{b,a}-0.tar", ["tars/b-0.tar", "tars/a-0.tar"]),
        ("tars/a-{0..1}.tar::tars/b-0.tar", ["tars/a-0.tar", "tars/a-1.tar", "tars/b-0.tar"]),
        (["tars/b-0.tar", "tars/a-0.tar"], ["tars/b-0.tar", "tars/a-0.tar"]),
        ("tars/a-*.tar", ["tars/a-0.tar", "tars/a-1.tar", "tars/a-2.tar"]),
        ("what?.csv", ["what?.csv"]),
        ("what[?]*.csv", ["what?.csv"]),
        ("wha??.csv", ["what1.csv", "what?.csv"]),
        ("zipped", ["zipped/x.csv", "zipped/y.csv.gz"]),
        *((f"spark/{name}", [f"spark/{file}" for file in SPARK]) for name in ("x-{0..1}.parquet", "x-*.parquet", "")),
    ],
)
def test_expand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, urls: str | list[str], found: list[str]) -> None:
    tars = [f"tars/{name}" for name in ("a-0.tar", "a-1.tar", "a-2.tar", "b-0.tar", "notes.txt", ".hidden.tar")]
    tables = ["what?.csv", "what1.csv", "zipped/x.csv", "zipped/x.csv.gz", "zipped/y.csv.gz", *(f"spark/{x}" for x in SPARK)]
    for name in (*tars, *tables):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    assert expand(urls)[0] == [f"{tmp_path}/{name}" for name in found]


# -------------------------------------------------------------------------------------------------------------- read


def test_reads_what_webdataset_reads(tmp_path: Path) -> None:
    long = "deep/" * 30 + "x"  # longer than the name in a tar header
    members = [
        ("./cat.1/0001.jpg", b"a"), ("./cat.1/0001.CLS", b"1"), ("0002.seg.PNG", b"b" * 1500), ("0002.txt", b""),
        (".DS_Store", b"junk"), ("README", b"junk"), ("ünï.txt", b"c"), (f"{long}.txt", b"d" * 513), ("0001.jpg", b"e"),
    ]  # fmt: skip
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        url = write_tar(tmp_path / f"{form}.tar", members, form)
        shard = ShardSet.open(url).shards[0]
        assert shard.samples == 5 and shard.fields == ("cls", "jpg", "seg.png", "txt")
        found = list(read(shard, range(5)))
        assert all(isinstance(sample, RawSample) and sample.shard == str(form) for sample in found)
        mine = [(sample.key, sample.fields) for sample in found if isinstance(sample, RawSample)]
        assert mine[0] == ("cat.1/0001", {"jpg": b"a", "cls": b"1"})
        theirs = webdataset.WebDataset(url, shardshuffle=False)
        assert mine == [
            (s["__key__"].removeprefix("./"), {k: v for k, v in s.items() if not k.startswith("__")}) for s in theirs
        ]


def test_a_changed_file_is_indexed_again(tmp_path: Path) -> None:
    url = write_tar(tmp_path / "x.tar", [("a.txt", b"one")])
    assert next(read(scan(url), [0])) == RawSample("a", "x", {"txt": b"one"})
    write_tar(tmp_path / "x.tar", [("b.txt", b"second"), ("c.txt", b"third")])
    os.utime(url, ns=(1, 1))
    assert [sample.key for sample in read(scan(url), [0, 1])] == ["b", "c"]


# ------------------------------------------------------------------------------------------------------------ damage


@pytest.mark.parametrize("with_manifest", [True, False])
@pytest.mark.parametrize("at", [0, 512, 1500, 5 * 2 * 1536, 5 * 2 * 1536 + 100, 9 * 2 * 1536 + 2900])
def test_a_truncated_tar(tmp_path: Path, at: int, with_manifest: bool) -> None:
    """Ten samples of two members of 512 + 1024 bytes: samples before the cut are read, the others are bad."""
    members = numbered(10)
    path = tmp_path / "x.tar"
    data = Path(write_tar(path, members)).read_bytes()
    path.write_bytes(data[:at])
    if with_manifest:
        write_manifest(tmp_path, {"x.tar": 10})
    complete = sum(at >= i * 3072 + 2048 + 700 for i in range(10))  # the cut may take the padding
    shard = ShardSet.open(str(path)).shards[0]
    found = list(read(shard, range(shard.samples)))
    assert all(isinstance(sample, RawSample) for sample in found[:complete])
    reasons = [sample.reason for sample in found[complete:] if isinstance(sample, BadSample)]
    assert all("truncated" in reason or "empty" in reason for reason in reasons)
    assert len(found) - complete == len(reasons) == (10 - complete if with_manifest else 1)  # noticed in either case


def header(name: bytes, size: bytes, kind: bytes) -> bytes:
    """A tar header with a right sum, written byte by byte."""
    block = bytearray(512)
    block[: len(name)], block[124 : 124 + len(size)], block[156:157] = name, size, kind
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    "lie",
    [
        header(b"x.txt", b"\xff" * 12, b"0"),  # -1 byte
        header(b"x.txt", b"\xff" * 10 + b"\xfc\x00", b"0"),  # back to the same member, in an endless loop
        header(b"x.txt", b"\x80" + b"\x7f" * 11, b"0"),  # 10^26 bytes
        header(b"x", b"%011o\0" % 2**20, b"x") + b"1" * 2**20,  # digits on which a regular expression takes hours
        header(b"x", b"%011o\0" % 512, b"x") + b"11 size=-5\n".ljust(512, b"\0") + header(b"x.txt", b"0\0", b"0"),
        (header(b"x", b"%011o\0" % 512, b"g") + b"11 path=ab\n".ljust(512, b"\0")) * 3000,  # deeper than Python's stack
        header(b"x", b"%011o\0" % 512, b"x") + b"0 path=a\n".ljust(512, b"\0"),  # a name of zeros
        bytes(512),  # a header that was zeroed
        b"x.txt" + b"\xff" * 507,  # with a wrong checksum
    ],
    ids=["negative", "backwards", "absurd", "digits", "negative-pax", "chain", "name", "zeroed", "sum"],
)
def test_a_header_that_lies(tmp_path: Path, lie: bytes) -> None:
    """Samples before it are read; about the number of samples after it are bad, and name the byte."""
    path = tmp_path / "x.tar"
    data = Path(write_tar(path, numbered(10))).read_bytes()
    path.write_bytes(data[: 5 * 3072] + lie + data[5 * 3072 :])
    shard = ShardSet.open(str(path)).shards[0]
    found = list(read(shard, range(shard.samples)))
    assert [sample.key for sample in found[:5]] == [f"{i:04d}" for i in range(5)]
    bad = [sample for sample in found if isinstance(sample, BadSample)]
    assert len(bad) >= 4 and any("byte" in sample.reason for sample in bad)


def test_a_file_of_another_size_than_packed_has_no_sample(tmp_path: Path) -> None:
    """`describe --verify` finds a changed byte, see tests/pipelines/test_describe.py."""
    path = tmp_path / "x.tar"
    data = Path(write_tar(path, numbered(3))).read_bytes()
    write_manifest(tmp_path, {"x.tar": 3}, filesize=len(data))
    for content, kind, named in ((data, RawSample, ""), (data + data[:512], BadSample, "bytes")):
        path.write_bytes(content)
        found = list(read(ShardSet.open(str(path)).shards[0], range(3)))
        assert [type(sample) for sample in found] == [kind] * 3
        assert named in getattr(found[0], "reason", "")


LINK = "the field 'txt' is a link to 'a.txt'"
SORT = "pack them in the order of their names (tar --sort=name)"
TARS: dict[str, tuple[list[tuple[str, Any]], list[tuple[str, Any]]]] = {
    "a field twice": (
        [("a.txt", b"1"), ("b.txt", b"1"), ("b.txt", b"2"), ("c.txt", b"3")],
        [("a", {"txt": b"1"}), ("b", "the field 'txt' occurs twice in one sample"), ("c", {"txt": b"3"})],
    ),
    "Latin-1": ([("caf\udce9.txt", b""), ("d.txt", b"")], [("caf\\udce9", "its name is not UTF-8"), ("d", {"txt": b""})]),
    "links": (
        [("a.txt", b"1"), ("b.txt", (tarfile.LNKTYPE, "a.txt")), ("c.txt", (tarfile.SYMTYPE, "a.txt"))],
        [("a", {"txt": b"1"}), ("b", LINK), ("c", LINK)],
    ),
    "scattered": (
        [("a.jpg", b"1"), ("b.jpg", b"2"), ("b.txt", b"3"), ("a.txt", b"4"), ("b.jpg", b"5"), ("b.txt", b"6")],
        [("a", SORT), ("b", {"jpg": b"2", "txt": b"3"}), ("a", SORT), ("b", {"jpg": b"5", "txt": b"6"})],  # b: two samples
    ),
    "many": ([(f"many.{i}", b"") for i in range(6)], [("many", "MULTICSE_MAX_FIELDS")]),
    "large": ([("a.txt", b"x" * 800), ("z.txt", b"x" * 801)], [("a", {"txt": b"x" * 800}), ("z", "MULTICSE_MAX_MEMBER")]),
}


@pytest.mark.parametrize(("members", "expected"), TARS.values(), ids=TARS)
def test_bad_members_are_bad_samples(members: Any, expected: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FIELDS", 4)
    monkeypatch.setattr(limits, "MEMBER", 800)
    with tarfile.open(tmp_path / "x.tar", "w", format=tarfile.GNU_FORMAT) as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if isinstance(content, tuple):
                info.type, info.linkname = content
            info.size = len(content) if isinstance(content, bytes) else 0
            tar.addfile(info, io.BytesIO(content) if isinstance(content, bytes) else None)
    found = list(read(scan(str(tmp_path / "x.tar")), range(len(expected))))
    for sample, (key, wanted) in zip(found, expected, strict=True):
        got = sample.fields if isinstance(sample, RawSample) else sample.reason
        assert sample.key == key and (got == wanted or (isinstance(got, str) and wanted in got)), got


def test_files_of_no_sample_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    scan(write_tar(tmp_path / "x.tar", [("._a.txt", b""), ("a.txt", b"1"), ("README", b"")]))
    assert "2 files belong to no sample, being hidden or without extension; the first: ._a.txt" in caplog.text


def test_names_with_several_dots(tmp_path: Path) -> None:
    """The name of a sample ends at the first dot, as in WebDataset; the message explains it."""
    url = write_tar(tmp_path / "x.tar", [("IMG.001.jpg", b"1"), ("IMG.001.cls", b"1"), ("IMG.002.jpg", b"2")])
    sample = ShardSet.open(url).sample(0)
    assert isinstance(sample, RawSample) and set(sample.fields) == {"001.jpg", "001.cls", "002.jpg"}
    stream = ImageStream(shards=url)
    with pytest.raises(DecodeError, match=r"first dot.* rename files like NAME\.001\.jpg to NAME-001\.jpg"):
        stream.row(sample, np.random.default_rng(0))
    with pytest.raises(DataError, match=r"first dot.*NAME\.001\.jpg"):
        stream.check(stream.open())


SPARSE = header(b"0003.bin".ljust(482, b"\0") + b"\1" + b"%011o\0" % 600, b"%011o\0" % 5, b"S")
SPARSE += (b"x" * 504 + b"\1").ljust(512, b"\0") + bytes(512) + b"hello".ljust(512, b"\0")


@pytest.mark.parametrize(
    "form",
    [
        None,
        {"GNU.sparse.size": "9000000", "GNU.sparse.numblocks": "1", "GNU.sparse.offset": "0", "GNU.sparse.numbytes": "5"},
        {"GNU.sparse.size": "600", "GNU.sparse.map": "0,x"},
        {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "600"},
    ],
    ids=["old", "0.0", "0.1", "1.0"],
)
def test_a_sparse_file_is_a_bad_sample_and_its_map_is_not_read(tmp_path: Path, form: dict[str, str] | None) -> None:
    """All other samples are read. The maps contain no numbers, at which tarfile stops."""
    sparse, content = SPARSE, b"8000000\nx\n".ljust(512)
    if form:
        info = tarfile.TarInfo("0003.bin")
        info.size, info.pax_headers = len(content), form
        sparse = info.tobuf(tarfile.PAX_FORMAT) + content
    whole = Path(write_tar(tmp_path / "x.tar", [(f"{i:04d}.bin", b"") for i in range(10)])).read_bytes()
    (tmp_path / "x.tar").write_bytes(whole[: 3 * 512] + sparse + whole[4 * 512 :])
    found = list(read(scan(str(tmp_path / "x.tar")), range(10)))
    assert found.pop(3) == BadSample("0003", "x", "the field 'bin' is stored as a sparse file")
    assert len(found) == 9 and all(isinstance(sample, RawSample) for sample in found)


def test_secrets_of_urls_are_in_no_message() -> None:
    for url in (
        "https://me:hidden@host/x-{0..1}.tar",
        "https://hidden@host/x.tar",
        "s3://me:hidden@bucket/x.tar?endpoint_override=here",
        "https://host/x.tar?X-Amz-Signature=hidden&X-Amz-Credential=hidden&part=1",
        "https://host/x.tar?sv=2024&sig=hid%2Fden&sp=r::https://me:hidden@host/y.tar",
    ):
        text = str(DataError(f"shard {url} cannot be read"))
        assert "hid" not in text and "***" in text and ("host" in text or "bucket" in text)

    def refuse() -> None:
        raise ValueError('Invalid bucket name "me:hidden@bucket"')  # like botocore

    with pytest.raises(DataError, match="bucket") as refused:
        call_storage("s3://me:hidden@bucket/x.tar", refuse)
    assert "hidden" not in str(refused.value)
    for plain in ("s3://bucket/x.tar?endpoint_override=http%3A%2F%2Fa", "abfs://box@account/x.tar", "hdfs://host:9/x@y.tar"):
        assert str(DataError(plain)) == plain


# ---------------------------------------------------------------------------------------------------------- manifest


def test_a_digest_tells_data_apart_and_not_places(tmp_path: Path) -> None:
    for folder, count in (("one", 3), ("other", 3), ("more", 4)):
        write_tar(tmp_path / folder / "a.tar", numbered(count))
    plain, moved, more = (ShardSet.open(str(tmp_path / folder)).digest for folder in ("one", "other", "more"))
    assert plain == moved != more and len(plain) == 16
    urls = [
        "x-1.tar",
        "/a?b/x-1.tar",
        "http://h/x-1.tar?sig=1",
        "s3://b/x-1.parquet?X-Amz-Signature=abc",
        "x-1.parquet#txt=a",
    ]
    assert {Shard(url, 3, 1).name for url in urls} == {"x-1"}
    assert Shard("set.tar-1.tar", 3, 1).name != Shard("set.tar-2.tar", 3, 1).name
    digests = set()
    for digit in "01":
        write_manifest(tmp_path / "one", {"a.tar": 3}, filesize=1, sha256=digit * 64)
        digests.add(ShardSet.open(str(tmp_path / "one")).digest)
    assert len(digests) == 2


def test_a_manifest_with_another_number_of_samples_is_told(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", numbered(3))
    write_manifest(tmp_path, {"a.tar": 2})
    with pytest.raises(DataError, match=r"dataset\.json"):
        list(read(ShardSet.open(str(tmp_path)).shards[0], [0]))
    write_manifest(tmp_path, {"a.tar": 3, "b.tar": 3})
    assert ShardSet.open(str(tmp_path / "a.tar")).samples == 3, "without the rest of its folder"


def test_sets_with_equal_classes_have_them(tmp_path: Path) -> None:
    for name in ("one", "three"):
        write_tar(tmp_path / name / f"{name}.tar", numbered(2))
        write_manifest(tmp_path / name, {f"{name}.tar": 2}, classes=["a", "b"])
    assert ShardSet.open(f"{tmp_path}/one::{tmp_path}/three").classes == ("a", "b")
