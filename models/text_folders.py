"""Text models on disk: what their configuration says, how they are loaded, sentence-transformers' modules behind them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from multicse.models.clip_layers import init_clip_text
from multicse.models.hub_folders import ABOUT, ENCODER, HALVES, half, has_pooler, model_class, projection_layers, route_of
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

    config = AutoConfig.from_pretrained(half(Path(path), "text") if Path(path).is_dir() else path, trust_remote_code=False)
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
    most = 10**9 if most < 0 else most  # XLNet's -1
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


class Conventions(NamedTuple):
    """What sentence-transformers does to texts and vectors beside the weights; an export has the same."""

    prompts: Mapping[str, str] = {}
    """Texts by name, one of which is put before a sentence."""
    default_prompt_name: str | None = None
    """Name of the prompt that is put before every sentence, unless another one is asked for."""
    similarity_fn_name: str = "cosine"
    """How vectors are compared."""
    include_prompt: bool = True
    """Whether the pooling counts the tokens of the prompt."""
    do_lower_case: bool = False
    """Whether sentences are put in lower case before they are tokenised."""

    @property
    def prompt(self) -> str:
        """Text that is put before every sentence; mostly empty."""
        return self.prompts[self.default_prompt_name] if self.default_prompt_name else ""

    @property
    def options(self) -> dict[str, Any]:
        """Those that a `SentenceTransformer` is made with."""
        names = ("prompts", "default_prompt_name", "similarity_fn_name")
        return {name: value for name, value in self._asdict().items() if name in names}


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
    conventions: Conventions = Conventions()


ORDER = ("Transformer", "WeightedLayerPooling", "Pooling", "Dense", "Normalize")
"""Modules that a `TextEncoder` is made of, each at most once."""
NAMED = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
CONFIGS = [f"sentence_{kind}_config.json" for kind in NAMED]
"""Where sentence-transformers looks for the settings of a Transformer."""
FORWARD = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
PLAIN: dict[str, tuple[Any, ...]] = {
    "transformer_task": ("feature-extraction",),
    "modality_config": (FORWARD,),
    "module_output_name": ("token_embeddings", "sentence_embedding"),
    "unpad_inputs": (True,),
    "module_input_name": ("sentence_embedding",),
}
"""Settings of modules with the values that a `TextEncoder` has; one that is neither here nor read may only be empty."""
READ = {
    "Transformer": {"max_seq_length", "do_lower_case"},
    "WeightedLayerPooling": {"embedding_dimension", "word_embedding_dimension", "num_hidden_layers"},
    "Dense": {"in_features", "out_features", "bias", "activation_function"},
    ABOUT: {"__version__", "requirements", "model_type", "prompts", "default_prompt_name", "similarity_fn_name"},
}
"""Settings that are read, by module, or that change no vector."""


def read_modules(folder: Path) -> Saved:
    """What modules.json of `folder` says. Raises ValueError for modules and settings that a `TextEncoder` does not have."""
    saved = Saved(folder)
    if not (folder / "modules.json").is_file():
        return saved
    averaged: Pooling | None = None
    entries = _json(folder / "modules.json")
    if route := route_of(folder, "text"):
        projection = projection_layers(route)
        entries = [{"type": kind, "path": place.name, "name": ""} for kind, place in route if place not in projection]
        saved = saved._replace(projected=bool(projection))
    made: list[str] = []
    whole = False  # a CLIP or CLAP, which has its own way to a vector
    for entry in entries:
        package, _, kind = entry["type"].rpartition(".")
        place = folder / entry["path"]
        if kind == "Dense" and entry["name"] == WHITENING:
            break  # what is behind the pooling and its head is for whoever uses the vectors, not for a further training
        behind = ORDER[ORDER.index(made[-1]) + 1 if made else 0 :]
        if not package.startswith("sentence_transformers") or kind not in behind:
            raise ValueError(
                f"encoder.path: {str(folder)!r} has a module {entry['type']!r}{f' behind {made[-1]}' if made else ''}; "
                f"supported are, each once and in this order: {', '.join(ORDER)}"
            )
        made.append(kind)
        file = next((place / name for name in CONFIGS if (place / name).is_file()), place / "config.json")
        about = file.is_file() and (kind != "Transformer" or file.name in CONFIGS)
        settings: dict[str, Any] = _json(file) if about else {}
        whole = whole or (kind == "Transformer" and _json(place / "config.json").get("model_type") in ("clip", "clap"))
        if kind != "Pooling" and not whole:
            _refuse_settings(folder, kind, settings)
        if kind == "Transformer":
            lower = bool(settings.get("do_lower_case"))
            conventions = _conventions(folder)._replace(do_lower_case=lower)
            saved = saved._replace(folder=place, limit=settings.get("max_seq_length"), conventions=conventions)
        elif kind == "WeightedLayerPooling":
            weights = _modules().WeightedLayerPooling.load(str(place)).layer_weights.tolist()
            averaged = next((name for name, pair in AVERAGED.items() if weights == layer_shares(len(weights), pair)), None)
            if averaged is None:
                raise ValueError(
                    f"encoder.path: {str(folder)!r} weighs its layers by {weights}; supported is the mean of two: the first "
                    "and the last, or the last two"
                )
        elif kind == "Pooling":
            pooling, include_prompt = _pooling(settings, folder), settings.get("include_prompt", True)
            conventions = saved.conventions._replace(include_prompt=include_prompt)
            saved = saved._replace(pooling=averaged or pooling, conventions=conventions)
        elif kind == "Dense":
            if not settings.get("bias", True):
                raise ValueError(f"encoder.path: {str(folder)!r} has a Dense without bias, which is not supported")
            dense = _modules().Dense.load(str(place))
            head = Head(dense.in_features, dense.out_features, dense.activation_function)
            head.linear.load_state_dict(dense.linear.state_dict())
            saved = saved._replace(head=head, pooling="cls" if saved.pooling == "cls_before_pooler" else saved.pooling)
        else:
            saved = saved._replace(normalise=True)
    if "Pooling" not in made and not whole:
        raise ValueError(f"encoder.path: {str(folder)!r} has no module Pooling, so its vectors are not those of sentences")
    similarity = saved.conventions.similarity_fn_name
    if similarity not in ("cosine", "dot", "euclidean") or (similarity != "cosine" and not saved.normalise):
        raise ValueError(
            f"encoder.path: {str(folder)!r} compares vectors by {similarity!r} (similarity_fn_name in {ABOUT}), and methods "
            'and tasks compare them by their cosine; for a model that learns that, write "cosine" there'
        )
    return saved


def open_text_model(path: str, scratch: bool = False, fetched: bool = False) -> tuple[Path, Saved, PretrainedConfig, Any]:
    """Read all of a text model but its weights, so that a run fails before it takes any resources.

    Args:
        path: Folder, or model ID on the Hugging Face Hub.
        scratch: The weights are made anew, so that none need be there.
        fetched: The weights of a model of the Hub have been downloaded.

    Returns:
        The folder, what it says of sentence-transformers' modules, configuration and tokenizer. The configuration has two
        more values: ``longest_text``, the most tokens of a text, and ``tokens_beside``, those of special tokens and prompt.

    Raises:
        ValueError: If training and `SentenceTransformer` would not give the same vectors, as a file is missing, a module or
            a setting is not supported, or tokenizer and model do not belong together.
    """
    from transformers import AutoTokenizer

    folder = ENCODER.folder(path, weights=False)
    saved = read_modules(folder)
    if not scratch:
        ENCODER.refuse_unreadable(path, saved.folder, weights=fetched or Path(path).is_dir())
    config = text_config(str(saved.folder))
    int(config.hidden_size)
    if not scratch and getattr(config, "quantization_config", None):
        raise ValueError(
            f"encoder.path: {path!r} has quantised weights, which cannot be trained; choose a model with others"
        )
    if config.is_encoder_decoder:
        raise ValueError(
            f"encoder.path: a {config.model_type!r} model has an encoder and a decoder, which is not supported; choose a "
            "model such as BERT, RoBERTa, XLM-R, DeBERTa or MPNet"
        )
    limit = {} if saved.limit is None else {"model_max_length": saved.limit}
    tokenizer = AutoTokenizer.from_pretrained(saved.folder, trust_remote_code=False, **limit)
    ENCODER.check_tokenizer(path, tokenizer, config)
    if tokenizer.chat_template is not None and not (folder / "modules.json").is_file():
        raise ValueError(
            f"encoder.path: the tokenizer of {path!r} has a chat template, which sentence-transformers writes around every "
            "text and training does not; take it away (chat_template.jinja, or chat_template in tokenizer_config.json)"
        )
    if saved.conventions.do_lower_case:
        lower_case(tokenizer)
    tokenizer.padding_side = "right"  # the first token is the one that `cls` takes
    tokenizer.model_max_length = min(positions(config), tokenizer.model_max_length)
    taken = len(tokenizer(saved.conventions.prompt)["input_ids"])
    config.longest_text, config.tokens_beside = tokenizer.model_max_length, taken
    if taken >= tokenizer.model_max_length:
        raise ValueError(
            f"encoder.path: a text of {path!r} has at most {tokenizer.model_max_length} tokens (max_seq_length, positions), "
            f"and special tokens and prompt take {taken}; none is left for the sentence"
        )
    return folder, saved, config, tokenizer


def lower_case(tokenizer: Any) -> None:
    """Let a tokenizer put texts in lower case first, as sentence-transformers' ``do_lower_case`` does."""
    from tokenizers.normalizers import Lowercase, Sequence

    backend = tokenizer.backend_tokenizer
    own, parts = backend.normalizer, cast(Any, backend.normalizer)
    steps: list[Any] = [*parts] if isinstance(own, Sequence) else [] if own is None else [own]
    if not any(isinstance(step, Lowercase) for step in steps):
        backend.normalizer = Sequence([Lowercase(), *steps])


