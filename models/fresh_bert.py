"""A new small BERT and its tokenizer, made from nothing but text, or from word vectors as well."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field

from multicse.data.errors import DataError
from multicse.data.word_vectors import open_vectors

WORDS = 100_000
"""Of a file of word vectors, the first, are read."""
CODES = 0.7
"""Deviation of the random codes in the dimensions that word vectors leave free, relative to the vectors'."""
EMBEDDING_STD = 0.05
"""Deviation of the word-piece table when it starts from vectors."""
BRANCH_SCALE = 0.1
"""Factor on the initial output weights of feed-forward and on positions: near 0 they begin as the identity."""


class FreshEncoder(BaseModel):
    """The BERT and the WordPiece tokenizer that are made before training; what `pipelines/pretrain.py` starts from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    vocab_size: int = Field(8000, ge=100)
    """Word pieces of the tokenizer, which are learned from the text."""
    width: int = Field(192, gt=0)
    """Dimensions of a token's and of the sentence's vector; the heads divide them."""
    layers: int = Field(3, gt=0)
    """Transformer layers, one after the other."""
    heads: int = Field(6, gt=0)
    """Attention heads of a layer; they divide the width."""
    intermediate: int = Field(384, gt=0)
    """Width of the layers' feed-forward part."""
    positions: int = Field(256, ge=16)
    """Longest input in tokens; VisualCSE's patches need one each."""
    dropout: float = Field(0.1, ge=0, lt=1)
    """Share of values that are zeroed in training."""
    lowercase: bool = False
    """Whether capitals count as small letters. Accents and umlauts are kept in any case."""
    vectors: str | None = None
    """A word2vec or GloVe file (.txt, .vec, .bin, each also with .gz): word pieces start from its first 100,000 words, the
    frequent ones; none: from noise."""


def make_encoder(config: FreshEncoder, sentences: Iterable[str], folder: Path, seed: int = 0) -> None:
    """Train the tokenizer on `sentences`, initialise the transformer, write a Hugging Face folder.

    The stack begins near the identity and attention as an even mean, so that the mean of the last layer's tokens begins as
    the mean of the word vectors, and pretraining starts from what the vectors know instead of from noise.
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
            average_tokens(layer.attention)
        model.embeddings.position_embeddings.weight *= BRANCH_SCALE
        model.embeddings.token_type_embeddings.weight.zero_()
        if config.vectors:
            try:
                found = open_vectors(config.vectors)
            except DataError as error:
                raise ValueError(f"method.fresh.vectors: {error}") from error
            words, vectors = list(found.words[:WORDS]), np.array(found.vectors[:WORDS])
            table = with_codes(piece_vectors(tokenizer, words, vectors), config.width, seed)
            scale = EMBEDDING_STD / table.std()
            model.embeddings.word_embeddings.weight.copy_(torch.from_numpy(table * scale))
            model.embeddings.word_embeddings.weight[tokenizer.pad_token_id].zero_()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def average_tokens(attention: Any) -> None:
    """Start a BERT attention as an average: value then output is the identity, keys are near zero, so scores are even.

    The query's bias is random: one gradient step on the keys makes all tokens look at the same, so that a contrastive
    loss learns which words count before it learns anything that destroys what the vectors know.
    """
    width = attention.self.value.weight.shape[0]
    rotation = torch.linalg.qr(torch.randn(width, width)).Q
    attention.self.value.weight.copy_(rotation)
    attention.output.dense.weight.copy_(rotation.T)
    attention.self.key.weight.normal_(0, 0.002)
    attention.self.query.bias.normal_(0, 0.3)


def piece_vectors(tokenizer: Any, words: Sequence[str], vectors: np.ndarray) -> np.ndarray:
    """Vectors (V, d) of word pieces from vectors (N, d) of words.

    A piece that is a word has the word's vector. The others are fitted so that the mean of a word's pieces is near the
    word's vector (ridge regression, frequent words weigh more); pieces of no word get the mean of all.
    """
    from scipy.sparse import csr_matrix, identity
    from scipy.sparse.linalg import splu

    mean = vectors.mean(0)
    rows: list[int] = []
    columns: list[int] = []
    values: list[float] = []
    targets: list[np.ndarray] = []
    exact: dict[int, int] = {}
    encoded = tokenizer.backend_tokenizer.encode_batch(list(words), add_special_tokens=False)
    for rank, encoding in enumerate(encoded):
        ids = encoding.ids
        if not ids or tokenizer.unk_token_id in ids:
            continue
        if len(ids) == 1:
            exact.setdefault(ids[0], rank)
        weight = (rank + 10) ** -0.25
        rows += [len(targets)] * len(ids)
        columns += ids
        values += [weight / len(ids)] * len(ids)
        targets.append((vectors[rank] - mean) * weight)
    design = csr_matrix((values, (rows, columns)), shape=(len(targets), len(tokenizer)))
    normal = (design.T @ design + 1e-3 * identity(len(tokenizer))).tocsc()
    fitted = splu(normal).solve(np.asarray(design.T @ np.stack(targets), dtype=np.float64)) + mean
    fitted[list(exact)] = vectors[list(exact.values())]
    unseen = np.setdiff1d(np.arange(len(tokenizer)), columns)
    fitted[unseen] = np.delete(fitted, unseen, axis=0).mean(0)
    return fitted.astype(np.float32)


def with_codes(vectors: np.ndarray, width: int, seed: int) -> np.ndarray:
    """Vectors (V, width): those given, and random codes in the dimensions that are left.

    The codes tell a piece from all others: the vectors say what is alike, the codes what is the same.
    """
    left = width - vectors.shape[1]
    if left < 0:
        raise ValueError(f"method.fresh.width={width} is less than the {vectors.shape[1]} dimensions of the word vectors")
    codes = np.random.default_rng(seed).normal(0, CODES * vectors.std(), (len(vectors), left))
    return np.concatenate([vectors, codes.astype(np.float32)], 1)


def train_wordpiece(sentences: Iterable[str], vocab_size: int, lowercase: bool = False, positions: int = 256) -> Any:
    """A BERT tokenizer (normaliser, WordPiece, ``[CLS] … [SEP]``) trained on `sentences`, as a Hugging Face tokenizer.

    Its pieces are numbered by the alphabet: the trainer's own order is another in each process.
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
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size, min_frequency=2, special_tokens=names, limit_alphabet=1000, show_progress=False
    )
    tokenizer.train_from_iterator(sentences, trainer)
    pieces = [*names, *sorted(tokenizer.get_vocab().keys() - set(names))]
    tokenizer.model = models.WordPiece({piece: number for number, piece in enumerate(pieces)}, unk_token="[UNK]")
    ends = [("[CLS]", names.index("[CLS]")), ("[SEP]", names.index("[SEP]"))]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=positions, **special)
