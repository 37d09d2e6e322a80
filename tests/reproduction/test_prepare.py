"""Conversion of miniatures of every download in its original layout, and reports of missing files."""

from __future__ import annotations

import hashlib
import io
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from multicse.commands.registry import NAMES, load
from multicse.data.shards import RawSample, ShardSet
from multicse.reproduction import prepare
from multicse.reproduction.downloads import SOURCES, Source, maker
from multicse.reproduction.reproduce import PAPERS, tables_of
from tests.conftest import ROOT
from tests.data.packing import samples
from tests.reproduction.miniatures import DOWNLOADS, Seen, put


def run(*words: object) -> int:
    return prepare.main([str(word) for word in words])


def seen(sample: RawSample, classes: tuple[str, ...]) -> Seen:
    fields = dict(sample.fields)
    label = classes[int(fields.pop("cls"))] if "cls" in fields else None
    if "json" in fields:
        record = json.loads(fields.pop("json"))
        return record.get("captions", record), label, next(iter(fields.values()), None)
    text = fields.pop("txt", None)  # bytes in a tar, a text in Parquet
    text = text.decode() if isinstance(text, bytes) else text
    return text, label, next(iter(fields.values()), None)


def pixels(data: bytes | None) -> bytes | None:
    """Return a 32 x 32 image channel by channel, as in CIFAR's binary files."""
    assert data is not None
    return np.asarray(Image.open(io.BytesIO(data))).transpose(2, 0, 1).tobytes()


@pytest.mark.parametrize("name", DOWNLOADS)
def test_a_download_in_its_layout(name: str, tmp_path: Path) -> None:
    expected = DOWNLOADS[name](tmp_path / "download")
    assert run(name, "--source", tmp_path / "download", "--out", tmp_path) == 0
    source = SOURCES[name]
    assert expected.keys() == {result.path for result in source.results} - {"shards/wiki10k"}
    for result in source.results:
        place = tmp_path / result.path
        if result.path not in expected:
            continue
        if isinstance(text := expected[result.path], str):
            assert place.read_text() == text
            continue
        shards = ShardSet.open(str(place))
        assert (shards.licence, shards.source) == (source.licence, source.home)
        assert json.loads((place / "dataset.json").read_text())["split"] == result.split
        found = [seen(sample, shards.classes) for sample in sorted(samples(place), key=lambda sample: sample.key)]
        if name.startswith("cifar"):
            found = [(text, label, pixels(image)) for text, label, image in found]
        assert found == expected[result.path]


def test_every_reader_has_a_miniature() -> None:
    read = {name for name, source in SOURCES.items() if any(result.read for result in source.results)}
    assert read - DOWNLOADS.keys() == {"wiki1m-zh", "wiki1m-fr", "wiki1m-ru", "htsat", "wordnet"}


def test_ten_thousand_sentences_are_drawn_the_same_every_time(tmp_path: Path) -> None:
    DOWNLOADS["wiki1m"](tmp_path)
    assert run("wiki1m", "--source", tmp_path, "--out", tmp_path) == 0
    drawn = [sample.fields["txt"] for sample in samples(tmp_path / "shards" / "wiki10k")]
    assert len(set(drawn)) == 10_000
    assert (
        hashlib.sha256("".join(drawn).encode()).hexdigest()
        == "3fd68e4a38464420c44a98ec7d4eeb5e35441dd5b9039353fbb7c4a601fc0c5a"
    )
    put(tmp_path / "few", {"wiki1m_for_simcse.txt": "one\n"})
    assert run("wiki1m", "--source", tmp_path / "few", "--out", tmp_path / "c") == 2


def test_missing_files_are_reported_and_the_rest_is_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    DOWNLOADS["clotho"](Path("downloads/clotho"))
    Path("downloads/clotho/clotho_captions_validation.csv").unlink()
    assert run("clotho") == 2
    printed = capsys.readouterr()
    assert "shards/clotho-train: 1 samples" in printed.out and Path("shards/clotho-test/dataset.json").exists()
    source = SOURCES["clotho"]
    assert "downloads/clotho/clotho_captions_validation.csv not found" in printed.err
    assert source.home in printed.err and source.licence in printed.err and "downloads/clotho/validation" not in printed.err
    DOWNLOADS["clotho"](Path("downloads/clotho"))
    before = Path("shards/clotho-train/dataset.json").stat().st_mtime_ns
    assert run("clotho") == 0 and "shards/clotho-train exists" in capsys.readouterr().out
    assert Path("shards/clotho-train/dataset.json").stat().st_mtime_ns == before
    assert run("clotho", "--overwrite") == 0
    assert Path("shards/clotho-train/dataset.json").stat().st_mtime_ns > before


