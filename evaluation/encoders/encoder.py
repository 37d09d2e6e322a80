"""Encoders: a folder on disk, or a module in training, behind one `encode`.

Texts are sorted by length, tokenised once, and packed into batches of a fixed number of tokens, so that little is
spent on padding: many short texts make a batch, or a few long ones.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from multicse.data.errors import did_you_mean
from multicse.evaluation.encoders.baselines import NAMES, Pool, is_layer_pooling, layer_pooling
from multicse.evaluation.encoders.folders import refuse_random
from multicse.evaluation.task import EvaluationError
from multicse.models.hub_folders import EVALUATED, load_saved
from multicse.models.text_folders import positions_of

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
    batch's budget is ``32 * batch_size`` tokens, on a CPU at most 1,024. `full_length` counts the tokens of texts uncut;
    with it, texts longer than the model's limit are counted in `cut` and logged.

    `others` are the modalities beside text, "image" or "audio": from a list of at most `items_at_once` items (see
    `task.Encoder`) to their vectors (n, d), in the space of the texts. `logit_scale` gives the factor that the model's
    contrastive loss puts before cosines.
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
        full_length: Callable[[list[str]], list[int]] | None = None,
        others: Mapping[str, Callable[[list[Any]], Tensor]] | None = None,
        logit_scale: Callable[[], float] | None = None,
    ) -> None:
        if batch_size < 1:
            raise EvaluationError(f"batch_size is {batch_size}; it must be at least 1")
        self.tokenize = tokenize
        self.forward = forward
        self.device = torch.device(device)
        self.budget = batch_size * TOKENS_PER_TEXT
        if self.device.type == "cpu":
            self.budget = min(self.budget, CPU_TOKENS)
        self.module = module if module is not None else forward if isinstance(forward, nn.Module) else None
        self.full_length = full_length
        self.others = dict(others or {})
        self._logit_scale = logit_scale
        self._cut: set[str] = set()

    @property
    def cut(self) -> int:
        """How many distinct texts were longer than the model's limit, so far."""
        return len(self._cut)

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
        return self._encode_texts(items) if modality == "text" else self._encode_others(items, self.others[modality])

    def _encode_others(self, items: list[Any], forward: Callable[[list[Any]], Tensor]) -> np.ndarray:
        with evaluation_mode(self.module):
            starts = range(0, len(items), self.items_at_once)
            parts = [forward(items[start : start + self.items_at_once]).float().cpu() for start in starts]
        return torch.cat(parts).numpy()

    def _encode_texts(self, items: list[str]) -> np.ndarray:
        # Characters first, for chunks that need little padding; tokens decide inside a chunk. Longest first, so that
        # a batch which does not fit the memory fails at once.
        order = sorted(range(len(items)), key=lambda i: -len(items[i]))
        vectors: np.ndarray | None = None
        longest: list[tuple[int, str]] = []
        with evaluation_mode(self.module):
            for start in range(0, len(order), CHUNK):
                rows = np.asarray(order[start : start + CHUNK])
                texts = [items[i] for i in rows]
                features = self.tokenize(texts)
                lengths = _lengths(features, texts)
                longest += [(int(n), text) for n, text in zip(lengths, texts, strict=True)]
                outputs, places = [], []
                for batch in token_batches(lengths, self.budget):
                    outputs.append(self.forward(on_device(_pick(features, batch, len(texts)), self.device)).float())
                    places.append(rows[batch])
                chunk = torch.cat(outputs).cpu().numpy()
                if vectors is None:
                    vectors = np.empty((len(items), chunk.shape[1]), dtype=np.float32)
                vectors[np.concatenate(places)] = chunk
        self._count_cuts(longest)
        assert vectors is not None
        return vectors

    def _count_cuts(self, lengths: list[tuple[int, str]]) -> None:
        """Only texts that came out at the greatest length can have been cut, so only those are tokenised again."""
        if self.full_length is None:
            return
        limit = max(n for n, _ in lengths)
        candidates = [text for n, text in lengths if n == limit and text not in self._cut]
        if not candidates:
            return
        new = {t for t, n in zip(candidates, self.full_length(candidates), strict=True) if n > limit}
        if new:
            self._cut |= new
            logger.warning("%d texts are longer than the model's limit of %d tokens and were cut", len(new), limit)


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


def token_counter(tokenizer: Any) -> Callable[[list[str]], list[int]]:
    """Lengths of texts uncut, special tokens included, by a Hugging Face tokenizer: `full_length` of an encoder."""

    def count(texts: list[str]) -> list[int]:
        return [len(ids) for ids in tokenizer(texts, truncation=False, verbose=False)["input_ids"]]

    return count


def _lengths(features: Features, texts: list[str]) -> np.ndarray:
    mask = features.get("attention_mask")
    if isinstance(mask, Tensor) and mask.ndim == 2 and len(mask) == len(texts):
        return mask.sum(1).cpu().numpy()
    tensors = [value for value in features.values() if isinstance(value, Tensor) and value.ndim > 1]
    width = tensors[0].shape[1] if tensors else 1
    return np.full(len(texts), width)  # no mask: nothing can be trimmed, and the rows stay as wide as they are


