"""ONNX files in the folder of a text model, for onnxruntime and sentence-transformers' `backend="onnx"`."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer

from multicse.models.hub_folders import ExportError, read_json
from multicse.models.text_folders import positions_of

FLOAT, INT8 = "onnx/model.onnx", "onnx/model_int8.onnx"
"""Paths in a folder where sentence-transformers, optimum and transformers.js expect the files."""
INPUTS, OUTPUT = ["input_ids", "attention_mask"], "last_hidden_state"


class _States(nn.Module):
    """Model that returns only the token states."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return the token states (B, L, d) of token IDs and mask (B, L)."""
        return self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


def write_onnx(folder: Path, texts: list[str], int8: bool = False) -> list[str]:
    """Write ONNX files into the folder of a text model.

    The files map ``input_ids`` and ``attention_mask``, (B, L), to ``last_hidden_state``, (B, L, d); pooling and later
    modules stay with sentence-transformers.

    Args:
        folder: Folder of the model.
        texts: Texts to trace the model with; at least two of different length.
        int8: Also write a file with 8-bit weights for matrix products and embeddings; activations are rounded at every call.

    Returns:
        Names of the files, relative to the folder.

    Raises:
        ExportError: If a library is not installed, or the pooling uses more than the last layer.
    """
    try:
        import onnxscript  # noqa: F401 - torch.onnx.export needs it
        from onnxruntime.quantization import QuantType, quantize_dynamic
    except ImportError as error:
        raise ExportError(f"--onnx: {error.name} is not installed; pip install 'multicse[onnx]'") from error
    modules = read_json(folder / "modules.json")
    if any(entry["type"].endswith("WeightedLayerPooling") for entry in modules):
        raise ExportError(
            "--onnx: the pooling averages two layers, but the ONNX backend returns only the last one; export without --onnx"
        )
    (folder / FLOAT).parent.mkdir(exist_ok=True)
    model = AutoModel.from_pretrained(folder, dtype=torch.float32)
    tokens = AutoTokenizer.from_pretrained(folder)(texts, padding=True, truncation=True, return_tensors="pt")
    sizes = {0: torch.export.Dim("texts"), 1: torch.export.Dim("tokens", max=positions_of(model))}
    with _quiet():
        torch.onnx.export(
            _States(model).eval(),
            tuple(tokens[name] for name in INPUTS),
            str(folder / FLOAT),
            input_names=INPUTS,
            output_names=[OUTPUT],
            dynamic_shapes=tuple(sizes for _ in INPUTS),
            external_data=False,
            dynamo=True,
            verbose=False,
        )
        if not int8:
            return [FLOAT]
        # 7 of the 8 bits: CPUs that add pairs of products in 16 bits (AVX2, AVX-512 without VNNI) would overflow with 8.
        quantize_dynamic(folder / FLOAT, folder / INT8, weight_type=QuantType.QInt8, per_channel=True, reduce_range=True)
    return [FLOAT, INT8]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence messages of the libraries about optional packages and future changes."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning)
        warnings.filterwarnings("ignore", message="# The axis name")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)


def onnx_states(file: Path, tokens: Any) -> Tensor:
    """Return the token states (B, L, d) of an ONNX file for the output of a tokenizer."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run([OUTPUT], {name: tokens[name].numpy() for name in INPUTS})[0])
