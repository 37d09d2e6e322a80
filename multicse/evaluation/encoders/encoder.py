"""Encoders: a module in training or a folder on disk, with one `encode` method.

A batch contains many short texts or a few long ones, up to a maximum number of tokens.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from multicse import plugins
from multicse.data.errors import did_you_mean
from multicse.evaluation.task import Encoder, EvaluationError, Sound
from multicse.models.hub_folders import load_saved, read_json, route_of
from multicse.models.pooling import AVERAGED, MODES, without_prompt
from multicse.models.pretrained import EVALUATED
from multicse.models.probes import PROBES, gap
from multicse.models.st_modules import WHITENING, make_modules
from multicse.models.text_folders import default_pooling, load_transformer, positions_of

logger = logging.getLogger(__name__)

TOKENS_PER_TEXT = 32  # a batch contains at most batch_size * 32 tokens, including padding
CPU_TOKENS = 1024  # maximum on a CPU: larger batches exceed the caches and are 15 to 20 % slower
CHUNK = 4096  # texts tokenised in one call
ROUNDED = 0.01  # relative difference between vectors that rounding may explain on any device
MORE_MODES = ("mean_sqrt_len_tokens", "weightedmean")  # poolings of sentence-transformers that recipes do not have
NO_LIMIT = 10**6  # tokens; libraries use larger numbers for no limit

Features = dict[str, Any]  # output of a tokenizer: tensors with texts on axis 0, sometimes with settings


class ModuleEncoder:
    """Encoder that consists of a tokenize and a forward function, such as a model in training.

    Args:
        tokenize: Function from texts to features, truncated to the model's limit and padded to the longest text.
        forward: Function from features to vectors, (B, d).
        device: Device of the features.
        batch_size: Texts of 32 tokens per batch; on a CPU, a batch has at most 1,024 tokens.
        module: Module that is in evaluation mode during `encode`. If None, `forward` if it is a module.
        others: For each further modality, a function from at most `items_at_once` items to their vectors, (n, d).
        logit_scale: Function that returns the factor on cosine similarities in the model's contrastive loss.
        autocast: Function that returns a context for mixed precision in `encode`.
    """

    items_at_once = 64  # images or audio clips per call

    def __init__(
        self,
        tokenize: Callable[[list[str]], Features],
        forward: Callable[[Features], Tensor],
        device: torch.device | str = "cpu",
        *,
        batch_size: int = 128,
        module: nn.Module | None = None,
        others: Mapping[str, Callable[[list[Any]], Tensor]] | None = None,
        logit_scale: Callable[[], float | Tensor] | None = None,
        autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        if batch_size < 1:
            raise EvaluationError(f"batch_size is {batch_size}; it must be at least 1")
        self.tokenize = tokenize
        self.forward = forward
        self.device = torch.device(device)
        self.budget = batch_size * TOKENS_PER_TEXT
        if self.device.type == "cpu":
            self.budget = min(self.budget, CPU_TOKENS)
        self.module = forward if isinstance(forward, nn.Module) and module is None else module
        self.others = dict(others or {})
        self._logit_scale = logit_scale
        self._autocast = autocast

    @property
    @torch.no_grad()  # may be a parameter
    def logit_scale(self) -> float | None:
        """Return the current factor on cosine similarities in the contrastive loss; None for models without one."""
        return None if self._logit_scale is None else float(self._logit_scale())

    @torch.no_grad()
    def encode(self, items: list[Any], modality: str = "text") -> np.ndarray:
        """Encode N items of one modality as vectors, float32; see `task.Encoder`."""
        if modality != "text" and modality not in self.others:
            supported = " and ".join(["texts", *(f"modality {name!r}" for name in self.others)])
            raise EvaluationError(f"this encoder supports only {supported}, but the task needs modality {modality!r}")
        if not items:
            return np.zeros((0, 0), dtype=np.float32)
        with evaluation_mode(self.module), self._autocast():
            if modality == "text":
                return self._encode_texts(items)
            starts = range(0, len(items), self.items_at_once)
            parts = [self.others[modality](items[start : start + self.items_at_once]).float().cpu() for start in starts]
        return torch.cat(parts).numpy()

    def _encode_texts(self, items: list[str]) -> np.ndarray:
        # The longest texts come first, so that a batch that exceeds the memory fails immediately.
        order = torch.tensor(sorted(range(len(items)), key=lambda i: -len(items[i])))
        places: list[Tensor] = []
        vectors: list[Tensor] = []
        for rows in order.split(CHUNK):
            batches = list(_batches(self.tokenize([items[i] for i in rows.tolist()]), self.budget))
            parts = [self.forward(on_device(features, self.device)).float() for _, features in batches]
            vectors.append(torch.cat(parts).cpu())
            places += [rows[batch] for batch, _ in batches]
        return torch.cat(vectors)[torch.cat(places).argsort()].numpy()


def _batches(features: Features, budget: int) -> Iterator[tuple[Tensor | slice, Features]]:
    """Split texts into batches of at most `budget` tokens, including padding, or of one text; longest texts first.

    Yield the rows of each batch, and their features without columns that are padding in all rows, on either side.
    """
    mask, ids = features.get("attention_mask"), features.get("input_ids")
    if mask is None and isinstance(ids, Tensor) and ids.ndim > 1:
        mask = torch.ones_like(ids)
    if mask is None:  # without token rows (StaticEmbedding), features cannot be split and are cheap
        yield slice(None), features
        return
    lengths = mask.sum(1)
    order = lengths.argsort(descending=True, stable=True)
    while len(order):
        size = max(1, budget // max(1, int(lengths[order[0]])))
        rows, order = order[:size], order[size:]
        used = mask[rows].any(0).nonzero().flatten()
        columns = slice(int(used[0]), int(used[-1]) + 1) if len(used) else slice(None)
        batch = dict(features)
        for name, value in features.items():
            if isinstance(value, Tensor) and value.ndim and len(value) == len(mask):
                batch[name] = value[rows][:, columns] if value.shape[:2] == mask.shape else value[rows]
        yield rows, batch


@contextlib.contextmanager
def evaluation_mode(module: nn.Module | None) -> Iterator[None]:
    """Set a module to evaluation mode, and restore the mode of every submodule afterwards, including frozen ones."""
    modes = [(part, part.training) for part in module.modules()] if module is not None else []
    if module is not None:
        module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def on_device(features: Features, device: torch.device) -> Features:
    """Return features with their tensors on a device."""
    return {n: v.to(device, non_blocking=True) if isinstance(v, Tensor) else v for n, v in features.items()}


# ------------------------------------------------------------------------------------------------------------- in training


class ShardedEncoder:
    """Encoder for evaluation in training, which distributes items over all workers.

    `encode` is a collective operation: every rank calls it with the same items and gets all vectors. An error on one rank is
    raised on all ranks, so that no rank waits forever.

    Args:
        encoder: Encoder of this rank.
        ready: Function that returns a context in which this rank encodes.
    """

    def __init__(self, encoder: Encoder, ready: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        self.encoder, self.ready = encoder, ready

    @property
    def logit_scale(self) -> float | None:
        """Return the factor of the encoder, which is equal on all workers."""
        return getattr(self.encoder, "logit_scale", None)

    def encode(self, items: list[Any], modality: str = "text") -> np.ndarray:
        """Encode N items, equal on all ranks; raise EvaluationError if another worker fails, or the items differ."""
        world = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
        if world == 1:
            return self.encoder.encode(items, modality)
        # Items are distributed by size, so that ranks finish at the same time.
        contents = [_content(item) for item in items]
        order = np.asarray(sorted(range(len(items)), key=lambda i: -len(contents[i])), dtype=np.int64)
        mine = [items[i] for i in order[dist.get_rank() :: world]]
        failure: Exception | None = None
        vectors = np.zeros((0, 0), dtype=np.float32)
        try:
            with self.ready():
                if mine:
                    vectors = np.asarray(self.encoder.encode(mine, modality), dtype=np.float32)
        except Exception as error:
            failure = error
        message = "" if failure is None else f"{type(failure).__name__}: {failure}"
        ranks: list[Any] = [None] * world
        dist.all_gather_object(ranks, (message, (len(items), zlib.crc32(b"\0".join(contents))), vectors))
        if failure is not None:
            raise failure
        if failures := "; ".join(f"rank {rank}: {text}" for rank, (text, *_) in enumerate(ranks) if text):
            raise EvaluationError(f"evaluation failed on another worker: {failures}")
        lists = [one for _, one, _ in ranks]
        if len(set(lists)) > 1:
            counts = [count for count, _ in lists]
            raise EvaluationError(
                f"the workers encode different items ({counts} by rank); all ranks must pass the same list"
            )
        result = np.empty((len(items), ranks[0][2].shape[1]), dtype=np.float32)  # the first rank always has items
        for rank, (*_, part) in enumerate(ranks):
            if len(part):
                result[order[rank::world]] = part
        return result


def _content(item: Any) -> bytes:
    """Return the content of a text, an image or an audio clip."""
    value = item.samples if isinstance(item, Sound) else item
    return value.encode() if isinstance(value, str) else value.tobytes()


# -------------------------------------------------------------------------------------------------------------- folders


Forward = Callable[[Features, Tensor], Tensor]
"""Function from features, and the mask of the tokens that are pooled, (B, T), to vectors, (B, d)."""


class NamedPooling(NamedTuple):
    """Poolings of a plugin, whose names match a regular expression."""

    make: Callable[[re.Match[str], Any], Forward]
    """Function of the match and the model, a SentenceTransformer, that returns the forward function."""
    names: tuple[str, ...]
    """Names, or examples of names, for messages."""


class FolderEncoder(ModuleEncoder):
    """Encoder of a Hugging Face or sentence-transformers folder, created by `load_encoder`.

    `pooled` replaces the modules after the transformer.
    """

    def __init__(self, model: Any, path: Path, pooling: str, batch_size: int, pooled: Forward | None = None) -> None:
        self.prompt: str | None = model.prompts.get(model.default_prompt_name) if model.default_prompt_name else None
        width = model.truncate_dim
        whole = all(getattr(module, "include_prompt", True) for module in model)

        def forward(features: Features) -> Tensor:
            if pooled is None:
                return model(features)["sentence_embedding"][:, :width]
            prompted = 0 if whole else int(features.get("prompt_length") or 0)
            return pooled(features, without_prompt(features["attention_mask"], prompted))

        super().__init__(
            partial(tokenized, model, prompt=self.prompt), forward, model.device, batch_size=batch_size, module=model
        )
        self.model = model
        self.path = path
        self.name = label(path)
        self.pooling = pooling
        limit = model.max_seq_length
        self.limit: int | None = limit if limit is not None and limit < NO_LIMIT else None

    def use_prompt(self, prompt: str) -> None:
        """Put a prompt before every text instead of the model's default prompt."""
        self.prompt, self.tokenize = prompt, partial(tokenized, self.model, prompt=prompt)

    @property
    def protocol(self) -> dict[str, Any]:
        """Return how texts are encoded, for reports."""
        device = str(self.device)
        return {"pooling": self.pooling, "post_processing": None, "max_tokens": self.limit, "device": device}

    @property
    def hash(self) -> str:
        """Return the SHA-256 of names and contents of the folder's files, without model cards and hidden files."""
        digest = hashlib.sha256()
        for file in sorted(p for p in self.path.rglob("*") if p.is_file()):
            name = file.relative_to(self.path)
            if any(part.startswith(".") for part in name.parts) or file.suffix == ".md":
                continue
            digest.update(f"{name.as_posix()}\0{file.stat().st_size}\0".encode())
            with file.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
        return digest.hexdigest()


