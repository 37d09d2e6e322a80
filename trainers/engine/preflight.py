"""What is wrong with a recipe, found on the driver before any cluster resource is taken."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlparse

from data.errors import DataError
from data.shards import ShardSet
from data.streams.audio import AudioStream
from data.streams.base import StreamConfig
from data.streams.decode import IMAGES, SOUNDS
from data.streams.image import ImageStream
from data.streams.pairs import AudioTextStream, ImageTextStream, misnamed
from data.streams.text import EDATextStream, TextStream
from data.streams.triplets import TripletTextStream
from data.word_vectors import is_word_vectors, open_vectors
from evaluation.registry import DEVELOPMENT, is_development, known, make_tasks
from evaluation.task import EvaluationError
from models.hub_folders import ENCODER
from trainers.clip import CLIPConfig
from trainers.engine.tracking import resolve_uri
from trainers.gclsr import GCLSRConfig
from trainers.mocoutrl import PADDED, MoCoUTRLConfig
from trainers.nonling import AudioConfig, ImageConfig, NonLingSettings
from trainers.pretrain import MaskedLMConfig
from trainers.recipe import EncoderConfig, Recipe, RecipeError, WordEncoderConfig
from trainers.sgbert import SGBERTConfig
from trainers.simcse import SimCSEConfig

if TYPE_CHECKING:
    from transformers import PretrainedConfig

FROM_BEHIND_PADDING = ("roberta", "xlm-roberta", "camembert", "mpnet", "clap_text_model")
"""Types of models that count positions from behind the padding index, so that RoBERTa has 512 of its 514."""


def check(recipe: Recipe, cpus: float | None = None, gpus: float | None = None, nodes: int = 1) -> None:
    """Raise RecipeError (or DataError for shards) when the recipe cannot run.

    Args:
        recipe: what to run.
        cpus, gpus: logical resources of the cluster; none: not checked.
        nodes: nodes of the cluster; with several, storage and tracking must be reachable from all.
    """
    check_settings(recipe)
    _check_encoder(recipe)
    resolve_uri(recipe.run.tracking_uri)
    _check_task_names(recipe)
    for name in recipe.streams:
        _check_stream(recipe, name)
    if cpus is not None:
        _check_resources(recipe, cpus, gpus or 0)
    if nodes > 1:
        _check_reachable(recipe)


def check_settings(recipe: Recipe) -> None:
    """Raise RecipeError for settings that contradict each other; the part of `check` that reads no file."""
    _check_turns(recipe)
    _check_kind_of_encoder(recipe)
    _check_sizes(recipe)
    _check_inputs_fit(recipe)
    _check_precision(recipe)


def _check_encoder(recipe: Recipe) -> None:
    from models.text_encoder import STACKS, text_config

    method = recipe.method
    if isinstance(recipe.encoder, WordEncoderConfig):
        _check_words(recipe, recipe.encoder)
        return
    path = recipe.encoder.path
    try:
        config = text_config(path)
        hidden = int(config.hidden_size)
    except (OSError, ValueError, AttributeError) as error:
        raise RecipeError(
            f"encoder.path={path!r} is neither a folder with a config.json nor a model that the hub can give: {error}"
        ) from None
    if not recipe.encoder.scratch:
        ENCODER.refuse_pickles(path, Path(path))
    if isinstance(method, NonLingSettings) and config.model_type not in STACKS:
        raise RecipeError(
            f"encoder.path={path!r}: a {config.model_type!r} model cannot take image or audio patches; "
            f"choose a model of type {', '.join(STACKS)}"
        )
    try:
        method.check(hidden)
        if isinstance(method, SGBERTConfig):
            method.layers_of(int(config.num_hidden_layers))
    except ValueError as error:
        own = str(error).startswith("method.")  # it names its setting, which is not the encoder
        raise RecipeError(f"{'' if own else f'encoder.path={path!r} does not fit the method: '}{error}") from None
    if isinstance(method, CLIPConfig):
        _check_clip_text(recipe, method, config)
        _check_dropout(recipe, method, config)
        _check_projections(recipe, method)
    if isinstance(method, MoCoUTRLConfig):
        _check_padding(recipe, method, config)


def _check_words(recipe: Recipe, encoder: WordEncoderConfig) -> None:
    """The vectors are there, and the method and its streams go with them."""
    if encoder.vectors is not None and not is_word_vectors(Path(encoder.vectors).expanduser()):
        raise RecipeError(
            f"encoder.vectors={encoder.vectors!r} is neither a word-vector file (.txt, .vec, .bin, each also with .gz) nor "
            "a folder of word vectors; leave it out to train vectors on the run's own sentences"
        )
    if encoder.vectors is not None and not Path(encoder.vectors).expanduser().exists():
        raise RecipeError(f"encoder.vectors={encoder.vectors!r} does not exist")
    if encoder.vectors is not None:
        try:  # what is wrong with a file shows here, and the workers find it in the cache
            open_vectors(encoder.vectors)
        except DataError as error:
            raise RecipeError(f"encoder.vectors: {error}") from None
    if max(encoder.regions, default=0) > encoder.max_words or min(encoder.regions, default=0) < 1:
        raise RecipeError(
            f"encoder.regions={encoder.regions}: windows have at least 1 word and at most encoder.max_words="
            f"{encoder.max_words}"
        )
    try:
        recipe.method.check(encoder.filters * len(encoder.regions))
    except ValueError as error:
        raise RecipeError(str(error)) from None


def _check_clip_text(recipe: Recipe, method: CLIPConfig, config: PretrainedConfig) -> None:
    """What CyCLIP's code does with the end of a text is said of CLIP's text transformer alone."""
    assert isinstance(recipe.encoder, EncoderConfig)
    if method.variant == "released" and config.model_type != "clip_text_model":
        raise RecipeError(
            f"encoder.path={recipe.encoder.path!r} is a {config.model_type!r} model, and method.variant='released' is the "
            "code of CyCLIP, whose text encoder is CLIP's text transformer; choose a CLIP folder, or set method.variant to "
            "'fixed'"
        )


def _check_dropout(recipe: Recipe, method: CLIPConfig, config: PretrainedConfig) -> None:
    """SimCSE tells the two views of a text apart by dropout alone."""
    from models.text_encoder import ATTENTION_DROPOUTS, HIDDEN_DROPOUTS

    loss = next((name for name in ("captions", "nli_sentences") if name in method.weights), None)
    if loss is None:
        return

    def rate(given: float | None, names: tuple[str, ...]) -> float | None:
        own = [float(getattr(config, name)) for name in names if hasattr(config, name)]
        return given if given is not None else own[0] if own else None

    encoder = recipe.encoder
    assert isinstance(encoder, EncoderConfig)
    hidden = rate(encoder.hidden_dropout, HIDDEN_DROPOUTS)
    if config.model_type == "clip_text_model":  # its configuration may name a rate, but the model has no such dropout
        hidden = encoder.hidden_dropout or 0.0
    if hidden == rate(encoder.attention_dropout, ATTENTION_DROPOUTS) == 0:
        raise RecipeError(
            f"method.{loss}={getattr(method, loss):g} compares two passes of a text, which are identical: the encoder "
            f"{encoder.path!r} has no dropout (encoder.hidden_dropout={encoder.hidden_dropout}, encoder.attention_dropout="
            f"{encoder.attention_dropout}); set encoder.hidden_dropout to 0.1, or method.{loss} to 0"
        )


def _check_projections(recipe: Recipe, method: CLIPConfig) -> None:
    """A whole CLIP or CLAP brings its projections along, which must be those of the method."""
    from transformers import AutoConfig

    from models.text_encoder import text_half

    assert isinstance(recipe.encoder, EncoderConfig)
    tower: str | None = getattr(method.tower, "path", None)
    paths = {"encoder.path": None if recipe.encoder.scratch else recipe.encoder.path, "method.tower.path": tower}
    for setting, path in paths.items():
        if path is None:
            continue
        config = AutoConfig.from_pretrained(str(text_half(Path(path))) if Path(path).is_dir() else path)
        kind = {"clip": "linear", "clap": "mlp"}.get(config.model_type)
        if kind is not None and (kind, config.projection_dim) != (method.projection, method.embed_dim):
            raise RecipeError(
                f"{setting}={path!r} has a projection {kind!r} to {config.projection_dim} dimensions, and the method has "
                f"method.projection={method.projection!r}, method.embed_dim={method.embed_dim}; set method.projection "
                f"{kind} and method.embed_dim {config.projection_dim}, or take a folder without a projection"
            )


def _check_turns(recipe: Recipe) -> None:
    wanted = {stream for streams in recipe.turns.values() for stream in streams}
    if missing := wanted - set(recipe.streams):
        raise RecipeError(
            f"method {recipe.method.name!r} needs the stream {sorted(missing)[0]!r}; streams has {sorted(recipe.streams)}. "
            f"Add streams.{sorted(missing)[0]}."
        )
    if spare := set(recipe.streams) - wanted:
        raise RecipeError(
            f"streams.{sorted(spare)[0]} is used by no turn of {recipe.method.name!r} ({list(recipe.turns)}); remove it"
        )
    if absent := set(recipe.turns) - set(recipe.optim):
        raise RecipeError(f"optim has {sorted(recipe.optim)}; every turn has its optimizer: add optim.{sorted(absent)[0]}")
    if unused := set(recipe.optim) - set(recipe.turns):
        raise RecipeError(f"optim.{sorted(unused)[0]} belongs to no turn; the turns are {list(recipe.turns)}. Remove it.")
    if recipe.lead not in recipe.streams:
        raise RecipeError(f"lead={recipe.lead!r} is no stream; allowed: {sorted(recipe.streams)}")


def _check_kind_of_encoder(recipe: Recipe) -> None:
    words = isinstance(recipe.encoder, WordEncoderConfig)
    if recipe.method.takes_words and not words:
        raise RecipeError(
            f"method {recipe.method.name!r} trains filters over word vectors, and the encoder is a transformer "
            "(encoder.path); give encoder.vectors, encoder.regions, encoder.filters instead"
        )
    if words and not recipe.method.takes_words:
        raise RecipeError(
            f"method {recipe.method.name!r} trains a transformer, and the encoder is word vectors (encoder.vectors); give "
            "encoder.path instead"
        )


def _check_sizes(recipe: Recipe) -> None:
    workers = max(1, recipe.run.workers)
    for name, stream in recipe.streams.items():
        if stream.batch_size < 2 and not isinstance(recipe.method, MaskedLMConfig):
            raise RecipeError(f"streams.{name}.batch_size={stream.batch_size} leaves no negatives; use at least 2")
        if stream.batch_size % workers:
            near = stream.batch_size // workers * workers or workers
            raise RecipeError(
                f"streams.{name}.batch_size={stream.batch_size} does not divide among run.workers={workers}; "
                f"use {near} or {near + workers}"
            )


def _check_inputs_fit(recipe: Recipe) -> None:
    """What the streams give is what the method takes."""
    method = recipe.method
    text = method.text if isinstance(method, NonLingSettings) else method if isinstance(method, SimCSEConfig) else None
    if text is not None:
        setting = "method.supervised" if text is method else "method.text.supervised"
        hint = "a pair or a triple, for example sent0 sent1 hard_neg" if text.supervised else "one column, txt"
        _check_columns(recipe, (2, 3) if text.supervised else (1,), f"{setting}={text.supervised}", hint)
    if isinstance(method, SGBERTConfig):
        hint = "original and translation" if method.texts == 2 else "one column, txt"
        _check_columns(recipe, (method.texts,), f"method.positive={method.positive!r}", hint)
    if isinstance(method, GCLSRConfig):
        _check_columns(
            recipe, (1, 2), "method.name='gclsr'", "one column, txt, or two views of it, original and translation"
        )
        _check_views(recipe)
    if isinstance(recipe.encoder, WordEncoderConfig) and isinstance(recipe.streams["text"], TripletTextStream):
        raise RecipeError(
            "streams.text.kind='triplet' marks the sub-tokens of a word, and the encoder is word vectors; use 'text'"
        )
    if isinstance(method, MoCoUTRLConfig):
        _check_padding(recipe, method)
    if isinstance(method, MoCoUTRLConfig) and not isinstance(recipe.streams["text"], TripletTextStream):
        raise RecipeError(
            f"streams.text.kind={recipe.streams['text'].kind!r} where MoCoUTRL takes sentences with a synonym and an "
            "antonym in place of a word; use the kind 'triplet'"
        )
    if isinstance(method, NonLingSettings):
        for name, config in method.nonling.items():
            _check_nonling(recipe, name, config)
    if isinstance(method, CLIPConfig):
        _check_pairs(recipe, method)
    for name, stream in recipe.streams.items():
        if isinstance(stream, AudioStream):
            _check_spectrogram(name, stream)
        if isinstance(stream, AudioTextStream):
            _check_audio_input(name, stream)


def _check_padding(recipe: Recipe, method: MoCoUTRLConfig, config: PretrainedConfig | None = None) -> None:
    """A sentence, and with `config` the encoder too, has the positions that a mean with padding is taken over."""
    stream = recipe.streams["text"]
    positions = getattr(config, "max_position_embeddings", None) or 10**9
    if config is not None and config.model_type in FROM_BEHIND_PADDING:
        positions -= (config.pad_token_id or 0) + 1
    if method.choices.mean_with_padding and positions < PADDED:
        assert isinstance(recipe.encoder, EncoderConfig)
        raise RecipeError(
            f"encoder.path={recipe.encoder.path!r} has {positions} positions, and method.mean_with_padding takes the mean "
            f"over {PADDED}; set method.mean_with_padding False, or choose an encoder with at least {PADDED}"
        )
    if method.choices.mean_with_padding and isinstance(stream, TextStream) and stream.max_length > PADDED:
        raise RecipeError(
            f"streams.text.max_length={stream.max_length} is more than the {PADDED} positions that method.mean_with_padding "
            "takes the mean over; give at most that"
        )


def _check_views(recipe: Recipe) -> None:
    """A sentence longer than the encoder's limit would be cut twice, the first time by the stream."""
    stream, encoder = recipe.streams["text"], recipe.encoder
    if isinstance(stream, TextStream) and isinstance(encoder, WordEncoderConfig) and stream.max_length > encoder.max_words:
        raise RecipeError(
            f"streams.text.max_length={stream.max_length} is more than encoder.max_words={encoder.max_words}, which every "
            "sentence is cut at; give at most that"
        )


