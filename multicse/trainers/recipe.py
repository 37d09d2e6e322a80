"""Recipe: all settings that determine a run. Recipes are created by plain functions in `pipelines/`."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from functools import cached_property, partial, reduce
from operator import getitem
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    PositiveInt,
    SerializeAsAny,
    Tag,
    ValidationError,
    model_validator,
)

from multicse.data.errors import did_you_mean, redacted
from multicse.data.settings import EachOnce, Machine, Name, Place, Settings, TaskName, by_name, marked, refuse_idle
from multicse.data.shard_urls import parse_options
from multicse.data.shards import ShardSet
from multicse.data.streams.base import StreamConfig
from multicse.models.config import AnyEncoder
from multicse.models.config import EncoderConfig as EncoderConfig
from multicse.models.config import WordEncoderConfig as WordEncoderConfig
from multicse.trainers.jobs import without_copies
from multicse.trainers.method import MethodConfig


class GroupOverride(Settings):
    """Settings of one parameter group that override the settings of its optimizer."""

    lr: float | None = Field(None, ge=0)
    """Learning rate of the group. If None, the optimizer's learning rate."""
    weight_decay: float | None = Field(None, ge=0)
    """Weight decay of the group. If None, the optimizer's weight decay."""
    schedule: Literal["linear", "cosine", "constant"] | None = None
    """Learning rate schedule of the group. If None, the optimizer's schedule."""
    warmup: float | None = Field(None, ge=0)
    """Warm-up of the group, in steps or as a share of all steps. If None, the optimizer's warm-up."""


class ScheduleConfig(Settings):
    """Settings that all optimizers share."""

    lr: float = Field(3e-5, ge=0)
    """Peak learning rate of the schedule."""
    weight_decay: float = Field(0.0, ge=0)
    """Weight decay of all parameters but biases and norms (GCLSR: of all). AdamW: decoupled. SGD: part of the gradient."""
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    """Learning rate schedule after the warm-up: linear or cosine decay to 0 at the last step, or constant."""
    warmup: float = Field(0.0, ge=0)
    """Linear warm-up from 0: a share of all steps if below 1, otherwise a number of steps."""
    ahead: int = Field(0, ge=0)
    """Steps that the schedule is ahead of the run (the released CyCLIP: the steps of one epoch [errata 4.4])."""
    layer_decay: float = Field(1.0, gt=0, le=1)
    """Factor on the learning rate from each layer of the text transformer to the layer below, embeddings last."""
    max_grad_norm: float | None = Field(1.0, gt=0)
    """Maximum norm of the gradient over all parameters of the optimizer. If None, gradients are not clipped."""
    groups: dict[str, GroupOverride] = {}
    """Overrides per parameter group of the method."""

    def check(self) -> None:
        """Raise ValueError, which starts with the name of the setting, for settings without effect."""
        each: list[ScheduleConfig | GroupOverride] = [self, *self.groups.values()]
        if {one.schedule for one in each} <= {"constant", None} and not any(one.warmup for one in each):
            refuse_idle(self, ["ahead"], "the schedule is constant; set schedule or warmup")


Decay = Annotated[float, Field(ge=0, lt=1)]


class OptimConfig(ScheduleConfig):
    """AdamW and its learning rate schedule."""

    betas: tuple[Decay, Decay] = (0.9, 0.999)
    """Decay rates of AdamW's two moment estimates."""
    eps: float = Field(1e-8, gt=0)
    """Term in AdamW's denominator for numerical stability."""


class SGDConfig(ScheduleConfig):
    """SGD with momentum and its learning rate schedule."""

    momentum: float = Field(0.9, ge=0, lt=1)
    """Momentum factor (0: plain SGD)."""
    momentum_after_warmup: float | None = Field(None, ge=0, lt=1)
    """Momentum factor after the warm-up. If None, it does not change."""
    nesterov: bool = False
    """Use Nesterov momentum, which requires a momentum above 0."""

    def check(self) -> None:
        """Check also that the momentum can change."""
        super().check()
        if not self.warmup:
            refuse_idle(self, ["momentum_after_warmup"], "the warm-up is 0, so set momentum itself, or warmup")

    @model_validator(mode="after")
    def _nesterov_needs_momentum(self) -> Self:
        if self.nesterov and 0 in (self.momentum, self.momentum_after_warmup):
            raise ValueError("nesterov=True needs momentum (and momentum_after_warmup) above 0; set nesterov False")
        return self


