"""Measures for columns of tables that are not metrics of tasks.

Each takes a model (as in `evaluate.py --model`), the columns and the folder of evaluation data, and returns values by
column.
"""

from __future__ import annotations

import json
import time
import tomllib
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path

import numpy as np
import torch

from multicse.data.shards import RawSample, ShardSet, read
from multicse.data.streams import decode
from multicse.data.word_vectors import open_vectors
from multicse.evaluation.load import load_model, parse
from multicse.evaluation.registry import make_tasks
from multicse.evaluation.task import embed, unit
from multicse.evaluation.tasks.retrieval import read_captions
from multicse.evaluation.tasks.sts import PairTask
from multicse.models.pwva import background_noise, fourier, gaussian_noise, random_zeros
from multicse.models.word_module import importance, split
from multicse.reproduction.encoders.layers import layer_scores
from multicse.trainers.engine.journal import histories
from multicse.trainers.recipe import Recipe

EPOCHS = 20
"""Epochs of GCLSR's runs."""
AUGMENTATIONS: dict[str, Callable[[torch.Tensor, torch.Generator], torch.Tensor]] = {
    "GWN": lambda words, generator: gaussian_noise(words, generator, "released"),
    "RZS": lambda words, generator: random_zeros(words, generator, "released"),
    "IFFT": lambda words, generator: fourier(words, "released"),
    "RBN": lambda words, generator: background_noise(words, generator, "released"),
}
"""GCLSR's augmentations of word vectors (N, d), by column of its Figure 2."""
SENTENCE = "the performances are immaculate, with roussillon providing comic relief"
"""Sentence of the movie reviews for which GCLSR's section 3.2 lists the largest weights."""


def chosen_on(model: str, columns: tuple[str, ...], data: Path) -> dict[str, float]:
    """Return Spearman's correlation on the pairs that selected the checkpoint; `model` is the export of a run."""
    recipe = Recipe.from_json((Path(model).parent / "recipe.json").read_text(encoding="utf-8"))
    assert recipe.evaluation.select is not None
    (task,) = make_tasks([recipe.evaluation.select], data)
    return {columns[0]: task.score(load_model(model)).metrics["spearman"]}


def seconds(model: str, columns: tuple[str, ...], data: Path) -> dict[str, float]:
    """Return the seconds for training, and for encoding both sentences of all pairs of STS-B's test set.

    Training includes evaluations; the training of a flow is loading and fitting, and other models have 0.
    """
    start = time.perf_counter()
    encoder = load_model(model, batch_size=16)
    training = time.perf_counter() - start if parse(model).post else 0.0
    if (run := Path(model).parent / "summary.json").is_file():
        training = json.loads(run.read_text())["train_seconds"]
    task = pair_task("stsb-test", data)
    start = time.perf_counter()
    encoder.encode([*task.pairs.first, *task.pairs.second])
    return {"training": training, "inference": time.perf_counter() - start}


def layers(model: str, columns: tuple[str, ...], data: Path) -> dict[str, float]:
    """Return Spearman x 100 on STS-B's test set by layer; a trained model, without a pooling, has one value for all."""
    task, spec = pair_task("stsb-test", data), parse(model)
    if spec.pooling is None:
        return dict.fromkeys(columns, task.score(load_model(model)).metrics["spearman"])
    curve = layer_scores(spec.place, [task])[spec.pooling]
    return {layer: curve[int(layer)][task.name]["spearman"] for layer in columns}


def curve(model: str, columns: tuple[str, ...], data: Path) -> dict[str, float]:
    """Return Spearman's correlation on STS-B dev after each epoch, from the journal of the model's run."""
    history = histories(Path(model).parent / "journal.jsonl")["stsb-dev"]
    last = history[-1][0]
    return {str(round(EPOCHS * step / last)): metrics["spearman"] for step, metrics in history}


def extremes(model: str, columns: tuple[str, ...], data: Path) -> dict[str, float]:
    """Return the mean cosine x 100 of the pairs of STS-B dev with rating 5, and of the pairs with rating 0."""
    task = pair_task("stsb-dev", data)
    cosines = 100 * task.similarities(load_model(model))
    return {"rated 5": float(cosines[task.gold == 5].mean()), "rated 0": float(cosines[task.gold == 0].mean())}


def change(model: str, columns: tuple[str, ...], data: Path) -> dict[str, float]:
    """Return |w' - w| / |w| in percent for each augmentation, averaged over the first 1,000 words of a file."""
    words = torch.from_numpy(np.array(open_vectors(parse(model).place).vectors[:1000]))
    moved = {name: augment(words, seeded()) - words for name, augment in AUGMENTATIONS.items()}
    return {name: 100 * float((step.norm(dim=1) / words.norm(dim=1)).mean()) for name, step in moved.items()}


def weights(model: str, columns: tuple[str, ...], data: Path) -> dict[str, float]:
    """Return the weights of GCLSR's attention (Algorithm 1) for the words of `SENTENCE`; 0 for words without a vector."""
    vectors = open_vectors(parse(model).place)
    known = [word for word in split(SENTENCE) if word in vectors.row]
    words = torch.from_numpy(vectors.vectors[[vectors.row[word] for word in known]].astype(float))[None]
    found = importance(words, torch.ones(words.shape[:2]), len(known))[0]
    return dict.fromkeys(columns, 0.0) | dict(zip(known, found.tolist(), strict=True))


def nearest(model: str, columns: tuple[str, ...], data: Path) -> dict[str, float]:
    """Count for each query the model's nearest three captions that the paper's SimCSE, and VisualCSE, also retrieve."""
    lists = tomllib.loads(Path(__file__).with_name("nonlingcse.toml").read_text(encoding="utf-8"))["nearest"]
    texts = [*dict.fromkeys(captions(data))]
    encoder = load_model(model)
    cosines = unit(embed(encoder, [one["query"] for one in lists])) @ unit(embed(encoder, texts)).T
    counts = []
    for one, row in zip(lists, cosines, strict=True):
        near = [texts[i] for i in np.argsort(-row, kind="stable")[:4] if texts[i] != one["query"]][:3]
        counts += [sum(any(fnmatch(t, pattern) for pattern in one[of]) for t in near) for of in ("simcse", "visualcse")]
    return dict(zip(columns, map(float, counts), strict=True))


def captions(data: Path) -> list[str]:
    """Return 145,000 captions of Flickr30K from next to the evaluation data; otherwise the captions of its shards."""
    at_hand = data.resolve().parents[1] / "multi30k" / "captions5.train.en.tsv.gz"
    if at_hand.is_file():
        return read_captions(at_hand, ("c1", "c2", "c3", "c4", "c5"))
    shards = ShardSet.open("shards/flickr30k-train").shards
    samples = (sample for shard in shards for sample in read(shard, range(shard.samples)))
    return [text for one in samples if isinstance(one, RawSample) for text in decode.captions(one.fields, one.key)]


def seeded() -> torch.Generator:
    """Return a random generator with a fixed seed."""
    return torch.Generator().manual_seed(0)


def pair_task(name: str, data: Path) -> PairTask:
    """Return the STS task of this name from a folder of evaluation data."""
    (task,) = make_tasks([name], data)
    assert isinstance(task, PairTask)
    return task
