"""EDA: its four edits one by one, the chain, and the stream of two views."""

from __future__ import annotations

import subprocess
import sys
import types
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter, ValidationError

from data.errors import DataError
from data.shards import ShardSet
from data.stream import Reader
from data.streams.eda import delete, eda, insert_synonyms, remembered, replace_synonyms, swap
from data.streams.kinds import AnyStream
from data.streams.text import EDATextStream, TextStream
from tests.small import WORDS, write_text

TABLE = {
    "dog": ["hound", "domestic_dog", "dog"],
    "cat": ["feline", "house_pet"],
    "runs": ["sprints"],
    "the": ["thee"],
    "big": ["large", "great"],
}
TEXT = "the big dog sees a cat and the cat runs from the big dog into the garden of houses at night again"
SENTENCE = TEXT.split()


def synonyms(word: str) -> Sequence[str]:
    return TABLE.get(word, ())


def none(word: str) -> Sequence[str]:
    return ()


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


# ---- the edits


def test_replacement_takes_every_place_of_a_word_and_no_stop_word() -> None:
    seen: Counter[str] = Counter()
    for seed in range(400):
        result = replace_synonyms(SENTENCE, rng(seed), synonyms, 1)
        replaced = [word for word in ("dog", "cat", "runs", "big") if word not in " ".join(result).split()]
        replaced += ["dog"] if "domestic" in result else []
        assert len(replaced) == 1 and result.count("the") == 4 and "thee" not in result
        (word,) = replaced
        text = " ".join(result)
        used = [new.replace("_", " ") for new in TABLE[word] if text.count(new.replace("_", " ")) and new != word]
        assert len(used) == 1
        assert text.replace(used[0], word).split() == SENTENCE
        seen[used[0]] += 1
    # each of the four words with 1/4, then each synonym other than the word itself
    wanted = {"hound": 1 / 8, "domestic dog": 1 / 8, "feline": 1 / 8, "house pet": 1 / 8, "sprints": 1 / 4}
    wanted |= {"large": 1 / 8, "great": 1 / 8}
    assert {word: count / 400 for word, count in seen.items()} == pytest.approx(wanted, abs=0.07)


def test_replacement_stops_when_no_word_has_a_synonym_left() -> None:
    result = replace_synonyms(["big", "dog"], rng(), synonyms, 10)
    assert result[0] in ("large", "great") and result[1:] in (["hound"], ["domestic", "dog"])
    assert replace_synonyms(SENTENCE, rng(), none, 10) == SENTENCE


def test_capitals_and_punctuation_do_not_hide_a_word() -> None:
    text = replace_synonyms(["“Big", "--", "BIG!", "(big),", "bigger"], rng(), lambda w: ["large"] * (w == "big"), 1)
    assert text == ["“large", "--", "large!", "(large),", "bigger"]
    assert replace_synonyms(["The", "THE,"], rng(), synonyms, 2) == ["The", "THE,"]


def test_insertion_adds_synonyms_at_uniform_places() -> None:
    places: Counter[int] = Counter()
    for seed in range(2000):
        result = insert_synonyms(["a", "b", "runs", "c"], rng(seed), synonyms, 1)
        at = result.index("sprints")
        assert result[:at] + result[at + 1 :] == ["a", "b", "runs", "c"]
        places[at] += 1
    assert [places[at] / 2000 for at in range(5)] == pytest.approx([0.2] * 5, abs=0.04)
    assert insert_synonyms(SENTENCE, rng(), none, 3) == SENTENCE
    assert insert_synonyms(["the", "the"], rng(), synonyms, 3) == ["the", "the"]
    assert len(insert_synonyms(["runs"], rng(), synonyms, 3)) == 4


def test_swap_exchanges_two_places() -> None:
    pairs: Counter[tuple[int, ...]] = Counter()
    for seed in range(1200):
        result = swap(list("abcd"), rng(seed), 1)
        moved = tuple(i for i in range(4) if result[i] != "abcd"[i])
        assert len(moved) == 2 and sorted(result) == list("abcd")
        pairs[moved] += 1
    assert len(pairs) == 6 and [count / 1200 for count in pairs.values()] == pytest.approx([1 / 6] * 6, abs=0.05)
    assert swap(["a"], rng(), 5) == ["a"] and swap([], rng(), 5) == []


