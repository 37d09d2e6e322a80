"""Triplets: the replacement of one word of a text, and the stream of three views."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from multicse.data.errors import DataError, DecodeError
from multicse.data.lexicon import open_lexicon
from multicse.data.shards import RawSample
from multicse.data.streams.triplets import NO_CANDIDATE, TripletTextStream, triplet
from tests.data.packing import reader
from tests.worlds import write_tar, write_text

TABLE = {
    "big": (("large", "great"), ("small",)),
    "Old": (("Aged",), ("Young", "New")),
    "walks": (("strolls",), ("stands",)),
}
PLAIN = "zzz xxx"  # without a candidate
LINES = ["The big dog walks.", PLAIN, "a Old house", "qqq vvv", "big, big (big)"]


def find(word: str) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    return TABLE.get(word)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def write(folder: Path, lines: list[str]) -> str:
    return write_tar(folder / "lines-train-000000.tar", ((f"{i:04d}.txt", line.encode()) for i, line in enumerate(lines)))


def letters(texts: list[str], spans: list[tuple[int, int]], max_length: int = 99) -> dict[str, torch.Tensor]:
    """Tokenize texts to one token per character, after one token for the text."""
    longest = 1 + max(map(len, texts))
    ids = torch.tensor([[1, *map(ord, text.ljust(longest - 1, "\0"))] for text in texts])[:, :max_length]
    mask = torch.zeros_like(ids)
    for row, (start, stop) in zip(mask, spans, strict=True):
        row[1 + start : 1 + stop] = 1
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "word_mask": mask, "token_type_ids": mask}


def stream(shards: str, **more: Any) -> TripletTextStream:
    return TripletTextStream(**{"shards": shards, "batch_size": 4, "window": 8, "lexicon": "small", **more})


Views = tuple[tuple[str, ...], tuple[str, ...]]


def views(config: TripletTextStream, batches: int, **more: Any) -> dict[str, list[Views]]:
    """Return the texts of each sample in every epoch, and the words that are marked in them."""
    found, seen = reader(config, letters, batches, **more), dict[str, list[Views]]()
    for _ in range(batches):
        batch = next(found)
        assert set(batch.tensors) == {"input_ids", "attention_mask", "word_mask", "candidate"}
        for key, ids, mask in zip(batch.keys, batch["input_ids"], batch["word_mask"], strict=True):
            texts = tuple("".join(map(chr, row[1:].tolist())).rstrip("\0") for row in ids)
            marked = tuple("".join(map(chr, row[on.bool()].tolist())) for row, on in zip(ids, mask, strict=True))
            seen.setdefault(key, []).append((texts, marked))
    found.close()
    return seen


# ---- words and their replacement


def test_only_the_word_changes() -> None:
    seen: Counter[tuple[str, str]] = Counter()
    text = "“Old” big,big   walks's!"
    for seed in range(400):
        found = triplet(text, rng(seed), find)
        assert found is not None and found.texts[0] == text
        word, synonym, antonym = (view[slice(*span)] for view, span in zip(found.texts, found.spans, strict=True))
        assert synonym in TABLE[word][0] and antonym in TABLE[word][1]
        start, stop = found.spans[0]
        for view, new in zip(found.texts[1:], (synonym, antonym), strict=True):
            assert view == text[:start] + new + text[stop:]
        seen[f"{word}{start}", synonym] += 1
    # each of the four occurrences with 1/4, then each synonym of "big" with 1/2
    wanted = {("Old1", "Aged"): 1 / 4, ("walks16", "strolls"): 1 / 4}
    wanted |= {(f"big{start}", word): 1 / 8 for start in (6, 10) for word in ("large", "great")}
    assert {key: count / 400 for key, count in seen.items()} == pytest.approx(wanted, abs=0.07)


# ---- the stream


def test_the_stream_has_three_views_of_one_sentence(tmp_path: Path) -> None:
    shards = write_text(tmp_path / "text", (40,))  # "old" and "new" are in the small table
    config = stream(shards, without_candidate="keep")
    assert config.texts and config.n_texts == 3
    seen = views(config, 20)
    assert len(seen) == 40
    lexicon, changed, passes = open_lexicon("small"), 0, 0
    for (texts, marked), (later, _) in seen.values():
        word, synonym, antonym = marked
        assert texts[0] == later[0]
        if not word:
            assert texts == (texts[0],) * 3 and not {"old", "new"} & set(texts[0].split())
            continue
        synonyms, antonyms = lexicon.replacements(word, None)
        assert synonym in synonyms and antonym == antonyms[0]
        for text, new in zip(texts[1:], marked[1:], strict=True):
            differ = [(a, b) for a, b in zip(texts[0].split(), text.split(), strict=True) if a != b]
            assert differ == [(word, new)]
        changed, passes = changed + 1, passes + (texts != later)
    assert changed >= 20 and passes >= 10
    assert views(config, 20) == seen and views(config, 20, seed=6) != seen


def test_sentences_without_a_candidate_are_skipped_and_counted(tmp_path: Path) -> None:
    config = stream(write(tmp_path, ["a big car", PLAIN, "qqq", "the old dog", "vvv"] * 8), batch_size=8)
    found = reader(config, letters, 8)
    for _ in range(8):  # four epochs of 16 usable sentences
        batch = next(found)
        assert batch["candidate"].all() and all(int(key[-4:]) % 5 in (0, 3) for key in batch.keys)
    assert {reason for _, reason in found.skipped} == {NO_CANDIDATE}
    assert all(int(key[-4:]) % 5 in (1, 2, 4) for key, _ in found.skipped)
    assert sum(found.position.values()) == 64 + len(found.skipped)
    found.close()


def test_adjectives_only() -> None:
    sample = RawSample("s", "k", {"txt": b"the boy walks to a big house"})
    chosen = {}
    for choose in ("token", "adjective"):
        rows = [stream("x", choose=choose).row(sample, rng(seed)) for seed in range(40)]
        chosen[choose] = {row["text0"][slice(*row["spans"][0])] for row in rows}
        assert all(row["spans"].shape == (3, 2) and row["spans"].dtype == np.int32 for row in rows)
    assert chosen == {"token": {"boy", "big"}, "adjective": {"big"}}


def test_a_sentence_is_skipped_if_its_adjective_has_no_antonym() -> None:
    """As in the released preparation, an adjective is drawn before its synonyms and antonyms are looked up."""
    text, adjectives = "The big wooden house", ("big", "wooden")
    chosen = [triplet(text, rng(seed), find, None, adjectives.__contains__) for seed in range(200)]
    assert 70 < sum(one is None for one in chosen) < 130
    assert {one.texts[0][slice(*one.spans[0])] for one in chosen if one} == {"big"}
    assert all(triplet(text, rng(seed), find) for seed in range(20))
    lexicon = open_lexicon("small")
    assert lexicon.has("big", "a") and not lexicon.has("house", "a") and not lexicon.has("in", "a")


def test_the_first_antonym_or_any() -> None:
    sample = RawSample("s", "k", {"txt": b"a big house"})
    antonyms = open_lexicon("small").replacements("big", None)[1]
    for antonym, allowed in (("first", antonyms[:1]), ("any", antonyms)):
        drawn = {stream("x", antonym=antonym).row(sample, rng(seed))["text2"] for seed in range(60)}
        assert drawn == {f"a {word} house" for word in allowed} and len(antonyms) > 1


@pytest.mark.parametrize(
    ("words", "fits"), [(None, True), ((8, 9), True), ((1, 8), True), ((9, 99), False), ((1, 7), False)]
)
def test_limits_of_the_number_of_words(words: tuple[int, int] | None, fits: bool) -> None:
    """As in NLTK, the words are It, did, n't, re-use, the, big, house and the full stop."""
    sample = RawSample("s", "k", {"txt": b"It didn't re-use the big house."})
    if not fits:
        with pytest.raises(DecodeError, match="words"):
            stream("x", words=words).row(sample, rng())
    kept = stream("x", words=words, without_candidate="keep").row(sample, rng())
    assert (kept["text0"] != kept["text2"]) == fits


