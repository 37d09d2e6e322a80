"""A new small BERT and its tokenizer, created from text only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from pydantic import Field

from multicse.data.settings import Settings

BRANCH_SCALE = 0.1
"""Factor on the initial output weights of feed-forward and on positions: near 0, layers start as the identity."""
ALPHABET = 1000
"""Maximum number of different characters in a vocabulary, the most frequent ones."""


class FreshEncoder(Settings):
    """BERT and WordPiece tokenizer that are created before pretraining (`pipelines/pretrain.py`)."""

    vocab_size: int = Field(8000, ge=100)
    """Vocabulary size of the tokenizer, which is trained on the text."""
    width: int = Field(192, gt=0)
    """Dimension of token and sentence vectors; a multiple of the heads."""
    layers: int = Field(3, gt=0)
    """Number of transformer layers."""
    heads: int = Field(6, gt=0)
    """Attention heads per layer; they divide the width."""
    intermediate: int = Field(384, gt=0)
    """Width of the feed-forward networks."""
    positions: int = Field(256, ge=16)
    """Maximum input length in tokens; every image patch of VisualCSE needs a position, too."""
    dropout: float = Field(0.1, ge=0, lt=1)
    """Dropout probability in training."""
    lowercase: bool = False
    """Lower-case texts. Accents and umlauts are always kept."""


def make_encoder(config: FreshEncoder, sentences: Iterable[str], folder: Path, seed: int = 0) -> None:
    """Train the tokenizer on sentences, initialise the transformer and write a Hugging Face folder.

    Layers start near the identity and attention as a uniform average, so the mean of the last layer's tokens starts as the
    mean of the word embeddings.
    """
    from transformers import BertConfig, BertModel

    tokenizer = train_wordpiece(sentences, config.vocab_size, config.lowercase, config.positions)
    torch.manual_seed(seed)
    model = BertModel(
        BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=config.width,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            intermediate_size=config.intermediate,
            max_position_embeddings=config.positions,
            hidden_dropout_prob=config.dropout,
            attention_probs_dropout_prob=config.dropout,
            pad_token_id=tokenizer.pad_token_id,
        ),
        add_pooling_layer=False,
    )
    with torch.no_grad():
        for layer in model.encoder.layer:
            layer.output.dense.weight *= BRANCH_SCALE
            _average_tokens(layer.attention)
        model.embeddings.position_embeddings.weight *= BRANCH_SCALE
        model.embeddings.token_type_embeddings.weight.zero_()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _average_tokens(attention: Any) -> None:
    """Initialise a BERT attention as an average: output after value is the identity, keys near zero make scores uniform.

    The query's bias is random: after one gradient step on the keys, all tokens attend to the same tokens, so a contrastive
    loss learns first which words are important.
    """
    width = attention.self.value.weight.shape[0]
    rotation = torch.linalg.qr(torch.randn(width, width)).Q
    attention.self.value.weight.copy_(rotation)
    attention.output.dense.weight.copy_(rotation.T)
    attention.self.key.weight.normal_(0, 0.002)
    attention.self.query.bias.normal_(0, 0.3)


def train_wordpiece(sentences: Iterable[str], vocab_size: int, lowercase: bool = False, positions: int = 256) -> Any:
    """Train a fast BERT tokenizer for texts of up to `positions` tokens: normaliser, WordPiece, ``[CLS] … [SEP]``.

    The same sentences give the same tokenizer. By itself the library numbers the pieces ``##c`` of single characters in a
    random order, by which it chooses between equally frequent pairs; as special tokens of the trainer they have a fixed one.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    special = {
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
    }
    names = list(special.values())
    normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=False)
    splitter = pre_tokenizers.BertPreTokenizer()
    words = Counter(word for text in sentences for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text)))
    frequencies, inside = Counter[str](), {character for word in words for character in word[1:]}
    for word, count in words.items():
        for character in word:
            frequencies[character] += count
    alphabet = sorted(sorted(frequencies), key=frequencies.__getitem__, reverse=True)[:ALPHABET]
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=[*names, *(f"##{character}" for character in alphabet if character in inside)],
        initial_alphabet=alphabet,
        limit_alphabet=ALPHABET,
        show_progress=False,
    )
    trained = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    trained.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trained.train_from_iterator((" ".join([word] * count) for word, count in words.items()), trainer)
    pieces = [*names, *sorted(trained.get_vocab().keys() - set(names))]
    tokenizer = Tokenizer(models.WordPiece({piece: number for number, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, splitter
    tokenizer.decoder = decoders.WordPiece()
    ends = [("[CLS]", names.index("[CLS]")), ("[SEP]", names.index("[SEP]"))]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=positions, **special)
