"""What the evaluation tests share: an encoder that needs no model, tiny transformers, and folders in both layouts."""

from __future__ import annotations

import random
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

from multicse.evaluation.registry import make_tasks
from multicse.evaluation.tasks.sts import PairTask

WORDS = [
    "a", "the", "man", "woman", "dog", "cat", "plays", "eats", "runs", "red", "small", "big", "house", "car", "guitar",
    "food", "on", "in", "with", "and",
]  # fmt: skip
SIZES = {"vocab_size": len(WORDS) + 4, "pad_token_id": 1, "hidden_size": 16, "num_attention_heads": 2}
SIZES |= {"intermediate_size": 32}


class Bag:
    """Mean of a random vector per word; remembers what it was asked for."""

    def __init__(self, width: int = 16) -> None:
        self.width = width
        self.seen: list[str] = []
        self.calls = 0

    def encode(self, items: list[str], modality: str = "text") -> np.ndarray:
        self.seen += items
        self.calls += 1
        return np.stack([np.mean([self.word(w) for w in text.split()], axis=0) for text in items])

    def word(self, word: str) -> np.ndarray:
        return np.random.default_rng(zlib.crc32(word.encode())).standard_normal(self.width)


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def sentence(rng: random.Random, longest: int = 12) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(2, longest)))


def texts(n: int, longest: int = 12) -> list[str]:
    rng = random.Random(3)
    return [sentence(rng, longest) for _ in range(n)]


def rated(n: int, seed: int = 0) -> list[tuple[str, str, str]]:
    """n times (score, sentence, sentence), with ties in the score."""
    rng = random.Random(seed)
    return [(f"{rng.randint(0, 10) / 2}", sentence(rng), sentence(rng)) for _ in range(n)]


def write_raw(path: Path, rows: list[tuple[str, str, str]], subsets: tuple[str, ...] = ("one",)) -> Path:
    lines = ["dataset\tsubset\trow\tscore\tsentence1\tsentence2"]
    lines += [f"X\t{subsets[i % len(subsets)]}\t{i}\t{s}\t{a}\t{b}" for i, (s, a, b) in enumerate(rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_year(folder: Path, subset: str, rows: list[tuple[str, str, str]], extra: str = "") -> None:
    """One subset of a SemEval year in SentEval's layout."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"STS.input.{subset}.txt").write_text("".join(f"{a}\t{b}{extra}\n" for _, a, b in rows), encoding="utf-8")
    (folder / f"STS.gs.{subset}.txt").write_text("".join(f"{s}\n" for s, _, _ in rows), encoding="utf-8")


def tiny_bert(folder: Path) -> Path:
    """A plain Hugging Face folder: random BERT, 24 positions, a vocabulary of whole words."""
    from transformers import BertConfig, BertModel

    whole_words(24).save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(**SIZES, num_hidden_layers=2, max_position_embeddings=24, initializer_range=0.5)
    BertModel(config).save_pretrained(folder)
    return folder


def whole_words(limit: int | None) -> Any:
    """A tokenizer of `WORDS` that cuts at `limit` tokens."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: i for i, word in enumerate(["[UNK]", "[PAD]", "[CLS]", "[SEP]", *WORDS])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    more = {} if limit is None else {"model_max_length": limit}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names, **more)


def pair_task(place: str | Path) -> PairTask:
    """Return the task ``pairs:PLACE``."""
    (task,) = make_tasks([f"pairs:{place}"])
    assert isinstance(task, PairTask)
    return task


def hub_pairs(spec: str) -> PairTask:
    """Return the task ``hub:SPEC``."""
    (task,) = make_tasks([f"hub:{spec}"])
    assert isinstance(task, PairTask)
    return task
