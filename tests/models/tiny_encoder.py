"""A BERT of a few thousand random weights with a word-level tokenizer, and batches for it."""

from __future__ import annotations

from typing import Any

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, PretrainedConfig, PreTrainedTokenizerFast

from multicse.data.streams.base import Batch
from multicse.models.pooling import Pooling
from multicse.models.text_encoder import TextEncoder
from multicse.models.text_folders import new_model
from multicse.models.word_encoder import WordEncoder

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["a", "the", "dog", "cat", "man", "woman", "runs", "sleeps", "eats", "plays", "guitar", "in", "on", "park"]
WORDS += ["street", "red", "blue", "small", "big", "happy"]


def tokenizer(limit: int | None = 24, cased: bool = False, **changes: str | None) -> PreTrainedTokenizerFast:
    """A word-level tokenizer; a change to None removes a special token."""
    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(SPECIAL + WORDS)}, unk_token="[UNK]"))
    if not cased:
        core.normalizer = normalizers.Lowercase()
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    core.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL, strict=True))
    given = {name: value for name, value in {**names, "model_max_length": limit, **changes}.items() if value is not None}
    return PreTrainedTokenizerFast(tokenizer_object=core, **given)


def bert_config(dropout: float = 0.1, hidden_size: int = 16) -> BertConfig:
    return BertConfig(
        vocab_size=len(SPECIAL + WORDS),
        hidden_size=hidden_size,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=24,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )


def encoder(pooling: Pooling = "cls", config: PretrainedConfig | None = None) -> TextEncoder:
    torch.manual_seed(0)
    return TextEncoder(new_model(config or bert_config()), tokenizer(), pooling)


def text_batch(samples: int, views: int = 1, length: int = 6, seed: int = 0) -> Batch:
    """Random words with random padding."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(len(SPECIAL), len(SPECIAL + WORDS), (samples, views, length), generator=generator)
    lengths = torch.randint(3, length + 1, (samples, views, 1), generator=generator)
    mask = (torch.arange(length) < lengths).long()
    return Batch({"input_ids": ids * mask, "attention_mask": mask})


def image_batch(samples: int, size: int = 8, classes: int = 4, seed: int = 1) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    return Batch(
        {
            "image": torch.randn(samples, 2, 3, size, size, generator=generator),
            "label": torch.randint(0, classes, (samples,), generator=generator),
        }
    )


def pair_batch(samples: int, size: int = 8, seed: int = 3) -> Batch:
    """Images with one caption each."""
    image = torch.randn(samples, 1, 3, size, size, generator=torch.Generator().manual_seed(seed))
    return Batch({"image": image, **text_batch(samples, seed=seed).tensors})


def audio_batch(samples: int, frames: int = 12, bins: int = 8, classes: int = 3, seed: int = 2) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    return Batch(
        {
            "spectrogram": torch.randn(samples, 1, frames, bins, generator=generator) * 4 - 4,
            "label": torch.randint(0, classes, (samples,), generator=generator),
        }
    )


def word_encoder(dtype: torch.dtype = torch.float32, **settings: Any) -> WordEncoder:
    """Filters over 40 random word vectors of dimension 6, so that the IDs of `text_batch` are known and unknown words."""
    torch.manual_seed(1)
    options: dict[str, Any] = {"max_words": 12, "regions": (1, 1, 2, 4), "filters": 5, **settings}
    return WordEncoder([f"w{i}" for i in range(40)], torch.randn(40, 6, dtype=dtype), **options)
