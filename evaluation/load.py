"""What a user names a model by, ``PLACE[@POOLING][+POST][:FIT]``, and the encoder that it stands for.

PLACE is a folder, a name on the Hugging Face hub, or a word-vector file; POST one of `POST`, whitening perhaps with a number
of dimensions.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from multicse import load_plugins
from multicse.data.errors import did_you_mean
from multicse.data.word_vectors import is_word_vectors
from multicse.evaluation.encoders.folders import model_type, own_module
from multicse.evaluation.task import Encoder, EvaluationError, Task
from multicse.evaluation.tasks.paired_items import Samples
from multicse.evaluation.tasks.retrieval import read_captions
from multicse.models.hub_folders import EVALUATED

logger = logging.getLogger(__name__)

MULTIMODAL = ("clip", "siglip", "siglip2", "clap", "align", "chinese_clip")  # model_type in config.json
HUB = re.compile(r"[\w.-]+(/[\w.-]+)?(?=[@+]|$)")
"""A name on the Hugging Face hub, at the beginning of a model's name."""
TARGET = "the sentences of the evaluated tasks, without their labels (transductive; 'target' in the papers)"


class Model(Encoder, Protocol):
    """An encoder that can be reported."""

    name: str  # short, for tables

    @property
    def hash(self) -> str | None:
        """sha256 of the model's files."""
        ...

    @property
    def protocol(self) -> dict[str, Any]:
        """How items become vectors: pooling, post_processing, fitted_on, max_tokens, device."""
        ...


class Spec(NamedTuple):
    """A model's name in its parts."""

    place: Path
    pooling: str | None = None
    post: str | None = None  # "whitening", "whitening256", "centring"
    fit: str | None = None  # what that is fitted on: a file, one sentence a line, or shards of texts


def parse(spec: str) -> Spec:
    """The parts of ``PLACE[@POOLING][+POST][:FIT]``.

    The longest beginning that exists on disk is the place. Where none does, it is a name on the Hugging Face hub, whose
    model is fetched, unless it was before.

    Raises EvaluationError for a place that is nowhere, a hub that does not answer, and an unknown post-processing.
    """
    cuts = [i for i, character in enumerate(spec) if character in "@+"]
    name_at, hub = spec.rfind("/") + 1, HUB.match(spec)
    of_name = hub.end() if hub else min((cut for cut in cuts if cut > name_at), default=len(spec))
    end = next((end for end in (len(spec), *reversed(cuts)) if end and _path(spec[:end]).exists()), of_name)
    place, rest = spec[:end], spec[end:]
    parts = re.fullmatch(r"(?:@([^@+]+))?(?:\+([^:]+)(?::(.+))?)?", rest)
    if parts is None:
        raise EvaluationError(
            f"{place} is a model's place, but {rest!r} after it is not @POOLING, +POST[:FIT] or @POOLING+POST[:FIT]"
        )
    pooling, post, fit = parts.groups()
    load_plugins()
    if post is not None and not re.fullmatch(rf"whitening\d*|{'|'.join(POST)}", post):
        others = ", ".join(f"+{name}" for name in POST if name != "whitening")
        raise EvaluationError(
            f"unknown post-processing {post!r} in {spec!r}.{did_you_mean(post, POST)} It is one of +whitening, "
            f"+whitening<K> (to K dimensions), {others}"
        )
    return Spec(_path(place) if _path(place).exists() else _of_hub(place), pooling, post, fit)


def _of_hub(name: str) -> Path:
    """The folder of a model of the Hugging Face hub. Raises EvaluationError when it has none, or is not reached."""
    path = _path(name)
    there = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    near, reason = did_you_mean(path.name, there), ""
    if HUB.fullmatch(name) and not is_word_vectors(path) and not near and not ("/" in name and there):
        try:
            return EVALUATED.folder(name)
        except ValueError as error:
            first, *_ = str(error.__cause__).splitlines()
            reason = f" The hub did not give it ({first}); where it can be reached: `hf download NAME --local-dir DIR`"
    raise EvaluationError(
        f"no model {path}.{near} A model is a folder on disk, a name on the hub or a word-vector file; @POOLING and "
        f"+whitening may follow it.{reason}"
    )


