"""The text encoder that everything is about: a Hugging Face transformer, a pooling, perhaps a head."""

from __future__ import annotations

import inspect
import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    MODEL_MAPPING,
    AutoConfig,
    AutoModel,
    AutoTokenizer,
    ClapTextModel,
    CLIPTextModel,
    PretrainedConfig,
)

from models.heads import Head
from models.hub_folders import ENCODER
from models.towers import last_clip_layer

Pooling = Literal["cls", "cls_before_pooler", "mean", "max", "eot", "avg_top2", "avg_first_last"]

# Models of texts and something else, of which a text encoder is one half.
TEXT_HALVES: dict[str, Any] = {"clip": CLIPTextModel, "clap": ClapTextModel}

# Where a model type keeps its stack of layers, whose layers take (hidden states, mask): what patches go through.
STACKS = {"bert": "encoder", "roberta": "encoder", "xlm-roberta": "encoder", "distilbert": "transformer"}

TOKENIZING = threading.RLock()
"""Held while a tokenizer is called: it keeps the length of its last call as state, and every stream has a thread of its own.
One for all, since encoders are copied."""

DEFAULT_POOLING: dict[str, Pooling] = {"clip_text_model": "eot", "clap_text_model": "cls"}

# What the same dropout is called in different configurations.
HIDDEN_DROPOUTS = ("hidden_dropout_prob", "dropout")
ATTENTION_DROPOUTS = ("attention_probs_dropout_prob", "attention_dropout")


class EncoderOutput(NamedTuple):
    """pooled (B, d) before any head; tokens (B, L, d) of the last layer; layers: embeddings and every layer's tokens,
    empty unless asked for; mask (B, L), 1 where a token counts."""

    pooled: Tensor
    tokens: Tensor
    layers: tuple[Tensor, ...]
    mask: Tensor


