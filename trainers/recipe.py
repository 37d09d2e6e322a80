"""A recipe: everything that decides what a run does. Made by plain functions in `pipelines/`, never by hand-edited files."""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import math
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Annotated, Any, Literal, Self
from urllib.parse import parse_qsl

from pydantic import BeforeValidator, Discriminator, Field, SerializeAsAny, Tag, ValidationError, model_validator

from multicse.data.errors import did_you_mean, redacted
from multicse.data.shards import ShardSet
from multicse.data.streams import AnyStream
from multicse.data.streams.base import StreamConfig
from multicse.models.config import AnyEncoder
from multicse.models.config import WordEncoderConfig as WordEncoderConfig
from multicse.models.sentence_encoder import Settings
from multicse.models.text_encoder import EncoderConfig as EncoderConfig
from multicse.trainers.jobs import without_copies
from multicse.trainers.method import MethodConfig
from multicse.trainers.registry import method_config

log = logging.getLogger(__name__)


class GroupOverride(Settings):
    """What one parameter group has differently."""

    lr: float | None = Field(None, ge=0)
    """Learning rate of the group; none: that of the update."""
    weight_decay: float | None = Field(None, ge=0)
    """Weight decay of the group; none: that of the update."""
    schedule: Literal["linear", "cosine", "constant"] | None = None
    """How the group's rate falls; none: as the update's."""
    warmup: float | None = Field(None, ge=0)
    """Steps, or share of them, in which its rate rises; none: those of the update."""


class ScheduleConfig(Settings):
    """What every optimizer of an update has."""

    lr: float = Field(3e-5, ge=0)
    """Learning rate at the top of the schedule."""
    weight_decay: float = Field(0.0, ge=0)
    """Decay of the weights: AdamW's is decoupled and leaves out biases and norms, SGD's is in the gradient of all."""
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    """How the rate falls after the warm-up: to 0 at the last step, or not at all."""
    warmup: float = Field(0.0, ge=0)
    """Steps in which the rate rises linearly from 0: below 1 a share of all steps, from 1 on a number of steps, which may
    be more than the run has."""
    ahead: int = Field(0, ge=0)
    """Steps that the schedule counts before the first (the released CyCLIP: those of an epoch [errata 4.4])."""
    layer_decay: float = Field(1.0, gt=0, le=1)
    """Factor on the rate from each layer of the text transformer to the one below it; the embeddings come last. What is
    behind the transformer has the full rate."""
    max_grad_norm: float | None = Field(1.0, gt=0)
    """Largest norm of the gradient over all parameters of the update; none: not clipped."""
    groups: dict[str, GroupOverride] = {}
    """Overrides per parameter group of the method."""


class OptimConfig(ScheduleConfig):
    """AdamW and the schedule of one update."""

    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW's decay rates of the two moments."""
    eps: float = Field(1e-8, gt=0)
    """AdamW's term against division by zero."""


class SGDConfig(ScheduleConfig):
    """SGD with momentum, and the schedule of one update."""

    momentum: float = Field(0.9, ge=0, lt=1)
    """Share of the last update that goes on."""
    momentum_after_warmup: float | None = Field(None, ge=0, lt=1)
    """The same from the end of the warm-up on; none: as before."""
    nesterov: bool = False
    """Look ahead along the momentum; without momentum there is nothing to look along."""

    @model_validator(mode="after")
    def _nesterov_needs_momentum(self) -> Self:
        if self.nesterov and 0 in (self.momentum, self.momentum_after_warmup):
            raise ValueError("nesterov=True needs momentum (and momentum_after_warmup) above 0; set nesterov False")
        return self


def _optimizer(given: Any) -> str:
    names = given if isinstance(given, dict) else type(given).model_fields if isinstance(given, Settings) else {}
    return "sgd" if {"momentum", "momentum_after_warmup", "nesterov"} & set(names) else "adamw"


AnyOptim = Annotated[Annotated[OptimConfig, Tag("adamw")] | Annotated[SGDConfig, Tag("sgd")], Discriminator(_optimizer)]
"""Told apart by their fields."""


