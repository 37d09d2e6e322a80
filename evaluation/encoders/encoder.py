"""Encoders: a folder on disk, or a module in training, behind one `encode`.

Texts are sorted by length, tokenised once, and packed into batches of a fixed number of tokens, so that little is
spent on padding: many short texts make a batch, or a few long ones.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from multicse.data.errors import did_you_mean
from multicse.evaluation.encoders.baselines import NAMES, Pool, is_layer_pooling, layer_pooling
from multicse.evaluation.encoders.folders import refuse_random
from multicse.evaluation.task import Encoder, EvaluationError, Sound
from multicse.models.hub_folders import EVALUATED, WEIGHTS, load_saved
from multicse.models.pooling import MODES
from multicse.models.text_folders import default_pooling, positions_of

logger = logging.getLogger(__name__)

TOKENS_PER_TEXT = 32  # a batch holds batch_size * 32 tokens, padding included
CPU_TOKENS = 1024  # and on a CPU no more than these: a larger batch outgrows the caches and is 15 to 20 % slower
CHUNK = 4096  # texts tokenised in one call
NO_LIMIT = 10**6  # tokens; libraries write larger numbers for none

Features = dict[str, Any]  # what a tokenizer gives: tensors with the text on axis 0, and at times settings beside them


class ModuleEncoder:
    """An encoder made of a tokenizing function and a forward function, such as a model in training.

    `tokenize` turns texts into features, cut at the model's limit and padded to the longest; `forward` turns features
    into vectors (B, d). If `forward` is a module, or `module` is given, it is put in evaluation mode for the time of
    the call and every submodule back into the mode it was in after it. `batch_size` is in texts of 32 tokens: the
    batch's budget is ``32 * batch_size`` tokens, on a CPU at most 1,024.

    `others` are the modalities beside text, "image" or "audio": from a list of at most `items_at_once` items (see
    `task.Encoder`) to their vectors (n, d), in the space of the texts. `logit_scale` gives the factor that the model's
    contrastive loss puts before cosines. `autocast` makes the context of precision in which all is encoded.
    """

    items_at_once = 64
    """Pictures or sounds encoded in one call."""

    def __init__(
        self,
        tokenize: Callable[[list[str]], Features],
        forward: Callable[[Features], Tensor],
        device: torch.device | str = "cpu",
        *,
        batch_size: int = 128,
        module: nn.Module | None = None,
        others: Mapping[str, Callable[[list[Any]], Tensor]] | None = None,
        logit_scale: Callable[[], float] | None = None,
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
    def logit_scale(self) -> float | None:
        """The factor before cosines in the model's contrastive loss, as it is now; None for a model without one."""
        if self._logit_scale is None:
            return None
        with torch.no_grad():  # of a parameter
            return float(self._logit_scale())

    @torch.no_grad()
    def encode(self, items: list[Any], modality: str = "text") -> np.ndarray:
        """Vectors (N, d), float32, of N items in their order.

        Raises EvaluationError for a modality that the encoder does not take.
        """
        if modality != "text" and modality not in self.others:
            taken = " and ".join(["texts", *(f"modality {name!r}" for name in self.others)])
            raise EvaluationError(f"this encoder takes {taken} only; modality {modality!r} was asked for")
        if not items:
            return np.zeros((0, 0), dtype=np.float32)
        with evaluation_mode(self.module), self._autocast():
            if modality == "text":
                return self._encode_texts(items)
            starts = range(0, len(items), self.items_at_once)
            parts = [self.others[modality](items[start : start + self.items_at_once]).float().cpu() for start in starts]
        return torch.cat(parts).numpy()

    def _encode_texts(self, items: list[str]) -> np.ndarray:
        # Characters first, for chunks that need little padding; tokens decide inside a chunk. Longest first, so that
        # a batch which does not fit the memory fails at once.
        order = sorted(range(len(items)), key=lambda i: -len(items[i]))
        places: list[np.ndarray] = []
        chunks: list[np.ndarray] = []
        for start in range(0, len(order), CHUNK):
            rows = np.asarray(order[start : start + CHUNK])
            features = self.tokenize([items[i] for i in rows])
            padded = any(isinstance(value, Tensor) and value.ndim > 1 for value in features.values())
            # Without rows of tokens (StaticEmbedding) there is nothing to pick from, nor much to compute.
            batches = list(token_batches(_lengths(features, len(rows)), self.budget)) if padded else [np.arange(len(rows))]
            parts = (on_device(_pick(features, batch, len(rows)), self.device) for batch in batches)
            chunks.append(torch.cat([self.forward(part).float() for part in parts]).cpu().numpy())
            places += [rows[batch] for batch in batches]
        vectors = np.concatenate(chunks)
        return vectors[np.argsort(np.concatenate(places))]