def _check_columns(recipe: Recipe, allowed: tuple[int, ...], setting: str, hint: str, name: str = "text") -> None:
    """The text stream has as many texts a sample as `setting` wants."""
    stream = recipe.streams[name]
    if not isinstance(stream, TextStream):
        raise RecipeError(f"streams.{name}.kind={stream.kind!r} where the method takes sentences; use the kind 'text'")
    if stream.n_texts not in allowed:
        raise RecipeError(
            f"streams.{name}.columns={stream.columns} are {stream.n_texts} texts a sample, and {setting} takes "
            f"{' or '.join(map(str, allowed))}: name {hint}, or change {setting.split('=')[0]}"
        )


def _check_pairs(recipe: Recipe, method: CLIPConfig) -> None:
    """The pairs are of the tower's modality and prepared as the tower expects; the sentences have the right columns."""
    stream, tower = recipe.streams["pairs"], method.tower
    kind = {"image": "image_text", "audio": "audio_text"}[tower.modality]
    if not isinstance(stream, ImageTextStream | AudioTextStream) or stream.kind != kind:
        raise RecipeError(
            f"streams.pairs.kind={stream.kind!r} where method.tower.kind={tower.kind!r} takes {tower.modality}s with "
            f"captions; use the kind {kind!r}, or another tower"
        )
    given, wanted = stream.input.model_dump(), tower.input.model_dump()
    for name in given:
        if given[name] != wanted[name]:
            raise RecipeError(
                f"streams.pairs.input.{name}={given[name]!r} does not match method.tower.input.{name}={wanted[name]!r}: the "
                "tower would be trained on other inputs than it is evaluated on; give both the same value"
            )
    if "nli" in method.weights:
        _check_columns(recipe, (2, 3), f"method.nli={method.nli}", "a pair or a triple: sent0 sent1 hard_neg", "nli")
    if "nli_sentences" in method.weights:
        _check_columns(recipe, (1,), f"method.nli_sentences={method.nli_sentences}", "one column", "nli_sentences")


