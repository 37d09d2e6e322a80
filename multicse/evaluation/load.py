"""Loading of encoders by a model name, ``PLACE[@POOLING][+POST][:FIT]``.

PLACE is a folder, a model ID on the Hugging Face Hub, or a word-vector file. POST is a
post-processing of `multicse.plugins`, whitening with an
optional number of dimensions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from multicse import plugins
from multicse.data.errors import did_you_mean
from multicse.data.shard_urls import table_kind
from multicse.data.word_vectors import is_word_vectors
from multicse.evaluation.task import Encoder, EvaluationError, Task
from multicse.evaluation.tasks.paired_items import Samples
from multicse.evaluation.tasks.retrieval import read_captions
from multicse.models.pretrained import EVALUATED

HUB = re.compile(r"[\w.-]+(/[\w.-]+)?(?=[@+]|$)")
"""A model ID on the Hugging Face Hub, at the start of a model name."""
TARGET_FIT = "target"
"""FIT for the sentences of the evaluated tasks."""
TARGET = "the sentences of the evaluated tasks, without their labels (transductive; 'target' in the papers)"


class Model(Encoder, Protocol):
    """Encoder that can be reported."""

    name: str  # short, for tables

    @property
    def hash(self) -> str | None:
        """Return the SHA-256 of the model's files."""
        ...

    @property
    def protocol(self) -> dict[str, Any]:
        """Return how items are encoded: pooling, post_processing, fitted_on, max_tokens, device."""
        ...


class Spec(NamedTuple):
    """Parts of a model name."""

    place: Path
    pooling: str | None = None
    post: str | None = None  # "whitening", "whitening256", "centring"
    fit: str | None = None  # sentences to fit on: a file, one per line, or shards of texts


def parse(spec: str) -> Spec:
    """Parse a model name and find its place.

    The place is the longest prefix that exists on disk, otherwise a model ID on the Hugging Face Hub.

    Raises:
        EvaluationError: If the model is not found, the Hub cannot be reached, or the post-processing is unknown.
    """
    place, rest = _split(spec)
    parts = re.fullmatch(r"(?:@([^@+]+))?(?:\+([^:]+)(?::(.+))?)?", rest)
    if parts is None:
        raise EvaluationError(
            f"model {place} is followed by {rest!r}, which is not @POOLING, +POST[:FIT] or @POOLING+POST[:FIT]"
        )
    pooling, post, fit = parts.groups()
    found = _path(place) if _path(place).exists() else _of_hub(place)
    if post is not None and not re.fullmatch(rf"whitening\d*|{'|'.join(known := plugins.every('post'))}", post):
        names = ", ".join(f"+{name}" for name in known)
        raise EvaluationError(
            f"unknown post-processing {post!r} in {spec!r}.{did_you_mean(post, known)} It is one of "
            f"{names}; +whitening<K> keeps K dimensions"
        )
    return Spec(found, pooling, post, fit)


def _split(spec: str) -> tuple[str, str]:
    """Return the place of a model and the rest of its name."""
    cuts = [i for i, character in enumerate(spec) if character in "@+"]
    name_at, hub = spec.rfind("/") + 1, HUB.match(spec)
    of_name = hub.end() if hub else min((cut for cut in cuts if cut > name_at), default=len(spec))
    end = next((end for end in (len(spec), *reversed(cuts)) if end and _path(spec[:end]).exists()), of_name)
    return spec[:end], spec[end:]


def absolute(spec: str) -> str:
    """Return the name of a model with absolute local paths, since workers run in other folders."""
    place, rest = _split(spec)
    head, colon, fit = rest.partition(":")
    model, sentences = (str(_path(one).resolve()) if one and _path(one).exists() else one for one in (place, fit))
    return f"{model}{head}{colon}{sentences}"


def _of_hub(name: str) -> Path:
    """Return the folder of a model on the Hugging Face Hub, or raise EvaluationError."""
    path = _path(name)
    neighbours = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    near, reason = did_you_mean(path.name, neighbours), ""
    if HUB.fullmatch(name) and not is_word_vectors(path) and not near and not ("/" in name and neighbours):
        try:
            return EVALUATED.folder(name)
        except ValueError as error:
            first, *_ = str(error.__cause__).splitlines()
            reason = f" Download failed ({first}); on a machine with access: `hf download NAME --local-dir DIR`"
    raise EvaluationError(
        f"model {path} not found.{near} Expected a local folder, a Hugging Face model ID or a word-vector file, optionally "
        f"followed by @POOLING and +whitening.{reason}"
    )


def fit_sentences(place: str | Path) -> list[str]:
    """Read sentences to fit on: the lines of a text file, or the texts or captions of a table or of shards."""
    if _path(str(place)).is_file() and table_kind(str(place)) in (None, "txt") and not str(place).endswith(".tar"):
        return read_captions(place)
    samples = Samples("+whitening", place)
    found = (sample for chunk in samples.chunks() for sample in chunk)
    return [text for sample in found for text in ([sample.item] if samples.modality == "text" else sample.captions())]