def _optimizer(given: Any) -> str:
    names = given if isinstance(given, dict) else type(given).model_fields if isinstance(given, Settings) else {}
    return "sgd" if {"momentum", "momentum_after_warmup", "nesterov"} & set(names) else "adamw"


AnyOptim = Annotated[Annotated[OptimConfig, Tag("adamw")] | Annotated[SGDConfig, Tag("sgd")], Discriminator(_optimizer)]
"""Distinguished by their fields."""


class EvaluationConfig(Settings):
    """Evaluation tasks and checkpoint selection."""

    data: Place | None = None
    """SentEval `downstream` folder or folder of raw TSV files. If None, only tasks without external data (Lee)."""
    select: TaskName | None = "stsb-dev"
    """Development task for checkpoint selection, by its primary metric. If None, the last step is kept."""
    watch: Annotated[tuple[TaskName, ...], EachOnce] = ()
    """Additional development tasks that are logged at every evaluation."""
    final: Annotated[tuple[TaskName, ...], EachOnce] = ()
    """Test tasks, evaluated once before training and once after it."""
    eval_steps: int = Field(125, gt=0)
    """Steps between two evaluations; each may select the checkpoint."""
    patience: int | None = Field(None, gt=0)
    """Stop early after this many evaluations without a better score. If None, there is no early stopping."""
    patience_counts: Literal["no_new_best", "decreases"] = "no_new_best"
    """Evaluations that patience counts: consecutive ones without a new best score, or all with a decrease (SG-BERT)."""
    choose_untrained: bool = True
    """Allow the selection of the weights before the first step (the released NonLing-CSE does not)."""
    keep: Literal["best", "last"] = "best"
    """Weights that are evaluated at the end and exported: from the best evaluation, or from the last step."""

    def check(self) -> None:
        """Raise ValueError, which starts with the name of the setting, for settings without effect."""
        if self.select is None:
            idle = ("patience", "patience_counts", "choose_untrained", "keep")
            refuse_idle(self, idle, "no checkpoint is selected; set evaluation.select", "evaluation.")
        if self.select in self.watch:
            raise ValueError(f"evaluation.watch={self.select!r} has no effect: it is evaluation.select; remove it")
        if self.patience is None:
            refuse_idle(self, ["patience_counts"], "training does not stop early; set evaluation.patience", "evaluation.")
            if self.keep == "last":
                why = "the last weights are kept, and training does not stop early; set evaluation.keep best"
                refuse_idle(self, ["choose_untrained"], why, "evaluation.")


class ExportConfig(Settings):
    """Additions to the exported model, fitted on sentences of the training text."""

    whiten: bool = False
    """Append a PCA whitening layer (Su et al. 2021) to the exported model."""
    dimensions: int | None = Field(None, gt=0)
    """Number of leading principal components that the whitening keeps. If None, all with a positive variance."""

    @model_validator(mode="after")
    def _dimensions_are_of_the_whitening(self) -> Self:
        if self.dimensions is not None and not self.whiten:
            raise ValueError(f"dimensions={self.dimensions} requires a whitened export; set export.whiten True")
        return self


