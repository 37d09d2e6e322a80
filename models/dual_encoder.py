"""Texts and pictures, or texts and sounds, in one space: two towers, two projections, a learned scale."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoConfig

from multicse.data.streams.inputs import AudioInput, ImageInput
from multicse.models.dual_export import form_of, save_dual
from multicse.models.hub_folders import ENCODER, carried_files, half, languages_of, projection_layers, route_of
from multicse.models.sentence_encoder import CardText, SentenceEncoder, shown
from multicse.models.text_encoder import TOKENIZING, TextEncoder
from multicse.models.tower import Projection
from multicse.models.towers import AnyTower

LOWEST_TEMPERATURE, FIRST_TEMPERATURE = 0.01, 0.07
PROJECTIONS = {"text": "text_projection", "image": "visual_projection", "audio": "audio_projection"}
"""What transformers' CLIP and CLAP call them."""
THINGS = {"image": "pictures", "audio": "sounds"}
ITEMS = {
    "image": ("from PIL import Image", 'item = Image.open("dog.jpg")', "item"),
    "audio": (
        "import soundfile",
        'samples, rate = soundfile.read("dog.wav")  # mono: samples (T,)',
        '{"audio": {"array": samples, "sampling_rate": rate}}',
    ),
}
"""How a program gets an item and what it hands over: an import, a line, an expression."""