def prompt_length(tokenizer: Any, prompt: str) -> int:
    """Return the number of tokens that a prompt takes before a sentence, as sentence-transformers counts them."""
    ids = tokenizer(prompt, truncation=True)["input_ids"]
    return len(ids) - (ids[-1] in tokenizer.all_special_ids)


def default_pooling(config: PretrainedConfig) -> Pooling:
    """Return the pooling of a model whose folder names none; of text models the same as in sentence-transformers."""
    own: dict[str, Pooling] = {"clip_text_model": "eot", "clap_text_model": "cls"}
    causal = (config.architectures or [""])[0].endswith("ForCausalLM") and getattr(config, "is_causal", True)
    return own.get(config.model_type, "eot" if causal else "mean")


def _conventions(folder: Path) -> Conventions:
    """The settings of a whole sentence-transformers model. Raises ValueError for those that are not honoured."""
    if not (folder / ABOUT).is_file():
        return Conventions()
    about = _json(folder / ABOUT)
    _refuse_settings(folder, ABOUT, about)
    prompts = {name: text or "" for name, text in (about.get("prompts") or {}).items()}
    name, similarity = about.get("default_prompt_name"), about.get("similarity_fn_name") or "cosine"
    if about.get("model_type", "SentenceTransformer") != "SentenceTransformer":
        raise ValueError(f"encoder.path: {str(folder)!r} is a {about['model_type']}, not a SentenceTransformer")
    if name is not None and name not in prompts:
        raise ValueError(
            f"encoder.path: default_prompt_name is {name!r} in {folder / ABOUT}, and its prompts are {', '.join(prompts)}"
        )
    return Conventions(prompts, name, similarity)


