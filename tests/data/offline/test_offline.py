"""Offline input: its samples, and splits without overlap."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from multicse.commands import describe
from multicse.data.errors import DataError
from multicse.data.offline import demo, sentences
from multicse.data.offline.audio import COUNTS, KINDS, LENGTHS, LOUDNESSES, PITCHES, STARTS
from multicse.data.shards import RawSample, ShardSet, read_manifest
from multicse.data.streams import decode
from tests.data.packing import samples

EMOJI = ("emoji-train", "emoji-val", "emoji-test")
AUDIO = ("sounds-train", "sounds-val", "sounds-test")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return demo.write_demo_shards(tmp_path_factory.mktemp("offline"), [*EMOJI, *AUDIO])


@pytest.fixture(scope="module")
def offline(folders: dict[str, Path]) -> dict[str, list[RawSample]]:
    return {kind: samples(path) for kind, path in folders.items()}


def captions(sample: RawSample) -> list[str]:
    return decode.captions(sample.fields, sample.key)


def test_wiki_sentences() -> None:
    from gensim.test.utils import datapath

    found = sentences.wiki_sentences()
    assert 18_000 < len(found) < 22_000 and len(set(found)) == len(found)
    assert all(5 <= len(sentence.split()) <= 60 for sentence in found)
    marks = ("[[", "{{", "''", "==", "|", "\n", "<")
    assert not [sentence for sentence in found if any(mark in sentence for mark in marks)]
    assert "The capital and largest city of Angola is Luanda." in found
    rated = Path(datapath("lee.cor")).read_text(encoding="latin-1")  # documents for the evaluation of the demo
    assert len(rated.splitlines()) == 50 and not [sentence for sentence in found if sentence in rated]


def test_demo_shards_are_written_once(tmp_path: Path) -> None:
    made = demo.write_demo_shards(tmp_path, ["image", "audio"])
    counts = {kind: ShardSet.open(str(folder)).samples for kind, folder in made.items()}
    assert counts == {"image": 1797, "audio": 800}
    assert all(not describe.verify_shards(str(folder)) for folder in made.values())
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.*")}
    demo.write_demo_shards(tmp_path, ["image", "audio"])
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.*")} == before
    next((tmp_path / "audio").glob("*.tar")).unlink()
    demo.write_demo_shards(tmp_path, ["audio"])
    assert not describe.verify_shards(str(made["audio"]))
    with pytest.raises(DataError, match="'video'"):
        demo.write_demo_shards(tmp_path, ["video"])


def test_emoji_splits(offline: dict[str, list[RawSample]], folders: dict[str, Path]) -> None:
    counts = [len(offline[kind]) for kind in EMOJI]
    assert 950 < counts[0] < 1250 and 75 < counts[1] < 125 and 170 < counts[2] < 230
    names = [captions(s)[0] for kind in EMOJI for s in offline[kind]]
    images = [s.fields["png"] for kind in EMOJI for s in offline[kind]]
    assert len(set(names)) == len(names) == len(set(images)) == sum(counts)
    texts = Counter(text for kind in EMOJI for s in offline[kind] for text in set(captions(s)))
    assert max(texts.values()) == 1  # every caption belongs to one image
    manifest = read_manifest(str(folders["emoji-val"]))
    assert manifest is not None and "CC-BY-SA-4.0 (OpenMoji" in manifest.licence


def test_audio_splits_share_no_combination(offline: dict[str, list[RawSample]]) -> None:
    assert [len(offline[kind]) for kind in AUDIO] == [1248, 48, 128]
    found = [
        {tuple(v for k, v in json.loads(s.fields["json"]).items() if k != "captions") for s in offline[k]} for k in AUDIO
    ]
    assert [len(kind) for kind in found] == [208, 48, 128]
    assert len(set().union(*found)) == 384 == 8 * 3 * 2 * 2 * 2 * 2
    known = [set(KINDS), set(PITCHES), set(LOUDNESSES), set(STARTS), set(LENGTHS), set(COUNTS)]
    assert [set(column) for column in zip(*found[0], strict=True)] == known
    for kind in AUDIO[1:]:
        texts = Counter(text for s in offline[kind] for text in captions(s))
        assert max(texts.values()) == 1  # every held-out caption has one right answer
