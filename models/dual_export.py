"""A dual encoder as a folder that other libraries load.

Where transformers has the architecture, CLIP or CLAP, the folder is its own: `CLIPModel` or `ClapModel`, `AutoProcessor` and
`SentenceTransformer` load it, and no code comes along. Everything else is a sentence-transformers folder with one module
that brings its Python (`models/dual_module.py`); ``text/`` in it is an ordinary sentence-transformers model.
"""

from __future__ import annotations

import copy
import shutil
import tempfile
from pathlib import Path
from typing import Any, Protocol

from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize
from torch import nn
from transformers import (
    ClapConfig,
    ClapFeatureExtractor,
    ClapModel,
    ClapProcessor,
    ClapTextConfig,
    CLIPConfig,
    CLIPModel,
    CLIPProcessor,
    CLIPTextModel,
)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from multicse.data.streams.inputs import AudioInput, ImageInput
from multicse.models import dual_module as exported
from multicse.models.adapters import merged
from multicse.models.audio_towers import AST, HTSAT
from multicse.models.carried_code import DUAL, save_with_code
from multicse.models.text_encoder import TextEncoder, is_bert_pooler
from multicse.models.text_folders import PROJECTION, append_modules
from multicse.models.tower import Projection, Tower
from multicse.models.towers import CLIPVision, ResNet

ROBERTAS = ("roberta", "xlm-roberta", "camembert", "clap_text_model")
"""Model types whose layers and positions are those of CLAP's text half, weight for weight."""


class DualParts(Protocol):
    """The parts of a `DualEncoder` that are saved."""

    text: TextEncoder
    tower: Tower
    text_projection: nn.Module
    tower_projection: nn.Module
    logit_scale: nn.Parameter
    projection: Projection
    embed_dim: int
    input: ImageInput | AudioInput
    keeps_end: bool
    modalities: tuple[str, ...]


def save_dual(dual: DualParts, folder: str) -> None:
    """Write `dual` to `folder`: as CLIP or CLAP of transformers where it is one, else with its code. Vectors of
    ``SentenceTransformer(folder).encode`` have unit length in both forms; see `form_of`."""
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    {"clip": _save_clip, "clap": _save_clap, "code": _save_code}[form_of(dual)](dual, place)


def form_of(dual: DualParts) -> str:
    """What a folder of `dual` is: ``clip``, ``clap``, or ``code``, which needs `trust_remote_code`."""
    return "clip" if _is_clip(dual) else "clap" if _is_clap(dual) else "code"


# ---- CLIP ------------------------------------------------------------------------------------------------------------


def _is_clip(dual: DualParts) -> bool:
    """CLIP's text transformer and image transformer, and a matrix behind each.

    A long text keeps its end here, whatever `dual.keeps_end` says: transformers looks for that token.
    """
    text = dual.text
    return (
        isinstance(text.model, CLIPTextModel)
        and text.pooling == "eot"
        and text.head is None
        and _end(text) not in (None, 2)  # 2 has another meaning in transformers: the largest id
        and isinstance(dual.tower, CLIPVision)
        and dual.projection == "linear"
    )


def _end(text: TextEncoder) -> int | None:
    """Id of the token that ends every text, if there is one."""
    ends = {text.tokenizer(sample)["input_ids"][-1] for sample in ("a", "the dog", "")}
    return ends.pop() if len(ends) == 1 and ends <= set(text.tokenizer.all_special_ids) else None


def _save_clip(dual: DualParts, folder: Path) -> None:
    tower: Any = dual.tower
    config = CLIPConfig(
        text_config={**dual.text.config.to_dict(), "eos_token_id": _end(dual.text), "projection_dim": dual.embed_dim},
        vision_config={**tower.model.config.to_dict(), "projection_dim": dual.embed_dim},
        projection_dim=dual.embed_dim,
        logit_scale_init_value=dual.logit_scale.item(),
    )
    model: Any = CLIPModel(config)
    model.text_model.load_state_dict(merged(dual.text.model).state_dict())
    model.vision_model.load_state_dict(tower.model.state_dict())
    model.text_projection.load_state_dict(dual.text_projection.state_dict())
    model.visual_projection.load_state_dict(dual.tower_projection.state_dict())
    model.logit_scale.data.copy_(dual.logit_scale.detach())
    _clear_name_or_path(model.config)
    model.save_pretrained(folder)
    made: Any = dual.input
    pictures = CLIPImageProcessorPil(
        size={"shortest_edge": made.size},
        crop_size={"height": made.size, "width": made.size},
        image_mean=list(made.mean),
        image_std=list(made.std),
    )
    CLIPProcessor(pictures, _unused(dual.text.tokenizer)).save_pretrained(folder)
    saved = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    saved.append(Normalize())
    saved.save(str(folder), create_model_card=False)
    pictures.save_pretrained(folder)  # what programs of before transformers 5 look for


def _clear_name_or_path(config: Any) -> None:
    """Where the halves came from says something about a machine."""
    for part in (config, *(getattr(config, name, None) for name in ("text_config", "vision_config", "audio_config"))):
        if part is not None:
            part._name_or_path = ""


LAST_CALL = ("max_length", "padding", "pad_to_multiple_of", "stride", "truncation", "truncation_strategy")