def fit_sentences(place: str | Path) -> list[str]:
    """Sentences to fit on: the lines of a file, or the texts (field txt) of shards."""
    if _path(str(place)).is_file():
        return read_captions(place)
    return [sample.item for chunk in Samples("+whitening", place).chunks() for sample in chunk]


def load_model(
    spec: str,
    *,
    pooling: str | None = None,
    device: str | None = None,
    batch_size: int = 128,
    fit: Sequence[str] | None = None,
    fit_source: str = TARGET,
    seed: int = 0,
) -> Model:
    """The encoder of a spec: a transformer folder, a CLIP or CLAP folder, an export of this project, or a word-vector file.

    `pooling` is for a spec that names none (`baselines.layer_pooling` lists those over layers, word vectors
    have mean and letters). `fit` are the sentences that whitening and its like are fitted on where the spec names
    none, and `fit_source` is what the protocol says of them. `seed` is that of a fit, and CLAP's.

    Raises EvaluationError for a missing place, an unknown pooling or post-processing, two poolings, or no `fit`.
    """
    place, own, post, own_fit = parse(spec)
    if own is not None and pooling is not None and own != pooling:
        raise EvaluationError(f"{spec!r} names pooling {own!r}, but {pooling!r} is asked for as well; leave one out")
    pooling = own or pooling
    if own_fit is not None:
        fit, fit_source = fit_sentences(own_fit), own_fit
    if post is not None and not fit:
        raise EvaluationError(f"{spec!r}: +{post} is fitted on sentences, and there are none; give some (--fit FILE)")
    model = _load(place, pooling, device, batch_size, seed)
    if pooling is not None:
        model.name = f"{model.name}@{pooling}"
    if post is not None:
        assert fit is not None
        size = post.removeprefix("whitening") if post.startswith("whitening") else ""
        return POST[post.removesuffix(size)](model, fit, int(size) if size else None, fit_source, seed)
    return model


def load_for(tasks: Sequence[Task], spec: str, fit: str | Path | None = None, **settings: Any) -> Model:
    """Return the encoder of a spec, with +whitening and the like fitted on sentences of the tasks by default.

    Args:
        tasks: Tasks that the encoder is evaluated on.
        spec: Model, as for `load_model`.
        fit: File or shards of other sentences to fit on.
        settings: Further settings of `load_model`.
    """
    if fit is None:
        return load_model(spec, fit=list(dict.fromkeys(s for task in tasks for s in task.sentences())), **settings)
    return load_model(spec, fit=fit_sentences(fit), fit_source=str(fit), **settings)


Post = Callable[[Model, Sequence[str], int | None, str, int], Model]
"""A model, the sentences to fit on, to how many dimensions, where the sentences come from, a seed -> the model behind it."""


def _fitted(how: str, model: Model, fit: Sequence[str], size: int | None, source: str, seed: int) -> Model:
    from multicse.evaluation.encoders.baselines import Centred, Whitened

    return Whitened(model, fit, size, source=source) if how == "whitening" else Centred(model, fit, how, source=source)


POST: dict[str, Post] = {how: partial(_fitted, how) for how in ("whitening", "centring", "standardise", "all-but-the-top")}
"""What may follow a model by its name; plugins add theirs."""


def _load(place: Path, pooling: str | None, device: str | None, batch_size: int, seed: int) -> Model:
    if is_word_vectors(place):
        from multicse.evaluation.encoders.word_vectors import POOLINGS, WordVectors

        return POOLINGS[pooling](place) if pooling in POOLINGS else WordVectors(place, pooling)
    if place.is_file():
        raise EvaluationError(f"{place} is a file; a model is a folder, or word vectors (.txt .vec .bin, also .gz)")
    if own_module(place) is None and model_type(place) not in MULTIMODAL:
        from multicse.evaluation.encoders.encoder import load_encoder

        return load_encoder(place, pooling, device, batch_size)
    from multicse.evaluation.encoders.multimodal import load_whole

    if pooling is not None:
        raise EvaluationError(f"{place} has its own way from tokens to a vector, so it has no pooling; leave @{pooling} out")
    return load_whole(place, device=device, batch_size=batch_size, seed=seed)


def _path(text: str) -> Path:
    return Path(text).expanduser()