class EvaluationConfig(Settings):
    """What is measured, and on what a checkpoint is chosen."""

    data: str | None = None
    """A SentEval `downstream` folder or a folder of raw TSVs; none: only what needs no data (Lee)."""
    select: str | None = "stsb-dev"
    """The development task whose primary metric chooses the checkpoint; none: the last step is kept."""
    watch: tuple[str, ...] = ()
    """Further development tasks that are measured and logged at every evaluation."""
    final: tuple[str, ...] = ()
    """Tasks measured once before and once after training, with the chosen checkpoint."""
    eval_steps: int = Field(125, gt=0)
    """Steps between two evaluations, and so between chances to be the best."""
    patience: int | None = Field(None, gt=0)
    """Stop after this many evaluations without a better score; none: never."""
    patience_counts: Literal["no_new_best", "decreases"] = "no_new_best"
    """What patience counts: evaluations in a row without a new best, or (SG-BERT) all that fall below the one before."""
    choose_untrained: bool = True
    """Whether the weights before the first step may be the best (released NonLing-CSE: not)."""
    keep: Literal["best", "last"] = "best"
    """The weights that are measured and exported: those of the best evaluation, or of the last step."""


class ExportConfig(Settings):
    """What an export has beside the trained weights, fitted on sentences of the training text."""

    whiten: bool = False
    """A last layer that whitens the vectors (Su et al. 2021): mean off, principal axes at variance 1."""
    dimensions: int | None = Field(None, gt=0)
    """Principal axes that the whitening keeps, the first ones; none: all along which the text varies."""
    int8_ranges: bool = False
    """A file int8_ranges.npy, by which `quantize_embeddings(vectors, "int8", ranges)` makes vectors of 8 bits."""

    @model_validator(mode="after")
    def _dimensions_are_of_the_whitening(self) -> Self:
        if self.dimensions is not None and not self.whiten:
            raise ValueError(f"dimensions={self.dimensions} are those of a whitened export; set export.whiten True")
        return self


class RunConfig(Settings):
    """How a run is carried out."""

    output_dir: str = "runs"
    """Folder of checkpoints, journal and export. In a job that is sent its folder, relative paths start at ~/multicse."""
    resume: Literal["auto", "never", "must"] = "auto"
    """An unfinished run of this recipe in the output goes on where it was; never: it begins anew; must: it is an error
    when there is none."""
    overwrite: bool = False
    """Replace the run that the output holds, be it finished or another recipe's."""
    seed: int = 42
    """Number that all randomness follows from: weights, order, views, dropout."""
    epochs: float = Field(1, gt=0)
    """Passes over the leading stream."""
    max_steps: int | None = Field(None, gt=0)
    """At most this many steps, whatever the epochs say."""
    gradient_accumulation_steps: int = Field(1, gt=0)
    """Batches per optimizer step, update by update."""
    mini_batch_size: int | None = Field(None, gt=0)
    """Samples that a worker encodes at a time (GradCache), for batches that do not fit; none: all. The losses compare the
    whole batch either way; encoding costs one more forward."""
    matryoshka: tuple[int, ...] = ()
    """Smaller sizes of the sentence vectors, 64 128 for example: the losses of their first so many dimensions are added."""
    ema: float | None = Field(None, gt=0, lt=1)
    """Keep a moving average of the weights, which moves by 1 - ema a step (0.999 for example): it is what is evaluated and
    exported; none: the weights themselves are."""
    callbacks: tuple[str, ...] = ()
    """Functions of your own that are told of every line of the log and every evaluation: `package.module:function`, or
    `FILE.py:function`."""
    gradient_checkpointing: bool = False
    """Compute the transformers' states again in the backward, a layer at a time, instead of keeping them all."""
    compile: bool = False
    """Let torch.compile make the transformers faster: minutes at the start, and another order of rounding."""
    sharded: bool = False
    """Share the transformers' layers out among the workers (FSDP2), for encoders that do not fit one GPU: weights, gradients
    and moments of each are then in one place only."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Numbers of forward and backward; weights and optimizers stay fp32. fp16 needs a GPU."""
    tf32: bool = True
    """Let GPUs multiply matrices of an fp32 run as TF32: several times faster, with 10 bits of fraction instead of 23."""
    save_steps: int | None = Field(None, gt=0)
    """Steps between checkpoints; none: at every evaluation."""
    logging_steps: int = Field(10, gt=0)
    """Steps between lines of the log and of the tracker."""
    num_workers: int = Field(1, ge=0)
    """Training processes; 0: everything in this process, for a debugger."""
    cpus_per_worker: float = Field(1.0, gt=0)
    """CPUs that Ray sets aside for a worker; reading takes streams.*.cpus more."""
    gpus_per_worker: float = Field(0, ge=0)
    """GPUs of each worker, also of run.num_workers 0: 1, or 0 to train on CPUs. A share, such as 0.5, is for one worker."""
    threads: int | None = Field(None, gt=0)
    """Torch threads of a CPU worker; none: the machine's cores shared among its workers."""
    storage: str | None = None
    """Where checkpoints go, any pyarrow URL (s3://…); none: MULTICSE_STORAGE, else the output folder. Needed with several
    nodes. A folder also replaces ~/multicse of jobs."""
    max_failures: int = 0
    """Restarts from the last checkpoint after a worker is lost."""
    step_timeout: float = Field(1800, gt=0)
    """Seconds that a step may take, with its wait for batches, before the worker ends; a tenth of it: a warning."""
    tracking_uri: str | None = None
    """Where MLflow keeps the run; none: MLFLOW_TRACKING_URI, else sqlite:///mlflow.db in the current folder, in a job
    that is sent its folder in ~/multicse."""
    experiment: str | None = None
    """Experiment of MLflow that the run is in; none: the recipe's paper."""
    register_as: str | None = None
    """Registered model of MLflow that the export becomes a version of."""
    push_to_hub: str | None = None
    """Repository of the Hugging Face hub, USER/NAME, that the export is uploaded to; a new one is private."""
    report_to: tuple[Literal["tensorboard", "wandb"], ...] = ()
    """Who gets the metrics besides MLflow: TensorBoard (OUTPUT/tensorboard), Weights & Biases (OUTPUT/wandb, offline)."""
    verbose: bool = False
    """Let Ray and the libraries talk."""