def tokenized(model: Any, texts: list[str], prompt: str | None = None) -> Features:
    """Tokenise texts with the first module of a SentenceTransformer.

    Every text is marked as a text: sentence-transformers would replace the name of an image or audio file, a link to one or
    a data URI by the file if the model also encodes images or audio.
    """
    routes, options = getattr(model[0], "sub_modules", {}), {}
    first = model[0]
    if routes:
        model, options = first, {"modality": "text"}
        first = routes[first._resolve_route(modality="text")][0]
    inputs: list[Any] = [{"text": text} for text in texts] if hasattr(first, "input_formatter") else texts
    features = dict(model.preprocess(inputs, prompt=prompt, **options))
    ids = features.get("input_ids")
    if isinstance(ids, Tensor) and ids.shape[1:] == (0,):  # empty texts without special tokens: a column of padding
        features |= {name: ids.new_zeros(len(ids), 1, dtype=torch.long) for name in ("input_ids", "attention_mask")}
        features.pop("token_type_ids", None)
    return features


def label(path: Path) -> str:
    """Return a short name for tables: the last specific part of the path, or the model ID of a downloaded model."""
    if path.parent.name == "snapshots":  # CACHE/models--google-bert--bert-base-uncased/snapshots/COMMIT
        return path.parts[-3].removeprefix("models--").replace("--", "/")
    parts = [part for part in path.resolve().parts if part not in ("model", "export", "checkpoint", "0_Transformer")]
    return parts[-1]


