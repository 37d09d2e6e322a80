"""Benchmarks that need no more than a function: each measures once what a user waits for, or what a part costs.

    python -m benchmarks.speed.once start        --help, a mistyped option, the first step of a run, and the whole demo
    python -m benchmarks.speed.once sts          an STS evaluation against `SentenceTransformer.encode` in the usual loop
    python -m benchmarks.speed.once serving      an export's ONNX files in sentence-transformers against its encoder in torch
    python -m benchmarks.speed.once scale        large batches by cached gradients: memory and time of a step
    python -m benchmarks.speed.once sweep        a sweep against its trials' loops one after the other
    python -m benchmarks.speed.once safety       the demo's steps with checkpoints, hashes, locks and a watchdog, and without

Functions import what they need, since `serving` runs in an environment that lacks most of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import MagicMock, patch
from zlib import crc32

from benchmarks.timer import Target, clock, datasets, device, minilm, peak_mb, race, ratios, show, skip, watched

if TYPE_CHECKING:
    from multicse.evaluation.tasks.sts import PairTask
    from multicse.trainers.recipe import Recipe

ROOT = Path(__file__).resolve().parents[2]

# ---- start

SMOKE = ("pipelines/visualcse.py", "smoke", "--run.log_every", "1")
SHOWN = "it shows the settings of a recipe, which stand beside the modules of their paper: torch alone takes 2 s"
WAITS = {
    "--help": (1.5, ("pipelines/visualcse.py", "--help"), SHOWN),
    "a mistyped option": (2.0, ("pipelines/visualcse.py", "demo", "--run.wrokers", "1"), SHOWN),
    "first step in process": (
        3.0,
        (*SMOKE, "--run.workers", "0"),
        "importing torch and transformers is most of it, table below",
    ),
    "first step through Ray": (
        10.0,
        SMOKE,
        "driver and worker import torch, transformers and MLflow on the same two cores, table below",
    ),
    "the demo": (
        150.0,
        ("pipelines/visualcse.py", "demo"),
        "200 steps and 10 evaluations on two cores, while the driver, Ray and readers take their share",
    ),
}
"""Seconds that are wanted at most, the command, and what it waits for."""


class Ran(NamedTuple):
    """A command that was run."""

    seconds: float
    first: float
    """Until the first step of its run, if it has a run."""
    peak_mb: float
    """Of the command and of all that it has started."""


def run(*command: str) -> Ran:
    """Run ``python COMMAND`` in a new process, with an output folder and an empty MLflow database of its own."""
    with tempfile.TemporaryDirectory() as place:
        if "--help" not in command:
            command += ("--run.output", f"{place}/run", "--run.tracking_uri", f"sqlite:///{place}/mlflow.db")
        began = time.time()
        log = subprocess.DEVNULL
        process = subprocess.Popen([sys.executable, *command], cwd=ROOT, stdout=log, stderr=log)
        with watched(process.pid, share=0.01) as peak:
            process.wait()
        ended = time.time()
        journal = Path(place) / "run" / "journal.jsonl"
        lines = map(json.loads, journal.read_text().splitlines()) if journal.exists() else ()
        steps = (line["time"] / 1000 for line in lines if "time/samples_per_second" in line.get("metrics", {}))
        return Ran(ended - began, next(steps, ended) - began, peak[0])


def start(rounds: int = 3, demo: bool = False) -> None:
    """What a user waits for, in seconds of the clock. `demo`: run the demo too, which takes minutes."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    run(*SMOKE, "--run.workers", "0")  # makes the offline shards, and the system has read the libraries once
    took: dict[str, list[Ran]] = {name: [] for name in WAITS}
    for turn in range(rounds):
        for name, (_, command, _) in WAITS.items():
            if name != "the demo" or (demo and turn == 0):
                took[name].append(run(*command))
    for name, (most, _, why) in WAITS.items():
        row = Target(area="start", what=name, at_most=most, unit="s", why=why if took[name] else "minutes: --demo")
        row.measured = [ran.first if "step" in name else ran.seconds for ran in took[name]]
        row.peak_mb = {"all": max(ran.peak_mb for ran in took[name])} if took[name] else {}
        row.report()


# ---- sts

STS = Target(
    area="serving",
    what="STS: ours / SentenceTransformer.encode in the usual loop, sentences per second",
    at_least=1.7,
)
TASKS = ("sts12", "sts13", "sts14", "stsb-dev", "stsb-test", "sickr-dev")


def cut(task: PairTask, one_in: int) -> PairTask:
    """The pairs of one first sentence in so many: all that it has, since sentences recur, within a set and between sets."""
    from multicse.evaluation.tasks.sts import Pairs, PairTask

    rows = [i for i, text in enumerate(task.pairs.first) if crc32(text.encode()) % one_in == 0]
    columns: Any = (task.pairs.first, task.pairs.second, task.pairs.gold, task.pairs.subset)
    first, second, gold, subset = (tuple(column[i] for i in rows) for column in columns)
    return PairTask(task.name, Pairs(first, second, gold, subset))