_NOT_IDENTITY = (
    *(
        "output_dir",
        "num_workers",
        "cpus_per_worker",
        "gpus_per_worker",
        "threads",
        "storage",
        "max_failures",
        "tracking_uri",
    ),
    *("experiment", "register_as", "push_to_hub", "report_to", "callbacks", "verbose", "logging_steps", "save_steps"),
    *("resume", "overwrite", "step_timeout"),
)


FORMER: dict[str, dict[str, str]] = {
    "run": {
        "output_dir": "output",
        "num_workers": "workers",
        "mini_batch_size": "chunk",
        "gradient_accumulation_steps": "accumulation",
        "logging_steps": "log_every",
        "save_steps": "checkpoint_every",
        "report_to": "also",
    },
    "evaluation": {"eval_steps": "every"},
    "optim": {"max_grad_norm": "clip"},
}
"""Former names of settings by section, which recipes of older runs have."""


def current_name(path: str) -> str | None:
    """Return the present path of a setting that had this path formerly: ``run.num_workers``; None for other paths."""
    section, _, rest = path.partition(".")
    *update, last = rest.split(".")
    for name, former in FORMER.get(section, {}).items():
        if last == former and len(update) == (section == "optim"):
            return ".".join((section, *update, name))
    return None


def _named_sections(content: Any) -> Iterator[tuple[str, dict[str, Any], dict[str, str]]]:
    """Yield the path of each section of a recipe's content that has renamed settings, the section, and `FORMER` of it."""
    for section, names in FORMER.items():
        part = content.get(section)
        parts = part if section == "optim" and isinstance(part, dict) else {None: part}
        for update, settings in parts.items():
            if isinstance(settings, dict):
                yield f"{section}.{update}" if update else section, settings, names


class RecipeError(ValueError):
    """A recipe that cannot run; the text names the setting, what was given and what is allowed, and no URL's password."""

    def __init__(self, text: str) -> None:
        super().__init__(redacted(text))