def load_encoder(
    path: str | Path, pooling: str | None = None, device: str | None = None, batch_size: int = 128
) -> FolderEncoder:
    """Load an encoder from a Hugging Face or sentence-transformers folder.

    Args:
        path: Folder of the model.
        pooling: Pooling that replaces the folder's own: one of recipes (`TextEncoder`), of sentence-transformers or of a
            plugin. It also replaces the modules after it, except for the scaling to unit length. If None, the folder's
            pooling, or for a plain Hugging Face folder the default of its model type.
        device: Device. If None, the first GPU, otherwise the CPU.
        batch_size: Texts of 32 tokens per batch.

    Raises:
        EvaluationError: If the folder does not exist or is incomplete, or the pooling is unknown.
    """
    folder, named = Path(path).expanduser(), plugins.every("pooling")
    matches = [(one, re.fullmatch(pattern, pooling or "")) for pattern, one in named.items()]
    found = next(((one, match) for one, match in matches if match), None)
    known = (*MODES, *MORE_MODES, *(name for one in named.values() for name in one.names))
    if pooling is not None and found is None and pooling not in known:
        raise EvaluationError(
            f"unknown pooling {pooling!r}.{did_you_mean(pooling, known)} Choose from {', '.join(known)}, ..."
        )
    model = _load(folder, usable_device(device))
    if found is None:
        _set_pooling(model, folder, pooling)
    _keep_positions(model)
    if model.similarity_fn_name != "cosine":
        logger.warning("%s compares vectors by %s, but tasks use cosine similarity", folder, model.similarity_fn_name)
    if found is not None:
        return without_neighbours(FolderEncoder(model, folder, str(pooling), batch_size, found[0].make(found[1], model)))
    used = [module.pooling_mode for module in model if hasattr(module, "pooling_mode")]
    if pooling is None and not (folder / "modules.json").is_file():
        logger.info("%s does not specify a pooling (no modules.json): using %s pooling", folder, *used)
    return without_neighbours(FolderEncoder(model, folder, pooling or str(used[0] if used else "own"), batch_size))