class RunConfig(Settings):
    """Execution, hardware and tracking of a run."""

    output_dir: Machine[str] = "runs"
    """Folder for checkpoints, metrics and export. In a Ray job with a working directory, relative paths start at
    ~/multicse."""
    resume: Machine[Literal["auto", "never", "must"]] = "auto"
    """Treatment of an unfinished run in output_dir: `auto` resumes it, `never` starts over, `must` requires one."""
    overwrite: Machine[bool] = False
    """Replace the run in output_dir, even if it is finished or has another recipe."""
    seed: int = 42
    """Random seed for weights, data order, views and dropout."""
    epochs: float = Field(1, gt=0, allow_inf_nan=False)
    """Number of epochs of the primary stream."""
    max_steps: int | None = Field(None, gt=0)
    """Number of steps, in place of `epochs`. If None, `epochs` determines it."""
    gradient_accumulation_steps: int = Field(1, gt=0)
    """Batches of a stream per optimizer step; their gradients are averaged."""
    mini_batch_size: int | None = Field(None, gt=0)
    """Mini-batch size per worker for gradient caching (GradCache), for batches that do not fit into memory. Losses use
    the full batch; encoding costs one extra forward pass. If None, no caching."""
    matryoshka: Annotated[tuple[PositiveInt, ...], EachOnce] = ()
    """Additional embedding sizes for Matryoshka training, for example 64 128, whose losses are added; each is smaller than
    the embedding."""
    ema: float | None = Field(None, gt=0, lt=1)
    """Decay per step of a moving average of the weights, for example 0.999, which is evaluated and exported."""
    callbacks: Machine[Annotated[tuple[Name, ...], EachOnce]] = ()
    """User-defined callbacks, called at every logging step and every evaluation, as `package.module:NAME` or
    `FILE.py:NAME`: functions, or classes with a state that checkpoints contain."""
    gradient_checkpointing: bool = False
    """Recompute the activations of the transformer layers in the backward pass instead of storing them, to save memory."""
    compile: bool = False
    """Compile the transformers with torch.compile. Compilation takes minutes, and results differ by rounding."""
    sharded: bool = False
    """Shard parameters, gradients and optimizer states of the transformer layers over the workers (FSDP2)."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Precision of the forward and backward pass; weights and optimizer states stay fp32. fp16 requires a GPU."""
    tf32: bool = True
    """Use TF32 for fp32 matrix products on GPUs: several times faster, with a 10-bit instead of a 23-bit mantissa."""
    save_steps: Machine[int | None] = Field(None, gt=0)
    """Steps between two checkpoints; the latest two are kept. If None, checkpoints are saved at evaluations."""
    keep_every: Machine[int | None] = Field(None, gt=0)
    """Steps between two permanent checkpoints, which are never deleted. If None, there are none."""
    logging_steps: Machine[int] = Field(10, gt=0)
    """Steps between two log lines, which are also sent to the trackers."""
    num_workers: Machine[int] = Field(1, ge=0)
    """Number of training processes; 0 trains in the current process, for debugging."""
    cpus_per_worker: Machine[float] = Field(1.0, gt=0)
    """CPUs that Ray reserves for each worker, in addition to streams.*.cpus for reading."""
    gpus_per_worker: Machine[float] = Field(0, ge=0)
    """GPUs per worker, also for num_workers 0: 1, or 0 to train on CPUs. A fraction requires a single worker."""
    threads: Machine[int | None] = Field(None, gt=0)
    """Torch threads of a CPU worker. If None, the cores of the machine are divided among its workers."""
    storage: Machine[str | None] = None
    """Location of checkpoints, a folder or pyarrow URL (s3://…), required with several nodes. If None, MULTICSE_STORAGE,
    otherwise output_dir. A folder also replaces ~/multicse of jobs."""
    max_failures: Machine[int] = 0
    """Maximum number of restarts from the last checkpoint after a worker failure."""
    step_timeout: Machine[float] = Field(1800, gt=0)
    """Timeout of a training step in seconds, including the wait for batches; the worker is terminated after it. A warning
    is logged after a tenth of it."""
    tracking_uri: Machine[str | None] = None
    """MLflow tracking URI. If None, MLFLOW_TRACKING_URI, otherwise sqlite:///mlflow.db in the current folder (in
    ~/multicse for a Ray job with a working directory)."""
    report_to: Machine[Literal["mlflow", "none"]] = "mlflow"
    """Tracker. With `none`, metrics are in the run's journal.jsonl only, MLflow does not have to be installed, and the same
    command with `mlflow` sends the run later."""
    experiment: Machine[str | None] = None
    """MLflow experiment of the run. If None, the paper in the recipe's name."""
    register_as: Machine[str | None] = None
    """Name under which the export is registered in the MLflow model registry, as a new version."""
    push_to_hub: Machine[str | None] = None
    """Hugging Face Hub repository, USER/NAME, to which the export is uploaded; a new repository is private."""
    verbose: Machine[bool] = False
    """Show log messages of Ray and other libraries."""

    @model_validator(mode="after")
    def _registration_is_in_mlflow(self) -> Self:
        if self.register_as is not None and self.report_to != "mlflow":
            raise ValueError(f"register_as={self.register_as!r} registers the export in MLflow; set report_to mlflow")
        return self


