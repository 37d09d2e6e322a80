"""ONNX files of a text model's folder: what onnxruntime and sentence-transformers' `backend="onnx"` load."""

from __future__ import annotations

import contextlib
import json
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer

from multicse.models.hub_folders import ExportError
from multicse.models.text_folders import positions_of

FLOAT, INT8 = "onnx/model.onnx", "onnx/model_int8.onnx"
"""Where sentence-transformers, optimum and transformers.js look for them in a folder."""
INPUTS, OUTPUT = ["input_ids", "attention_mask"], "last_hidden_state"


class _States(nn.Module):
    """Token states (B, L, d) of token ids and their mask."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


def write_onnx(folder: Path, texts: list[str], int8: bool = False) -> list[str]:
    """Write `FLOAT`, and with `int8` `INT8`, into the folder of a text model; returns the files' names.

    texts: with which the model is traced; any two of different length. The files take ``input_ids`` and
    ``attention_mask`` (B, L) and give ``last_hidden_state`` (B, L, d); pooling and what is behind it stay
    sentence-transformers' modules. The weights of matrix products and embeddings have 8 bits in `INT8`, activations are
    rounded at every call. Raises ExportError where the libraries are missing or the last layer is not what is pooled.
    """
    try:
        import onnxscript  # noqa: F401 - what torch.onnx.export needs
        from onnxruntime.quantization import QuantType, quantize_dynamic
    except ImportError as error:
        raise ExportError(f"--onnx: {error.name} is not installed; pip install 'multicse[onnx]'") from error
    modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    if any(entry["type"].endswith("WeightedLayerPooling") for entry in modules):
        raise ExportError("--onnx: its pooling averages two layers, and the ONNX backend gives the last one alone")
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
        # 7 bits of the 8: where a CPU adds pairs of products in 16 bits (AVX2, AVX-512 without VNNI), 8 would overflow.
        quantize_dynamic(folder / FLOAT, folder / INT8, weight_type=QuantType.QInt8, per_channel=True, reduce_range=True)
    return [FLOAT, INT8]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the libraries' remarks on what is not installed or is to change, which no user can act on."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning)
        warnings.filterwarnings("ignore", message="# The axis name")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)


def onnx_states(file: Path, tokens: Any) -> Tensor:
    """The token states (B, L, d) that an ONNX file gives for a tokenizer's output."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run([OUTPUT], {name: tokens[name].numpy() for name in INPUTS})[0])