def token_batches(lengths: np.ndarray, budget: int) -> Iterator[np.ndarray]:
    """Positions of `lengths` (N,) in batches, longest first; rows times the longest row stay within `budget` tokens.

    A text longer than the budget makes a batch of its own.
    """
    order = np.argsort(-lengths, kind="stable")
    while len(order):
        size = max(1, budget // max(1, int(lengths[order[0]])))
        yield order[:size]
        order = order[size:]


@contextlib.contextmanager
def evaluation_mode(module: nn.Module | None) -> Iterator[None]:
    """No dropout inside; afterwards every submodule is in the mode it had, also one that was frozen in training."""
    modes = [(part, part.training) for part in module.modules()] if module is not None else []
    if module is not None:
        module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def _lengths(features: Features, count: int) -> np.ndarray:
    """Tokens of each of `count` texts."""
    mask = features.get("attention_mask")
    if isinstance(mask, Tensor) and mask.ndim == 2 and len(mask) == count:
        return mask.sum(1).cpu().numpy()
    widths = [value.shape[1] for value in features.values() if isinstance(value, Tensor) and value.ndim > 1]
    return np.full(count, widths[0] if widths else 1)  # no mask: nothing can be trimmed, and the rows stay as they are


def _pick(features: Features, rows: np.ndarray, count: int) -> Features:
    """The rows of a batch, without the columns that are padding in all of them (on whichever side it is)."""
    index = torch.from_numpy(rows)
    batch = {n: v[index] if isinstance(v, Tensor) and v.ndim and len(v) == count else v for n, v in features.items()}
    mask = batch.get("attention_mask")
    if not isinstance(mask, Tensor) or not mask.any():
        return batch
    used = mask.any(0).nonzero().flatten()
    columns = slice(int(used[0]), int(used[-1]) + 1)
    padded = {n: v for n, v in batch.items() if isinstance(v, Tensor) and v.shape[:2] == mask.shape}
    return batch | {n: v[:, columns] for n, v in padded.items()}


def on_device(features: Features, device: torch.device) -> Features:
    """The features with their tensors on `device`."""
    return {n: v.to(device, non_blocking=True) if isinstance(v, Tensor) else v for n, v in features.items()}


# ------------------------------------------------------------------------------------------------------------- in training


class ShardedEncoder:
    """Evaluation inside training: `encode` is a collective, which every rank calls with the same list for the same (N, d).

    Without torch.distributed, or with one worker, it is the encoder itself. An error on one rank is raised on all, so
    that no rank waits for one that has given up. Every rank encodes within `ready()`, as often as it likes.
    """

    def __init__(self, encoder: Encoder, ready: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        self.encoder, self.ready = encoder, ready

    @property
    def logit_scale(self) -> float | None:
        """That of the encoder; workers in training hold the same."""
        return getattr(self.encoder, "logit_scale", None)

    def encode(self, items: list[Any], modality: str = "text") -> np.ndarray:
        """Vectors (N, d), float32, of N items in their order."""
        world = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
        if world == 1:
            return self.encoder.encode(items, modality)
        # Dealt by size, so that the ranks finish together.
        order = np.asarray(sorted(range(len(items)), key=lambda i: -_size(items[i])), dtype=np.int64)
        mine = [items[i] for i in order[dist.get_rank() :: world]]
        failure: Exception | None = None
        vectors = np.zeros((0, 0), dtype=np.float32)
        try:
            with self.ready():
                if mine:
                    vectors = np.asarray(self.encoder.encode(mine, modality), dtype=np.float32)
        except Exception as error:
            failure = error
        told = "" if failure is None else f"{type(failure).__name__}: {failure}"
        ranks: list[Any] = [None] * world
        dist.all_gather_object(ranks, (told, (len(items), _fingerprint(items)), vectors))
        if failure is not None:
            raise failure
        if failures := "; ".join(f"rank {rank}: {text}" for rank, (text, *_) in enumerate(ranks) if text):
            raise EvaluationError(f"evaluation failed on another worker: {failures}")
        lists = [one for _, one, _ in ranks]
        if len(set(lists)) > 1:
            counts = [count for count, _ in lists]
            raise EvaluationError(
                f"the workers were asked to encode {counts} items by rank, not the same; all must call with one list"
            )
        result = np.empty((len(items), ranks[0][2].shape[1]), dtype=np.float32)  # the first rank's share is never empty
        for rank, (*_, part) in enumerate(ranks):
            if len(part):
                result[order[rank::world]] = part
        return result


def _fingerprint(items: list[Any]) -> int:
    """Return a checksum of the contents of all items, in their order."""
    value = 0
    for item in items:
        content = item.samples if isinstance(item, Sound) else item
        value = zlib.crc32(content.encode() if isinstance(content, str) else np.ascontiguousarray(content).tobytes(), value)
    return value


def _size(item: Any) -> int:
    """Characters of a text, values of a picture, samples of a sound."""
    if isinstance(item, Sound):
        return len(item.samples)
    return item.size if isinstance(item, np.ndarray) else len(item)


# -------------------------------------------------------------------------------------------------------------- folders


class FolderEncoder(ModuleEncoder):
    """A Hugging Face or sentence-transformers folder; made by `load_encoder`.

    With `pool` the vectors are what it makes of the hidden states of all layers, from the one forward pass.
    """

    def __init__(self, model: Any, path: Path, pooling: str, batch_size: int, pool: Pool | None = None) -> None:
        prompt = model.prompts.get(model.default_prompt_name) if model.default_prompt_name else None
        width = model.truncate_dim

        def forward(features: Features) -> Tensor:
            if pool is not None:
                return pool(_hidden_states(model, features), features["attention_mask"])
            return model(features)["sentence_embedding"][:, :width]

        def tokenize(texts: list[str]) -> Features:
            return dict(model.preprocess(texts, prompt=prompt))

        super().__init__(tokenize, forward, model.device, batch_size=batch_size, module=model)
        self.model = model
        self.path = path
        self.name = label(path)
        self.pooling = pooling
        limit = model.max_seq_length
        self.limit: int | None = limit if limit is not None and limit < NO_LIMIT else None

    @property
    def protocol(self) -> dict[str, Any]:
        """How texts become vectors, for a report."""
        named = {"pooling": self.pooling, "post_processing": None, "max_tokens": self.limit}
        return {**named, "device": str(self.device)}

    @property
    def hash(self) -> str:
        """sha256 over the names and contents of the folder's files (model cards and hidden files left out)."""
        digest = hashlib.sha256()
        for file in sorted(p for p in self.path.rglob("*") if p.is_file()):
            name = file.relative_to(self.path)
            if any(part.startswith(".") for part in name.parts) or file.suffix == ".md":
                continue
            digest.update(f"{name.as_posix()}\0{file.stat().st_size}\0".encode())
            with file.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
        return digest.hexdigest()


def label(path: Path) -> str:
    """A short name for tables: the last part of the path that says something, of a model of the hub its name there."""
    if path.parent.name == "snapshots":  # CACHE/models--google-bert--bert-base-uncased/snapshots/COMMIT
        return path.parts[-3].removeprefix("models--").replace("--", "/")
    parts = [part for part in path.resolve().parts if part not in ("model", "export", "checkpoint", "0_Transformer")]
    return parts[-1]


def load_encoder(
    path: str | Path, pooling: str | None = None, device: str | None = None, batch_size: int = 128
) -> FolderEncoder:
    """An encoder from any Hugging Face or sentence-transformers folder.

    A sentence-transformers folder (``modules.json``) comes with its pooling; `pooling` (cls, mean, max, ...) replaces
    it. A plain Hugging Face folder gets `pooling`, or mean pooling and a line in the log that says so. The poolings of
    `baselines.layer_pooling` (first-last, layer2-max, wk, ...) use the transformer's hidden states alone:
    modules that a sentence-transformers folder has after it are left out. `device` is the first CUDA device if there
    is one, else the CPU.

    Raises EvaluationError when the folder is missing or holds no whole model with its tokenizer, or the pooling is unknown.
    """
    folder = Path(path).expanduser()
    layered = pooling is not None and is_layer_pooling(pooling)
    model = _load(folder, None if layered else pooling, usable_device(device))
    _keep_positions(model)
    if model.similarity_fn_name != "cosine":
        logger.warning("%s compares vectors by %s; tasks compare them by their cosine", folder, model.similarity_fn_name)
    if pooling is not None and layered:
        return FolderEncoder(model, folder, pooling, batch_size, layer_pooling(pooling, _depth(model, folder)))
    used = [module.pooling_mode for module in model if hasattr(module, "pooling_mode")]
    if pooling is None and not (folder / "modules.json").is_file():
        logger.info("%s says nothing of pooling (no modules.json): %s pooling is used", folder, *used)
    return FolderEncoder(model, folder, str(used[0]) if used else "own", batch_size)


def _load(folder: Path, pooling: str | None, device: str) -> Any:
    """The SentenceTransformer of a folder with the pooling asked for; a plain Hugging Face folder gets a pooling module."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    known = (*Pooling.POOLING_MODES, *NAMES, "layer1-cls", "layer1-mean", "layer1-max")
    if pooling is not None and pooling not in Pooling.POOLING_MODES:
        raise EvaluationError(
            f"unknown pooling {pooling!r}.{did_you_mean(pooling, known)} There are {', '.join(known)}, ..."
        )
    try:
        EVALUATED.refuse_unreadable(str(folder), folder)
        if not (folder / "modules.json").is_file() and not (folder / "config.json").is_file():
            raise EvaluationError(
                f"no model in {folder}: neither modules.json nor config.json is there; give a Hugging Face or "
                "sentence-transformers folder (of the Hub: `hf download NAME --local-dir DIR` first)"
            )
        if (folder / "modules.json").is_file():
            model = load_saved(folder, device)
        else:
            network = Transformer(str(folder), model_kwargs={"local_files_only": True, **WEIGHTS})
            own = MODES[default_pooling(network.config)]
            modules = [network, Pooling(network.get_embedding_dimension(), pooling or own)]
            model = SentenceTransformer(modules=modules, device=device)
        refuse_random(model, folder)
        model.encode("a")  # which modules in a wrong order cannot
    except EvaluationError:
        raise
    except Exception as error:  # the libraries raise a dozen kinds for a broken folder
        raise EvaluationError(f"the model folder {folder} does not load: {error}") from error
    if pooling is not None:
        place, old = next(((i, m) for i, m in enumerate(model) if hasattr(m, "pooling_mode")), (0, None))
        if old is None or old.pooling_output_dimension != old.embedding_dimension:
            raise EvaluationError(f"{folder} has no single pooling to replace by {pooling!r}; leave --pooling out")
        model[place] = Pooling(old.embedding_dimension, pooling, include_prompt=old.include_prompt)
    return model


def _depth(model: Any, folder: Path) -> int:
    """The number of layers of the model's transformer."""
    config = getattr(getattr(model[0], "auto_model", None), "config", None)
    depth = getattr(config, "num_hidden_layers", None)
    if not isinstance(depth, int):
        raise EvaluationError(f"{folder} begins with {type(model[0]).__name__}, which has no layers; use its own pooling")
    return depth


def _hidden_states(model: Any, features: Features) -> list[Tensor]:
    """Embedding output and all layers, each (B, T, d). The last is the output, after a final norm if there is one."""
    model[0].auto_model.config.output_hidden_states = True
    features = model[0](features)
    return [*features["all_layer_embeddings"][:-1], features["token_embeddings"]]


def usable_device(device: str | None) -> str:
    """The device asked for, or the first GPU, else the CPU. Raises EvaluationError for one that is not there."""
    if device is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise EvaluationError(f"unknown device {device!r}; use cpu, cuda or cuda:N") from None
    if kind == "cuda" and not torch.cuda.is_available():
        raise EvaluationError(f"device {device!r} was asked for, but torch finds no GPU on this machine; use cpu")
    return device


def _keep_positions(model: Any) -> None:
    """A tokenizer that states no limit, or a wrong one, would run past the table of positions."""
    network = getattr(model[0], "auto_model", None)
    if hasattr(network, "config") and (most := positions_of(network)) < min(model.max_seq_length or NO_LIMIT, NO_LIMIT):
        model.max_seq_length = most