def _check_nonling(recipe: Recipe, name: str, config: ImageConfig | AudioConfig) -> None:
    stream = recipe.streams[name]
    pairs: list[tuple[str, int, str, int]]
    if isinstance(config, ImageConfig) and isinstance(stream, ImageStream):
        pairs = [("size", stream.size, "image_size", config.image_size)]
        if stream.n_views not in (1, 2):
            raise RecipeError(f"streams.{name}.n_views={stream.n_views}: the losses compare two views; use 2 (or 1)")
    elif isinstance(config, AudioConfig) and isinstance(stream, AudioStream):
        pairs = [("frames", stream.frames, "frames", config.frames), ("bins", stream.bins, "bins", config.bins)]
    else:
        raise RecipeError(f"streams.{name}.kind={stream.kind!r} where the method takes {name}; use the kind {name!r}")
    for given, value, taken, wanted in pairs:
        if value != wanted:
            raise RecipeError(
                f"streams.{name}.{given}={value} does not match method.{name}.{taken}={wanted}; give both the same value"
            )
    if config.loss == "supcon" and stream.label is None:
        raise RecipeError(
            f"method.{name}.loss is 'supcon', which needs classes, and streams.{name}.label is none. "
            f"Name the field of the class (cls), or set method.{name}.loss to 'simclr'."
        )


