"""Sentences per second of an export's ONNX files, as sentence-transformers loads them, against its encoder in torch.

    python -m benchmarks.speed.serving [--model DIR] [--one-in 5] [--rounds 3]

All sides are `SentenceTransformer.encode` on the same folder, one thread each, in the environment of `make test-interop`:
sentence-transformers' `backend="onnx"` needs optimum. The sentences are those of STS-B dev.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.timer import Target, datasets, device, peaks, race, ratios, show, skip

FASTER = Target(
    area="serving",
    what="int8 ONNX / fp32 torch in sentence-transformers, sentences per second",
    at_least=2,
    why="without VNNI a CPU multiplies 8 bits at most twice as fast as floats",
)
LOST = Target(area="serving", what="Spearman x 100 that int8 loses on STS-B dev", at_most=0.5, unit="points")
ROOT = Path(__file__).resolve().parents[2]
PYTHON = Path(os.environ.get("MULTICSE_INTEROP", ROOT / ".venv-interop")) / "bin" / "python"


def main(model: Path | None = None, one_in: int = 5, rounds: int = 3) -> None:
    """Print a table; of the pairs those of one first sentence in `one_in`."""
    from benchmarks.speed.sts import cut, minilm
    from multicse.evaluation.registry import make_tasks
    from multicse.models.onnx_files import write_onnx
    from multicse.models.text_encoder import TextEncoder

    data = datasets("sts", rows=[FASTER, LOST])
    if not PYTHON.exists():
        skip(f"{PYTHON.parents[1].name} is not there (make test-interop)", [FASTER, LOST])
    task: Any = make_tasks(("stsb-dev",), data)[0]
    chosen = cut(task, one_in).pairs
    given = {"first": chosen.first, "second": chosen.second, "gold": chosen.gold, "rounds": rounds}
    with tempfile.TemporaryDirectory() as folder:
        TextEncoder.from_pretrained(str(model or minilm())).save(folder)
        write_onnx(Path(folder), ["A dog runs through the park.", "one"], int8=True)
        call = "from benchmarks.speed.serving import measure; measure()"
        subprocess.run([str(PYTHON), "-c", call, folder], input=json.dumps(given), text=True, cwd=ROOT, check=True)


def measure() -> None:
    """The sides, in the other environment: it gets the folder as its argument and the sentences as JSON."""
    import numpy as np
    import onnxruntime
    from scipy.stats import spearmanr
    from sentence_transformers import SentenceTransformer

    folder, given = sys.argv[1], json.load(sys.stdin)
    device()  # one thread
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    models = {"fp32, torch": SentenceTransformer(folder, device="cpu")}
    for name, file in {"fp32, ONNX": "onnx/model.onnx", "int8, ONNX": "onnx/model_int8.onnx"}.items():
        settings = {"file_name": file, "provider": "CPUExecutionProvider", "session_options": options}
        models[name] = SentenceTransformer(folder, device="cpu", backend="onnx", model_kwargs=settings)
    sentences = [*given["first"], *given["second"]]
    took = race({name: partial(one.encode, sentences) for name, one in models.items()}, given["rounds"])
    show(f"{len(sentences):,} sentences of STS-B dev on one thread of a CPU", took, len(sentences), ours="int8, ONNX")
    scores = {}
    for name, one in models.items():
        first, second = (one.encode(given[side], normalize_embeddings=True) for side in ("first", "second"))
        scores[name] = 100 * spearmanr(np.sum(first * second, axis=1), given["gold"]).statistic
        print(f"{name}: Spearman x 100 is {scores[name]:.2f}")
    faster = ratios(took["fp32, torch"], took["int8, ONNX"])
    replace(FASTER, measured=faster, peak_mb=peaks(took)).report()
    lost = [float(scores["fp32, torch"] - scores["int8, ONNX"])]
    replace(LOST, measured=lost).report()


if __name__ == "__main__":
    import tyro

    tyro.cli(main, description=__doc__)
