"""Read and write the sentence-transformers modules of a text model's folder: pooling, head, normalisation, prompts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import nn

from multicse.models.hub_folders import ABOUT, projection_layers, read_json, route_of, write_json
from multicse.models.pooling import AVERAGED, MODES, Head, Pooling
from multicse.models.pretrained import ADAPTER, merging

if TYPE_CHECKING:
    from transformers import PretrainedConfig


class Conventions(NamedTuple):
    """Settings of sentence-transformers that change texts or compare vectors; an export keeps them."""

    prompts: Mapping[str, str] = {}
    """Prompts by name; one of them can be put before a sentence."""
    default_prompt_name: str | None = None
    """Name of the prompt that is put before every sentence unless a caller selects a different one."""
    similarity_fn_name: str = "cosine"
    """Similarity function for vectors."""
    include_prompt: bool = True
    """Include the tokens of the prompt in the pooling."""

    @property
    def prompt(self) -> str:
        """Return the prompt that is put before every sentence; usually empty."""
        return self.prompts[self.default_prompt_name] if self.default_prompt_name else ""

    def changed(self, prompt: str | None, include_prompt: bool | None) -> Conventions:
        """Return the settings with a prompt for all texts, queries and documents, and its pooling; None keeps a setting."""
        new = self if include_prompt is None else self._replace(include_prompt=include_prompt)
        if prompt is None:
            return new
        prompts = {**self.prompts, "query": prompt, "document": prompt}
        return new._replace(prompts=prompts, default_prompt_name="query" if prompt else None)

    @property
    def options(self) -> dict[str, Any]:
        """Return the keyword arguments with these settings for `SentenceTransformer`."""
        names = ("prompts", "default_prompt_name", "similarity_fn_name")
        return {name: value for name, value in self._asdict().items() if name in names}


class Saved(NamedTuple):
    """Contents of a sentence-transformers folder. For any other folder only `folder` is set."""

    folder: Path
    """Folder of the transformer."""
    limit: int | None = None
    """Maximum number of tokens of a text."""
    lower_case: bool = False
    """Lower-case texts before they are tokenised."""
    pooling: Pooling | None = None
    head: Head | None = None
    normalise: bool = False
    projected: bool = False
    """A projection into a space shared with another modality follows; `DualEncoder` reads it if needed."""
    conventions: Conventions = Conventions()


ORDER = ("Transformer", "WeightedLayerPooling", "Pooling", "Dense", "Normalize")
"""Modules of a `TextEncoder`, each at most once and in this order."""
NAMED = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
CONFIGS = [f"sentence_{kind}_config.json" for kind in NAMED]
"""Files in which sentence-transformers stores the settings of a Transformer."""
FORWARD = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
PLAIN: dict[str, tuple[Any, ...]] = {
    "transformer_task": ("feature-extraction",),
    "modality_config": (FORWARD,),
    "module_output_name": ("token_embeddings", "sentence_embedding"),
    "unpad_inputs": (True,),
    "module_input_name": ("sentence_embedding",),
}
"""Values of module settings that match a `TextEncoder`. A setting that is neither here nor in `READ` must be empty."""
READ = {
    "Transformer": {"max_seq_length", "do_lower_case"},
    "WeightedLayerPooling": {"embedding_dimension", "word_embedding_dimension", "num_hidden_layers"},
    "Dense": {"in_features", "out_features", "bias", "activation_function"},
    ABOUT: {"__version__", "requirements", "model_type", "prompts", "default_prompt_name", "similarity_fn_name"},
}
"""Settings per module that are read, or that do not change vectors."""
WHITENING = "whitening"
"""Name in modules.json of the layer that `add_whitening` adds."""
OLDER = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
"""Name in sentence-transformers 5 of each pooling mode of version 6."""


def _modules() -> Any:
    """Import sentence-transformers' modules, which takes seconds: only folders that need them wait for it."""
    from sentence_transformers.sentence_transformer import modules

    return modules


# ---- reading ---------------------------------------------------------------------------------------------------------


