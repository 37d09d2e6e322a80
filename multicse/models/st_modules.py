"""Read and write the sentence-transformers modules of a text model's folder: pooling, head, normalisation, prompts."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import nn

from multicse.models.hub_folders import ABOUT, load_saved, projection_layers, read_json, route_of, write_json
from multicse.models.pooling import AVERAGED, MODES, Head, Pooling
from multicse.models.pretrained import ADAPTER, merging

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
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
WHITENING = "whitening"
"""Name in modules.json of the layer that `add_whitening` adds."""
OLDER = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
"""Name in sentence-transformers 5 of each pooling mode of version 6, for `write_for_older`."""


def _modules() -> Any:
    """Import sentence-transformers' modules, which takes seconds: only folders that need them wait for it."""
    from sentence_transformers.sentence_transformer import modules

    return modules


# ---- reading ---------------------------------------------------------------------------------------------------------


def read_modules(folder: Path) -> Saved:
    """Read a folder with the classes of sentence-transformers, except for the weights of its transformer.

    Settings that `TextEncoder` lacks are not read: `probes.check_folder` compares the vectors.

    Raises:
        ValueError: If a `TextEncoder` does not have such modules.
    """
    if not (folder / "modules.json").is_file():
        return Saved(folder)
    entries = [(entry["type"], folder / entry["path"], entry["name"]) for entry in read_json(folder / "modules.json")]
    projection: list[Path] = []
    if route := route_of(folder, "text"):
        projection = projection_layers(route)
        texts = [(kind, place, "") for kind, place in route if place not in projection]
        # Without the projection, the vectors are not those that the modules after the Router expect.
        entries = texts if projection else texts + entries[1:]
    # Whitening is for users of the vectors; further training starts without it.
    entries = [*takewhile(lambda entry: entry[2] != WHITENING, entries)]
    places = {kind.rpartition(".")[2]: place for kind, place, _ in entries if kind.startswith("sentence_transformers.")}
    network = places.get("Transformer", folder)
    if (network / ADAPTER).is_file():
        raise ValueError(
            f"encoder.path: {str(folder)!r} contains an adapter (adapter_config.json). Merge it into its model once "
            "and keep pooling, prompts and further modules: model = SentenceTransformer(path); "
            f"model[0].model = {merging(network)}; model.save(new_path)"
        )
    config = read_json(network / "config.json") if "Transformer" in places else {}
    needed = {"Transformer"} if config.get("model_type") in ("clip", "clap") else {"Transformer", "Pooling"}
    own = [kind.rpartition(".")[2] for kind, *_ in entries]
    if not needed <= places.keys() or own != [name for name in ORDER if name in places]:
        raise ValueError(
            f"encoder.path: {str(folder)!r} consists of {', '.join(kind for kind, *_ in entries)}. Training supports "
            f"{', '.join(ORDER)}, each at most once and in this order, with a Transformer and a Pooling"
        )
    st = _modules()
    texts_of = st.Transformer.load_config(str(network))
    saved = Saved(
        folder=network,
        limit=texts_of.get("max_seq_length"),
        lower_case=bool(texts_of.get("do_lower_case")),
        normalise="Normalize" in places,
        projected=bool(projection),
        conventions=_conventions(folder),
    )
    if "Pooling" in places:
        part = st.Pooling.load(str(places["Pooling"]))
        layers = places.get("WeightedLayerPooling")
        weights = [] if layers is None else st.WeightedLayerPooling.load(str(layers)).layer_weights.tolist()
        conventions = saved.conventions._replace(include_prompt=part.include_prompt)
        saved = saved._replace(pooling=_pooling(part.pooling_mode, weights, folder), conventions=conventions)
    if "Dense" in places:
        head = _head(st.Dense.load(str(places["Dense"])))
        saved = saved._replace(head=head, pooling="pooler" if saved.pooling == "cls" else saved.pooling)
    similarity = saved.conventions.similarity_fn_name
    if similarity not in ("cosine", "dot", "euclidean") or (similarity != "cosine" and not saved.normalise):
        raise ValueError(
            f"encoder.path: {str(folder)!r} compares vectors by {similarity!r} (similarity_fn_name in {ABOUT}), but methods "
            'and tasks use cosine similarity; set it to "cosine" to train the model for cosine similarity'
        )
    return saved


def open_text_route(folder: Path) -> SentenceTransformer:
    """Load a folder with sentence-transformers, without whitening and without a projection into a shared space."""
    whole = load_saved(folder)
    drop_whitening(whole)
    if projection := projection_layers(route_of(folder, "text")):
        from sentence_transformers import SentenceTransformer

        route: Any = whole[0]
        modules = [*route.sub_modules["text"]][: -len(projection)]
        prompts = {"prompts": whole.prompts, "default_prompt_name": whole.default_prompt_name}
        return SentenceTransformer(modules=modules, device="cpu", **prompts)
    return whole


def drop_whitening(model: SentenceTransformer) -> None:
    """Remove the modules from the whitening on, in place."""
    names = [*model._modules]
    for name in names[names.index(WHITENING) :] if WHITENING in names else ():
        del model._modules[name]


def _conventions(folder: Path) -> Conventions:
    """Read the settings of a sentence-transformers model."""
    about = read_json(folder / ABOUT) if (folder / ABOUT).is_file() else {}
    prompts = {name: text or "" for name, text in (about.get("prompts") or {}).items()}
    name, similarity = about.get("default_prompt_name"), about.get("similarity_fn_name") or "cosine"
    if name is not None and name not in prompts:
        raise ValueError(
            f"encoder.path: default_prompt_name is {name!r} in {folder / ABOUT}, but its prompts are {', '.join(prompts)}"
        )
    return Conventions(prompts, name, similarity)


def _pooling(mode: Any, weights: list[float], folder: Path) -> Pooling:
    """Return the pooling of a mode of the Pooling module, after layers with these weights (empty: the last layer alone)."""
    names: dict[Any, Pooling] = {theirs: ours for ours, theirs in MODES.items() if ours != "pooler" and ours not in AVERAGED}
    used, count = [number for number, weight in enumerate(weights) if weight], len(weights)
    pairs = {(first % count, last % count): name for name, (first, last) in AVERAGED.items()} if weights else {}
    found = pairs.get((used[0], used[-1])) if len(used) == 2 else None if weights else names.get(mode)
    if found is None:
        what = f"the mean of its layers with the weights {weights}" if weights else repr(mode)
        raise ValueError(
            f"encoder.path: {str(folder)!r} pools by {what}; supported are {', '.join(names)}, and the mean of the first "
            "and the last layer or of the last two"
        )
    return found


def _head(dense: Any) -> Head:
    """Return a Dense module as a head; without a bias, its bias is zero."""
    head = Head(dense.in_features, dense.out_features, dense.activation_function)
    head.linear.load_state_dict(dense.linear.state_dict(), strict=False)
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
    made.append(st.Pooling(config.hidden_size, MODES.get(pooling, pooling), include_prompt))
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
