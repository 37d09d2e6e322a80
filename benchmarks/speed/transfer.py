"""SentEval's transfer tasks: accuracy and time of the batched classifiers, against scikit-learn with the same folds.

    python -m benchmarks.speed.transfer [--tasks cr mrpc] [--model DIR]

scikit-learn's side is LogisticRegression (lbfgs) with C chosen by the same folds or dev set, refitted on all training rows.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import tyro
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, PredefinedSplit, StratifiedKFold

from benchmarks.speed.sts import minilm
from benchmarks.timer import clock, datasets, device
from evaluation.encoders.encoder import load_encoder
from evaluation.tasks import probe, transfer

GRID = {"C": [2.0**t for t in range(-2, 4)]}  # of SentEval's scikit-learn mode
Data = dict[str, np.ndarray]


def sklearn_accuracy(x: Data, y: Data) -> float:
    """Test accuracy in points, of features (N, d) and classes (N,) by part."""
    folds = StratifiedKFold(probe.TEST.kfold, shuffle=True, random_state=1111)
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


def main(tasks: tuple[str, ...] = ("cr",), model: Path | None = None) -> None:
    """Print a row a task; by name also mr, subj, mpqa, mrpc, trec and sst2, which take minutes each."""
    data, _ = datasets("senteval", "downstream"), device()
    warnings.simplefilter("ignore", ConvergenceWarning)
    encoder = load_encoder(model or minilm())
    print("| task | accuracy | released protocol | scikit-learn | s | s, scikit-learn | ours is faster by |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name in tasks:
        task = transfer.make(name, data)
        x, y = task.data.features(encoder), task.data.y
        began = clock()
        accuracy = probe.run(x, y, probe.TEST).accuracy
        middle = clock()
        reference = sklearn_accuracy(x, y)
        ours, theirs = middle - began, clock() - middle
        released = probe.run(x, y, probe.RELEASED).accuracy
        numbers = f"{accuracy:.2f} | {released:.2f} | {reference:.2f} | {ours:.1f} | {theirs:.1f} | {theirs / ours:.2f}"
        print(f"| {name} | {numbers} |", flush=True)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
