"""Distill an encoder to a vector per token: ``python examples/static_vectors.py MODEL FOLDER``.

The result needs no transformer for a text: every token of the vocabulary is encoded by itself once, and a text is the mean
of the vectors of its tokens. It is a baseline without training, and a model for machines that must be fast. The folder is a
sentence-transformers model. ``pip install model2vec skeletoken`` first.
"""

from __future__ import annotations

import argparse
import sys

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("model", help="folder of a transformer with a fast tokenizer, such as the export of a run")
    made.add_argument("out", help="folder of the new model")
    made.add_argument("--dimensions", type=int, default=256, help="number of principal components of the vectors")
    return made


def main(argv: list[str] | None = None) -> int:
    """Run the command line."""
    given = parser().parse_args(argv)
    embedding = StaticEmbedding.from_distillation(given.model, pca_dims=given.dimensions)
    SentenceTransformer(modules=[embedding]).save(given.out)
    print(f"{given.out}: {embedding.embedding.num_embeddings:,} tokens, {embedding.embedding_dim} dimensions")
    return 0


if __name__ == "__main__":
    sys.exit(main())
