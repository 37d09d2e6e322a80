"""The text encoder that everything is about: a Hugging Face transformer, a pooling, perhaps a head."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from multicse.models.adapters import LoRASettings, add_adapters, merged
from multicse.models.clip_layers import add_dropout, last_clip_layer
from multicse.models.hub_folders import ENCODER, has_pooler, languages_of
from multicse.models.packing import Packing, can_pack, enable_packing, layers_can_pack, model_kwargs, token_states
from multicse.models.pooling import AVERAGED, Head, Pooling, layer_stack, pool, without_prompt
from multicse.models.sentence_encoder import SENTENCES, AnyEncoderConfig, CardText, SentenceEncoder, shown, usage
from multicse.models.text_folders import (
    Conventions,
    default_pooling,
    load_model,
    make_modules,
    new_model,
    no_pooler,
    open_text_model,
    positions_of,
    prompt_length,
    set_dropouts,
    write_for_older,
)

if TYPE_CHECKING:
    from transformers import PretrainedConfig

# Where a model type keeps its stack of layers, whose layers take (hidden states, mask): what patches go through.
STACKS = {"bert": "encoder", "roberta": "encoder", "xlm-roberta": "encoder", "distilbert": "transformer"}

TOKENIZING = threading.RLock()
"""Held while a tokenizer is called: it keeps the length of its last call as state, and every stream has a thread of its own.
One for all, since encoders are copied."""


class EncoderOutput(NamedTuple):
    """pooled (B, d) before any head; tokens (B, L, d) of the last layer."""

    pooled: Tensor
    tokens: Tensor


class TextEncoder(SentenceEncoder):
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

    layered = True

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
        self.model: Any = model
        enable_packing(model)
        self.tokenizer, self.normalise = tokenizer, normalise
        self.pooling: Pooling = pooling
        self.config: PretrainedConfig = model.config
        self.head = head
        self.head_only_trains = False
        self.head_is_pooler = False
        """The head is the pooler of a Hugging Face folder, perhaps of BERT's next-sentence task."""
        self.origin: str | None = None
        """Folder or hub name that configuration and tokenizer came from."""
        self.path: str | None = None
        """Folder that the weights came from; none: made anew."""
        self.projected = False
        """That folder goes on to a projection into another modality's space, which `DualEncoder` reads."""
        self.limit = min(limit or 10**9, positions_of(model), tokenizer.model_max_length)
        """Most tokens of one text, special tokens among them."""
        self.tokenizer.model_max_length = self.limit
        self.tokenizer.padding_side = "right"  # the first token is the one that `cls` takes
        self.conventions = Conventions()
        """What sentence-transformers does to texts before and after the model."""
        self.prompt_tokens = 0
        """First tokens of every text that the pooling leaves out: those of a prompt that is not counted."""

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
        try:
            ENCODER.folder(path, weights=not scratch)  # of the hub, fetched before it is read
            folder, saved, config, tokenizer = open_text_model(path, scratch, fetched=True)
            set_dropouts(config, hidden_dropout, attention_dropout)
            pooling = pooling or saved.pooling or default_pooling(config)
            if scratch:
                model, head = new_model(config), Head(config.hidden_size) if pooling == "cls" else None
            else:
                model, pooler = load_model(path, saved.folder, config, pooler=pooling == "cls" and saved.head is None)
                # A head belongs to the pooling it was trained on.
                head = pooler or (saved.head if pooling in ("cls", saved.pooling) else None)
        except Exception as error:  # the libraries raise a dozen kinds for a broken folder
            if str(error).startswith("encoder."):
                raise
            raise ENCODER.cannot_load(path, error) from error
        if hidden_dropout and model.config.model_type == "clip_text_model":
            add_dropout(model, hidden_dropout)
        encoder = cls(model, tokenizer, pooling, head, saved.normalise, saved.limit)
        encoder.conventions, encoder.origin = saved.conventions, path
        if not saved.conventions.include_prompt and saved.conventions.prompt:
            encoder.prompt_tokens = prompt_length(tokenizer, saved.conventions.prompt)
        if not scratch:
            encoder.path, encoder.projected = str(folder), saved.projected
            encoder.head_is_pooler = saved.head is None
        return encoder

    @classmethod
    def from_config(cls, config: PretrainedConfig, tokenizer: Any, pooling: Pooling = "mean") -> TextEncoder:
        """The same with random weights: for pretraining and tests."""
        return cls(new_model(config), tokenizer, pooling)

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

    def stack(self) -> list[nn.Module]:
        return [self.embeddings, *layer_stack(self.model)]

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
        was cut off. That takes a fast tokenizer; transformers raises NotImplementedError for others.
        """
        limit, prompt = min(max_length or self.limit, self.limit), self.conventions.prompt
        with TOKENIZING:
            tokens = dict(
                self.tokenizer(
                    [prompt + text for text in texts] if prompt else texts,
                    padding=True,
                    truncation=True,
                    max_length=limit,
                    return_tensors="pt",
                    return_token_type_ids=False,
                    return_offsets_mapping=spans is not None,
                )
            )
        if spans is not None:
            moved = [span and (span[0] + len(prompt), span[1] + len(prompt)) for span in spans]
            tokens["word_mask"] = _word_mask(tokens.pop("offset_mapping"), moved)
        return tokens

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """The vectors (B, d) of tokenised texts: what is evaluated, and what the saved folder gives."""
        vectors = self.outputs(batch["input_ids"], batch["attention_mask"]).pooled
        vectors = vectors if self.head_only_trains else self.project(vectors)
        return F.normalize(vectors, dim=-1) if self.normalise else vectors

    def pooled(self, input_ids: Tensor, attention_mask: Tensor, host_mask: Tensor | None = None) -> Tensor:
        """``outputs(...).pooled`` (B, d); of CLIP's text transformer the last layer is computed for one token of each text
        only."""
        if self.pooling != "eot" or self.config.model_type != "clip_text_model" or not layers_can_pack(self.model):
            return self.outputs(input_ids, attention_mask, host_mask=host_mask).pooled
        packing = Packing(attention_mask, host_mask)
        hidden = packing.pack(self.model.embeddings(input_ids))
        *layers, last = self.model.encoder.layers
        for layer in layers:
            hidden = layer(hidden, None, is_causal=True, packing=packing)
        states = last_clip_layer(last, packing.unpack(hidden), attention_mask.sum(1) - 1, causal=True)
        return self.model.final_layer_norm(states)

    def outputs(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        *,
        inputs_embeds: Tensor | None = None,
        patches: Tensor | None = None,
        padding: bool = False,
        host_mask: Tensor | None = None,
    ) -> EncoderOutput:
        """Everything the transformer says about one of three inputs.

        input_ids (B, L); or inputs_embeds (B, L, d) in place of word embeddings; or patches (B, L, d), which enter the
        stack of layers directly: no positions, token types, LayerNorm or dropout of the text embeddings, and no mask.
        attention_mask (B, L) goes with the first two, and so does `host_mask` (B, L), the mask on the CPU: with it a GPU is
        not waited for. `padding` asks for the states of padding too, which otherwise mean nothing and cost nothing
        (`token_states`). Only models in `STACKS` take patches.
        """
        layers, prompt = self.pooling in AVERAGED, 0 if patches is not None else self.prompt_tokens
        if patches is not None:
            states = [patches]
            for layer in getattr(self.model, STACKS[self.config.model_type]).layer:
                states.append(layer(states[-1], None))
            tokens, hidden = states[-1], tuple(states)
            mask = torch.ones(patches.shape[:2], dtype=torch.long, device=patches.device)
        else:
            given = input_ids if inputs_embeds is None else inputs_embeds
            assert given is not None  # one of the three
            mask = given.new_ones(given.shape[:2], dtype=torch.long) if attention_mask is None else attention_mask
            if padding:
                seen = mask
                if can_pack(self.model) and mask.device.type != "cpu":
                    # Of a mask (B, L) transformers would wait to see whether all of it is 1.
                    seen = (mask != 0)[:, None, None].expand(-1, 1, mask.shape[1], -1)
                out = self.model(**model_kwargs(given), attention_mask=seen, output_hidden_states=layers)
                tokens, hidden = out.last_hidden_state, tuple(out.hidden_states or ())
            else:
                tokens, hidden = token_states(self.model, given, mask, layers, host_mask)
        return EncoderOutput(pool(tokens, hidden, without_prompt(mask, prompt), self.pooling), tokens)

    def save(self, folder: str) -> None:
        """Write a folder that ``SentenceTransformer(folder)``, of version 5 too, and ``AutoModel.from_pretrained`` load.

        With pooling ``cls`` and a head, the head is saved as the model's pooler too, where its type has one, so that
        ``pooler_output`` is the sentence vector (the released SimCSE's convention). Any other pooler is of zeros.
        """
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.sentence_transformer import modules as st

        head = None if self.head_only_trains else self.head
        pooler = no_pooler(self.config)
        if head is not None and self.pooling == "cls" and has_pooler(self.config) and is_bert_pooler(head):
            pooler = {f"pooler.dense.{name}": weight for name, weight in head.linear.state_dict().items()}
        model = merged(self.model)
        weights = {name: t.detach().cpu().contiguous() for name, t in {**model.state_dict(), **pooler}.items()}
        model.config.output_hidden_states = self.pooling in AVERAGED  # sentence-transformers asks it for the layers
        model.save_pretrained(folder, state_dict=weights)
        self.tokenizer.save_pretrained(folder)
        own = self.conventions
        modules = make_modules(self.config, self.pooling, head, self.normalise, own.include_prompt)
        whole = SentenceTransformer(modules=[st.Transformer(folder), *modules], device="cpu", **own.options)
        whole.save(folder, create_model_card=False)
        write_for_older(Path(folder), own.do_lower_case)

    def card(self, folder: Path) -> CardText:
        """What a model card says of it."""
        initialised_from = f"Trained from `{shown(self.origin or 'unknown')}`"
        if self.path is None:
            of = "" if self.origin is None else f", with the tokenizer of `{shown(self.origin)}`"
            initialised_from = f"From random weights{of}, trained"
        return CardText(
            what=SENTENCES,
            initialised_from=initialised_from,
            usage=usage(),
            notes="`AutoModel.from_pretrained` loads the same folder and gives token states; the pooling is in "
            "`modules.json`. A further run starts from it with `--encoder.path`.",
            bases=() if self.path is None else (self.origin,),
            languages=languages_of(self.path),
        )


def _word_mask(offsets: Tensor, spans: Sequence[tuple[int, int] | None]) -> Tensor:
    """int64 (B, L): 1 where a token's characters, offsets (B, L, 2), and those of its text's span overlap.

    Overlap, since byte-level tokenizers may count the space before a word as the token's; special tokens have none.
    """
    first, last = offsets.unbind(-1)
    start, stop = torch.tensor([span or (0, 0) for span in spans], dtype=offsets.dtype).view(-1, 2, 1).unbind(1)
    return ((torch.maximum(first, start)) < torch.minimum(last, stop)).long()


def is_bert_pooler(head: Head) -> bool:
    """Whether a head has the form of BERT's pooler."""
    return isinstance(head.activation, nn.Tanh) and head.linear.in_features == head.linear.out_features


class EncoderConfig(AnyEncoderConfig):
    """The sentence encoder a run starts from."""

    kind: ClassVar[str] = "transformer"
    layered: ClassVar[bool] = True

    path: str
    """A Hugging Face or sentence-transformers folder, or a hub name."""
    pooling: Pooling | None = None
    """How token vectors become a sentence vector; none: as the folder says, else mean (CLIP: eot)."""
    scratch: bool = False
    """Take configuration and tokenizer of the path and make the weights anew, from the run's seed."""
    hidden_dropout: float | None = Field(None, ge=0, lt=1)
    """Dropout in the layers, which makes the two views of a sentence; none: the model's own (BERT: 0.1)."""
    attention_dropout: float | None = Field(None, ge=0, lt=1)
    """Dropout of the attention weights; none: the model's own."""
    lora: LoRASettings = LoRASettings()
    """Small matrices that are trained in place of the transformer's weights; an export has them merged in."""

    def read(self) -> PretrainedConfig:
        try:
            *_, config, _ = open_text_model(self.path, self.scratch)
        except Exception as error:  # the libraries raise a dozen kinds for a broken folder
            if str(error).startswith("encoder."):
                raise
            raise ENCODER.cannot_load(self.path, error) from None
        self.lora.check()
        return config

    def load(self, places: Sequence[Path]) -> TextEncoder:
        encoder = TextEncoder.from_pretrained(
            self.path,
            pooling=self.pooling,
            hidden_dropout=self.hidden_dropout,
            attention_dropout=self.attention_dropout,
            scratch=self.scratch,
        )
        if self.lora.rank:
            add_adapters(encoder.model, self.lora)
        return encoder