def _method(given: Any) -> Any:
    return method_config(given.get("name", "")).model_validate(given) if isinstance(given, dict) else given


AnyMethod = Annotated[SerializeAsAny[MethodConfig], BeforeValidator(_method)]
"""Told apart by their name, which the registry knows."""


class Recipe(Settings):
    """A complete run. Two recipes with equal `identity()` are the same experiment."""

    name: str
    """`paper/row`, for example `visualcse/bert-base`."""
    method: AnyMethod
    encoder: AnyEncoder
    streams: dict[str, AnyStream]
    optim: dict[str, AnyOptim]
    """One optimizer per update, by the update's name (`text`, `image`, `image+text`)."""
    lead: str = "text"
    """The stream whose passes are the epochs."""
    evaluation: EvaluationConfig = EvaluationConfig()
    export: ExportConfig = ExportConfig()
    run: RunConfig = RunConfig()

    @model_validator(mode="before")
    @classmethod
    def _understand_former_names(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        renamed: list[str] = []
        given = {name: copy.deepcopy(part) if name in FORMER else part for name, part in given.items()}
        for path, settings, names in _named_sections(given):
            for name, former in names.items():
                if former in settings and name not in settings:
                    settings[name] = settings.pop(former)
                    renamed.append(f"{path}.{former} is now {path}.{name}")
        if renamed:
            log.warning("recipe %s has former names of settings: %s", given.get("name"), "; ".join(renamed))
        return given

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The recipe that `to_json` wrote. Raises RecipeError for unknown fields and wrong values."""
        try:
            return cls.model_validate_json(without_copies(text))
        except ValidationError as error:
            raise RecipeError(_readable(error)) from None

    def to_json(self, secrets: bool = False) -> str:
        """The whole recipe, indented. Passwords and signatures of URLs are left out, since it is kept beside the run and in
        the model's card; with `secrets`, for the workers of a run, they are in it. The identity is the same."""

        def clean(value: Any) -> Any:
            if isinstance(value, dict):
                return {key: clean(item) for key, item in value.items()}
            if isinstance(value, list):
                return [clean(item) for item in value]
            return redacted(value) if isinstance(value, str) else value

        content = self.model_dump(mode="json")
        return json.dumps(content if secrets else clean(content), indent=2, ensure_ascii=False)

    def flat(self) -> dict[str, Any]:
        """Every field by its dotted path: ``{"optim.text.lr": 3e-05, ...}``."""
        out: dict[str, Any] = {}

        def visit(prefix: str, value: Any) -> None:
            if isinstance(value, dict) and value:
                for key, item in value.items():
                    visit(f"{prefix}.{key}" if prefix else key, item)
            else:
                out[prefix] = value

        visit("", self.model_dump(mode="json"))
        return out

    def replace(self, path: str, value: Any) -> Self:
        """The recipe with the field at a dotted path changed: ``recipe.replace("optim.text.lr", 1e-5)``.

        Raises RecipeError for a path that does not exist (with the nearest one) and for a value that is not allowed.
        """
        content = self.model_dump()
        *parents, last = path.split(".")
        node: Any = content
        for part in parents:
            node = node.get(part) if isinstance(node, dict) else None
        if name := current_name(path):
            raise RecipeError(f"{path} is called {name} now")
        if not isinstance(node, dict) or last not in node:
            near = did_you_mean(path, self.flat())
            raise RecipeError(f"recipe {self.name!r} has no setting {path!r}.{near} --help shows all.")
        node[last] = value
        try:
            made = type(self).model_validate(content)
        except ValidationError as error:
            raise RecipeError(_readable(error)) from None
        made.opened.update({name: self.opened[name] for name in self.opened if made.streams.get(name) == self.streams[name]})
        return made

    def changed(self, changes: Mapping[str, Any]) -> Self:
        """The recipe with the fields at these dotted paths changed, in their order. Raises RecipeError as `replace`."""
        recipe = self
        for path, value in changes.items():
            recipe = recipe.replace(path, value)
        return recipe

    def identity(self) -> str:
        """A hash of all that decides the result: neither output, URIs nor resources. 12 hex digits.

        Of local paths the last two parts count: the same data in another folder or on another machine is the same; so are
        URLs that are signed anew.
        """
        content = json.loads(self.to_json())
        for name in _NOT_IDENTITY:
            content["run"].pop(name)
        if self.export == ExportConfig():
            content.pop("export")
        if self.run.tf32:  # newer than runs that continue
            content["run"].pop("tf32")
        for stream in content["streams"].values():
            stream.pop("cpus")
            if stream["segments"] == StreamConfig.model_fields["segments"].default:  # newer than runs that continue
                stream.pop("segments")
            stream["shards"] = "::".join(local_name(url) for url in stream["shards"].split("::"))
        for part in (content["encoder"], *(part for part in content["method"].values() if isinstance(part, dict))):
            for name in ("path", "vectors"):
                if part.get(name):
                    part[name] = local_name(part[name])
        evaluation = content["evaluation"]
        evaluation["data"] = local_name(evaluation["data"] or "")
        for name in ("watch", "final"):
            evaluation[name] = [_local_task(task) for task in evaluation[name]]
        evaluation["select"] = _local_task(evaluation["select"] or "")
        for _, settings, names in _named_sections(content):  # a run that began under the former names goes on
            for name, former in names.items():
                if name in settings:
                    settings[former] = settings.pop(name)
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]

    def differences(self, other: Recipe) -> dict[str, tuple[Any, Any]]:
        """Settings that decide the result and are not the same here and there: path -> both values."""
        ours, theirs = self.flat(), other.flat()
        ignored = {f"run.{name}" for name in _NOT_IDENTITY} | {f"streams.{name}.cpus" for name in self.streams}
        paths = [path for path in {**ours, **theirs} if path not in ignored]
        return {p: (ours.get(p), theirs.get(p)) for p in paths if ours.get(p) != theirs.get(p)}

    @cached_property
    def opened(self) -> dict[str, ShardSet]:
        """The streams' shards that `shards` has opened, or another process for this one."""
        return {}

    def shards(self, stream: str) -> ShardSet:
        """Open the shards of a stream, once for this recipe and those that `replace` makes of it with the same stream.

        Raises:
            DataError: As `StreamConfig.open`.
        """
        if stream not in self.opened:
            self.opened[stream] = self.streams[stream].open()
        return self.opened[stream]

    @property
    def paper(self) -> str:
        """The first half of the name."""
        return self.name.split("/")[0]

    def steps(self, samples: int) -> int:
        """Steps of the run when the leading stream has `samples` samples."""
        batch = self.streams[self.lead].batch_size * self.run.gradient_accumulation_steps
        steps = math.ceil(math.ceil(samples / batch) * self.run.epochs)
        return min(steps, self.run.max_steps or steps)