def test_files_that_are_used_unchanged_have_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("vectors") == 2 and "vectors/GoogleNews-vectors-negative300.bin.gz not found" in capsys.readouterr().err
    put(Path("vectors"), {"GoogleNews-vectors-negative300.bin.gz": b""})
    assert run("vectors") == 0 and "used unchanged" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "files", "named"),
    [
        ("wos", {"Meta-data/Data.xlsx": b"no zip"}, "Data.xlsx is not an .xlsx file"),
        ("prompts", {"notebooks/Prompt_Engineering_for_ImageNet.ipynb": '{"cells": []}'}, "Prompt_Engineering_for_ImageNet"),
        ("coco", {"dataset_coco.json": "[]", "val2014/x": b""}, "dataset_coco.json"),
        ("cifar100", {"fine_label_names.txt": "a\n", "test.bin": b"ab"}, "test.bin is not CIFAR's binary version: 2 bytes"),
        ("imagenet-a", {"imagenet-a/README.txt": "none", "imagenet-a/n01498041/a.jpg": b""}, "n01498041 NAME"),
        ("librispeech", {"train-clean-100/1/2/1-2-3.flac": b""}, "1 speakers, but 50"),
    ],
)
def test_an_unexpected_format_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, files: dict[str, str | bytes], named: str
) -> None:
    put(tmp_path / "download", files)
    assert run(name, "--source", tmp_path / "download", "--out", tmp_path) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("error: ") and named in printed, printed


def test_an_interrupted_model_does_not_exist(tmp_path: Path) -> None:
    """transformers writes config.json before the weights."""

    class Model:
        whole = False

        def save_pretrained(self, folder: Path) -> None:
            folder.mkdir()
            (folder / "config.json").touch()
            if not self.whole:
                raise KeyboardInterrupt
            (folder / "model.safetensors").touch()

    made, source = Model(), Source("", "", "", ())
    result: Any = SimpleNamespace(path="models/one", split="train", content=lambda _: made)
    with pytest.raises(KeyboardInterrupt):
        prepare._make(result, source, tmp_path, tmp_path, overwrite=False)
    assert not (tmp_path / "models" / "one").exists()
    made.whole = True
    assert prepare._make(result, source, tmp_path, tmp_path, overwrite=False).endswith("a model")
    assert sorted(file.name for file in (tmp_path / "models" / "one").iterdir()) == ["config.json", "model.safetensors"]


def test_all_data_of_recipes_and_tables_has_a_source() -> None:
    """Except for the user's data, and for the texts of two tables that exist at the small scale only."""
    texts = [make().to_json() for module in map(load, NAMES) for make in module.RECIPES.values()]
    texts += [str((table.columns, table.rows)) for paper in PAPERS for table in tables_of(paper).values()]
    places = {
        place
        for text in texts
        for place in re.findall(r"(?:shards|wos|glue|semeval|prompts|vectors|SentEval)/[\w./-]+", text)
    }
    assert len(places) > 30
    kinds = ("", "-dev.tsv", "-test.tsv", "-pairs")
    domains = {f"shards/{name}{kind}" for name in ("audio-captions", "documentation") for kind in kinds}
    assert {place for place in places if maker(place) is None} == {"shards/my-pairs", "shards/my-pairs-val"} | domains
    assert maker("shards/clotho-val") == "clotho" and maker("SentEval/data/downstream/STS") == "senteval"


def test_without_a_name_all_are_listed_and_the_page_has_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [*SOURCES, "small"]
    page = (ROOT / "docs/papers/data-sets.md").read_text()
    rows = [
        (name, source.title, source.home, source.licence, " ".join(f"`{result.path}`" for result in source.results))
        for name, source in SOURCES.items()
    ]
    assert "\n".join("| " + " | ".join(row) + " |" for row in rows) in page
