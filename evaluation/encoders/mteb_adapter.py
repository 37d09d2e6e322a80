"""Any encoder, also one in training or a baseline, as a model that `mteb.evaluate` takes. An export needs none of this."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from multicse.evaluation.task import Encoder, EvaluationError, embed, look_up

# What the fingerprint is taken of: whatever changes the vectors of these is another model.
PROBES = ["A man is playing a guitar.", "the dog", "Two children run across a field of grass.", "12 x 7 = 84", "no"]


class MtebEncoder:
    """An `Encoder` of texts with the interface of mteb 2: ``mteb.evaluate(MtebEncoder(encoder, "my-model"), tasks)``.

    Similarity is the cosine. mteb's prompts and batch size are left aside: the encoder has its own. Results are filed
    under ``multicse/<name>`` (or `name` itself, if it has an owner) and a fingerprint of the encoder's present vectors,
    so that mteb's cache never answers for an earlier checkpoint of the same name.

    Raises EvaluationError when mteb is not installed.
    """

    def __init__(self, encoder: Encoder, name: str) -> None:
        _mteb()
        self.encoder = encoder
        self.name = name if "/" in name else f"multicse/{name}"

    @property
    def mteb_model_meta(self) -> Any:
        """mteb's ModelMeta, made anew each time: an encoder in training changes."""
        from mteb.models import ModelMeta
        from mteb.models.model_meta import ScoringFunction

        vectors = embed(self.encoder, PROBES).astype(np.float32)
        facts = {
            "name": self.name,
            "revision": hashlib.sha256(vectors.tobytes()).hexdigest()[:40],
            "embed_dim": vectors.shape[1],
            "similarity_fn_name": ScoringFunction.COSINE,
        }
        return ModelMeta.create_empty(facts)

    def encode(self, inputs: Any, *, task_metadata: Any, **settings: Any) -> np.ndarray:
        """Vectors (N, d), float32, of the texts of a DataLoader of mteb's batches; each distinct one is encoded once."""
        texts: list[str] = []
        for batch in inputs:
            if "text" not in batch or {"image", "audio", "video"} & set(batch):
                raise EvaluationError(
                    f"task {task_metadata.name} of mteb has {', '.join(batch)}; this adapter takes tasks on text alone"
                )
            texts += batch["text"]
        return look_up(self.encoder, texts)[0].astype(np.float32)

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Cosines (N, M) of embeddings1 (N, d) and embeddings2 (M, d)."""
        return _mteb().similarity_functions.cos_sim(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Cosines (N,) of embeddings1 and embeddings2 (N, d), row by row."""
        return _mteb().similarity_functions.pairwise_cos_sim(embeddings1, embeddings2)


def _mteb() -> Any:
    try:
        import mteb
        import mteb.similarity_functions
    except ImportError as error:
        raise EvaluationError('evaluation by mteb needs the library: pip install "multicse[mteb]"') from error
    return mteb