def _unused(tokenizer: Any) -> Any:
    """A copy of the tokenizer without the padding and truncation of its last call, which it would save as settings: a
    processor passes such a `max_length` on to the feature extractor, where it is a number of samples."""
    fresh = copy.deepcopy(tokenizer)
    if (backend := getattr(fresh, "backend_tokenizer", None)) is not None:
        backend.no_truncation()
        backend.no_padding()
    for name in LAST_CALL:
        fresh.init_kwargs.pop(name, None)
    return fresh


# ---- CLAP ------------------------------------------------------------------------------------------------------------


def _is_clap(dual: DualParts) -> bool:
    """HTSAT and a RoBERTa with a pooler, CLAP's projections, and spectrograms that its feature extractor makes."""
    text, tower, settings = dual.text, dual.tower, dual.input
    return (
        text.config.model_type in ROBERTAS
        and text.pooling == "cls"
        and text.head is not None
        and is_bert_pooler(text.head)
        and isinstance(tower, HTSAT)
        and tower.model.config.hidden_size == tower.width  # what the projection is built for
        and dual.projection == "mlp"
        and isinstance(settings, AudioInput)
        and settings.features == "clap"
        and float(settings.seconds).is_integer()
        and settings.n_fft % 2 == 0
        and settings.rate % 2 == 0
    )


def _save_clap(dual: DualParts, folder: Path) -> None:
    tower: Any = dual.tower
    head: Any = dual.text.head
    known = ClapTextConfig().to_dict()
    same = {name: value for name, value in dual.text.config.to_dict().items() if name in known}
    config = ClapConfig(
        text_config={**same, "model_type": "clap_text_model", "projection_dim": dual.embed_dim},
        audio_config={**tower.model.config.to_dict(), "projection_dim": dual.embed_dim},
        projection_dim=dual.embed_dim,
        projection_hidden_act="relu",
    )
    model: Any = ClapModel(config)
    text = {name: value for name, value in merged(dual.text.model).state_dict().items() if not name.startswith("pooler.")}
    text |= {f"pooler.dense.{name}": value for name, value in head.linear.state_dict().items()}
    buffers = {name: value for name, value in model.text_model.named_buffers() if name not in text}
    model.text_model.load_state_dict({**text, **buffers})
    model.audio_model.load_state_dict(tower.model.state_dict())
    for ours, theirs in ((dual.text_projection, model.text_projection), (dual.tower_projection, model.audio_projection)):
        parts = {"0": "linear1", "2": "linear2"}
        theirs.load_state_dict({parts[key[0]] + key[1:]: value for key, value in ours.state_dict().items()})
    model.logit_scale_a.data.copy_(dual.logit_scale.detach())
    model.logit_scale_t.data.copy_(dual.logit_scale.detach())
    _clear_name_or_path(model.config)
    model.save_pretrained(folder)
    made: Any = dual.input
    sounds = ClapFeatureExtractor(
        feature_size=made.bins,
        sampling_rate=made.rate,
        hop_length=made.hop,
        max_length_s=int(made.seconds),
        fft_window_size=made.n_fft,
        frequency_min=made.low_hz,
        frequency_max=made.high_hz,
        truncation="rand_trunc",
        padding="repeatpad",
    )
    ClapProcessor(sounds, _unused(dual.text.tokenizer)).save_pretrained(folder)
    SentenceTransformer(str(folder), device="cpu", local_files_only=True).save(str(folder), create_model_card=False)
    sounds.save_pretrained(folder)


# ---- everything else -------------------------------------------------------------------------------------------------


def _save_code(dual: DualParts, folder: Path) -> None:
    with tempfile.TemporaryDirectory() as place:
        text = Path(place) / "text"
        _save_text(dual, text)
        tower: Any = dual.tower
        kind = exported.RESNET if isinstance(tower, ResNet) else tower.model.config.model_type
        statistics = [tower.mean, tower.std] if isinstance(tower, AST) else None
        settings = {
            "modality": dual.modalities[1],
            "embed_dim": dual.embed_dim,
            "projection": dual.projection,
            "keeps_end": dual.keeps_end,
            "input": dual.input.model_dump(mode="json"),
            "tower": {"kind": kind, "statistics": statistics},
        }
        module = exported.DualEncoder(
            SentenceTransformer(str(text), device="cpu", local_files_only=True),
            exported.Tower(
                copy.deepcopy(tower.model).cpu(), kind, statistics
            ),  # sentence-transformers moves what it is given
            copy.deepcopy(dual.tower_projection).cpu(),
            exported.hf_state_dict(dual.text_projection, "text"),
            dual.logit_scale.item(),
            settings,
        )
        save_with_code(module, folder, DUAL)
        # Once more: sentence-transformers has just written it in the form that its older versions do not read.
        shutil.copytree(text, folder / "text", dirs_exist_ok=True)


def _save_text(dual: DualParts, folder: Path) -> None:
    """The text half as a sentence-transformers model, its projection included as modules named ``projection...``."""
    dual.text.save(str(folder))
    linears = [part for part in dual.text_projection.modules() if isinstance(part, nn.Linear)]
    more: dict[str, Any] = {}
    for number, linear in enumerate(linears):
        activation = nn.Identity() if number == len(linears) - 1 else nn.ReLU()
        dense = Dense(linear.in_features, linear.out_features, linear.bias is not None, activation)
        dense.linear.load_state_dict({name: value.detach().cpu() for name, value in linear.state_dict().items()})
        more[f"{PROJECTION}{number}"] = dense
    append_modules(folder, {**more, "length": Normalize()})
