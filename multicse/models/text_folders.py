"""Text models on disk: their configuration, tokenizer and weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from multicse.models.clip_layers import init_clip_text
from multicse.models.hub_folders import HALVES, half, has_pooler, model_class, unpooled
from multicse.models.packing import DECODERS
from multicse.models.pooling import Head, Pooling
from multicse.models.pretrained import ENCODER
from multicse.models.st_modules import Saved, read_modules

if TYPE_CHECKING:
    from transformers import PretrainedConfig

# Names of the same dropout in different configurations.
HIDDEN_DROPOUTS = ("hidden_dropout_prob", "dropout")
ATTENTION_DROPOUTS = ("attention_probs_dropout_prob", "attention_dropout")
UNLIMITED = 10**9


# ---- configuration ---------------------------------------------------------------------------------------------------


def text_config(path: str) -> PretrainedConfig:
    """Return the configuration of a folder or model ID; for CLIP and CLAP, the configuration of the text transformer."""
    from transformers import AutoConfig  # here and below: a third of a second, which --help need not wait for

    config = AutoConfig.from_pretrained(half(Path(path), "text") if Path(path).is_dir() else path, trust_remote_code=False)
    return config.text_config if config.model_type in ("clip", "clap") else config


def positions(config: PretrainedConfig) -> int:
    """Return the maximum number of tokens that a model of this configuration has positions for; 10^9 if unlimited.

    RoBERTa and its relatives start to count positions after the padding index, so they have 512 of their 514.
    """
    kind = model_class(config)
    if kind is None:
        return getattr(config, "max_position_embeddings", None) or UNLIMITED
    with torch.device("meta"):  # shapes only
        return positions_of(kind(config))


def positions_of(model: Any) -> int:
    """Return the maximum number of tokens that a loaded model has positions for; 10^9 if unlimited."""
    most = getattr(model.config, "max_position_embeddings", None) or UNLIMITED
    most = UNLIMITED if most < 0 else most  # XLNet's -1
    table = getattr(getattr(model, "embeddings", None), "position_embeddings", None)
    padding = getattr(table, "padding_idx", None)
    return most if padding is None else most - padding - 1


def set_dropouts(config: PretrainedConfig, hidden: float | None, attention: float | None) -> None:
    """Set the dropout probabilities of a configuration, or raise ValueError if the model type has no such dropout."""
    settings = {"hidden_dropout": (hidden, HIDDEN_DROPOUTS), "attention_dropout": (attention, ATTENTION_DROPOUTS)}
    for setting, (value, names) in settings.items():
        if value is None:
            continue
        name = next((name for name in names if hasattr(config, name)), None)
        if name is not None:
            setattr(config, name, value)
        elif config.model_type != "clip_text_model":  # see `clip_layers.add_dropout`
            raise ValueError(f"encoder.{setting}: a {config.model_type!r} model has no such setting; remove it")


def has_dropout(config: PretrainedConfig, hidden: float | None, attention: float | None) -> bool:
    """Return True if two forward passes over the same text differ in training; None means the value of `config`."""

    def dropout(given: float | None, names: tuple[str, ...]) -> float | None:
        own = [float(getattr(config, name)) for name in names if hasattr(config, name)]
        return given if given is not None else own[0] if own else None

    # CLIP's configuration may contain a dropout, but the model does not apply it. Decoders have none in their layers.
    first = (hidden or 0.0) if config.model_type in ("clip_text_model", *DECODERS) else dropout(hidden, HIDDEN_DROPOUTS)
    return not first == dropout(attention, ATTENTION_DROPOUTS) == 0


def default_pooling(config: PretrainedConfig) -> Pooling:
    """Return the pooling of a model without a configured pooling; the same as in sentence-transformers for text models."""
    own: dict[str, Pooling] = {"clip_text_model": "lasttoken", "clap_text_model": "pooler"}
    causal = (config.architectures or [""])[0].endswith("ForCausalLM") and getattr(config, "is_causal", True)
    return own.get(config.model_type, "lasttoken" if causal else "mean")


# ---- weights ---------------------------------------------------------------------------------------------------------


def new_model(config: PretrainedConfig) -> Any:
    """Return a model without pooler and with random weights; CLIP's are initialised as in OpenAI's code."""
    from transformers import AutoModel

    if config.model_type in HALVES:
        model = model_class(config)(config, **unpooled(config))
    else:
        model = AutoModel.from_config(config, dtype=torch.float32, **unpooled(config))
    if config.model_type == "clip_text_model":
        init_clip_text(model)
    return model


def load_transformer(path: str, folder: Path, config: PretrainedConfig, pooler: bool) -> tuple[Any, Head | None]:
    """Load a model without its pooler, and the pooler as a head.

    The head is None if the pooler was not requested, does not exist, or contains only zeros (`no_pooler`).
    """
    from transformers import AutoModel

    pooler = pooler and has_pooler(config)
    options = {} if pooler else unpooled(config)
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
    """Return zeros by name for the pooler that AutoModel adds to a model of this configuration; empty if it adds none.

    If the weights are missing from the file, AutoModel initialises the pooler randomly and warns at every load.
    """
    kind = model_class(config)
    if kind is None:
        return {}
    with torch.device("meta"):  # shapes only
        weights = kind(config).state_dict()
    return {name: torch.zeros(weight.shape) for name, weight in weights.items() if name.startswith("pooler.")}


# ---- configuration and tokenizer -------------------------------------------------------------------------------------


def open_text_model(
    path: str,
    scratch: bool = False,
    fetched: bool = False,
    prompt: str | None = None,
    include_prompt: bool | None = None,
) -> tuple[Path, Saved, PretrainedConfig, Any]:
    """Read everything of a text model except its weights, so that a run fails before it takes any resources.

    Args:
        path: Folder, or model ID on the Hugging Face Hub.
        scratch: The weights will be initialised randomly, so the folder need not contain any.
        fetched: The weights of a model of the Hub have been downloaded.
        prompt: Prompt before every text. If None, the folder's default prompt.
        include_prompt: Pool the tokens of the prompt. If None, the folder's setting.

    Returns:
        Folder, sentence-transformers modules, configuration and tokenizer. The configuration also has ``longest_text``, the
        maximum number of tokens of a text, and ``tokens_beside``, the number of special and prompt tokens in it.

    Raises:
        ValueError: If the model cannot be loaded, or its modules are not supported; `probes.check_folder` compares vectors.
    """
    from transformers import AutoTokenizer

    folder = ENCODER.folder(path, weights=False)
    saved = read_modules(folder)
    saved = saved._replace(conventions=saved.conventions.changed(prompt, include_prompt))
    if not scratch:
        ENCODER.refuse_unreadable(path, saved.folder, weights=fetched or Path(path).is_dir())
    config = text_config(str(saved.folder))
    int(config.hidden_size)
    if not scratch and getattr(config, "quantization_config", None):
        raise ValueError(f"encoder.path: {path!r} has quantised weights, which cannot be trained; choose a different model")
    if config.is_encoder_decoder:
        raise ValueError(
            f"encoder.path: a {config.model_type!r} model has an encoder and a decoder, which is not supported; choose a "
            "model such as BERT, RoBERTa, XLM-R, DeBERTa or MPNet"
        )
    limit = {} if saved.limit is None else {"model_max_length": saved.limit}
    tokenizer = AutoTokenizer.from_pretrained(saved.folder, trust_remote_code=False, **limit)
    ENCODER.check_tokenizer(path, tokenizer, config)
    if saved.lower_case:
        _lower_case(tokenizer)
    tokenizer.model_max_length = min(positions(config), tokenizer.model_max_length)
    taken = len(tokenizer(saved.conventions.prompt)["input_ids"])
    config.longest_text, config.tokens_beside = tokenizer.model_max_length, taken
    if taken >= tokenizer.model_max_length:
        raise ValueError(
            f"encoder.path: a text of {path!r} has at most {tokenizer.model_max_length} tokens (max_seq_length, positions), "
            f"and special tokens and prompt take {taken}; none is left for the sentence"
        )
    return folder, saved, config, tokenizer


def _lower_case(tokenizer: Any) -> None:
    """Make a tokenizer lower-case texts first, as sentence-transformers' ``do_lower_case`` does."""
    from tokenizers.normalizers import Lowercase, Sequence

    backend = tokenizer.backend_tokenizer
    own, parts = backend.normalizer, cast(Any, backend.normalizer)
    steps: list[Any] = [*parts] if isinstance(own, Sequence) else [] if own is None else [own]
    if not any(isinstance(step, Lowercase) for step in steps):
        backend.normalizer = Sequence([Lowercase(), *steps])
