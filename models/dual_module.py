"""Texts and pictures, or texts and sounds, to unit vectors of one space: the code that an exported model carries.

A copy of this file, of resnet.py and of preprocess.py lies in every folder that transformers has no architecture for, so it
needs nothing else of the project that wrote it: torch, transformers, sentence-transformers, and soxr for sounds at another
rate. Use:

    model = SentenceTransformer(folder, trust_remote_code=True)
    model.encode(["a dog barks"])
    model.encode([PIL.Image.open("dog.jpg")])                           # a model of pictures
    model.encode([{"array": samples, "sampling_rate": 44100}])          # a model of sounds, samples (T,)

The folder holds ``text/``, a sentence-transformers model of its own that gives the same vectors of texts; ``tower/``, the
other half before its projection; ``tower/projection.safetensors``; ``text/projection.safetensors`` with the text's
projection, for a further training, and the logarithm of the learned scale; and ``dual_config.json``.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import InputModule
from torch import Tensor, nn
from transformers import (
    ASTModel,
    ClapAudioModel,
    CLIPVisionModel,
    DeiTModel,
    Dinov2Model,
    Dinov2WithRegistersModel,
    ViTModel,
)

from .resnet import ModifiedResNet

try:
    from .preprocess import prepare_images, prepare_sounds
except ImportError:  # not in an export, but where this project keeps it
    from multicse.data.streams.preprocess import prepare_images, prepare_sounds

CONFIG, PROJECTION = "dual_config.json", "projection.safetensors"
HUB_OPTIONS = ("token", "cache_folder", "revision", "local_files_only")
PROJECTIONS = {"text": "text_projection", "image": "visual_projection", "audio": "audio_projection"}
"""What transformers' CLIP and CLAP call them."""
RESNET = "multicse_resnet"
MODELS: dict[str, tuple[Any, dict[str, Any]]] = {
    "clip_vision_model": (CLIPVisionModel, {}),
    "vit": (ViTModel, {"add_pooling_layer": False}),
    "deit": (DeiTModel, {"add_pooling_layer": False}),
    "dinov2": (Dinov2Model, {}),
    "dinov2_with_registers": (Dinov2WithRegistersModel, {}),
    "clap_audio_model": (ClapAudioModel, {}),
    "audio-spectrogram-transformer": (ASTModel, {}),
}
"""Class of every kind of tower, and how to build it without what is unused."""