def _refuse_settings(folder: Path, kind: str, settings: dict[str, Any]) -> None:
    """Raise ValueError for a setting that would change vectors and that a `TextEncoder` does not have."""
    for name, value in settings.items():
        if name not in READ.get(kind, ()) and value and value not in PLAIN.get(name, ()):
            raise ValueError(
                f"encoder.path: {str(folder)!r} has the setting {name} = {value!r} of {kind}, which training does not have; "
                "its vectors would be others than in sentence-transformers. Choose another model, or take the setting away"
            )


def _json(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def _modules() -> Any:
    """Import sentence-transformers' modules, which takes seconds: only folders that need them wait for it."""
    from sentence_transformers.sentence_transformer import modules

    return modules


def _pooling(settings: dict[str, Any], folder: Path) -> Pooling:
    """The pooling of a module's settings, in the form of any version. Raises ValueError for one that is not supported."""
    on = [mode for mode in settings if mode.startswith("pooling_mode_") and settings[mode]]
    old = {theirs: mode for mode, theirs in OLDER.items()}
    mode = settings.get("pooling_mode") or [old.get(name, name) for name in on] or "mean"
    mode = mode[0] if isinstance(mode, list) and len(mode) == 1 else mode
    names: dict[Any, Pooling] = {theirs: ours for ours, theirs in MODES.items() if ours != "cls" and ours not in AVERAGED}
    if not isinstance(mode, str) or mode not in names:
        raise ValueError(f"encoder.path: {str(folder)!r} pools by {mode!r}; supported: {', '.join(names)}")
    return names[mode]


def layer_shares(count: int, layers: tuple[int, int]) -> list[float]:
    """Weights (count,) of layers of which two are averaged."""
    shares = torch.zeros(count)
    shares[list(layers)] = 1
    return shares.tolist()


def make_modules(
    config: PretrainedConfig, pooling: Pooling, head: Head | None, normalise: bool, include_prompt: bool = True
) -> list[nn.Module]:
    """What stands behind the transformer in a sentence-transformers folder; the reverse of `read_modules`."""
    from sentence_transformers.sentence_transformer import modules as st

    made: list[nn.Module] = []
    if pooling in AVERAGED:
        depth = config.num_hidden_layers
        share = torch.tensor(layer_shares(depth + 1, AVERAGED[pooling]))
        made.append(st.WeightedLayerPooling(config.hidden_size, depth, 0, nn.Parameter(share)))
    made.append(st.Pooling(config.hidden_size, MODES[pooling], include_prompt))
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


def write_for_older(folder: Path, do_lower_case: bool | None = None) -> None:
    """Put the settings of a folder that sentence-transformers 6 has saved into the form of version 5 and transformers 4.

    Without `do_lower_case` the folder's own value stays. The new versions read that form as well; the old ones, and so
    optimum, no other. The weights stay.
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
            file, lower = place / "sentence_bert_config.json", do_lower_case
            if lower is None:
                lower = bool(json.loads(file.read_text(encoding="utf-8")).get("do_lower_case")) if file.is_file() else False
            _write(file, {"max_seq_length": tokens["model_max_length"], "do_lower_case": lower})
        elif kind == "Pooling":
            pooling = st.Pooling.load(str(place))
            modes = {theirs: mode == pooling.pooling_mode for mode, theirs in OLDER.items()}
            modes |= {} if pooling.include_prompt else {"include_prompt": False}
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
