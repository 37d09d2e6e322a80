"""Text models on disk: what their configuration says, how they are loaded, sentence-transformers' modules behind them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from multicse.models.clip_layers import init_clip_text
from multicse.models.hub_folders import ENCODER, HALVES, half, has_pooler, model_class, projection_layers, route_of
from multicse.models.pooling import AVERAGED, MODES, Head, Pooling

if TYPE_CHECKING:
    from transformers import PretrainedConfig

# What the same dropout is called in different configurations.
HIDDEN_DROPOUTS = ("hidden_dropout_prob", "dropout")
ATTENTION_DROPOUTS = ("attention_probs_dropout_prob", "attention_dropout")


# ---- configuration ---------------------------------------------------------------------------------------------------


def text_config(path: str) -> PretrainedConfig:
    """The configuration of a folder or hub name; of a CLIP or CLAP model that of its text half."""
    from transformers import AutoConfig  # here and below: a third of a second, which --help need not wait for

    config = AutoConfig.from_pretrained(half(Path(path), "text") if Path(path).is_dir() else path)
    return config.text_config if config.model_type in ("clip", "clap") else config


def positions(config: PretrainedConfig) -> int:
    """Most tokens of a text that a model of this configuration has positions for; 10^9 where nothing limits them.

    RoBERTa and its kin count positions from behind the padding index, so they have 512 of their 514.
    """
    kind = model_class(config)
    if kind is None:
        return getattr(config, "max_position_embeddings", None) or 10**9
    with torch.device("meta"):  # nothing but shapes
        return positions_of(kind(config))


def positions_of(model: Any) -> int:
    """The same of a model that is there: a table of positions with a padding index is counted from behind it."""
    most = getattr(model.config, "max_position_embeddings", None) or 10**9
    table = getattr(getattr(model, "embeddings", None), "position_embeddings", None)
    padding = getattr(table, "padding_idx", None)
    return most if padding is None else most - padding - 1


def set_dropouts(config: PretrainedConfig, hidden: float | None, attention: float | None) -> None:
    """Write the dropouts that are given to `config`. Raises ValueError for a type of model that has none."""
    settings = {"hidden_dropout": (hidden, HIDDEN_DROPOUTS), "attention_dropout": (attention, ATTENTION_DROPOUTS)}
    for setting, (value, names) in settings.items():
        if value is None:
            continue
        name = next((name for name in names if hasattr(config, name)), None)
        if name is not None:
            setattr(config, name, value)
        elif config.model_type != "clip_text_model":  # see `clip_layers.add_dropout`
            raise ValueError(f"encoder.{setting}: a {config.model_type!r} model has no such setting; leave it out")


def has_dropout(config: PretrainedConfig, hidden: float | None, attention: float | None) -> bool:
    """Whether two passes of a text in training differ: the rates of the recipe, or where they are none the model's own."""

    def rate(given: float | None, names: tuple[str, ...]) -> float | None:
        own = [float(getattr(config, name)) for name in names if hasattr(config, name)]
        return given if given is not None else own[0] if own else None

    # CLIP's configuration may name a rate, but the model has no such dropout.
    first = (hidden or 0.0) if config.model_type == "clip_text_model" else rate(hidden, HIDDEN_DROPOUTS)
    return not first == rate(attention, ATTENTION_DROPOUTS) == 0


# ---- the transformer -------------------------------------------------------------------------------------------------


def new_model(config: PretrainedConfig) -> Any:
    """A model without pooler, its weights drawn from torch's random numbers; CLIP's as OpenAI draws them."""
    from transformers import AutoModel

    options = {"add_pooling_layer": False} if has_pooler(config) else {}
    if config.model_type in HALVES:
        model = model_class(config)(config, **options)
    else:
        model = AutoModel.from_config(config, dtype=torch.float32, **options)
    if config.model_type == "clip_text_model":
        init_clip_text(model)
    return model