def read_modules(folder: Path) -> Saved:
    """Read the modules of a sentence-transformers folder, or raise ValueError for those that `TextEncoder` lacks."""
    saved = Saved(folder)
    if not (folder / "modules.json").is_file():
        return saved
    averaged: Pooling | None = None
    entries = read_json(folder / "modules.json")
    if route := route_of(folder, "text"):
        projection = projection_layers(route)
        texts = [{"type": kind, "path": place.name, "name": ""} for kind, place in route if place not in projection]
        # Without the projection, the vectors are not those that the modules after the Router expect.
        entries = texts if projection else texts + entries[1:]
        saved = saved._replace(projected=bool(projection))
    found: list[str] = []
    multimodal = False  # a CLIP or CLAP model, which has no pooling module
    for entry in entries:
        package, _, kind = entry["type"].rpartition(".")
        place = folder / entry["path"]
        if kind == "Dense" and entry["name"] == WHITENING:
            break  # whitening is for users of the vectors; further training starts without it
        allowed = ORDER[ORDER.index(found[-1]) + 1 if found else 0 :]
        if not package.startswith("sentence_transformers") or kind not in allowed:
            raise ValueError(
                f"encoder.path: {str(folder)!r} has a module {entry['type']!r}{f' after {found[-1]}' if found else ''}; "
                f"supported are, each once and in this order: {', '.join(ORDER)}"
            )
        found.append(kind)
        file = next((place / name for name in CONFIGS if (place / name).is_file()), place / "config.json")
        about = file.is_file() and (kind != "Transformer" or file.name in CONFIGS)
        settings: dict[str, Any] = read_json(file) if about else {}
        if kind == "Transformer" and (place / ADAPTER).is_file():
            raise ValueError(
                f"encoder.path: {str(folder)!r} contains an adapter (adapter_config.json). Merge it into its model once "
                "and keep pooling, prompts and further modules: model = SentenceTransformer(path); "
                f"model[0].model = {merging(place)}; model.save(new_path)"
            )
        if kind == "Transformer":
            multimodal = read_json(place / "config.json").get("model_type") in ("clip", "clap")
        if kind != "Pooling" and not multimodal:
            _refuse_settings(folder, kind, settings)
        if kind == "Transformer":
            limit, lower_case = settings.get("max_seq_length"), bool(settings.get("do_lower_case"))
            saved = saved._replace(folder=place, limit=limit, lower_case=lower_case, conventions=_conventions(folder))
        elif kind == "WeightedLayerPooling":
            averaged = _averaged(folder, place)
        elif kind == "Pooling":
            pooling, include_prompt = _pooling(settings, folder), settings.get("include_prompt", True)
            conventions = saved.conventions._replace(include_prompt=include_prompt)
            saved = saved._replace(pooling=averaged or pooling, conventions=conventions)
        elif kind == "Dense":
            head = _head(folder, place, settings)
            saved = saved._replace(head=head, pooling="cls" if saved.pooling == "cls_before_pooler" else saved.pooling)
        else:
            saved = saved._replace(normalise=True)
    if "Pooling" not in found and not multimodal:
        raise ValueError(f"encoder.path: {str(folder)!r} has no Pooling module, so it gives no sentence vectors")
    similarity = saved.conventions.similarity_fn_name
    if similarity not in ("cosine", "dot", "euclidean") or (similarity != "cosine" and not saved.normalise):
        raise ValueError(
            f"encoder.path: {str(folder)!r} compares vectors by {similarity!r} (similarity_fn_name in {ABOUT}), but methods "
            'and tasks use cosine similarity; set it to "cosine" to train the model for cosine similarity'
        )
    return saved


def _conventions(folder: Path) -> Conventions:
    """Read the settings of a sentence-transformers model."""
    if not (folder / ABOUT).is_file():
        return Conventions()
    about = read_json(folder / ABOUT)
    _refuse_settings(folder, ABOUT, about)
    prompts = {name: text or "" for name, text in (about.get("prompts") or {}).items()}
    name, similarity = about.get("default_prompt_name"), about.get("similarity_fn_name") or "cosine"
    if about.get("model_type", "SentenceTransformer") != "SentenceTransformer":
        raise ValueError(f"encoder.path: {str(folder)!r} is a {about['model_type']}, not a SentenceTransformer")
    if name is not None and name not in prompts:
        raise ValueError(
            f"encoder.path: default_prompt_name is {name!r} in {folder / ABOUT}, but its prompts are {', '.join(prompts)}"
        )
    return Conventions(prompts, name, similarity)


def _refuse_settings(folder: Path, kind: str, settings: dict[str, Any]) -> None:
    """Raise ValueError for a setting that would change vectors and that `TextEncoder` does not support."""
    for name, value in settings.items():
        if name not in READ.get(kind, ()) and value and value not in PLAIN.get(name, ()):
            raise ValueError(
                f"encoder.path: {str(folder)!r} sets {name} = {value!r} for {kind}, which training does not support; its "
                "vectors would differ from sentence-transformers. Choose a different model, or remove the setting"
            )


def _averaged(folder: Path, place: Path) -> Pooling:
    """Return the pooling of a WeightedLayerPooling in `place`."""
    weights = _modules().WeightedLayerPooling.load(str(place)).layer_weights.tolist()
    averaged = next((name for name, pair in AVERAGED.items() if weights == _layer_shares(len(weights), pair)), None)
    if averaged is None:
        raise ValueError(
            f"encoder.path: {str(folder)!r} weights its layers by {weights}; supported is the mean of two: the first "
            "and the last, or the last two"
        )
    return averaged


def _pooling(settings: dict[str, Any], folder: Path) -> Pooling:
    """Return the pooling of a Pooling module of any version."""
    on = [mode for mode in settings if mode.startswith("pooling_mode_") and settings[mode]]
    old = {theirs: mode for mode, theirs in OLDER.items()}
    mode = settings.get("pooling_mode") or [old.get(name, name) for name in on] or "mean"
    mode = mode[0] if isinstance(mode, list) and len(mode) == 1 else mode
    names: dict[Any, Pooling] = {theirs: ours for ours, theirs in MODES.items() if ours != "cls" and ours not in AVERAGED}
    if not isinstance(mode, str) or mode not in names:
        raise ValueError(f"encoder.path: {str(folder)!r} pools by {mode!r}; supported: {', '.join(names)}")
    return names[mode]