def _check_spectrogram(name: str, stream: AudioStream) -> None:
    from data.streams.device import mel_filters

    try:
        mel_filters(stream.rate, stream.bins)
    except ValueError as error:
        raise RecipeError(f"streams.{name}.bins={stream.bins}, streams.{name}.rate={stream.rate}: {error}") from None
    for setting, value, most in (("mask_bins", stream.mask_bins, "bins"), ("mask_frames", stream.mask_frames, "frames")):
        if value > getattr(stream, most):
            raise RecipeError(
                f"streams.{name}.{setting}={value} is more than streams.{name}.{most}={getattr(stream, most)}; lower it"
            )


def _check_audio_input(name: str, stream: AudioTextStream) -> None:
    """One silent clip shows whether there is a spectrogram: filters are not empty, the clip is long enough."""
    import torch

    from data.streams.device import audio_features

    try:
        audio_features(torch.zeros(1, 1, stream.input.samples), stream.input)
    except ValueError as error:
        raise RecipeError(f"streams.{name}.input: {error}") from None


def _check_precision(recipe: Recipe) -> None:
    run = recipe.run
    if run.precision == "fp16" and run.workers and not run.gpus_per_worker:
        raise RecipeError(
            "run.precision='fp16' needs a GPU (its small gradients are lost without loss scaling, which CPUs do not have); "
            "use fp32 or bf16, or set run.gpus_per_worker"
        )


