"""Offline input: what is made, and that splits share nothing."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from multicse.data.errors import DataError
from multicse.data.offline import demo, sentences
from multicse.data.offline.audio import COUNTS, KINDS, LENGTHS, LOUDNESSES, PITCHES, STARTS
from multicse.data.shards import RawSample, ShardSet, read_manifest
from multicse.data.streams import decode
from multicse.pipelines import describe
from tests.data.packing import samples

EMOJI = ("emoji-train", "emoji-val", "emoji-test")
SOUNDS = ("sounds-train", "sounds-val", "sounds-test")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return demo.write_demo_shards(tmp_path_factory.mktemp("offline"), [*EMOJI, *SOUNDS])


@pytest.fixture(scope="module")
def offline(folders: dict[str, Path]) -> dict[str, list[RawSample]]:
    return {kind: samples(path) for kind, path in folders.items()}


def spoken(sample: RawSample) -> list[str]:
    return decode.captions(sample.fields, sample.key)


def test_wiki_sentences() -> None:
    from gensim.test.utils import datapath

    found = sentences.wiki_sentences()
    assert 18_000 < len(found) < 22_000 and len(set(found)) == len(found)
    assert all(5 <= len(sentence.split()) <= 60 for sentence in found)
    marks = ("[[", "{{", "''", "==", "|", "\n", "<")
    assert not [sentence for sentence in found if any(mark in sentence for mark in marks)]
    assert "The capital and largest city of Angola is Luanda." in found
    rated = Path(datapath("lee.cor")).read_text(encoding="latin-1")  # what the demo is evaluated on
    assert len(rated.splitlines()) == 50 and not [sentence for sentence in found if sentence in rated]


def test_demo_shards_are_made_once(tmp_path: Path) -> None:
    made = demo.write_demo_shards(tmp_path, ["image", "audio"])
    counts = {kind: ShardSet.open(str(folder)).samples for kind, folder in made.items()}
    assert counts == {"image": 1797, "audio": 800}
    assert all(not describe.verify(str(folder)) for folder in made.values())
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.*")}
    demo.write_demo_shards(tmp_path, ["image", "audio"])
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.*")} == before
    next((tmp_path / "audio").glob("*.tar")).unlink()
    demo.write_demo_shards(tmp_path, ["audio"])
    assert not describe.verify(str(made["audio"]))
    with pytest.raises(DataError, match="'video'"):
        demo.write_demo_shards(tmp_path, ["video"])


def test_emoji_splits(offline: dict[str, list[RawSample]], folders: dict[str, Path]) -> None:
    counts = [len(offline[kind]) for kind in EMOJI]
    assert 950 < counts[0] < 1250 and 75 < counts[1] < 125 and 170 < counts[2] < 230
    names = [spoken(s)[0] for kind in EMOJI for s in offline[kind]]
    pictures = [s.fields["png"] for kind in EMOJI for s in offline[kind]]
    assert len(set(names)) == len(names) == len(set(pictures)) == sum(counts)
    texts = Counter(text for kind in EMOJI for s in offline[kind] for text in set(spoken(s)))
    assert max(texts.values()) == 1  # no caption fits two pictures
    manifest = read_manifest(str(folders["emoji-val"]))
    assert manifest is not None and "CC-BY-SA-4.0 (OpenMoji" in manifest.licence


def test_sound_splits_share_no_combination(offline: dict[str, list[RawSample]]) -> None:
    assert [len(offline[kind]) for kind in SOUNDS] == [1248, 48, 128]
    found = [
        {tuple(v for k, v in json.loads(s.fields["json"]).items() if k != "captions") for s in offline[k]} for k in SOUNDS
    ]
    assert [len(kind) for kind in found] == [208, 48, 128]
    assert len(set().union(*found)) == 384 == 8 * 3 * 2 * 2 * 2 * 2
    known = [set(KINDS), set(PITCHES), set(LOUDNESSES), set(STARTS), set(LENGTHS), set(COUNTS)]
    assert [set(column) for column in zip(*found[0], strict=True)] == known
    for kind in SOUNDS[1:]:
        texts = Counter(text for s in offline[kind] for text in spoken(s))
        assert max(texts.values()) == 1  # a held-out caption has one right answer