def usual_loop(tasks: list[PairTask], model: Any, batch: int) -> dict[str, float]:
    """Spearman of every task, subset by subset, first sentences, then second ones; the correlation is over all subsets."""
    import numpy as np
    from scipy.stats import spearmanr

    scores = {}
    for task in tasks:
        cosines, subsets = np.zeros(len(task.pairs)), np.asarray(task.pairs.subset)
        for subset in dict.fromkeys(task.pairs.subset):
            rows = np.flatnonzero(subsets == subset)
            sides = ([side[i] for i in rows] for side in (task.pairs.first, task.pairs.second))
            first, second = (model.encode(side, batch_size=batch, show_progress_bar=False) for side in sides)
            cosines[rows] = (first * second).sum(1) / np.linalg.norm(first, axis=1) / np.linalg.norm(second, axis=1)
        scores[task.name] = 100 * float(spearmanr(cosines, task.gold).statistic)
    return scores


def sts(model: Path | None = None, one_in: int = 20, rounds: int = 3) -> None:
    """Sentences per second of an STS evaluation, on the pairs of one first sentence in `one_in` of every set.

    The usual loop has the library's batch of 32 and SimCSE's of 128. All sides have the same model object and pairs; a
    sentence is one side of one pair, however often it is encoded.
    """
    from multicse.evaluation.encoders.encoder import load_encoder
    from multicse.evaluation.registry import make_tasks
    from multicse.evaluation.task import encode_once
    from multicse.evaluation.tasks.sts import PairTask

    data, on = datasets("sts", rows=[STS]), device()
    encoder = load_encoder(model or minilm())
    tasks = [cut(task, one_in) for task in make_tasks(TASKS, data) if isinstance(task, PairTask)]

    def ours() -> dict[str, float]:
        encoded = encode_once(tasks, encoder)
        return {task.name: task.score(encoded).metrics["spearman"] for task in tasks}

    sides: dict[str, Callable[[], dict[str, float]]] = {"ours": ours}
    for batch in (32, 128):
        sides[f"SentenceTransformer.encode, batch {batch}"] = partial(usual_loop, tasks, encoder.model, batch)
    took = race(sides, rounds)
    sentences = sum(2 * len(task.pairs) for task in tasks)
    show(f"{sentences:,} sentences of {len(tasks)} STS sets on {on}", took, sentences)
    faster = ratios(took["SentenceTransformer.encode, batch 32"], took["ours"])
    replace(STS, measured=faster).report(ours)
    scores = [side() for side in sides.values()]
    gap = max(abs(other[name] - value) for other in scores for name, value in scores[0].items())
    print(f"\nSpearman x 100 differs by at most {gap:.1e}.")


# ---- serving

INT8 = Target(
    area="serving",
    what="int8 ONNX / fp32 torch in sentence-transformers, sentences per second",
    at_least=2,
    why="without VNNI a CPU multiplies 8 bits at most twice as fast as floats",
)
LOST = Target(area="serving", what="Spearman x 100 that int8 loses on STS-B dev", at_most=0.5, unit="points")
PYTHON = Path(os.environ.get("MULTICSE_INTEROP", ROOT / ".venv-interop")) / "bin" / "python"


def serving(model: Path | None = None, one_in: int = 5, rounds: int = 3) -> None:
    """Sentences per second of an export's ONNX files, as sentence-transformers loads them, against its encoder in torch.

    All sides are `SentenceTransformer.encode` on the same folder, one thread each, in the environment of `make
    test-interop`: sentence-transformers' `backend="onnx"` needs optimum. The sentences are those of STS-B dev, of its pairs
    those of one first sentence in `one_in`.
    """
    from multicse.evaluation.registry import make_tasks
    from multicse.models.onnx_files import write_onnx
    from multicse.models.text_encoder import TextEncoder

    data = datasets("sts", rows=[INT8, LOST])
    if not PYTHON.exists():
        skip(f"{PYTHON.parents[1].name} is not there (make test-interop)", [INT8, LOST])
    task: Any = make_tasks(("stsb-dev",), data)[0]
    chosen = cut(task, one_in).pairs
    given = {"first": chosen.first, "second": chosen.second, "gold": chosen.gold, "rounds": rounds}
    with tempfile.TemporaryDirectory() as folder:
        TextEncoder.from_pretrained(str(model or minilm())).save(folder)
        write_onnx(Path(folder), ["A dog runs through the park.", "one"], int8=True)
        call = "from benchmarks.speed.once import served; served()"
        subprocess.run([str(PYTHON), "-c", call, folder], input=json.dumps(given), text=True, cwd=ROOT, check=True)