def without_neighbours(encoder: FolderEncoder) -> FolderEncoder:
    """Let an encoder encode texts one by one if vectors depend on the other texts of a batch; return the encoder.

    Raises:
        EvaluationError: If the size of a vector depends on its text.
    """
    alone = [encoder.encode([text]) for text in PROBES]
    if len(sizes := {one.shape[1] for one in alone}) > 1:
        raise EvaluationError(
            f"{encoder.path} gives vectors of different sizes ({', '.join(map(str, sorted(sizes)))}) for different texts; "
            "its config.json does not fit its weights or its modules: copy the complete folder again"
        )
    if gap(torch.from_numpy(encoder.encode(PROBES)), torch.from_numpy(np.concatenate(alone))) > ROUNDED:
        logger.warning(
            "%s: vectors depend on the other texts of a batch, so texts are encoded one by one, which is slow", encoder.path
        )
        encoder.budget = 1
    return encoder


def _load(folder: Path, device: str) -> Any:
    """Load a folder as a SentenceTransformer."""
    with loading(folder):
        model = load_saved(folder, device)
        refuse_random(model, folder)
        model.encode("a")  # fails if modules are in a wrong order
    return model


def _set_pooling(model: Any, folder: Path, pooling: str | None) -> None:
    """Replace the modules after the transformer by another pooling's, if it is not the model's own, in place."""
    modules = dict(model.named_children())
    own = [module for module in model if hasattr(module, "pooling_mode")]
    if pooling is None and ((folder / "modules.json").is_file() or not own):
        return
    network = getattr(model[0], "auto_model", None)
    if network is None:
        raise EvaluationError(
            f"{folder} starts with {type(model[0]).__name__}, which has no tokens to pool; remove @{pooling}"
        )
    pooling = pooling or default_pooling(network.config)
    kinds = [type(module).__name__ for name, module in modules.items() if name != WHITENING]
    mode = own[0].pooling_mode if len(own) == 1 and "WeightedLayerPooling" not in kinds else None
    if pooling == ("pooler" if mode == "cls" and "Dense" in kinds else mode):
        return
    head = None
    if pooling == "pooler":
        with loading(folder):
            _, head = load_transformer(str(folder), folder, network.config, pooler=True)
        if head is None:
            raise EvaluationError(f"{folder} has no pooler; choose @cls, or another pooling")
    prompted = all(module.include_prompt for module in own)
    for name in [*modules][1:]:
        del model._modules[name]
    network.config.output_hidden_states = pooling in AVERAGED  # sentence-transformers reads it
    made = make_modules(network.config, cast(Any, pooling), head, "Normalize" in kinds, prompted)
    model.extend(module.to(model.device) for module in made)