def _check_stream(recipe: Recipe, name: str) -> None:
    stream = recipe.streams[name]
    try:
        shards = ShardSet.open(stream.shards)
    except DataError as error:
        raise DataError(f"streams.{name}.shards: {error}") from error
    _check_fields(name, stream, shards)
    _check_classes(name, stream, shards)
    if isinstance(stream, EDATextStream | TripletTextStream):
        try:
            stream.open_lexicon()
        except ValueError as error:
            raise RecipeError(f"streams.{name}.lexicon={stream.lexicon!r}: {error}") from None
    if shards.samples < stream.batch_size:
        raise RecipeError(
            f"streams.{name}: the shards hold {shards.samples} samples, fewer than one batch of {stream.batch_size}; "
            f"a batch would hold a sample twice, as its own negative. "
            f"Set streams.{name}.batch_size to at most {shards.samples}."
        )


def _check_fields(name: str, stream: StreamConfig, shards: ShardSet) -> None:
    """No shard has a field that every sample needs: say so now and not at the first sample."""
    there = set(shards.fields)
    if not there:  # a manifest of somebody else's
        return
    needs: dict[str, tuple[str, ...]] = {}
    if isinstance(stream, TextStream):
        needs |= {f"streams.{name}.columns": (column, "json") for column in stream.columns}
    elif isinstance(stream, ImageStream | AudioStream):
        needs[f"streams.{name}.kind"] = IMAGES if isinstance(stream, ImageStream) else SOUNDS
        if stream.label is not None:
            needs[f"streams.{name}.label"] = (stream.label, "json")
    elif isinstance(stream, ImageTextStream | AudioTextStream):
        needs[f"streams.{name}.kind"] = IMAGES if isinstance(stream, ImageTextStream) else SOUNDS
        text = "label" if stream.templates else "captions"
        needs[f"streams.{name}.{text}"] = (stream.label, "json") if stream.templates else ("json", "txt")
    for setting, fields in needs.items():
        if there.isdisjoint(fields):
            loose = setting.endswith("label") and isinstance(stream, ImageStream | AudioStream)
            label = f", or set {setting} to none and the loss to 'simclr'" if loose else ""
            raise DataError(
                f"{setting} wants the field {' or '.join(fields)}, and the shards hold {', '.join(sorted(there))}: "
                f"{stream.shards}. Name a field that is there, give other shards or pack them with it{label}."
            )