def load_model(path: str, folder: Path, config: PretrainedConfig, pooler: bool) -> tuple[Any, Head | None]:
    """The model of a folder in float32, from safetensors, and with `pooler` its pooler as a head, if there is one; one of
    zeros (`no_pooler`) is none.

    Raises ValueError, about `path`, when weights are missing.
    """
    from transformers import AutoModel

    pooler = pooler and has_pooler(config)
    options = {"add_pooling_layer": pooler} if has_pooler(config) else {}
    mapping = {r"^text_model\.": ""} if config.model_type in HALVES else None
    kind = model_class(config) if mapping else AutoModel
    model, absent = ENCODER.load(kind, path, folder, config, "pooler.", key_mapping=mapping, **options)
    head = None
    if pooler:
        if not absent and model.pooler.dense.weight.any():
            head = Head(config.hidden_size)
            head.linear.load_state_dict(model.pooler.dense.state_dict())
        model.pooler = None
    return model, head


def no_pooler(config: PretrainedConfig) -> dict[str, Tensor]:
    """Zeros by name, for the pooler that AutoModel gives a model of this configuration; empty where it gives none.

    Without them in the file it draws a pooler at random, and says so at every loading.
    """
    kind = model_class(config)
    if kind is None:
        return {}
    with torch.device("meta"):  # nothing but shapes
        whole = kind(config).state_dict()
    return {name: torch.zeros(weight.shape) for name, weight in whole.items() if name.startswith("pooler.")}


# ---- sentence-transformers' modules ----------------------------------------------------------------------------------


class Saved(NamedTuple):
    """What a sentence-transformers folder says; of any other folder only where the model is."""

    folder: Path
    """Of the transformer."""
    limit: int | None = None
    """Most tokens of a text."""
    pooling: Pooling | None = None
    head: Head | None = None
    normalise: bool = False
    projected: bool = False
    """It goes on to a projection into the space of another modality, which `DualEncoder` reads where it is wanted."""


def read_modules(folder: Path) -> Saved:
    """What modules.json of `folder` says. Raises ValueError for modules that a `TextEncoder` is not made of."""
    saved = Saved(folder)
    if not (folder / "modules.json").is_file():
        return saved
    averaged: Pooling | None = None
    entries = json.loads((folder / "modules.json").read_text())
    if route := route_of(folder, "text"):
        projection = projection_layers(route)
        entries = [{"type": kind, "path": place.name, "name": ""} for kind, place in route if place not in projection]
        saved = saved._replace(projected=bool(projection))
    for entry in entries:
        kind, place = entry["type"].rsplit(".", 1)[-1], folder / entry["path"]
        if kind == "Transformer":
            written: list[dict[str, Any]] = [json.loads(file.read_text()) for file in place.glob("sentence_*_config.json")]
            saved = saved._replace(folder=place, limit=written[0].get("max_seq_length") if written else None)
        elif kind == "WeightedLayerPooling":
            layers = _modules().WeightedLayerPooling.load(str(place)).layer_weights.nonzero().flatten().tolist()
            averaged = "avg_first_last" if layers[0] == 0 else "avg_top2"
        elif kind == "Pooling":
            mode = json.loads((place / "config.json").read_text()).get("pooling_mode")
            if not isinstance(mode, str):  # written by an older version
                mode = _modules().Pooling.load(str(place)).pooling_mode
            saved = saved._replace(pooling=averaged or _pooling(mode, folder))
        elif kind == "Dense" and entry["name"] == WHITENING:
            continue  # what is behind it is for whoever uses the vectors, not for a further training
        elif kind == "Dense" and saved.head is None:
            dense = _modules().Dense.load(str(place))
            head = Head(dense.in_features, dense.out_features, dense.activation_function)
            head.linear.load_state_dict(dense.linear.state_dict())
            saved = saved._replace(head=head, pooling="cls" if saved.pooling == "cls_before_pooler" else saved.pooling)
        elif kind == "Normalize":
            saved = saved._replace(normalise=True)
        else:
            raise ValueError(
                f"encoder.path: {str(folder)!r} has a module {entry['type']!r}; supported: Transformer, Pooling, "
                "WeightedLayerPooling, one Dense, Normalize"
            )
    return saved


def _modules() -> Any:
    """Import sentence-transformers' modules, which takes seconds: only folders that need them wait for it."""
    from sentence_transformers.sentence_transformer import modules

    return modules


def _pooling(mode: Any, folder: Path) -> Pooling:
    names: dict[Any, Pooling] = {theirs: ours for ours, theirs in MODES.items() if ours != "cls" and ours not in AVERAGED}
    if mode not in names:
        raise ValueError(f"encoder.path: {str(folder)!r} pools by {mode!r}; supported: {', '.join(names)}")
    return names[mode]