def test_deletion_keeps_the_order_and_at_least_one_word() -> None:
    words = [str(number) for number in range(200)]
    left = [delete(words, rng(seed), 0.1) for seed in range(100)]
    assert np.mean([len(result) for result in left]) == pytest.approx(180, abs=2)
    assert all(result == sorted(result, key=int) for result in left)
    alone = Counter(tuple(delete(["a", "b"], rng(seed), 1)) for seed in range(400))
    assert set(alone) == {("a",), ("b",)} and alone["a",] / 400 == pytest.approx(0.5, abs=0.1)
    assert delete([], rng(), 0.5) == []


# ---- the chain


def test_the_chain_is_the_four_edits_in_their_order() -> None:
    for seed in range(50):
        for words in (SENTENCE, SENTENCE[:5]):
            count, generator = max(1, int(0.1 * len(words))), rng(seed)
            wanted = replace_synonyms(words, generator, synonyms, count)
            wanted = insert_synonyms(wanted, generator, synonyms, count)
            wanted = delete(swap(wanted, generator, count), generator, 0.1)
            assert eda(words, rng(seed), synonyms) == wanted


@pytest.mark.parametrize(
    ("length", "alpha", "count"), [(5, 0.1, 1), (19, 0.1, 1), (20, 0.1, 2), (39, 0.1, 3), (10, 0.55, 5)]
)
def test_number_of_edits(length: int, alpha: float, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []

    def edit(words: list[str], *arguments: object) -> list[str]:
        counts.append(int(str(arguments[-1])))
        return [*words, *["x"] * 30]  # longer: the number is that of the given sentence

    for name in ("replace_synonyms", "insert_synonyms", "swap"):
        monkeypatch.setattr(f"data.streams.eda.{name}", edit)
    eda(["a"] * length, rng(), synonyms, alpha)
    assert counts == [count] * 3


def test_another_process_gives_the_same() -> None:
    """String hashes differ between processes; the order of a set must not show."""
    code = (
        "import numpy as np; from tests.data.streams.test_eda import SENTENCE, synonyms; from data.streams.eda import eda\n"
        "print([eda(SENTENCE, np.random.default_rng(seed), synonyms, 0.3) for seed in range(20)])"
    )
    root = Path(__file__).resolve().parents[3]
    found = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True).stdout
    assert found.strip() == str([eda(SENTENCE, rng(seed), synonyms, 0.3) for seed in range(20)])


def test_short_sentences_survive() -> None:
    for seed in range(100):
        for words in (["dog"], ["zzz"], ["the"], ["..."], ["dog", "cat"]):
            assert eda(words, rng(seed), synonyms, 0.9)
        assert eda(["zzz"], rng(seed), synonyms) == ["zzz"]
    assert eda([], rng(), synonyms) == []
    assert eda(SENTENCE, rng(), synonyms, 0) == SENTENCE


# ---- the stream


class Table:
    """Every second word has a synonym that shows what it was."""

    def synonyms(self, word: str) -> list[str]:
        return [f"{word}+"] if word in WORDS[::2] else []


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """The paths that were asked for, in place of a lexicon."""
    paths: list[str | None] = []
    module = types.ModuleType("data.wordnet.lexicon")

    def open_lexicon(path: str | None) -> Table:
        paths.append(path)
        return Table()

    module.open_lexicon = open_lexicon  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "data.wordnet.lexicon", module)
    return paths


def letters(texts: list[str], max_length: int = 32) -> dict[str, torch.Tensor]:
    """A tokenizer that can be read back: one token a character."""
    longest = max(map(len, texts))
    ids = torch.tensor([[ord(letter) for letter in text.ljust(longest, "\0")] for text in texts])
    return {"input_ids": ids, "attention_mask": (ids > 0).long()}


