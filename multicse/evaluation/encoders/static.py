"""Static token vectors that are distilled from an encoder: a baseline without training and without context."""

from __future__ import annotations

import copy
import re
from typing import Any

import numpy as np
import torch
from torch import Tensor

from multicse.evaluation.encoders.encoder import FolderEncoder, ModuleEncoder
from multicse.evaluation.task import EvaluationError

SIF = 1e-4
DIMENSIONS = 256


class Static(ModuleEncoder):
    """Encoder that averages one vector per token, without special tokens.

    The other encoder encodes every token of its vocabulary by itself. PCA reduces these vectors, and they are weighted with
    a / (a + p), a = 1e-4, where p is the probability of the token by Zipf's law for its rank in the vocabulary.

    Args:
        encoder: Encoder of a folder with a transformer and a fast tokenizer.
        dimensions: Number of principal components. If None, 256, or all dimensions of a smaller encoder.

    References:
        Arora et al., A Simple but Tough-to-Beat Baseline for Sentence Embeddings, ICLR 2017, eq. 3 (the weights);
        model2vec (Tulkens and van Dongen 2024), https://github.com/MinishLab/model2vec.
    """

    def __init__(self, encoder: Any, dimensions: int | None = None) -> None:
        from sentence_transformers.sentence_transformer.modules import StaticEmbedding
        from sklearn.decomposition import PCA

        name = f"{getattr(encoder, 'name', 'encoder')}+static{dimensions or ''}"
        tokenizer: Any = getattr(getattr(encoder, "model", None), "tokenizer", None)
        if not isinstance(encoder, FolderEncoder) or not getattr(tokenizer, "is_fast", False):
            raise EvaluationError(f"{name}: +static needs the folder of a transformer with a fast tokenizer; remove +static")
        ids, vectors = _token_vectors(encoder, tokenizer)
        if dimensions is not None and not 1 <= dimensions <= min(vectors.shape):
            raise EvaluationError(f"{name}: {len(ids)} tokens with {vectors.shape[1]} dimensions; choose fewer dimensions")
        kept = dimensions or min(DIMENSIONS, *vectors.shape)
        probability = 1 / np.arange(2, len(ids) + 2)
        probability /= probability.sum()
        reduced = PCA(kept, svd_solver="covariance_eigh").fit_transform(vectors.astype(np.float64))
        table = np.zeros((len(tokenizer), kept), dtype=np.float32)
        table[ids] = reduced * (SIF / (SIF + probability))[:, None]
        core = copy.deepcopy(tokenizer.backend_tokenizer)
        core.no_truncation()
        self.embedding = StaticEmbedding(core, embedding_weights=table).to(encoder.device)

        def forward(features: dict[str, Any]) -> Tensor:
            return self.embedding(features)["sentence_embedding"]

        super().__init__(self.embedding.preprocess, forward, encoder.device, module=self.embedding)
        self.name, self.hash = name, encoder.hash
        post = f"static vectors, {kept} dimensions, SIF {SIF}"
        self.protocol = {**encoder.protocol, "post_processing": post, "max_tokens": None}

    def save(self, folder: str) -> None:
        """Write a sentence-transformers folder with the module StaticEmbedding."""
        from sentence_transformers import SentenceTransformer

        SentenceTransformer(modules=[self.embedding], device="cpu").save(folder)


def _token_vectors(encoder: FolderEncoder, tokenizer: Any) -> tuple[list[int], np.ndarray]:
    """Encode every token between the special tokens of an empty text; return the token IDs (V,) and vectors (V, d)."""
    special = {*tokenizer.all_special_ids} - {tokenizer.unk_token_id, tokenizer.pad_token_id}  # model2vec keeps these two
    pieces = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    ids = [i for i, piece in enumerate(pieces) if i not in special and not re.fullmatch(r"\[unused\d+\]", piece)]
    empty = tokenizer("")["input_ids"]
    start = empty[:1] if empty[:1] in ([tokenizer.cls_token_id], [tokenizer.bos_token_id]) else []

    def tokenize(rows: list[Any]) -> dict[str, Any]:
        input_ids = torch.tensor(rows)
        return {"input_ids": input_ids, "attention_mask": torch.ones_like(input_ids)}

    tokens = ModuleEncoder(tokenize, encoder.forward, encoder.device, module=encoder.module)
    return ids, tokens.encode([[*start, i, *empty[len(start) :]] for i in ids])
