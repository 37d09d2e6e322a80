"""Vectors of exported folders by libraries of another environment, which does not have this project.

``python elsewhere.py FOLDER... < texts.json`` prints {folder: {library: vectors, a list per text}}.
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from langchain_huggingface import HuggingFaceEmbeddings
from sentence_transformers import SentenceTransformer


def vectors(folder: str, texts: list[str]) -> dict[str, Any]:
    own = SentenceTransformer(folder, device="cpu").encode(texts)
    found = {"sentence-transformers": own}
    found["langchain"] = np.array(HuggingFaceEmbeddings(model_name=folder).embed_documents(texts))
    index = faiss.IndexFlatL2(own.shape[1])
    index.add(own)
    found["faiss"] = np.stack([index.reconstruct(int(row)) for row in index.search(own, 1)[1][:, 0]])
    bits = SentenceTransformer(folder, device="cpu").encode(texts, precision="ubinary")
    binary = faiss.IndexBinaryFlat(own.shape[1])
    binary.add(bits)
    distances, order = binary.search(bits, len(texts))
    found["faiss-binary"] = 1 - 2 * np.take_along_axis(distances, order.argsort(1), 1) / own.shape[1]
    files = {path.stem: f"onnx/{path.name}" for path in sorted(Path(folder, "onnx").glob("*.onnx"))}
    for name, file in files.items():
        options: dict[str, Any] = {"file_name": file, "provider": "CPUExecutionProvider"}
        found[name] = SentenceTransformer(folder, device="cpu", backend="onnx", model_kwargs=options).encode(texts)
    if files:  # optimum's own exporter reads the folder as well
        options = {"export": True, "provider": "CPUExecutionProvider"}
        found["optimum"] = SentenceTransformer(folder, device="cpu", backend="onnx", model_kwargs=options).encode(texts)
    return {library: rows.tolist() for library, rows in found.items()}


if __name__ == "__main__":
    lines = json.load(sys.stdin)
    with contextlib.redirect_stdout(sys.stderr):
        result = {folder: vectors(folder, lines) for folder in sys.argv[1:]}
    print(json.dumps(result))