class TextEncoder(nn.Module):
    """Sentences to vectors: transformer -> pooling -> head, if there is one -> unit length, if asked for.

    pooling, on the states of the last layer unless said otherwise:

    ========================  ===========================================================================
    ``cls``                   first token, then the head (Linear + tanh; a saved model's pooler)
    ``cls_before_pooler``     first token
    ``mean``, ``max``         over the tokens that are not padding
    ``eot``                   last token that is not padding, where a causal model (CLIP) has read all
    ``avg_top2``              mean over tokens of the mean of the last two layers
    ``avg_first_last``        mean over tokens of the mean of embedding output and last layer (the published
                              SimCSE numbers; later SimCSE code takes the first layer for the first)
    ========================  ===========================================================================

    ``head_only_trains`` keeps the head out of what is evaluated and saved (SimCSE's ``mlp_only_train``).
    """

    modalities: tuple[str, ...] = ("text",)
    groups_by_length = False
    """Whether a batch is computed in groups of rows of one length, so that larger batches cost nothing."""
    logit_factor: Callable[[], float] | None = None
    """The factor on cosines that the encoder has learned, where it has one."""

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Any,
        pooling: Pooling = "mean",
        head: Head | None = None,
        normalise: bool = False,
        limit: int | None = None,
    ) -> None:
        super().__init__()
        if pooling not in get_args(Pooling):
            raise ValueError(f"encoder.pooling: {pooling!r} is not known; allowed: {', '.join(get_args(Pooling))}")
        self.model: Any = model
        self.tokenizer, self.normalise = tokenizer, normalise
        self.pooling: Pooling = pooling
        self.config: PretrainedConfig = model.config
        self.head = head
        self.head_only_trains = False
        self.head_is_pooler = False
        """The head is the pooler of a Hugging Face folder, perhaps of BERT's next-sentence task."""
        self.path: str | None = None
        """Folder that the weights came from; none: made anew."""
        self.projected = False
        """That folder goes on to a projection into another modality's space, which `DualEncoder` reads."""
        self.limit = min(limit or 10**9, positions(self.config), tokenizer.model_max_length)
        """Most tokens of one text, special tokens among them."""
        self.tokenizer.model_max_length = self.limit
        self.tokenizer.padding_side = "right"  # the first token is the one that `cls` takes

    @classmethod
    def from_pretrained(
        cls,
        path: str,
        pooling: Pooling | None = None,
        hidden_dropout: float | None = None,
        attention_dropout: float | None = None,
        scratch: bool = False,
    ) -> TextEncoder:
        """A Hugging Face or sentence-transformers folder, or a name on the hub, in float32, from safetensors only.

        Of a CLIP or CLAP folder its text half. Without `pooling`, a sentence-transformers folder says it, and anything
        else gets ``mean`` (CLIP ``eot``, CLAP ``cls``). With ``cls`` the head is the model's pooler if it has one.
        `scratch` takes configuration and tokenizer and makes the weights anew, from torch's random numbers. Raises
        ValueError when the folder is absent, has no safetensors, or has sentence-transformers modules that this class is
        not.
        """
        local = ENCODER.folder(path, weights=not scratch)
        local = text_half(local)
        saved = _read_modules(local)
        folder = str(saved.get("model", local))
        if not scratch:
            ENCODER.refuse_pickles(path, Path(folder))
        try:
            config = text_config(folder)
            _set_dropouts(config, hidden_dropout, attention_dropout)
            pooling = pooling or saved.get("pooling") or DEFAULT_POOLING.get(config.model_type, "mean")
            head = saved.get("head")
            if scratch:
                tokenizer = AutoTokenizer.from_pretrained(folder)
                return cls._fresh(config, tokenizer, pooling, saved, hidden_dropout)
            with_pooler = pooling == "cls" and head is None and _has_pooler(config)
            options = {"add_pooling_layer": with_pooler} if _has_pooler(config) else {}
            half = TEXT_HALVES.get(config.model_type.removesuffix("_text_model"))
            model, report = (half or AutoModel).from_pretrained(
                folder,
                key_mapping={r"^text_model\.": ""} if half else None,
                config=config,
                use_safetensors=True,
                dtype=torch.float32,
                output_loading_info=True,
                **options,
            )
            tokenizer = AutoTokenizer.from_pretrained(folder)
        except OSError as error:
            raise ENCODER.cannot_load(path, error) from error
        absent = sorted(report["missing_keys"])
        if other := [name for name in absent if not name.startswith("pooler.")]:
            raise ValueError(
                f"encoder.path: {path!r} lacks {len(other)} weights of a {config.model_type!r} model, such as {other[0]!r}; "
                "they would be random. Is config.json that of these weights?"
            )
        if with_pooler:
            if not absent:
                head = Head(config.hidden_size)
                head.linear.load_state_dict(model.pooler.dense.state_dict())
            model.pooler = None
        # A head belongs to the pooling it was trained on.
        head = head if pooling in ("cls", saved.get("pooling")) else None
        _add_dropout(model, hidden_dropout)
        encoder = cls(model, tokenizer, pooling, head, bool(saved.get("normalise")), saved.get("limit"))
        encoder.head_is_pooler, encoder.path, encoder.projected = with_pooler, folder, bool(saved.get("projected"))
        return encoder

    @classmethod
    def _fresh(
        cls, config: PretrainedConfig, tokenizer: Any, pooling: Pooling, saved: dict[str, Any], dropout: float | None
    ) -> TextEncoder:
        """Random weights, and a random head where the pooling is ``cls`` or the folder has one."""
        encoder = cls.from_config(config, tokenizer, pooling)
        _add_dropout(encoder.model, dropout)
        encoder.normalise = bool(saved.get("normalise"))
        if pooling == "cls":
            encoder.head = Head(config.hidden_size)
        return encoder

    @classmethod
    def from_config(cls, config: PretrainedConfig, tokenizer: Any, pooling: Pooling = "mean") -> TextEncoder:
        """The same with random weights: for pretraining and tests."""
        options = {"add_pooling_layer": False} if _has_pooler(config) else {}
        half = TEXT_HALVES.get(config.model_type.removesuffix("_text_model"))
        model = half(config, **options) if half else AutoModel.from_config(config, dtype=torch.float32, **options)
        if isinstance(model, CLIPTextModel):
            _init_clip_text(model)
        return cls(model, tokenizer, pooling)

    @property
    def hidden_size(self) -> int:
        """Width of the transformer."""
        return self.config.hidden_size

    @property
    def embeddings(self) -> nn.Module:
        """The module that makes layer 0 of token ids: words, positions, types, LayerNorm. Raises ValueError without one."""
        module = getattr(self.model, "embeddings", None)
        if not isinstance(module, nn.Module):
            raise ValueError(
                f"encoder.path: a {self.config.model_type!r} model has no module `embeddings` that could be frozen; choose "
                "a model that has, such as BERT, RoBERTa, XLM-R, DistilBERT, DeBERTa, MPNet or ELECTRA"
            )
        return module

    def add_head(self, only_trains: bool) -> None:
        """Put a fresh `Head` behind the pooling, or keep that of a saved sentence encoder. See `head_only_trains`.

        A Hugging Face folder's own pooler is not kept: SimCSE builds BERT without it.
        """
        if self.head is None or self.head_is_pooler:
            self.head, self.head_is_pooler = Head(self.hidden_size), False
        self.head_only_trains = only_trains
        if not only_trains and self.pooling == "cls_before_pooler":
            self.pooling = "cls"

    def project(self, pooled: Tensor) -> Tensor:
        """The head's output (B, d) in training; `pooled` itself where there is no head."""
        return pooled if self.head is None else self.head(pooled)

    def tokenize(
        self, texts: list[str], max_length: int | None = None, spans: Sequence[tuple[int, int] | None] | None = None
    ) -> dict[str, Tensor]:
        """``input_ids`` and ``attention_mask`` (B, L), padded to the longest, cut at `max_length` or `limit`.

        With `spans`, for every text the first character of a word and the one after its last, or None: also ``word_mask``
        (B, L) int64, 1 at the tokens that hold characters of the word; all 0 without a word, for an empty one, and where it
        was cut off. Raises ValueError for another number of spans than texts, and for a tokenizer that cannot tell which
        characters its tokens hold.
        """
        if spans is not None:
            self._check_spans(texts, spans)
        limit = min(max_length or self.limit, self.limit)
        with TOKENIZING:
            tokens = dict(
                self.tokenizer(
                    texts,
                    padding=True,
                    truncation=True,
                    max_length=limit,
                    return_tensors="pt",
                    return_token_type_ids=False,
                    return_offsets_mapping=spans is not None,
                )
            )
        if spans is not None:
            tokens["word_mask"] = _word_mask(tokens.pop("offset_mapping"), spans)
        return tokens

    def _check_spans(self, texts: Sequence[str], spans: Sequence[tuple[int, int] | None]) -> None:
        if len(spans) != len(texts):
            raise ValueError(f"tokenize: {len(spans)} spans for {len(texts)} texts; give one for each, or None in its place")
        if not getattr(self.tokenizer, "is_fast", False):
            raise ValueError(
                f"encoder.path: the tokenizer of {self.path or 'this encoder'!r} ({type(self.tokenizer).__name__}) does not "
                "say which characters its tokens hold, so a word cannot be found among them; choose a model with a fast "
                "tokenizer (a file tokenizer.json), such as BERT, RoBERTa or DeBERTa"
            )

    def lengths(self, texts: list[str]) -> list[int]:
        """Tokens of each text uncut, special tokens included."""
        with TOKENIZING:
            return [len(ids) for ids in self.tokenizer(texts, truncation=False, verbose=False)["input_ids"]]

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """The vectors (B, d) of tokenised texts: what is evaluated, and what the saved folder gives."""
        vectors = self.outputs(batch["input_ids"], batch["attention_mask"]).pooled
        vectors = vectors if self.head_only_trains else self.project(vectors)
        return F.normalize(vectors, dim=-1) if self.normalise else vectors

    def pooled(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """``outputs(...).pooled`` (B, d) in a cheaper way: rows of similar length together (`by_length`), whose word
        embeddings are looked up at once, since every lookup has a gradient of the size of the whole table.
        """
        try:
            table = self.model.get_input_embeddings()
        except NotImplementedError:  # CANINE hashes characters
            return self.outputs(input_ids, attention_mask).pooled
        return by_length(self._pooled, table(input_ids), attention_mask)

    def _pooled(self, words: Tensor, mask: Tensor) -> Tensor:
        """The tokens behind a causal model's last one change nothing, so CLIP's text transformer needs no mask, and its last
        layer is computed for one token of each text only."""
        by_kernel = getattr(self.model.config, "_attn_implementation", "") == "sdpa"  # others ask for a mask
        if self.pooling != "eot" or not isinstance(self.model, CLIPTextModel) or not by_kernel:
            return self.outputs(inputs_embeds=words, attention_mask=mask).pooled
        hidden = self.model.embeddings(inputs_embeds=words)
        *layers, last = self.model.encoder.layers
        for layer in layers:
            hidden = layer(hidden, None, is_causal=True)
        return self.model.final_layer_norm(last_clip_layer(last, hidden, mask.sum(1) - 1, causal=True))

    def outputs(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        *,
        inputs_embeds: Tensor | None = None,
        patches: Tensor | None = None,
        layers: bool = False,
    ) -> EncoderOutput:
        """Everything the transformer says about one of three inputs.

        input_ids (B, L); or inputs_embeds (B, L, d) in place of word embeddings; or patches (B, L, d), which enter the
        stack of layers directly: no positions, token types, LayerNorm or dropout of the text embeddings, and no mask.
        attention_mask (B, L) goes with the first two. `layers` asks for the states of all layers.

        Raises ValueError for patches when the model's type is not in `STACKS`.
        """
        layers = layers or self.pooling in ("avg_top2", "avg_first_last")
        if patches is not None:
            states = [patches]
            for layer in self._layers():
                states.append(layer(states[-1], None))
            tokens, hidden = states[-1], tuple(states)
            mask = torch.ones(patches.shape[:2], dtype=torch.long, device=patches.device)
        else:
            text = {"input_ids": input_ids} if inputs_embeds is None else {"inputs_embeds": inputs_embeds}
            out = self.model(**text, attention_mask=attention_mask, output_hidden_states=layers)
            tokens, hidden = out.last_hidden_state, tuple(out.hidden_states or ())
            mask = tokens.new_ones(tokens.shape[:2]).long() if attention_mask is None else attention_mask
        return EncoderOutput(pool(tokens, hidden, mask, self.pooling), tokens, hidden if layers else (), mask)

    def _layers(self) -> nn.ModuleList:
        kind = self.config.model_type
        if kind not in STACKS:
            raise ValueError(
                f"encoder.path: a {kind!r} model cannot take image or audio patches; supported: {', '.join(STACKS)}"
            )
        return getattr(self.model, STACKS[kind]).layer

    def save(self, folder: str) -> None:
        """Write a folder that ``SentenceTransformer(folder)`` and ``AutoModel.from_pretrained(folder)`` load.

        With pooling ``cls`` and a head, the head is saved as the model's pooler too, where its type has one, so that
        ``pooler_output`` is the sentence vector (the released SimCSE's convention).
        """
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.sentence_transformer import modules as st

        head = None if self.head_only_trains else self.head
        weights = {name: t.detach().cpu().contiguous() for name, t in self.model.state_dict().items()}
        if head is not None and self.pooling == "cls" and _has_pooler(self.config) and _is_bert_pooler(head):
            weights |= {f"pooler.dense.{name}": t.detach().cpu() for name, t in head.linear.state_dict().items()}
        averaged = {"avg_top2": (-2, -1), "avg_first_last": (0, -1)}.get(self.pooling, ())
        self.config.output_hidden_states = bool(averaged)  # sentence-transformers asks the configuration for the layers

        self.model.save_pretrained(folder, state_dict=weights)
        self.tokenizer.save_pretrained(folder)
        parts: list[nn.Module] = [st.Transformer(folder)]
        if averaged:
            depth = self.config.num_hidden_layers
            share = torch.zeros(depth + 1)
            share[list(averaged)] = 1
            parts += [st.WeightedLayerPooling(self.hidden_size, depth, 0, nn.Parameter(share))]
        mode = {"max": "max", "cls": "cls", "cls_before_pooler": "cls", "eot": "lasttoken"}.get(self.pooling, "mean")
        parts += [st.Pooling(self.hidden_size, mode)]
        if head is not None:
            weight, bias = (t.detach().cpu().clone() for t in (head.linear.weight, head.linear.bias))
            parts += [st.Dense(weight.shape[1], weight.shape[0], True, head.activation, weight, bias)]
        if self.normalise:
            parts += [st.Normalize()]
        SentenceTransformer(modules=parts, device="cpu").save(folder, create_model_card=False)
        # Once more: sentence-transformers has just written the pooler that AutoModel made up where we have none.
        self.model.save_pretrained(folder, state_dict=weights)


def _word_mask(offsets: Tensor, spans: Sequence[tuple[int, int] | None]) -> Tensor:
    """int64 (B, L): 1 where a token's characters, offsets (B, L, 2), and those of its text's span overlap.

    Overlap, since byte-level tokenizers may count the space before a word as the token's; special tokens have none.
    """
    first, last = offsets.unbind(-1)
    start, stop = torch.tensor([span or (0, 0) for span in spans], dtype=offsets.dtype).view(-1, 2, 1).unbind(1)
    return ((torch.maximum(first, start)) < torch.minimum(last, stop)).long()


def pool(tokens: Tensor, layers: Sequence[Tensor], mask: Tensor, pooling: Pooling) -> Tensor:
    """Token states (B, L, d), or those of all layers, to one vector per row (B, d); mask (B, L)."""
    if pooling in ("cls", "cls_before_pooler"):
        return tokens[:, 0]
    if pooling == "eot":
        return tokens[torch.arange(len(tokens), device=tokens.device), mask.sum(1) - 1]
    if pooling == "max":
        return tokens.masked_fill(mask[..., None] == 0, -torch.inf).amax(1)
    if pooling == "avg_top2":
        tokens = (layers[-1] + layers[-2]) / 2
    elif pooling == "avg_first_last":
        tokens = (layers[0] + layers[-1]) / 2
    weight = mask[..., None].to(tokens.dtype)
    return (tokens * weight).sum(1) / weight.sum(1).clamp(min=1e-9)


def pooled_layers(model: Any, input_ids: Tensor, attention_mask: Tensor, pooling: Pooling) -> Tensor:
    """Every layer of a Hugging Face model pooled, (B, l + 1, d), without gradient; layer 0 is the embedding output.

    The same as pooling its `hidden_states`, but each layer is pooled as soon as it is there: the token states of one
    layer are held at a time, not of all. input_ids and attention_mask (B, L).
    """
    found: list[Tensor] = []

    def keep(layer: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> None:
        states = args[0] if args else kwargs["hidden_states"]
        found.append(pool(states, (), attention_mask, pooling))

    # What enters a layer is the state before it. The last state is the model's output, behind its final norm if any.
    hooks = [layer.register_forward_pre_hook(keep, with_kwargs=True) for layer in layer_stack(model)]
    try:
        # Autograd refuses tensors of inference mode, but not the copy that `stack` makes outside of it.
        with torch.inference_mode():
            tokens = model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
            found.append(pool(tokens, (), attention_mask, pooling))
    finally:
        for hook in hooks:
            hook.remove()
    return torch.stack(found, dim=1)


GROUPS = 4  # of similar length in a batch on a CPU


def by_length(forward: Callable[[Tensor, Tensor], Tensor], inputs: Tensor, attention_mask: Tensor) -> Tensor:
    """forward(inputs, attention_mask) (B, ...), on a CPU computed in groups of rows of similar length; inputs are token ids
    (B, L) or word embeddings (B, L, d).

    Half of the tokens of a small mixed batch are padding, and on a CPU they cost as much as the others; a GPU would rather
    have one call. Only trailing padding is cut, so positions stay. Dropout draws other masks than in one call; without
    it the result is the same.
    """
    if inputs.device.type != "cpu" or len(inputs) < 2 * GROUPS:
        return forward(inputs, attention_mask)
    columns = torch.arange(1, attention_mask.shape[1] + 1)
    lengths = (attention_mask * columns).amax(1)
    order = lengths.argsort(stable=True)
    groups = [(rows, max(1, int(lengths[rows].max()))) for rows in order.tensor_split(GROUPS)]
    parts = [forward(inputs[rows, :length], attention_mask[rows, :length]) for rows, length in groups]
    return torch.cat(parts)[order.argsort()]


def layer_stack(model: Any) -> nn.ModuleList:
    """The layers of a model: its outermost list of as many modules as the configuration has layers. Raises ValueError."""
    depth = model.config.num_hidden_layers
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == depth:
            return module
    raise ValueError(
        f"encoder.path: the {depth} layers of a {model.config.model_type!r} model are not one list of modules, so they "
        "cannot be read one by one; choose a model such as BERT, RoBERTa, XLM-R, DistilBERT, DeBERTa, MPNet or ELECTRA"
    )


def _model_class(config: PretrainedConfig) -> Any:
    """The class of a text model with this configuration; of CLIP and CLAP that of the text half."""
    return TEXT_HALVES.get(config.model_type.removesuffix("_text_model")) or MODEL_MAPPING.get(type(config), None)


def _has_pooler(config: PretrainedConfig) -> bool:
    """Whether the model type comes with an optional pooler, as BERT does and DistilBERT does not."""
    kind = _model_class(config)
    return kind is not None and "add_pooling_layer" in inspect.signature(kind.__init__).parameters


def _is_bert_pooler(head: Head) -> bool:
    return isinstance(head.activation, nn.Tanh) and head.linear.in_features == head.linear.out_features


FROM_BEHIND_PADDING = ("roberta", "xlm-roberta", "camembert", "mpnet", "clap_text_model")
"""Types of models that count positions from behind the padding index, so that RoBERTa has 512 of its 514."""


def positions(config: PretrainedConfig) -> int:
    """The positions that a text may have; very many where the model has no table of them."""
    most: int = getattr(config, "max_position_embeddings", None) or 10**9
    return most - (config.pad_token_id or 0) - 1 if config.model_type in FROM_BEHIND_PADDING else most


def _set_dropouts(config: PretrainedConfig, hidden: float | None, attention: float | None) -> None:
    settings = {"hidden_dropout": (hidden, HIDDEN_DROPOUTS), "attention_dropout": (attention, ATTENTION_DROPOUTS)}
    for setting, (value, names) in settings.items():
        if value is None:
            continue
        name = next((name for name in names if hasattr(config, name)), None)
        if name is None and config.model_type == "clip_text_model":
            continue  # `_add_dropout`
        if name is None:
            raise ValueError(f"encoder.{setting}: a {config.model_type!r} model has no such setting; leave it out")
        setattr(config, name, value)


def has_dropout(config: PretrainedConfig, hidden: float | None, attention: float | None) -> bool:
    """Whether two passes of a text in training differ: the rates of the recipe, or where they are none the model's own."""

    def rate(given: float | None, names: tuple[str, ...]) -> float | None:
        own = [float(getattr(config, name)) for name in names if hasattr(config, name)]
        return given if given is not None else own[0] if own else None

    # CLIP's configuration may name a rate, but the model has no such dropout.
    first = (hidden or 0.0) if config.model_type == "clip_text_model" else rate(hidden, HIDDEN_DROPOUTS)
    return not first == rate(attention, ATTENTION_DROPOUTS) == 0


def text_config(path: str) -> PretrainedConfig:
    """The configuration of a folder or hub name; of a CLIP or CLAP model that of its text half."""
    config = AutoConfig.from_pretrained(str(text_half(Path(path))) if Path(path).is_dir() else path)
    return config.text_config if config.model_type in TEXT_HALVES else config


def _add_dropout(model: nn.Module, p: float | None) -> None:
    """Dropout in CLIP's text transformer, which has none: behind the embeddings and, as in BERT, behind what attention and
    feed-forward add. (Zhao et al. has 0.1 in the language encoder and does not say where.) State dicts stay as they are.
    """
    if not p or not isinstance(model, CLIPTextModel):
        return

    def drop(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        return F.dropout(output, p, module.training)

    layers = [part for layer in model.encoder.layers for part in (layer.self_attn.out_proj, layer.mlp)]
    for module in (model.embeddings, *layers):
        module.register_forward_hook(drop)


@torch.no_grad()
def _init_clip_text(model: CLIPTextModel) -> None:
    """OpenAI's initialisation (Radford et al. 2021), from which that of transformers differs."""
    width, depth = model.config.hidden_size, model.config.num_hidden_layers
    nn.init.normal_(model.embeddings.token_embedding.weight, std=0.02)
    nn.init.normal_(model.embeddings.position_embedding.weight, std=0.01)
    for layer in model.encoder.layers:
        attention, mlp = layer.self_attn, layer.mlp
        for linear in (attention.q_proj, attention.k_proj, attention.v_proj):
            nn.init.normal_(linear.weight, std=width**-0.5)
        for linear in (attention.out_proj, mlp.fc2):
            nn.init.normal_(linear.weight, std=width**-0.5 * (2 * depth) ** -0.5)
        nn.init.normal_(mlp.fc1.weight, std=(2 * width) ** -0.5)


def text_half(folder: Path) -> Path:
    """The sentence-transformers folder inside an export of a `DualEncoder` that brings its code; else `folder` itself."""
    return folder / "text" if (folder / "dual_config.json").is_file() else folder


def _read_modules(folder: Path) -> dict[str, Any]:
    """What a sentence-transformers folder says: model (its folder), limit, pooling, head, normalise; projected, when it
    ends in a projection into another modality's space. Else nothing."""
    if not (folder / "modules.json").is_file():
        return {}
    from sentence_transformers.sentence_transformer import modules as st

    found: dict[str, Any] = {}
    entries = json.loads((folder / "modules.json").read_text())
    kinds = [entry["type"].rsplit(".", 1)[-1] for entry in entries]
    layered = "WeightedLayerPooling" in kinds
    for kind, entry in zip(kinds, entries, strict=True):
        place = folder / entry["path"]
        if kind == "Transformer":
            found["model"] = place
            settings = place / "sentence_bert_config.json"
            found["limit"] = json.loads(settings.read_text()).get("max_seq_length") if settings.is_file() else None
        elif kind == "WeightedLayerPooling":
            layers = st.WeightedLayerPooling.load(str(place)).layer_weights.nonzero().flatten().tolist()
            found["pooling"] = "avg_first_last" if layers[0] == 0 else "avg_top2"
        elif kind == "Pooling":
            mode = st.Pooling.load(str(place)).pooling_mode
            names = {"cls": "cls_before_pooler", "mean": "mean", "max": "max", "lasttoken": "eot"}
            if mode not in names:
                raise ValueError(f"encoder.path: {str(folder)!r} pools by {mode!r}; supported: {', '.join(names)}")
            found["pooling"] = found["pooling"] if layered else names[mode]
        elif kind == "Dense" and entry["name"].startswith("projection"):
            found["projected"] = True
            continue  # into the space of another modality; `DualEncoder` reads it where it is wanted
        elif kind == "Dense" and "head" not in found:
            dense = st.Dense.load(str(place))
            found["head"] = head = Head(dense.in_features, dense.out_features, dense.activation_function)
            head.linear.load_state_dict(dense.linear.state_dict())
            found["pooling"] = "cls" if found["pooling"] == "cls_before_pooler" else found["pooling"]
        elif kind == "Normalize":
            found["normalise"] = True
        else:
            raise ValueError(
                f"encoder.path: {str(folder)!r} has a module {entry['type']!r}; supported: Transformer, Pooling, "
                "WeightedLayerPooling, one Dense, Normalize"
            )
    return found
