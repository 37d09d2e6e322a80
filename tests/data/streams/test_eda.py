"""EDA: its four edits one by one, the chain, and the stream of two views."""

from __future__ import annotations

import json
import tarfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from multicse.data.shards import ShardSet
from multicse.data.stream import Reader
from multicse.data.streams.eda import cached_synonyms, delete, eda, insert_synonyms, replace_synonyms, swap
from multicse.data.streams.text import EDATextStream, NoisyTextStream, TextStream
from multicse.data.wordnet.lexicon import open_lexicon
from tests.data.packing import letters, spelt
from tests.data.wordnet.small_wordnet import write_wordnet
from tests.small import add, write_text

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


@pytest.mark.parametrize(
    ("length", "alpha", "count"), [(5, 0.1, 1), (19, 0.1, 1), (20, 0.1, 2), (39, 0.1, 3), (10, 0.55, 5)]
)
def test_number_of_edits(length: int, alpha: float, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []

    def edit(words: list[str], *arguments: object) -> list[str]:
        counts.append(int(str(arguments[-1])))
        return [*words, *["x"] * 30]  # longer: the number is that of the given sentence

    for name in ("replace_synonyms", "insert_synonyms", "swap"):
        monkeypatch.setattr(f"multicse.data.streams.eda.{name}", edit)
    eda(["a"] * length, rng(), synonyms, alpha)
    assert counts == [count] * 3


def test_short_sentences_survive() -> None:
    for seed in range(100):
        for words in (["dog"], ["zzz"], ["the"], ["..."], ["dog", "cat"]):
            assert eda(words, rng(seed), synonyms, 0.9)
        assert eda(["zzz"], rng(seed), synonyms) == ["zzz"]
    assert eda([], rng(), synonyms) == []
    assert eda(SENTENCE, rng(), synonyms, 0) == SENTENCE


# ---- the stream


def views(config: TextStream, count: int, seed: int = 5) -> dict[str, list[tuple[str, ...]]]:
    """Per sample, its views in every pass."""
    found = Reader(config, "text", ShardSet.open(config.shards), seed, 0, 1, letters, 0, count, inline=True)
    seen: dict[str, list[tuple[str, ...]]] = {}
    for _ in range(count):
        batch = next(found)
        assert batch["input_ids"].shape == batch["attention_mask"].shape
        for key, row in zip(batch.keys, batch["input_ids"], strict=True):
            seen.setdefault(key, []).append(tuple(spelt(row)))
    found.close()
    return seen


def test_the_stream_has_synonyms_of_several_words(tmp_path: Path) -> None:
    """As the released code: underscores of WordNet's lemmas become blanks."""
    lexicon = open_lexicon(str(write_wordnet(tmp_path / "wn")))
    seen = {" ".join(replace_synonyms(["quick"], rng(seed), cached_synonyms(lexicon), 1)) for seed in range(40)}
    assert seen == {"speedy", "in no time", "alive", "core"}


def test_the_stream_has_two_views_of_one_sentence(tmp_path: Path) -> None:
    shards = write_text(tmp_path / "text", (24,))
    plain = views(TextStream(shards=shards, batch_size=8), 3)
    config = EDATextStream(shards=shards, batch_size=8, alpha=0.2, lexicon="small")
    assert config.texts and config.n_texts == 2
    seen = views(config, 6)
    assert set(seen) == set(plain)
    different = passes = 0
    for key, ((one, two), other) in seen.items():
        ((sentence,),) = plain[key]
        for view in (one, two):
            assert len(set(view.split()) & set(sentence.split())) >= 2
        different += one != two
        passes += (one, two) != other
    assert different >= 20 and passes >= 20
    assert any(set(view.split()) - set(plain[key][0][0].split()) for key, rows in seen.items() for view in rows[0])
    assert views(config, 6) == seen and views(config, 6, seed=6) != seen


def test_noise_spoils_every_text_of_a_triple_once(tmp_path: Path) -> None:
    """The same in every pass; deletion, insertion and swap each as they are asked for."""
    triple = {"sent0": "dog runs home", "sent1": "a b c d e f g h", "hard_neg": "cat"}
    with tarfile.open(tmp_path / "nli-000000.tar", "w") as tar:
        add(tar, "0.json", json.dumps(triple).encode())
        add(tar, "1.json", json.dumps(triple).encode())
    settings = {"shards": str(tmp_path), "batch_size": 2, "columns": tuple(triple), "lexicon": "small"}

    def rows(**noise: float) -> list[list[str]]:
        seen = views(NoisyTextStream.model_validate(settings | noise), 3)
        assert all(len(set(passes)) == 1 for passes in seen.values())
        return [[text.split() for text in passes[0]] for passes in seen.values()]  # type: ignore[misc]

    given = [text.split() for text in triple.values()]
    assert rows() == [given, given]
    assert rows(deletion=1) != given and all(len(words) == 1 for row in rows(deletion=1) for words in row)
    first, second = rows(swaps=2)
    assert first != second and [sorted(words) for words in first] == [sorted(words) for words in given]
    inserted = rows(insertions=2)[0]
    assert len(inserted[0]) >= 5 and inserted[1] == given[1]  # letters have no synonym