def _head(folder: Path, place: Path, settings: dict[str, Any]) -> Head:
    """Return the Dense module in `place` as a head."""
    if not settings.get("bias", True):
        raise ValueError(f"encoder.path: {str(folder)!r} has a Dense module without bias, which is not supported")
    dense = _modules().Dense.load(str(place))
    head = Head(dense.in_features, dense.out_features, dense.activation_function)
    head.linear.load_state_dict(dense.linear.state_dict())
    return head


def _layer_shares(count: int, layers: tuple[int, int]) -> list[float]:
    """Return layer weights (count,) that average two layers."""
    shares = torch.zeros(count)
    shares[list(layers)] = 1
    return shares.tolist()


# ---- writing ---------------------------------------------------------------------------------------------------------


def make_modules(
    config: PretrainedConfig, pooling: Pooling, head: Head | None, normalise: bool, include_prompt: bool
) -> list[nn.Module]:
    """Return the sentence-transformers modules that follow the transformer; the reverse of `read_modules`."""
    st = _modules()
    made: list[nn.Module] = []
    if pooling in AVERAGED:
        depth = config.num_hidden_layers
        share = torch.tensor(_layer_shares(depth + 1, AVERAGED[pooling]))
        made.append(st.WeightedLayerPooling(config.hidden_size, depth, 0, nn.Parameter(share)))
    made.append(st.Pooling(config.hidden_size, MODES[pooling], include_prompt))
    if head is not None:
        weight, bias = (t.detach().cpu().clone() for t in (head.linear.weight, head.linear.bias))
        made.append(st.Dense(weight.shape[1], weight.shape[0], True, head.activation, weight, bias))
    if normalise:
        made.append(st.Normalize())
    return made


def add_whitening(folder: Path, mean: np.ndarray, matrix: np.ndarray) -> None:
    """Append the map (x - mean) W to the modules of a saved text model, as a Dense module of sentence-transformers.

    Vectors that had unit length before are scaled to unit length again.

    Args:
        folder: Folder of the model.
        mean: Mean of the vectors, (d,).
        matrix: Matrix W, (d, k).
    """
    st = _modules()
    entries = read_json(folder / "modules.json")
    weight, bias = (torch.tensor(part, dtype=torch.float32) for part in (matrix.T.copy(), -mean @ matrix))
    made: dict[str, Any] = {WHITENING: st.Dense(weight.shape[1], weight.shape[0], True, nn.Identity(), weight, bias)}
    if entries[-1]["type"].endswith(".Normalize"):
        made["length"] = st.Normalize()
    for number, (name, module) in enumerate(made.items(), len(entries)):
        kind = type(module).__name__
        (folder / f"{number}_{kind}").mkdir()
        module.save(str(folder / f"{number}_{kind}"))
        entries.append({"idx": number, "name": name, "path": f"{number}_{kind}", "type": f"sentence_transformers.{kind}"})
    write_json(folder / "modules.json", entries)
    write_for_older(folder)


def write_for_older(folder: Path) -> None:
    """Convert the settings of a folder that sentence-transformers 6 has saved to version 5 and transformers 4.

    The new versions read both forms; the old versions, and therefore optimum, read only this one.
    """
    st = _modules()
    entries = read_json(folder / "modules.json")
    for entry in entries:
        kind, place = entry["type"].rsplit(".", 1)[-1], folder / entry["path"]
        entry["type"] = f"sentence_transformers.models.{kind}"
        if kind == "Transformer":
            tokens = read_json(place / "tokenizer_config.json")
            if tokens["tokenizer_class"] == "TokenizersBackend":
                tokens["tokenizer_class"] = "PreTrainedTokenizerFast"
            write_json(place / "tokenizer_config.json", tokens)
            limit = {"max_seq_length": tokens["model_max_length"], "do_lower_case": False}  # the tokenizer lower-cases
            write_json(place / "sentence_bert_config.json", limit)
        elif kind == "Pooling":
            pooling = st.Pooling.load(str(place))
            modes = {theirs: mode == pooling.pooling_mode for mode, theirs in OLDER.items()}
            modes |= {} if pooling.include_prompt else {"include_prompt": False}
            write_json(place / "config.json", {"word_embedding_dimension": pooling.embedding_dimension, **modes})
        elif kind == "WeightedLayerPooling":
            layers = st.WeightedLayerPooling.load(str(place))
            settings = {name: getattr(layers, name) for name in ("layer_start", "num_hidden_layers")}
            write_json(place / "config.json", {"word_embedding_dimension": layers.embedding_dimension, **settings})
        elif kind == "Dense":
            settings = read_json(place / "config.json")
            known = ("in_features", "out_features", "bias", "activation_function")
            write_json(place / "config.json", {name: settings[name] for name in known})
    write_json(folder / "modules.json", entries)