def make_modules(config: PretrainedConfig, pooling: Pooling, head: Head | None, normalise: bool) -> list[nn.Module]:
    """What stands behind the transformer in a sentence-transformers folder; the reverse of `read_modules`."""
    from sentence_transformers.sentence_transformer import modules as st

    made: list[nn.Module] = []
    if pooling in AVERAGED:
        depth = config.num_hidden_layers
        share = torch.zeros(depth + 1)
        share[list(AVERAGED[pooling])] = 1
        made.append(st.WeightedLayerPooling(config.hidden_size, depth, 0, nn.Parameter(share)))
    made.append(st.Pooling(config.hidden_size, MODES[pooling]))
    if head is not None:
        weight, bias = (t.detach().cpu().clone() for t in (head.linear.weight, head.linear.bias))
        made.append(st.Dense(weight.shape[1], weight.shape[0], True, head.activation, weight, bias))
    if normalise:
        made.append(st.Normalize())
    return made


def add_whitening(folder: Path, mean: np.ndarray, matrix: np.ndarray) -> None:
    """Put (x - mean) W behind the modules of a saved text model: a Dense layer, which sentence-transformers has by itself.

    mean: (d,). matrix: (d, k). Where vectors had unit length, they are brought to it again.
    """
    from sentence_transformers.sentence_transformer import modules as st

    entries = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    weight, bias = (torch.tensor(part, dtype=torch.float32) for part in (matrix.T.copy(), -mean @ matrix))
    made: dict[str, Any] = {WHITENING: st.Dense(weight.shape[1], weight.shape[0], True, nn.Identity(), weight, bias)}
    if entries[-1]["type"].endswith(".Normalize"):
        made["length"] = st.Normalize()
    for number, (name, module) in enumerate(made.items(), len(entries)):
        kind = type(module).__name__
        (folder / f"{number}_{kind}").mkdir()
        module.save(str(folder / f"{number}_{kind}"))
        entries.append({"idx": number, "name": name, "path": f"{number}_{kind}", "type": f"sentence_transformers.{kind}"})
    _write(folder / "modules.json", entries)
    write_for_older(folder)


WHITENING = "whitening"
"""What the layer of `add_whitening` is called in modules.json."""

OLDER = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
"""sentence-transformers 5 has a setting for each way of pooling."""


def write_for_older(folder: Path) -> None:
    """Put the settings of a folder that sentence-transformers 6 has saved into the form of version 5 and transformers 4.

    The new versions read that form as well; the old ones, and so optimum, no other. The weights stay.
    """
    from sentence_transformers.sentence_transformer import modules as st

    entries = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    for entry in entries:
        kind, place = entry["type"].rsplit(".", 1)[-1], folder / entry["path"]
        entry["type"] = f"sentence_transformers.models.{kind}"
        if kind == "Transformer":
            tokens = json.loads((place / "tokenizer_config.json").read_text(encoding="utf-8"))
            if tokens["tokenizer_class"] == "TokenizersBackend":
                tokens["tokenizer_class"] = "PreTrainedTokenizerFast"
            _write(place / "tokenizer_config.json", tokens)
            limit = {"max_seq_length": tokens["model_max_length"], "do_lower_case": False}
            _write(place / "sentence_bert_config.json", limit)
        elif kind == "Pooling":
            pooling = st.Pooling.load(str(place))
            modes = {theirs: mode == pooling.pooling_mode for mode, theirs in OLDER.items()}
            _write(place / "config.json", {"word_embedding_dimension": pooling.embedding_dimension, **modes})
        elif kind == "WeightedLayerPooling":
            layers = st.WeightedLayerPooling.load(str(place))
            settings = {name: getattr(layers, name) for name in ("layer_start", "num_hidden_layers")}
            _write(place / "config.json", {"word_embedding_dimension": layers.embedding_dimension, **settings})
        elif kind == "Dense":
            settings = json.loads((place / "config.json").read_text(encoding="utf-8"))
            known = ("in_features", "out_features", "bias", "activation_function")
            _write(place / "config.json", {name: settings[name] for name in known})
    _write(folder / "modules.json", entries)


def _write(file: Path, content: Any) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