class RecipeError(ValueError):
    """A recipe that cannot run. The text names the setting, its value and the allowed values, without passwords of URLs."""

    def __init__(self, text: str) -> None:
        super().__init__(redacted(text))


AnyMethod = Annotated[SerializeAsAny[MethodConfig], BeforeValidator(partial(by_name, base=MethodConfig))]
AnyStream = Annotated[SerializeAsAny[StreamConfig], BeforeValidator(partial(by_name, base=StreamConfig))]


class Recipe(Settings):
    """All settings of a run. Recipes with equal `identity()` are the same experiment."""

    name: str
    """`paper/row`, for example `visualcse/bert-base`."""
    method: AnyMethod
    encoder: AnyEncoder
    streams: dict[str, AnyStream]
    optim: dict[str, AnyOptim]
    """Optimizers by the streams whose loss they lower: `text`, `image`, or `image+text` for both together."""
    lead: str = "text"
    """Primary stream; its epochs are the epochs of the run."""
    evaluation: EvaluationConfig = EvaluationConfig()
    export: ExportConfig = ExportConfig()
    run: RunConfig = RunConfig()

    @classmethod
    def checked(cls, content: Mapping[str, Any]) -> Self:
        """Return the recipe with these settings. Raises RecipeError if a value is not allowed."""
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            raise RecipeError(_readable(error)) from None

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Load a recipe from the output of `to_json`; raise RecipeError if a field is unknown or a value not allowed."""
        try:
            return cls.model_validate_json(without_copies(text))
        except ValidationError as error:
            raise RecipeError(_readable(error)) from None

    def to_json(self, secrets: bool = False) -> str:
        """Return the recipe as indented JSON, with passwords and signatures of URLs only if `secrets` is True.

        The workers of a run need these; other JSON is stored with the run and in the model card.
        """

        def clean(value: Any) -> Any:
            if isinstance(value, dict):
                return {key: clean(item) for key, item in value.items()}
            if isinstance(value, list):
                return [clean(item) for item in value]
            return redacted(value) if isinstance(value, str) else value

        content = self.model_dump(mode="json")
        return json.dumps(content if secrets else clean(content), indent=2, ensure_ascii=False)

    def flat(self) -> dict[str, Any]:
        """Return every field by its dotted path: ``{"optim.text.lr": 3e-05, ...}``."""
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
        """Return a copy with one field changed: ``recipe.replace("optim.text.lr", 1e-5)``.

        Args:
            path: Dotted path of the field.
            value: New value.

        Raises:
            RecipeError: If the path does not exist or the value is not allowed.
        """
        return self.changed({path: value})

    def changed(self, changes: Mapping[str, Any]) -> Self:
        """Return a copy with several fields changed, as by `replace`, and checked together.

        Fields that exist only after another change, such as settings of another kind of stream, are changed after it.
        """
        content, later = self.model_dump(), dict[str, Any]()
        for path, value in changes.items():
            *parents, last = path.split(".")
            node: Any = content
            for part in parents:
                node = node.get(part) if isinstance(node, dict) else None
            if isinstance(node, dict) and last in node:
                node[last] = value
            else:
                later[path] = value
        if later and len(later) == len(changes):
            path = next(iter(later))
            near = did_you_mean(path, self.flat())
            raise RecipeError(f"recipe {self.name!r} has no setting {path!r}.{near} --help-all shows all.")
        made = self.checked(content)
        made.opened.update({name: self.opened[name] for name in self.opened if made.streams.get(name) == self.streams[name]})
        return made.changed(later) if later else made

    def with_places(self, how: Mapping[str, Callable[[str], str]]) -> Self:
        """Return a copy in which functions have changed all places, shards or tasks.

        Args:
            how: Kind of a mark (`multicse.data.settings.Mark`) -> function of the text.
        """
        named = ((path, mark, value) for path, mark, value in marked(self) if mark.kind in how)
        changes = {path: (value, mark.on_each(how[mark.kind], value)) for path, mark, value in named}
        return self.changed({path: new for path, (old, new) in changes.items() if new != old})

    def identity(self) -> str:
        """Return a hash of everything that determines the result, without output, URIs and resources; 12 hex digits.

        Of local paths only the last two parts count, so the same data in another folder or on another machine has the same
        identity, as have URLs with a new signature.
        """
        content = json.loads(self.to_json())
        for path, mark, _ in marked(self):
            *parents, name = path.split(".")
            part = reduce(getitem, parents, content)
            if mark.kind == "machine":
                del part[name]
            else:
                part[name] = mark.on_each(SHORT[mark.kind], part[name])
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]

    def differences(self, other: Recipe) -> dict[str, tuple[Any, Any]]:
        """Return the settings that determine the result and differ between two recipes: path -> both values."""
        ours, theirs = self.flat(), other.flat()
        paths = [path for path in {**ours, **theirs} if path not in self.machine() | other.machine()]
        return {p: (ours.get(p), theirs.get(p)) for p in paths if ours.get(p) != theirs.get(p)}

    def machine(self) -> set[str]:
        """Return the dotted paths of the settings on which the result does not depend; they are no part of the identity."""
        return {path for path, mark, _ in marked(self) if mark.kind == "machine"}

    @cached_property
    def opened(self) -> dict[str, ShardSet]:
        """Shards of the streams, opened by `shards` or by another process for this one."""
        return {}

    def shards(self, stream: str) -> ShardSet:
        """Open the shards of a stream once; `replace` keeps them if the stream does not change."""
        if stream not in self.opened:
            self.opened[stream] = self.streams[stream].open()
        return self.opened[stream]

    @property
    def paper(self) -> str:
        """The first part of the name."""
        return self.name.split("/")[0]

    def steps(self, samples: int) -> int:
        """Return the number of steps if the primary stream contains `samples` samples: `run.max_steps`, else its epochs."""
        if self.run.max_steps is not None:
            return self.run.max_steps
        batch = self.streams[self.lead].batch_size * self.run.gradient_accumulation_steps
        return max(1, math.ceil(round(math.ceil(samples / batch) * self.run.epochs, 6)))  # 100 * 1.1 is above 110


def _setting(place: tuple[int | str, ...]) -> list[str]:
    """Return the path of a setting without the discriminators of encoders and optimizers."""
    names = [str(part) for part in place]
    kind = {"encoder": 1, "optim": 2}.get(names[0], len(names)) if names else 0
    return names[:kind] + names[kind + 1 :]


def local_task(name: str) -> str:
    """Return a task on user data, KIND:PATH, without the parent folders of PATH."""
    kind, colon, place = name.partition(":")
    if not colon:
        return name
    path, _, query = place.partition("?")
    try:
        options = [f"{key}={local_name(value)}" for key, value in parse_options(query).items()]
    except ValueError:  # a question mark of the file's name
        path, options = place, []
    return f"{kind}:{local_name(path)}" + (f"?{'&'.join(options)}" if options else "")


def local_name(path: str) -> str:
    """Return the last two parts of a local path; URLs are returned unchanged."""
    return path if "://" in path else "/".join(path.rstrip("/").split("/")[-2:])


SHORT = {"place": local_name, "shards": lambda urls: "::".join(map(local_name, urls.split("::"))), "task": local_task}
"""How places count in an identity, by the kind of their mark."""


def _readable(error: ValidationError) -> str:
    lines = []
    for item in error.errors():
        path = ".".join(_setting(item["loc"]))
        shown = item["type"] not in ("missing", "extra_forbidden", "json_invalid") and not isinstance(item["input"], dict)
        given = f", given {item['input']!r}" if shown else ""
        own = item["msg"].removeprefix("Value error, ")
        message = "unknown setting" if item["type"] == "extra_forbidden" else own
        lines.append(f"{path}: {message}{given}" if path else f"{message}{given}")
    return "; ".join(lines)