def _check_classes(name: str, stream: StreamConfig, shards: ShardSet) -> None:
    """Captions made from class numbers name the classes that the shards mean."""
    if not isinstance(stream, ImageTextStream | AudioTextStream) or not stream.templates:
        return
    # The shards' names are those of the numbers in the field cls.
    if stream.label == "cls" and (wrong := misnamed(shards.classes, stream.classes)):
        raise RecipeError(f"streams.{name}.classes: {wrong}: {stream.shards}")


def _check_task_names(recipe: Recipe) -> None:
    evaluation = recipe.evaluation
    development = [*([evaluation.select] if evaluation.select else []), *evaluation.watch]
    for name in development:
        if (name in known() or ":" in name) and not is_development(name):
            if recipe.method.name == "gclsr":
                raise RecipeError(
                    f"evaluation.select/watch: {name!r} is no development set. The released code of GCLSR keeps the "
                    "checkpoint with the best mean over the seven STS test sets [DISAGREE 5.7], so its numbers are "
                    "chosen on what they report; here a checkpoint is chosen on stsb-dev, and test sets belong into "
                    "evaluation.final"
                )
            raise RecipeError(
                f"evaluation.select/watch: {name!r} is a test set or a task that trains on labels, and a checkpoint must "
                f"not be chosen on it; use {', '.join(DEVELOPMENT)} or pairs:FILE of a development set, and put test sets "
                "into evaluation.final"
            )
    try:
        make_tasks([*development, *evaluation.final], evaluation.data)
    except EvaluationError as error:
        raise RecipeError(
            f"evaluation: {error} (in a recipe: evaluation.data, and the task names in evaluation.select, watch and final)"
        ) from None


def _check_resources(recipe: Recipe, cpus: float, gpus: float) -> None:
    run = recipe.run
    reading = sum(stream.cpus for stream in recipe.streams.values()) * max(1, run.workers)
    needed = run.workers * run.cpus_per_worker + reading
    if run.workers and needed > cpus:
        raise RecipeError(
            f"run.workers={run.workers} x run.cpus_per_worker={run.cpus_per_worker:g} plus one reading task per stream "
            f"({reading:g}) need {needed:g} CPUs, the cluster has {cpus:g}: the run would wait for ever. "
            f"Lower run.workers, run.cpus_per_worker or streams.*.cpus."
        )
    if run.workers * run.gpus_per_worker > gpus:
        raise RecipeError(
            f"run.workers={run.workers} x run.gpus_per_worker={run.gpus_per_worker:g} need "
            f"{run.workers * run.gpus_per_worker:g} GPUs, the cluster has {gpus:g}. "
            f"Lower run.workers, or set run.gpus_per_worker to 0 to train on CPUs (with run.precision fp32 or bf16)."
        )


def _check_reachable(recipe: Recipe) -> None:
    run = recipe.run
    if isinstance(recipe.encoder, WordEncoderConfig) and recipe.encoder.vectors is None:
        raise RecipeError(
            "encoder.vectors is none: vectors would be trained into run.output, which other nodes do not see. Name a file "
            "that every node has; a run on one machine leaves its vectors in OUTPUT/vectors"
        )
    if run.storage is None or not urlparse(run.storage).scheme:
        raise RecipeError(
            f"run.storage={run.storage!r} is not reachable from several nodes; give a URL such as s3://bucket/runs"
        )
    tracking = run.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db")
    if tracking.startswith(("sqlite:", "file:")) or not urlparse(tracking).scheme:
        raise RecipeError(
            f"run.tracking_uri={tracking!r} is a file of one node; start an MLflow server and give its http:// URI"
        )


def describe_shards_of(recipe: Recipe) -> list[dict[str, object]]:
    """Name, licence, source and size of what a recipe reads, for a model card."""
    rows: list[dict[str, object]] = []
    for name, stream in recipe.streams.items():
        shards = ShardSet.open(stream.shards)
        rows.append(
            {"name": f"{shards.name or name}", "licence": shards.licence, "source": shards.source, "samples": shards.samples}
        )
    return rows