def _pick(features: Features, rows: np.ndarray, count: int) -> Features:
    """The rows of a batch, without the columns that are padding in all of them (on whichever side it is)."""
    index = torch.from_numpy(rows)
    mask = features.get("attention_mask")
    columns = None
    if isinstance(mask, Tensor) and mask.ndim == 2:
        used = mask[index].any(0).nonzero().flatten()
        columns = slice(int(used[0]), int(used[-1]) + 1) if len(used) else None
    picked: Features = {}
    for name, value in features.items():
        if isinstance(value, Tensor) and value.ndim and len(value) == count:
            value = value[index]
            if columns is not None and mask is not None and value.ndim > 1 and value.shape[1] == mask.shape[1]:
                value = value[:, columns]
        picked[name] = value
    return picked


def on_device(features: Features, device: torch.device) -> Features:
    """The features with their tensors on `device`."""
    return {n: v.to(device, non_blocking=True) if isinstance(v, Tensor) else v for n, v in features.items()}


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

        tokenizer = getattr(model[0], "tokenizer", None)
        words = getattr(getattr(model[0], "model", None), "lengths", None)  # of a model of word vectors
        count = token_counter(tokenizer) if callable(tokenizer) else words
        super().__init__(
            lambda texts: dict(model.preprocess(texts, prompt=prompt)),
            forward,
            model.device,
            batch_size=batch_size,
            module=model,
            full_length=(lambda texts: count([(prompt or "") + text for text in texts])) if count else None,
        )
        self.model = model
        self.path = path
        self.name = label(path)
        self.pooling = pooling
        limit = model.max_seq_length
        self.limit: int | None = limit if limit is not None and limit < NO_LIMIT else None

    @property
    def protocol(self) -> dict[str, Any]:
        """How texts become vectors, for a report."""
        return {
            "pooling": self.pooling,
            "post_processing": None,
            "max_tokens": self.limit,
            "texts_cut": self.cut,
            "device": str(self.device),
        }

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
    if not (folder / "modules.json").is_file() and not (folder / "config.json").is_file():
        raise EvaluationError(
            f"no model in {folder}: neither modules.json nor config.json is there; give a Hugging Face or "
            "sentence-transformers folder (of the Hub: `hf download NAME --local-dir DIR` first)"
        )
    layered = pooling is not None and is_layer_pooling(pooling)
    if pooling is not None and not layered:
        _check_pooling(pooling)
    model = _load(folder, "mean" if layered and not (folder / "modules.json").is_file() else pooling, usable_device(device))
    _keep_positions(model)
    if layered:
        assert pooling is not None
        return FolderEncoder(model, folder, pooling, batch_size, layer_pooling(pooling, _depth(model, folder)))
    if pooling is not None:
        _replace_pooling(model, folder, pooling)
    used = [module.pooling_mode for module in _poolings(model)]
    return FolderEncoder(model, folder, str(used[0]) if used else "own", batch_size)


def _check_pooling(pooling: str) -> None:
    from sentence_transformers.sentence_transformer.modules import Pooling

    known = (*Pooling.POOLING_MODES, *NAMES, "layer1-cls", "layer1-mean", "layer1-max")
    if pooling not in Pooling.POOLING_MODES:
        raise EvaluationError(
            f"unknown pooling {pooling!r}.{did_you_mean(pooling, known)} There are {', '.join(known)}, ..."
        )


def _load(folder: Path, pooling: str | None, device: str) -> Any:
    """The SentenceTransformer of a folder; a plain Hugging Face folder gets a pooling module."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    try:
        EVALUATED.refuse_pickles(str(folder), folder)
        if (folder / "modules.json").is_file():
            model = load_saved(folder, device)
        else:
            network = Transformer(str(folder), model_kwargs={"local_files_only": True, "use_safetensors": True})
            if pooling is None:
                logger.info("%s says nothing of pooling (no modules.json): mean pooling is used", folder)
            modules = [network, Pooling(network.get_embedding_dimension(), pooling or "mean")]
            model = SentenceTransformer(modules=modules, device=device)
        refuse_random(model, folder)
        return model
    except Exception as error:  # the libraries raise a dozen kinds for a broken folder
        raise EvaluationError(f"the model folder {folder} does not load: {error}") from error


def _poolings(model: Any) -> list[Any]:
    return [module for module in model if hasattr(module, "pooling_mode")]


def _replace_pooling(model: Any, folder: Path, pooling: str) -> None:
    found = _poolings(model)
    if not found:
        raise EvaluationError(f"{folder} has no pooling layer to replace by {pooling!r}; leave --pooling out")
    if found[0].pooling_mode == pooling:
        return
    logger.info("%s pools by %s; --pooling %s replaces it", folder, found[0].pooling_mode, pooling)
    replacement = type(found[0])(found[0].embedding_dimension, pooling, include_prompt=found[0].include_prompt)
    if replacement.pooling_output_dimension != found[0].pooling_output_dimension:
        raise EvaluationError(f"{folder} joins several poolings, which --pooling cannot replace; leave it out")
    for name, module in model.named_children():
        if module is found[0]:
            setattr(model, name, replacement)


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