@contextlib.contextmanager
def loading(folder: Path) -> Iterator[None]:
    """Raise EvaluationError if a folder contains no readable model, or if it cannot be loaded within the context."""
    try:
        EVALUATED.refuse_unreadable(str(folder), folder)
        if not (folder / "modules.json").is_file() and not (folder / "config.json").is_file():
            raise EvaluationError(
                f"no model found in {folder}: neither modules.json nor config.json exists; specify a Hugging Face or "
                "sentence-transformers folder (for a model of the Hub, run `hf download NAME --local-dir DIR` first)"
            )
        yield
    except EvaluationError:
        raise
    except Exception as error:  # the libraries raise a dozen kinds for a broken folder
        raise EvaluationError(f"the model folder {folder} cannot be loaded: {error}") from error


def refuse_random(model: Any, folder: Path) -> None:
    """Raise ValueError if weights of a loaded SentenceTransformer are missing from its folder, or it has no tokenizer."""
    modules = folder / "modules.json"
    entries = read_json(modules) if modules.is_file() else [{"path": ""}]
    parts = [(module, folder / entry["path"]) for module, entry in zip(model, entries, strict=False)]
    for name, route in getattr(model[0], "sub_modules", {}).items():  # only a Router has them
        parts += zip(route, (place for _, place in route_of(folder, name)), strict=True)
    for module, place in parts:
        network = getattr(module, "auto_model", None)
        if network is not None:
            tokenizer = module.tokenizer if "text" in module.modalities else None
            EVALUATED.refuse_random(str(folder), place, network, tokenizer)
            if tokenizer is not None and module.transformer_task in ("text-generation", "any-to-any"):
                tokenizer.padding_side = "left"  # as this task requires


def usable_device(device: str | None) -> str:
    """Return a device, by default the first GPU or the CPU; raise EvaluationError if it does not exist."""
    if device is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise EvaluationError(f"unknown device {device!r}; use cpu, cuda or cuda:N") from None
    if kind == "cuda" and not torch.cuda.is_available():
        raise EvaluationError(f"device {device!r} is not available: torch finds no GPU on this machine; use cpu")
    return device


def _keep_positions(model: Any) -> None:
    """Limit texts to the model's positions if the limit of the tokenizer is missing or too large."""
    network = getattr(model[0], "auto_model", None)
    if hasattr(network, "config") and (most := positions_of(network)) < min(model.max_seq_length or NO_LIMIT, NO_LIMIT):
        model.max_seq_length = most
