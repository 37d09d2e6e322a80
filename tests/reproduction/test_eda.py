"""EDA: the chain of its edits, the stream of two views, and the stream of corrupted texts."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from multicse.data.lexicon import open_lexicon
from multicse.data.streams.text import TextStream
from multicse.reproduction.streams.eda import EDATextStream, NoisyTextStream, _replace_synonyms, cached_synonyms, eda
from tests.data.packing import reader, spelt, write_words
from tests.worlds import add, write_text

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


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_short_sentences_survive() -> None:
    for seed in range(100):
        for words in (["dog"], ["zzz"], ["the"], ["..."], ["dog", "cat"]):
            assert eda(words, rng(seed), synonyms, 0.9)
        assert eda(["zzz"], rng(seed), synonyms) == ["zzz"]
    assert eda([], rng(), synonyms) == []
    assert eda(SENTENCE, rng(), synonyms, 0) == SENTENCE


def views(config: TextStream, count: int, seed: int = 5) -> dict[str, list[tuple[str, ...]]]:
    """Return the views of each sample in every epoch."""
    found = reader(config, batches=count, seed=seed)
    seen: dict[str, list[tuple[str, ...]]] = {}
    for _ in range(count):
        batch = next(found)
        assert batch["input_ids"].shape == batch["attention_mask"].shape
        for key, row in zip(batch.keys, batch["input_ids"], strict=True):
            seen.setdefault(key, []).append(tuple(spelt(row)))
    found.close()
    return seen


def test_the_stream_has_synonyms_of_several_words(tmp_path: Path) -> None:
    """As in the released code, underscores of lemmas become blanks."""
    words = write_words(tmp_path / "x.sqlite", "a|quick,speedy,in no time|", "a|quick,alive|dead", "n|quick,core|")
    lexicon = open_lexicon(str(words))
    seen = {" ".join(_replace_synonyms(["quick"], rng(seed), cached_synonyms(lexicon), 1)) for seed in range(40)}
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


def test_noise_corrupts_every_text_of_a_triple_once(tmp_path: Path) -> None:
    """The corruption is equal in every epoch; deletions, insertions and swaps are tested one by one."""
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


@pytest.mark.parametrize(("length", "times"), [(1, 1), (9, 1), (19, 1), (25, 2)])
def test_every_edit_is_made_at_least_once(length: int, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one word in ten: as many words are replaced as inserted."""
    monkeypatch.setattr("multicse.reproduction.streams.eda.delete", lambda words, rng, probability: words)
    words = [f"w{number}" for number in range(length)]
    found = eda(words, np.random.default_rng(0), lambda word: [f"{word}-new"], alpha=0.1)
    assert len(found) == length + times and sum(word.endswith("new") for word in found) == 2 * times


def test_function_words_and_a_word_itself_give_no_synonyms() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        assert "thee" not in eda(SENTENCE, rng, synonyms, 0.5)
        assert _replace_synonyms(["the", "dog"], rng, synonyms, 2)[1:] in (["hound"], ["domestic", "dog"])