def served() -> None:
    """The sides of `serving`, in the other environment: it gets the folder as its argument and the sentences as JSON."""
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
        scores[name] = 100 * float(spearmanr(np.sum(first * second, axis=1), given["gold"]).statistic)
        print(f"{name}: Spearman x 100 is {scores[name]:.2f}")
    replace(INT8, measured=ratios(took["fp32, torch"], took["int8, ONNX"])).report()
    replace(LOST, measured=[scores["fp32, torch"] - scores["int8, ONNX"]]).report()


# ---- scale

MEMORY_GB = 8
"""What a machine of two cores has at least."""


def train(content: str, size: int, steps: int) -> float:
    """Seconds of a step on `size` samples, which are those of the stream's first batch again and again."""
    import torch

    from benchmarks.speed.engine import Preloaded, batches, engine
    from multicse.data.streams.base import Batch
    from multicse.trainers.engine.step import Window
    from multicse.trainers.recipe import Recipe

    device()
    recipe = Recipe.from_json(content)
    made = engine(recipe)
    (stream,) = recipe.streams
    first = batches(made, stream, 1)[0]
    rows = torch.arange(size) % len(first)
    readers: Any = {stream: Preloaded([Batch({name: t[rows] for name, t in first.tensors.items()}, first.keys)])}
    window, took = Window(readers), []
    for step in range(steps):
        began = clock()
        made.stepper(step, readers, window)
        took.append(clock() - began)
    return min(took)


def compare(title: str, recipe: Recipe, size: int, chunk: int) -> dict[int, tuple[float, float]]:
    """Peak in MB and seconds a sample of a small batch and of a large one, by their sizes; printed as well."""
    print(f"\n{title}\n| samples | at a time | peak MB | ms a sample |\n|---:|---:|---:|---:|")
    found = {}
    for samples, pieces, steps in ((chunk, None, 5), (size, chunk, 1)):
        peak, seconds = peak_mb(train, recipe.replace("run.chunk", pieces).to_json(), samples, steps)
        found[samples] = peak, seconds / samples
        print(f"| {samples:,} | {pieces or 'all'} | {peak:,.0f} | {1e3 * seconds / samples:.2f} |", flush=True)
    return found


def scale(model: Path | None = None, batch: int = 4096, chunk: int = 64, pairs: int = 8192) -> None:
    """Large batches by cached gradients: peak memory and time of a step beside those of a small batch.

    SimCSE on `batch` sentences of 32 tokens at most, `chunk` at a time, against the same step of `chunk` sentences; and CLIP
    on `pairs` of pictures of 64 pixels and captions. Every side is a process of its own, and its peak holds weights,
    optimizer and losses. Time is processor time of a step, of the small batch the best of five.
    """
    from benchmarks.speed.engine import text_recipe
    from multicse.pipelines import cyclip, parts
    from multicse.pipelines.cli import prepare

    with tempfile.TemporaryDirectory() as place:
        found = compare("SimCSE", text_recipe(model or Path(parts.SMALL_ENCODER), place, chunk), batch, chunk)
        (small, short), (large, long) = found[chunk], found[batch]
        peaks = {str(size): peak for size, (peak, _) in found.items()}
        matrix = f"of {large - small:,.0f} MB more, cosines, softmax and gradient are {12 * batch**2 / 2**20:,.0f}, "
        matrix += "and as many with a large encoder, whose own memory is a multiple of this one's"
        memory = f"SimCSE, small encoder: memory of batch {batch:,} in chunks of {chunk} / of batch {chunk}"
        Target(area="scale", what=memory, at_most=1.3, measured=[large / small], peak_mb=peaks, why=matrix).report()
        forward = "every sample has one more forward, a third of a step"
        seconds = f"SimCSE, small encoder: time per sample of batch {batch:,} / of batch {chunk}"
        Target(area="scale", what=seconds, at_most=1.4, measured=[long / short], why=forward).report()
        tower = {"method.tower.width": 64, "method.tower.layers": 2, "method.embed_dim": 64}
        losses = {"method.i_cyclic": 0.0, "method.c_cyclic": 0.0, "method.captions": 0.0}
        clip = cyclip.demo().changed({**tower, **losses, "run.output": f"{place}/clip", "run.workers": 0})
        prepare(clip)
        found = compare("CLIP", clip, pairs, chunk)
        fits = f"CLIP, small towers: memory of batch {pairs:,} in chunks of {chunk}"
        Target(area="scale", what=fits, at_most=MEMORY_GB, unit="GB", measured=[found[pairs][0] / 1024]).report()


# ---- sweep, safety