class DualEncoder(InputModule):
    """The module of a sentence-transformers model: text -> vector, picture or sound -> vector, (B, d) of unit length.

    text: gives unit vectors of texts. tower: (B, 3, S, S) or (B, frames, bins) -> (B, width). projection: (B, width) ->
    (B, d). text_projection: its weights, by `hf_state_dict`. settings: the content of dual_config.json.
    """

    config_file_name = CONFIG

    def __init__(
        self,
        text: SentenceTransformer,
        tower: Tower,
        projection: nn.Module,
        text_projection: dict[str, Tensor],
        logit_scale: float,
        settings: dict[str, Any],
    ) -> None:
        super().__init__()
        self.text, self.tower, self.projection, self.settings = text, tower, projection, settings
        self.modality: str = settings["modality"]
        self.logit_scale = nn.Parameter(torch.tensor(float(logit_scale)))
        # The text half has it too; it is kept in this form for those who train further.
        self._text_projection = text_projection

    # ---- sentence-transformers' interface ---------------------------------------------------------------------------

    @property
    def modalities(self) -> list[Any]:
        return ["text", self.modality]

    @property
    def tokenizer(self) -> Any:
        return self.text.tokenizer

    @property
    def max_seq_length(self) -> int | None:
        """Most tokens of one text."""
        return self.text.max_seq_length

    @max_seq_length.setter
    def max_seq_length(self, value: int | None) -> None:
        self.text.max_seq_length = value

    def get_embedding_dimension(self) -> int:
        """Length of a vector."""
        return int(self.settings["embed_dim"])

    def preprocess(self, inputs: Sequence[Any], prompt: str | None = None, **kwargs: Any) -> dict[str, Any]:
        """Features of texts, or of pictures or sounds: all of one kind. A string is a text, also if it names a file.

        Pictures: PIL, or uint8 (H, W, 3). Sounds: {"array": (T,) float -1 to 1 or int16, "sampling_rate": samples per
        second}, or (T,) alone at the model's rate. Raises ValueError for anything else.
        """
        texts = [isinstance(item, str) for item in inputs]
        if all(texts):
            return self._tokens([(prompt or "") + text for text in inputs])
        if any(texts):
            raise ValueError(f"texts and {self.modality} items together: encode them in two calls")
        if self.modality == "image":
            return {"pixel_values": prepare_images(list(inputs), **self.settings["input"])}
        sounds = [_sound(item, self.settings["input"]["rate"]) for item in inputs]
        return {"input_features": prepare_sounds(sounds, **self.settings["input"])}

    def _tokens(self, texts: list[str]) -> dict[str, Any]:
        if self.settings["keeps_end"]:
            return dict(self.text.preprocess(texts))
        # As CyCLIP's released code: cut without an end token, and the largest id is taken for the end.
        whole = self.tokenizer(texts, padding=True, return_tensors="pt", return_token_type_ids=False)
        ids, mask = (whole[name][:, : self.max_seq_length] for name in ("input_ids", "attention_mask"))
        end = (ids * mask).argmax(1, keepdim=True)
        return {"input_ids": ids, "attention_mask": (torch.arange(ids.shape[1]) <= end).long()}

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        if "input_ids" in features:
            return {**features, "sentence_embedding": self.text(dict(features))["sentence_embedding"]}
        items = features["pixel_values" if self.modality == "image" else "input_features"]
        vectors = self.projection(self.tower(items.to(self.logit_scale.dtype)))
        return {**features, "sentence_embedding": F.normalize(vectors, dim=-1)}

    def save(self, output_path: str, *args: Any, safe_serialization: bool = True, **kwargs: Any) -> None:
        """Write the module's files to a folder; safetensors and JSON whatever `safe_serialization` says."""
        folder = Path(output_path)
        self.text.save(str(folder / "text"), create_model_card=False)
        self.tower.save(folder / "tower")
        save_file(hf_state_dict(self.projection, self.modality), folder / "tower" / PROJECTION)
        scale = {"logit_scale": self.logit_scale.detach().cpu().clone()}
        save_file({**self._text_projection, **scale}, folder / "text" / PROJECTION)
        (folder / CONFIG).write_text(json.dumps(self.settings, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", *args: Any, **kwargs: Any) -> DualEncoder:
        """The module of a folder, or of a hub repository. No code of the folder is run by this."""
        options = {name: value for name, value in kwargs.items() if name in HUB_OPTIONS}
        place = cls.load_dir_path(model_name_or_path, subfolder, **options)
        assert place is not None
        folder = Path(place)
        settings = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        text = SentenceTransformer(
            str(folder / "text"), device="cpu", local_files_only=True, model_kwargs={"use_safetensors": True}
        )
        saved = load_file(folder / "text" / PROJECTION)
        scale = float(saved.pop("logit_scale"))
        tower = Tower.load(folder / "tower", settings["tower"])
        projection = _read(load_file(folder / "tower" / PROJECTION), settings["modality"])
        return cls(text, tower, projection, saved, scale, settings)


class Tower(nn.Module):
    """Pictures (B, 3, S, S), or spectrograms (B, frames, bins), to vectors (B, width).

    kind: `RESNET`, or the model's type in transformers. statistics: mean and standard deviation of AST's spectrograms.
    """

    def __init__(self, model: Any, kind: str, statistics: Sequence[float] | None = None) -> None:
        super().__init__()
        self.model, self.kind, self.statistics = model, kind, statistics

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == RESNET:
            return self.model(x)
        if self.kind == "clip_vision_model":
            return self.model(pixel_values=x).pooler_output
        if self.kind == "clap_audio_model":
            return self.model(input_features=x[:, None]).pooler_output
        if self.kind == "audio-spectrogram-transformer":
            mean, std = self.statistics or (0.0, 0.5)
            x = F.pad(x, (0, 0, 0, self.model.config.max_length - x.shape[1]))
            return self.model(input_values=(x - mean) / (2 * std)).pooler_output
        return self.model(pixel_values=x).last_hidden_state[:, 0]

    def save(self, folder: Path) -> None:
        """safetensors and config.json."""
        folder.mkdir(parents=True, exist_ok=True)
        if self.kind != RESNET:
            self.model.save_pretrained(folder)
            return
        save_file(
            {n: t.detach().cpu().contiguous() for n, t in self.model.state_dict().items()}, folder / "model.safetensors"
        )
        (folder / "config.json").write_text(json.dumps(resnet_config(self.model), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path, settings: dict[str, Any]) -> Tower:
        """The tower of a folder; raises ValueError for a kind that is not known, or for missing weights."""
        kind, statistics = settings["kind"], settings.get("statistics")
        if kind == RESNET:
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            resnet = ModifiedResNet(config["embed_dim"], config["size"], config["width"], tuple(config["blocks"]))
            resnet.load_state_dict(load_file(folder / "model.safetensors"))
            return cls(resnet, kind)
        if kind not in MODELS:
            raise ValueError(f"{folder}: a tower of kind {kind!r}; known are {', '.join((RESNET, *MODELS))}")
        model_class, options = MODELS[kind]
        model, report = model_class.from_pretrained(
            folder, local_files_only=True, use_safetensors=True, output_loading_info=True, **options
        )
        if report["missing_keys"]:
            raise ValueError(f"{folder}: the weights {', '.join(sorted(report['missing_keys']))} are missing")
        return cls(model, kind, statistics)


def resnet_config(model: ModifiedResNet) -> dict[str, Any]:
    """What `ModifiedResNet` is built of."""
    return {
        "model_type": RESNET,
        "embed_dim": model.attnpool.project.out_features,
        "size": model.size,
        "width": model.conv3.out_channels,
        "blocks": [len(stage) for stage in model.stages],  # type: ignore[arg-type]  # stages are sequences
    }


def hf_state_dict(projection: nn.Module, modality: str) -> dict[str, Tensor]:
    """The weights of a projection by the names that transformers gives them; nothing for none."""
    name, parts = PROJECTIONS[modality], {"0": "linear1", "2": "linear2"}
    found = {}
    for key, value in projection.state_dict().items():
        first, _, rest = key.partition(".")
        found[".".join([name, *([parts.get(first, first), rest] if rest else [key])])] = value.detach().cpu().clone()
    return found


def _read(saved: dict[str, Tensor], modality: str) -> nn.Module:
    """The projection from such weights: CLIP's matrix, CLAP's Linear-ReLU-Linear, or none."""
    weights = {key.removeprefix(f"{PROJECTIONS[modality]}."): value for key, value in saved.items()}
    if not weights:
        return nn.Identity()
    if "weight" in weights:
        d_out, d_in = weights["weight"].shape
        made: nn.Module = nn.Linear(d_in, d_out, bias=False)
    else:
        first, last = (nn.Linear(*weights[f"linear{number}.weight"].T.shape) for number in (1, 2))
        made = nn.Sequential(OrderedDict(linear1=first, relu=nn.ReLU(), linear2=last))
    made.load_state_dict(weights)
    return made


# ---- inputs ----------------------------------------------------------------------------------------------------------


def _sound(item: Any, rate: int) -> tuple[np.ndarray, int]:
    if isinstance(item, dict):
        item, rate = item.get("array"), int(item.get("sampling_rate") or 0)
    wave = np.asarray(item)
    if wave.dtype != np.int16 and wave.dtype.kind != "f":
        raise ValueError(
            f"a sound must be {{'array': mono samples (T,), 'sampling_rate': samples per second}}, its samples float or "
            f"int16, not {wave.dtype}"
        )
    return (wave if wave.dtype == np.int16 else wave.astype(np.float32)), rate