def _setting(place: tuple[int | str, ...]) -> list[str]:
    """Where a setting is, without the kind that pydantic puts behind the name of a method, stream, encoder or optimizer."""
    names = [str(part) for part in place]
    kind = {"encoder": 1, "streams": 2, "optim": 2}.get(names[0], len(names)) if names else 0
    return names[:kind] + names[kind + 1 :]


def _local_task(name: str) -> str:
    """A task on data of the user's own, KIND:PLACE, without the folders above."""
    kind, colon, place = name.partition(":")
    if not colon:
        return name
    place, _, query = place.partition("?")
    options = [f"{key}={local_name(value)}" for key, value in parse_qsl(query)]
    return f"{kind}:{local_name(place)}" + (f"?{'&'.join(options)}" if options else "")


def local_name(path: str) -> str:
    return path if "://" in path else "/".join(path.rstrip("/").split("/")[-2:])


def _readable(error: ValidationError) -> str:
    lines = []
    for item in error.errors():
        path = ".".join(_setting(item["loc"]))
        shown = item["type"] not in ("missing", "extra_forbidden", "json_invalid") and not isinstance(item["input"], dict)
        given = f", given {item['input']!r}" if shown else ""
        own = item["msg"].removeprefix("Value error, ")
        message = "there is no such setting" if item["type"] == "extra_forbidden" else own
        lines.append(f"{path}: {message}{given}" if path else f"{message}{given}")
    return "; ".join(lines)