def load_model(
    spec: str,
    *,
    pooling: str | None = None,
    device: str | None = None,
    batch_size: int = 128,
    fit: Sequence[str] | Callable[[Model], Sequence[str]] | None = None,
    fit_source: str = TARGET,
    seed: int = 0,
) -> Model:
    """Load a transformer, CLIP or CLAP folder, an export of this package, or a word-vector file.

    Args:
        spec: Model name, ``PLACE[@POOLING][+POST][:FIT]``.
        pooling: Pooling if the model name has none; see `load_encoder` and `WordVectors`.
        device: Device. If None, the first GPU, otherwise the CPU.
        batch_size: Texts of 32 tokens, images or audio clips per batch.
        fit: Sentences to fit the post-processing on if the model name has no FIT or ``target``; or a function of the model.
        fit_source: Description of `fit` in the protocol.
        seed: Random seed of the fit, and of CLAP's random crops.

    Raises:
        EvaluationError: If the model cannot be found or loaded, a part of its name is unknown, two different poolings are
            given, or a post-processing has no sentences to fit on.
    """
    place, own, post, own_fit = parse(spec)
    if own is not None and pooling is not None and own != pooling:
        raise EvaluationError(f"{spec!r} specifies pooling {own!r}, but pooling={pooling!r} is given, too; remove one")
    pooling = own or pooling
    how = (post or "").rstrip("0123456789")
    size = int(post[len(how) :]) if post and post != how else None
    if own_fit not in (None, TARGET_FIT):
        fit, fit_source = fit_sentences(own_fit), own_fit
    if post is not None and not fit:
        raise EvaluationError(f"{spec!r}: +{post} is fitted on sentences, but none were given; write {spec}:FILE")
    model = _load(place, pooling, device, batch_size, seed)
    if pooling is not None:
        model.name = f"{model.name}@{pooling}"
    if not how:
        return model
    post_process: Post = plugins.get("post", how)
    sentences = fit(model) if callable(fit) else fit or ()
    return post_process(model, sentences, size, fit_source, seed)


TextOf = Callable[[Path], Callable[[int], Sequence[str]] | None]
"""Function of a folder that returns None, or for a run the sentences to fit on as a function of the number of dimensions."""


def load_for(
    tasks: Sequence[Task],
    spec: str,
    fit: str | Path | None = None,
    text_of: TextOf = lambda folder: None,
    **settings: Any,
) -> Model:
    """Load an encoder; post-processing such as +whitening is fitted on the training text of its run by default.

    Args:
        tasks: Tasks that the encoder is evaluated on, if any.
        spec: Model name; see `load_model`. As ``:FIT`` it may also name the folder of a run, or ``target``: the sentences of
            the tasks.
        fit: As ``:FIT``, if `spec` has none.
        text_of: Returns the training text of the run in a folder.
        settings: Further arguments of `load_model`.

    Raises:
        EvaluationError: As `load_model`, or if it is not known what to fit on.
    """
    place, _, post, own = parse(spec)
    asked = own or (None if fit is None else str(fit))
    if post is None:
        return load_model(spec, **settings)
    bare = spec if own is None else spec.removesuffix(f":{own}")
    if asked == TARGET_FIT:
        return load_model(bare, fit=list(dict.fromkeys(s for task in tasks for s in task.sentences())), **settings)
    for folder in [place, place.absolute().parent] if asked is None else [_path(asked)]:
        if (text := text_of(folder)) is not None:
            source = f"the training text of the run {folder}"
            return load_model(bare, fit=partial(_of_width, text), fit_source=source, **settings)
    if asked is None:
        places = "PLACE (a run, for its training text; a file of sentences; shards)"
        evaluated = f"Add --fit {places}, or write {spec}:{TARGET_FIT} for the evaluated sentences"
        raise EvaluationError(
            f"{spec}: +{post} is fitted on sentences, and this model is not in the folder of a run. "
            f"{evaluated if tasks else f'Write {spec}:{places}'}"
        )
    return load_model(bare, fit=fit_sentences(asked), fit_source=asked, **settings)


def _of_width(text: Callable[[int], Sequence[str]], model: Model) -> Sequence[str]:
    return text(model.encode(["text"]).shape[1])


Post = Callable[[Model, Sequence[str], int | None, str, int], Model]
"""Function of model, sentences to fit on, number of dimensions, source of the sentences and seed that returns a model."""


def _whitened(model: Model, fit: Sequence[str], size: int | None, source: str, seed: int) -> Model:
    from multicse.evaluation.encoders.whitening import Whitened

    return Whitened(model, fit, size, source=source)


plugins.add("post", "whitening", _whitened)


def _load(place: Path, pooling: str | None, device: str | None, batch_size: int, seed: int) -> Model:
    if is_word_vectors(place):
        from multicse.evaluation.encoders.word_vectors import open_words

        return open_words(place, pooling)
    if place.is_file():
        raise EvaluationError(f"{place} is a file; specify a folder, or word vectors (.txt .vec .bin, optionally .gz)")
    from multicse.evaluation.encoders import encoder, multimodal

    if not multimodal.has_own_pooling(place):
        return encoder.load_encoder(place, pooling, device, batch_size)
    if pooling is not None:
        raise EvaluationError(f"the pooling of {place} is part of the model and cannot be replaced; remove @{pooling}")
    return multimodal.load_whole(place, device=device, batch_size=batch_size, seed=seed)


def _path(text: str) -> Path:
    return Path(text).expanduser()