def views(config: TextStream, count: int, seed: int = 5) -> dict[str, list[tuple[str, ...]]]:
    """Per sample, its views in every pass."""
    found = Reader(config, "text", ShardSet.open(config.shards), seed, 0, 1, letters, 0, count, inline=True)
    seen: dict[str, list[tuple[str, ...]]] = {}
    for _ in range(count):
        batch = next(found)
        assert batch["input_ids"].shape == batch["attention_mask"].shape
        for key, row in zip(batch.keys, batch["input_ids"], strict=True):
            texts = tuple("".join(map(chr, view.tolist())).rstrip("\0") for view in row)
            seen.setdefault(key, []).append(texts)
    found.close()
    return seen


def test_the_stream_has_two_views_of_one_sentence(tmp_path: Path, opened: list[str | None]) -> None:
    shards = write_text(tmp_path / "text", (24,))
    plain = views(TextStream(shards=shards, batch_size=8), 3)
    config = EDATextStream(shards=shards, batch_size=8, alpha=0.2, lexicon="a folder")
    assert config.texts and config.n_texts == 2
    seen = views(config, 6)
    assert set(seen) == set(plain) and "a folder" in opened
    different = passes = 0
    for key, ((one, two), other) in seen.items():
        ((sentence,),) = plain[key]
        for view in (one, two):
            known = {word.rstrip("+") for word in view.split()}
            assert known <= set(sentence.split()) and len(known & set(sentence.split())) >= 2
        different += one != two
        passes += (one, two) != other
    assert different >= 20 and passes >= 20
    assert any("+" in view for pair in seen.values() for view in pair[0])
    assert views(config, 6) == seen and views(config, 6, seed=6) != seen


def test_without_edits_both_views_are_the_sentence(tmp_path: Path, opened: list[str | None]) -> None:
    shards = write_text(tmp_path / "text", (8,))
    plain = views(TextStream(shards=shards, batch_size=8), 1)
    both = views(EDATextStream(shards=shards, batch_size=8, alpha=0), 1)
    assert {key: [(text, text) for (text,) in rows] for key, rows in plain.items()} == both and None in opened


def test_the_small_table_gives_synonyms() -> None:
    lexicon = EDATextStream(shards="x", lexicon="small").open_lexicon()
    known = [word for word in ("big", "fast", "begin", "old", "happy", "buy", "small", "car") if lexicon.synonyms(word)]
    assert len(known) >= 2
    for word in known:
        result = replace_synonyms(["zzz", word, "yyy"], rng(), lexicon.synonyms, 1)
        new = " ".join(result[1:-1])
        assert (result[0], result[-1]) == ("zzz", "yyy") and new in [o.replace("_", " ") for o in lexicon.synonyms(word)]


def test_remembered_synonyms_are_the_lexicons() -> None:
    lexicon = EDATextStream(shards="x", lexicon="small").open_lexicon()
    kept = remembered(lexicon)
    assert remembered(lexicon) is kept
    for _ in range(2):
        assert [list(kept(word)) for word in ("big", "zzz", "old")] == list(map(lexicon.synonyms, ("big", "zzz", "old")))


@pytest.mark.parametrize("bad", ["raise", "skip"])
def test_a_run_without_wordnet_stops_and_skips_no_sample(tmp_path: Path, bad: Literal["raise", "skip"]) -> None:
    shards = write_text(tmp_path / "text", (8,))
    config = EDATextStream(shards=shards, batch_size=4, lexicon=str(tmp_path / "none"), on_bad_sample=bad)
    with pytest.raises(ValueError, match="lexicon=") as caught:
        views(config, 1)
    assert not isinstance(caught.value, DataError)


def test_the_stream_in_a_recipe() -> None:
    adapter: TypeAdapter[AnyStream] = TypeAdapter(AnyStream)
    for stream in (EDATextStream(shards="x", alpha=0.2, lexicon="there"), TextStream(shards="x", columns=("a", "b"))):
        again = adapter.validate_json(stream.model_dump_json())
        assert again == stream and type(again) is type(stream)
    assert EDATextStream(shards="x").alpha == 0.1
    with pytest.raises(ValidationError, match="alpha"):
        EDATextStream(shards="x", alpha=1.5)
    with pytest.raises(ValidationError, match="columns"):
        adapter.validate_python({"kind": "eda_text", "shards": "x", "columns": ("a", "b")})