class DualEncoder(SentenceEncoder):
    """What CLIP and CLAP learn; as a sentence encoder, its text half.

    text: token ids -> pooled (B, d_text); tower: pictures (B, 3, S, S) or spectrograms (B, frames, bins) -> (B, d_tower);
    each projected to (B, embed_dim) and brought to unit length. `projection` is CLIP's (``linear``, no bias) or CLAP's
    (``mlp``: Linear, ReLU, Linear). `logit_scale` is the logarithm of the factor on cosines, at first 1/.07.

    A text encoder or tower that comes from a folder of CLIP, of CLAP or of this project's exports brings its projection
    along, and the text encoder the scale. `check_projection` says whether it fits.
    """

    def __init__(
        self,
        text: TextEncoder,
        tower: AnyTower,
        embed_dim: int,
        projection: Projection = "linear",
        keeps_end: bool = True,
    ) -> None:
        super().__init__()
        if text.pooling == "cls" and text.head is None:  # RoBERTa's checkpoints have no pooler: it begins at random
            text.add_head(only_trains=False)
        text.normalise = False  # the projection comes first
        self.text, self.input, self.embed_dim, self.projection = text, tower.input, embed_dim, projection
        self.keeps_end = keeps_end
        """Off: long texts lose their last token, as CyCLIP's released code has it."""
        self.tower_path: str | None = getattr(tower, "path", None)
        """Folder or hub name of the tower's weights; none: they were random."""
        self.tower = tower.build(embed_dim)
        self.text_projection = make_projection(projection, text.hidden_size, embed_dim)
        self.tower_projection: nn.Module = nn.Identity()
        if not self.tower.projects:
            self.tower_projection = make_projection(projection, self.tower.width, embed_dim)
            _load_projection(self.tower_projection, self.tower_path, tower.modality)
        _load_projection(self.text_projection, text.path, "text")
        self.logit_scale = nn.Parameter(torch.tensor(_saved_scale(text.path)))
        self.modalities = ("text", tower.modality)

    @property
    def tokenizer(self) -> Any:
        """The text encoder's."""
        return self.text.tokenizer

    @property
    def limit(self) -> int:
        """Most tokens of one text."""
        return self.text.limit

    @property
    def scale(self) -> Tensor:
        """Factor on cosines."""
        return self.logit_scale.exp()

    def logit_factor(self) -> float:
        """The same as a number."""
        return float(self.scale.detach())

    @torch.no_grad()
    def clamp_scale(self) -> None:
        """Keep the scale between 1 and 100, as CLIP does after every step."""
        self.logit_scale.clamp_(0, -math.log(LOWEST_TEMPERATURE))

    def tokenize(self, texts: list[str], max_length: int | None = None) -> dict[str, Tensor]:
        """``input_ids`` and ``attention_mask`` (B, L), padded to the longest, cut at `max_length` or `limit`."""
        if self.keeps_end:
            return self.text.tokenize(texts, max_length)
        prompted = [self.text.conventions.prompt + text for text in texts]
        with TOKENIZING:
            whole = self.tokenizer(
                prompted, padding=True, truncation=False, return_tensors="pt", return_token_type_ids=False
            )
        limit = min(max_length or self.limit, self.limit)
        ids, mask = whole["input_ids"][:, :limit], whole["attention_mask"][:, :limit]
        # The largest id is taken for the end of the text; what comes behind it changes nothing.
        end = (ids * mask).argmax(1, keepdim=True)
        return {"input_ids": ids, "attention_mask": (torch.arange(ids.shape[1]) <= end).long()}

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Unit vectors (B, d) of tokenised texts (B, L)."""
        return self.texts(batch["input_ids"], batch["attention_mask"])

    def texts(self, input_ids: Tensor, attention_mask: Tensor, host_mask: Tensor | None = None) -> Tensor:
        """The same; input_ids and attention_mask (B, L), and the latter on the CPU if it is there."""
        pooled = self.text.pooled(input_ids, attention_mask, host_mask)
        return _unit(self.text_projection(self.text.project(pooled)))

    def items(self, inputs: Tensor) -> Tensor:
        """Unit vectors (B, d) of pictures (B, 3, S, S) or spectrograms (B, frames, bins)."""
        return _unit(self.tower_projection(self.tower(inputs)))

    def prepare(self, items: list[Any]) -> Tensor:
        """What the tower takes of pictures, uint8 (H, W, 3), or of sounds with ``samples`` (T,) and ``rate``: the middle
        of what is too large, and nothing is drawn at random."""
        from multicse.data.streams.preprocess import prepare_images, prepare_sounds

        if isinstance(self.input, ImageInput):
            return prepare_images(items, **self.input.model_dump())
        return prepare_sounds([(sound.samples, sound.rate) for sound in items], **self.input.model_dump())

    def stack(self) -> list[nn.Module]:
        return self.text.stack()

    @torch.no_grad()
    def encode_items(self, items: Sequence[Any]) -> Tensor:
        """Unit vectors (B, d) of pictures or sounds as `prepare` takes them."""
        return self.items(self.prepare(list(items)).to(self.logit_scale.device))

    def probe_items(self) -> tuple[list[Any], list[Any]]:
        """Two pictures, or two sounds, of noise.

        Pictures need no resizing, for which libraries have filters of their own; sounds have the model's rate and 16 bits,
        and are not longer than its window, of which CLAP would take a random part.
        """
        rng = np.random.default_rng(0)
        if isinstance(self.input, ImageInput):
            size = self.input.size
            pictures = [rng.integers(0, 256, shape, dtype=np.uint8) for shape in ((size, size, 3), (size, size + 4, 3))]
            return pictures, [Image.fromarray(picture) for picture in pictures]
        rate, samples = self.input.rate, self.input.samples
        waves = [(rng.integers(-9000, 9000, n) / 32768).astype(np.float32) for n in (samples, max(1, samples // 3))]
        ours = [SimpleNamespace(samples=wave, rate=rate) for wave in waves]
        return ours, [{"audio": {"array": wave, "sampling_rate": rate}} for wave in waves]

    def save(self, folder: str) -> None:
        """Write a folder that SentenceTransformer loads, for texts and for the other modality."""
        save_dual(self, folder)

    def card(self, folder: Path) -> CardText:
        """What a model card says of it."""
        modality = self.modalities[1]
        code, things = carried_files(folder), THINGS[modality]
        imported, opened, item = ITEMS[modality]
        return CardText(
            what=f"An encoder of texts and {things}: vectors of one space, whose cosine says how well a text describes one "
            f"of the {things}, or how close two texts are.",
            initialised_from=self._initialised_from(things),
            usage=(
                imported,
                "from sentence_transformers import SentenceTransformer",
                "",
                f'model = SentenceTransformer("path/to/this/folder"{", trust_remote_code=True" if code else ""})',
                opened,
                f"items = model.encode([{item}])",
                'texts = model.encode(["a dog", "a cat"])',
                "print(model.similarity(items, texts))",
            ),
            notes=self._notes(code),
            pipeline_tag="feature-extraction",
            bases=(self.text.origin if self.text.path else None, self.tower_path),
            languages=languages_of(self.text.path),
        )

    def _initialised_from(self, things: str) -> str:
        text, tower = shown(self.text.origin or "unknown"), self.tower_path and shown(self.tower_path)
        if self.text.path is None:
            other = f" and, for {things}, the weights of `{tower}`" if tower else ""
            return f"From random weights, with the tokenizer of `{text}`{other}, trained"
        if tower == text:
            return f"Trained from `{text}`"
        return f"Trained from `{text}` and, for {things}, " + (f"`{tower}`" if tower else "random weights")

    def _notes(self, code: list[str]) -> str:
        notes = []
        if code:
            files = ", ".join(f"`{name}`" for name in code)
            notes.append(
                f"The folder brings Python of its own ({files}), which `trust_remote_code=True` runs: read it first if the "
                "folder has come from somewhere else."
            )
        if (form := form_of(self)) != "router":
            model = {"clip": "CLIPModel", "clap": "ClapModel"}[form]
            notes.append(f"`{model}.from_pretrained` and `AutoProcessor.from_pretrained` load the same folder.")
        if isinstance(self.input, AudioInput):
            notes.append(f"Sounds must have {self.input.rate:,} samples per second.")
        tower = " (a ResNet begins anew)" if code else ""
        return " ".join([*notes, f"A further run takes its halves with `--encoder.path` and `--method.tower.path`{tower}."])


def _unit(vectors: Tensor) -> Tensor:
    """Of unit length, and no longer in half precision: a length of 1 +- .004 shifts logits at a scale of 100 by .4."""
    whole = vectors.float() if vectors.dtype in (torch.float16, torch.bfloat16) else vectors
    return F.normalize(whole, dim=-1)


def make_projection(kind: Projection, d_in: int, d_out: int) -> nn.Module:
    """CLIP's matrix, with deviation d_in^-.5, or CLAP's Linear-ReLU-Linear: (B, d_in) -> (B, d_out)."""
    if kind == "mlp":
        return nn.Sequential(nn.Linear(d_in, d_out), nn.ReLU(), nn.Linear(d_out, d_out))
    linear = nn.Linear(d_in, d_out, bias=False)
    nn.init.normal_(linear.weight, std=d_in**-0.5)
    return linear


def check_projection(setting: str, path: str | None, modality: str, kind: Projection, dim: int) -> None:
    """Raise ValueError where `path` is a CLIP, a CLAP or a Router whose projection is another one than `kind` to `dim`."""
    if path is None:
        return
    folder = Path(path)
    if layers := projection_layers(route_of(folder, modality)):
        own: Projection = "linear" if len(layers) == 1 else "mlp"
        size = json.loads((layers[-1] / "config.json").read_text(encoding="utf-8"))["out_features"]
    else:
        config = AutoConfig.from_pretrained(half(folder, modality) if folder.is_dir() else path)
        if config.model_type not in NATIVE:
            return
        own, size = NATIVE[config.model_type], config.projection_dim
    if (own, size) != (kind, dim):
        raise ValueError(
            f"{setting}={path!r} has a projection {own!r} to {size} dimensions, and the method has "
            f"method.projection={kind!r}, method.embed_dim={dim}; set method.projection {own} and method.embed_dim "
            f"{size}, or take a folder without a projection"
        )


NATIVE: dict[str, Projection] = {"clip": "linear", "clap": "mlp"}


def _saved(path: str | None, names: tuple[str, ...]) -> dict[str, Tensor]:
    """Tensors of a folder's, or hub model's, safetensors whose name begins with one of `names`."""
    found: dict[str, Tensor] = {}
    for file in [] if path is None else sorted(ENCODER.folder(path).glob("*.safetensors")):
        with safe_open(str(file), "pt") as content:
            found |= {key: content.get_tensor(key) for key in content.keys() if key.startswith(names)}  # noqa: SIM118  # safetensors' file is no mapping
    return found


def _load_projection(projection: nn.Module, path: str | None, modality: str) -> None:
    """Give a projection the weights that a CLIP, CLAP or Router folder has for this modality, if it has them."""
    if path is None:
        return
    name = f"{PROJECTIONS[modality]}."
    own = {key.removeprefix(name): value for key, value in _saved(path, (name,)).items()}
    own = {key.replace("linear1", "0").replace("linear2", "2"): value for key, value in own.items()}
    layers = projection_layers(route_of(ENCODER.folder(path), modality))
    for layer, place in zip(layers, ("0.", "2.") if len(layers) > 1 else ("",), strict=False):
        own |= {key.replace("linear.", place): value for key, value in load_file(layer / "model.safetensors").items()}
    if own:
        projection.load_state_dict(own)


def _saved_scale(path: str | None) -> float:
    """The logarithm of the scale that a saved dual encoder ends with (CLAP: that of its audio), else that of 1/.07."""
    found = {key: float(value) for key, value in _saved(path, ("logit_scale",)).items()}
    return found.get("logit_scale", found.get("logit_scale_a", -math.log(FIRST_TEMPERATURE)))