# ---- many skipped samples


@pytest.mark.parametrize("usable", [60, 8])
def test_a_stream_that_skips_most_samples_returns_all_planned_batches(tmp_path: Path, usable: int) -> None:
    lines = ["a big car" if number * 37 % 100 < usable else PLAIN for number in range(400)]
    config = stream(write(tmp_path, lines), batch_size=16, window=16)
    found = reader(config, letters, 12)
    got = [key for _ in range(12) for key in next(found).keys]
    whole = reader(config.model_copy(update={"max_skipped_share": 0.99}), letters, 1000)  # all of it in the first round
    assert got == [key for _ in range(12) for key in next(whole).keys]
    assert found.position == whole.position and sum(found.position.values()) == len(got) + len(found.skipped)
    assert sorted(found.skipped) == sorted(whole.skipped)
    late = reader(config, letters, 16, position=found.position, number=12)
    assert next(late).keys == next(whole).keys
    for one in (found, whole, late):
        one.close()


def test_the_stream_stops_if_more_than_the_allowed_share_is_skipped(tmp_path: Path) -> None:
    """Four of five samples are skipped, and half of them are allowed."""
    config = stream(write(tmp_path, ["a big car", *[PLAIN] * 4] * 4), max_skipped_share=0.5)
    found = reader(config, letters, 30)
    with pytest.raises(DataError, match=r"max_skipped_share=0\.5"):
        for _ in range(30):
            next(found)
            found.skipped = []  # as the engine does at every report
    found.close()