def sweep(pipeline: str = "simcse", trials: int = 8, steps: int = 200) -> None:
    """What a sweep of demos costs beside its steps.

    The time of a sweep until its last trial's end, from the command on, over that of the loops of the same trials, their
    evaluations included, one after the other in this process, which has all cores.
    """
    from multicse.pipelines import registry
    from multicse.pipelines.cli import prepare
    from multicse.trainers.engine.checkpoint import Store
    from multicse.trainers.engine.hosts import LocalHost
    from multicse.trainers.engine.launch import resolve
    from multicse.trainers.engine.loop import Engine

    settings = {"run.max_steps": steps, "evaluation.every": steps // 2}
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, "-m", "multicse.pipelines.sweep", pipeline, "--trials", str(trials), "--output", place]
        command += ["--scheduler", "none", "--searcher", "random", "--run.tracking_uri", f"sqlite:///{place}/mlflow.db"]
        command += [part for path, value in settings.items() for part in (f"--{path}", str(value))]
        began = time.time()
        subprocess.run(command, check=True)
        whole = time.time() - began
        rows = json.loads(Path(place, "trials.json").read_text())
    ends, alone = [row["ended_at"] - began for row in rows], 0.0
    for row in rows:
        changes = {**settings, **row["changes"], "evaluation.final": (), "run.checkpoint_every": None}
        recipe = resolve(registry.load(pipeline).RECIPES["demo"]()).changed(changes)
        prepare(recipe)
        with tempfile.TemporaryDirectory() as place:
            alone += Engine(recipe.replace("run.output", place), LocalHost(Store(place)), None).run()["train_seconds"]
    why = f"{max(ends):.0f} s to the last trial's end, of it {min(ends):.0f} s to the first one's; alone {alone:.0f} s"
    print(f"{len(rows)} trials: {why}; {whole:.0f} s in all")
    what = f"{len(rows)} trials of {steps} steps: sweep / their loops one after the other in one process"
    Target(area="sweeps", what=what, at_most=1.1, measured=[max(ends) / alone], why=why).report()


def safety(rounds: int = 5) -> None:
    """What it costs that a run can die: VisualCSE's demo in this process, its fifty steps up to the first checkpoint.

    One side is a first run, which hashes its shards; of the other nothing is kept, checked, locked or watched. Neither
    evaluates, which would only hide the rest.
    """
    from multicse.data import shards
    from multicse.pipelines import visualcse
    from multicse.pipelines.cli import prepare
    from multicse.trainers.engine.checkpoint import Store, weights_of
    from multicse.trainers.engine.hosts import LocalHost
    from multicse.trainers.engine.loop import Engine
    from multicse.trainers.engine.output import DRIVER, WRITER, locked
    from multicse.trainers.engine.stop import Stop

    def keep_weights(engine: Engine) -> bool:
        """The weights after the last step are the best, as they are kept beside those of a checkpoint."""
        engine.best = weights_of(engine.method)
        return True

    def safe() -> None:
        shards.verify_shard.cache_clear()
        with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as around:
            around.enter_context(patch.dict("os.environ", MULTICSE_CACHE=f"{place}/cache"))
            for lock in (DRIVER, WRITER):
                around.enter_context(locked(Path(place), name=lock))
            stop = around.enter_context(Stop())
            around.enter_context(stop.patient())
            Engine(recipe, LocalHost(Store(f"{place}/checkpoint"), lambda: stop.asked is not None), None).run()

    def bare() -> None:
        with (
            patch.object(Engine, "_save"),
            patch("multicse.trainers.engine.loop.Watchdog", MagicMock()),
            patch("multicse.data.shards.verify_shard", return_value=None),
        ):
            Engine(recipe, LocalHost(Store("nowhere")), None).run()

    on = device()
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place), patch.object(Engine, "_evaluate", keep_weights):
        recipe = visualcse.demo()
        prepare(recipe)
        steps = recipe.evaluation.every
        changes = {"run.max_steps": steps, "run.threads": 1, "evaluation.final": (), "evaluation.watch": ()}
        recipe = recipe.changed(changes)
        took = race({"safe": safe, "bare": bare}, rounds)
    show(f"{steps} steps of {recipe.name} and a checkpoint, on {on}", took, steps, ours="safe")
    what = f"{recipe.name}, {steps} steps and a checkpoint: with all that makes it go on / without, time"
    Target(area="reliability", what=what, at_most=1.02, measured=ratios(took["safe"], took["bare"])).report()


BENCHMARKS: dict[str, Callable[..., None]] = {
    benchmark.__name__: benchmark for benchmark in (start, sts, serving, scale, sweep, safety)
}

if __name__ == "__main__":
    import tyro

    tyro.extras.subcommand_cli_from_dict(BENCHMARKS, description=__doc__)
