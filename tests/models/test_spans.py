"""Masks of words among tokens: sub-words, truncation, byte-level tokenizers with leading spaces in offsets."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import BertConfig, PreTrainedTokenizerFast

from multicse.data.streams.triplets import words
from multicse.models.text_encoder import TextEncoder
from multicse.models.text_folders import new_model
from tests.conftest import ROOT

SENTENCES = [
    "The unfashionable Ambassador, quickly!",
    "An extraordinarily  BIG naïve dog's re-use of the synchronisation",
    "Größe “happiness” is (incomprehensible).",
]
TINY = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}


@pytest.fixture(scope="module")
def encoder() -> TextEncoder:
    """A WordPiece tokenizer."""
    return TextEncoder.from_pretrained(str(ROOT / "models" / "small-bert-en"))


def byte_level(trim_offsets: bool) -> TextEncoder:
    """A tokenizer like RoBERTa's, trained on a few words."""
    plain = Tokenizer(models.BPE(unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    plain.train_from_iterator(SENTENCES * 3 + ["the dog of the big dog is happy"] * 5, trainer)
    plain.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), trim_offsets, add_prefix_space=False)
    plain.add_special_tokens([AddedToken(token, special=True) for token in special])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=plain, bos_token="<s>", eos_token="</s>", pad_token="<pad>", unk_token="<unk>", model_max_length=64
    )
    config = BertConfig(vocab_size=len(plain.get_vocab()), max_position_embeddings=64, **TINY)
    return TextEncoder(new_model(config), fast)


def marked(encoder: TextEncoder, texts: list[str], spans: list[tuple[int, int] | None], **more: Any) -> list[list[int]]:
    tokens = encoder.tokenize(texts, spans=spans, **more)
    assert tokens["word_mask"].dtype == torch.int64 and tokens["word_mask"].shape == tokens["input_ids"].shape
    return [ids[on.bool()].tolist() for ids, on in zip(tokens["input_ids"], tokens["word_mask"], strict=True)]


@pytest.mark.parametrize("kind", ["wordpiece", "byte level", "byte level with the space before a word"])
def test_marked_tokens_are_the_tokens_of_the_word_alone(encoder: TextEncoder, kind: str) -> None:
    made = encoder if kind == "wordpiece" else byte_level(trim_offsets=kind == "byte level")
    pairs = [(text, span) for text in SENTENCES for span in words(text)]
    found = marked(made, [text for text, _ in pairs], [span for _, span in pairs])
    assert max(map(len, found)) >= 3
    for (text, span), ids in zip(pairs, found, strict=True):
        alone = made.tokenizer(text[slice(*span)], add_special_tokens=False)["input_ids"]
        assert made.tokenizer.decode(ids).strip() == made.tokenizer.decode(alone)
    offsets = made.tokenizer("the dog", return_offsets_mapping=True)["offset_mapping"]
    assert ((3, 7) in offsets) == (kind.endswith("before a word"))


def test_one_word_of_several_and_none(encoder: TextEncoder) -> None:
    """The same word twice is marked once; no span, an empty one and padding mark nothing."""
    texts = ["dog dog dog", "the dog", "the dog", "the dog sees a cat in the house"]
    mask = encoder.tokenize(texts, spans=[(4, 7), None, (5, 5), (0, 3)])["word_mask"]
    assert [row.nonzero().flatten().tolist() for row in mask] == [[2], [], [], [1]]


def test_truncated_words_mark_nothing(encoder: TextEncoder) -> None:
    text, span = "the dog sees the unfashionable ambassador", (17, 30)
    whole = marked(encoder, [text], [span])[0]
    assert len(whole) >= 2
    assert marked(encoder, [text], [span], max_length=6) == [[]]
    assert marked(encoder, [text], [span], max_length=7) == [whole[:1]]  # [CLS] the dog sees the, its first part, [SEP]
