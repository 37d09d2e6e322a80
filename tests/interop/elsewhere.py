"""Vectors of exported folders by libraries of another environment, which does not have this project.

``python elsewhere.py FOLDER... < texts.json`` prints {folder: {library: vectors, a list per text}}; the first gets ONNX
models by the lines of docs/how-to/export.md.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from langchain_huggingface import HuggingFaceEmbeddings
from sentence_transformers import SentenceTransformer


def onnx_models(folder: str, texts: list[str]) -> dict[str, Any]:
    """Run the lines of the page with OUT replaced by a folder, and return the vectors of the models that they write."""
    page = (Path(__file__).resolve().parents[2] / "docs/how-to/export.md").read_text()
    (lines,) = (block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "onnx" in block)
    exec(lines.replace("OUT", folder))
    found = {}
    for file in sorted(Path(f"{folder}-onnx", "onnx").glob("*.onnx")):
        options: dict[str, Any] = {"file_name": f"onnx/{file.name}", "provider": "CPUExecutionProvider"}
        model = SentenceTransformer(f"{folder}-onnx", device="cpu", backend="onnx", model_kwargs=options)
        found[file.stem] = model.encode(texts)
    return found


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
    return found


if __name__ == "__main__":
    lines = json.load(sys.stdin)
    with contextlib.redirect_stdout(sys.stderr):
        found = {folder: vectors(folder, lines) for folder in sys.argv[1:]}
        found[sys.argv[1]] |= onnx_models(sys.argv[1], lines)
    print(json.dumps(found, default=np.ndarray.tolist))
