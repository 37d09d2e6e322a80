"""Dual encoder of texts and images or audio, as in CLIP and CLAP: two encoders, two projections, a learned scale."""

from __future__ import annotations

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
from multicse.models.hub_folders import carried_files, half, languages_of, projection_layers, read_json, route_of
from multicse.models.pretrained import ENCODER
from multicse.models.sentence_encoder import CardText, SentenceEncoder, shown
from multicse.models.text_encoder import TOKENIZING, TextEncoder
from multicse.models.tower import Projection, TowerConfig

LOWEST_TEMPERATURE, FIRST_TEMPERATURE = 0.01, 0.07
PROJECTIONS = {"text": "text_projection", "image": "visual_projection", "audio": "audio_projection"}
"""Names of the projections in transformers' CLIP and CLAP."""
NATIVE: dict[str, Projection] = {"clip": "linear", "clap": "mlp"}
"""Kind of projection in transformers' CLIP and CLAP."""
THINGS = {"image": "images", "audio": "audio clips"}
ITEMS = {
    "image": ("from PIL import Image", 'item = Image.open("dog.jpg")', "item"),
    "audio": (
        "import soundfile",
        'samples, rate = soundfile.read("dog.wav")  # mono: samples (T,)',
        '{"audio": {"array": samples, "sampling_rate": rate}}',
    ),
}
"""Python code for an item in the model card: import, line to open a file, expression for the item."""


class DualEncoder(SentenceEncoder):
    """Encoder of texts and images or audio, trained by CLIP and CLAP. Evaluated as a sentence encoder, it encodes texts.

    Pooled states of the text encoder and vectors of the tower are projected to (B, embed_dim) and scaled to unit length.
    `logit_scale` is the logarithm of the factor on cosine similarities. If the weights come from a folder of CLIP, of CLAP
    or of an export, the projections and the scale are loaded from there, too.

    Args:
        text: Text encoder.
        tower: Settings of the tower.
        embed_dim: Dimension of the shared space.
        projection: ``linear`` as in CLIP, without bias, or ``mlp`` as in CLAP: Linear, ReLU, Linear.
        keeps_end: Keep the end token of truncated texts. CyCLIP's released code does not.
    """

    def __init__(
        self,
        text: TextEncoder,
        tower: TowerConfig,
        embed_dim: int,
        projection: Projection = "linear",
        keeps_end: bool = True,
    ) -> None:
        super().__init__()
        if text.pooling == "pooler" and text.head is None:  # RoBERTa's checkpoints have no pooler: its weights are random
            text.add_head(only_trains=False)
        text.normalise = False  # the projection comes first
        self.text, self.input, self.embed_dim, self.projection = text, tower.input, embed_dim, projection
        self.keeps_end = keeps_end
        self.tower_path: str | None = getattr(tower, "path", None)
        """Folder or model ID of the tower's initial weights. If None, they were random."""
        self.tower = tower.build(embed_dim)
        self.text_projection = _projection(projection, text.hidden_size, embed_dim)
        self.tower_projection: nn.Module = nn.Identity()
        if not self.tower.projects:
            self.tower_projection = _projection(projection, self.tower.width, embed_dim)
            _load_projection(self.tower_projection, self.tower_path, tower.modality)
        _load_projection(self.text_projection, text.path, "text")
        self.logit_scale = nn.Parameter(torch.tensor(_saved_scale(text.path)))
        self.modalities = ("text", tower.modality)

    @property
    def scale(self) -> Tensor:
        """Return the factor on cosine similarities, a scalar ()."""
        return self.logit_scale.exp()

    def logit_factor(self) -> float:
        """Return the factor on cosine similarities as a number."""
        return float(self.scale.detach())

    @torch.no_grad()
    def clamp_scale(self) -> None:
        """Clamp the scale to 1 to 100, like CLIP after every step."""
        self.logit_scale.clamp_(0, -math.log(LOWEST_TEMPERATURE))

    def tokenize(self, texts: list[str], max_length: int | None = None) -> dict[str, Tensor]:
        """Tokenise texts, with or without the end token of truncated texts."""
        if self.keeps_end:
            return self.text.tokenize(texts, max_length)
        prompted = [self.text.conventions.prompt + text for text in texts]
        with TOKENIZING:
            complete = self.text.tokenizer(
                prompted, padding=True, truncation=False, return_tensors="pt", return_token_type_ids=False
            )
        limit = min(max_length or self.text.limit, self.text.limit)
        ids, mask = complete["input_ids"][:, :limit], complete["attention_mask"][:, :limit]
        # The largest ID is the end token; later tokens do not matter.
        end = (ids * mask).argmax(1, keepdim=True)
        return {"input_ids": ids, "attention_mask": (torch.arange(ids.shape[1]) <= end).long()}

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Return unit vectors (B, d) of tokenised texts (B, L)."""
        return self.texts(batch["input_ids"], batch["attention_mask"])

    def texts(self, input_ids: Tensor, attention_mask: Tensor, host_mask: Tensor | None = None) -> Tensor:
        """Encode texts with the arguments of `TextEncoder.pooled`.

        Args:
            input_ids: Token IDs, (B, L).
            attention_mask: Mask, (B, L).
            host_mask: Copy of the mask on the CPU, (B, L).

        Returns:
            Unit vectors, (B, d).
        """
        pooled = self.text.pooled(input_ids, attention_mask, host_mask)
        return _unit(self.text_projection(self.text.project(pooled)))

    def items(self, inputs: Tensor) -> Tensor:
        """Map images (B, 3, S, S) or spectrograms (B, frames, bins) to unit vectors (B, d)."""
        return _unit(self.tower_projection(self.tower(inputs)))

    def inputs_of(self, items: list[Any]) -> Tensor:
        """Return images (B, 3, S, S) or spectrograms (B, frames, bins) of items, cropped at the centre if necessary."""
        from multicse.data.streams.preprocess import prepare_images, prepare_sounds

        if isinstance(self.input, ImageInput):
            return prepare_images(items, **self.input.model_dump())
        return prepare_sounds([(clip.samples, clip.rate) for clip in items], **self.input.model_dump())

    def stack(self) -> list[nn.Module]:
        """Return the embeddings and the layers of the text encoder."""
        return self.text.stack()

    @torch.no_grad()
    def encode_items(self, items: Sequence[Any]) -> Tensor:
        """Return unit vectors (B, d) of B images or audio clips; see `inputs_of`."""
        return self.items(self.inputs_of(list(items)).to(self.logit_scale.device))

    def probe_items(self) -> tuple[list[Any], list[Any]]:
        """Return two images or two audio clips of noise.

        Images need no resizing, since filters differ between libraries. Audio clips have 16 bits and are not longer than
        the window, since CLAP would crop them randomly.
        """
        rng = np.random.default_rng(0)
        if isinstance(self.input, ImageInput):
            size = self.input.size
            images = [rng.integers(0, 256, shape, dtype=np.uint8) for shape in ((size, size, 3), (size, size + 4, 3))]
            return images, [Image.fromarray(image) for image in images]
        rate, samples = self.input.rate, self.input.samples
        waves = [(rng.integers(-9000, 9000, n) / 32768).astype(np.float32) for n in (samples, max(1, samples // 3))]
        ours = [SimpleNamespace(samples=wave, rate=rate) for wave in waves]
        return ours, [{"audio": {"array": wave, "sampling_rate": rate}} for wave in waves]

    def save(self, folder: str) -> None:
        """Write a folder that `SentenceTransformer` loads for both modalities."""
        save_dual(self, folder)

    def card(self, folder: Path) -> CardText:
        """Return the text of the model card."""
        modality = self.modalities[1]
        code, things = carried_files(folder), THINGS[modality]
        imported, opened, item = ITEMS[modality]
        return CardText(
            what=f"An encoder of texts and {things}: the cosine similarity of its vectors measures how well a text "
            f"describes one of the {things}, or how similar two texts are.",
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
                f"The folder contains Python code ({files}), which `trust_remote_code=True` runs: read it first if you do "
                "not trust its source."
            )
        if (form := form_of(self)) != "router":
            model = {"clip": "CLIPModel", "clap": "ClapModel"}[form]
            notes.append(f"`{model}.from_pretrained` and `AutoProcessor.from_pretrained` load the same folder.")
        if isinstance(self.input, AudioInput):
            notes.append(f"Audio must have a sampling rate of {self.input.rate:,} Hz.")
        tower = " (a ResNet starts from random weights)" if code else ""
        notes.append(
            f"`SentenceTransformer` opens a text that is the name or URL of a file as {self.modalities[1]}; pass "
            '`{"text": caption}` for captions of any form.'
        )
        notes.append(f"To continue training, start a run with `--encoder.path` and `--method.tower.path`{tower}.")
        return " ".join(notes)


def _unit(vectors: Tensor) -> Tensor:
    """Scale vectors to unit length in float32, since a length of 1 +- .004 changes logits by .4 at a scale of 100."""
    precise = vectors.float() if vectors.dtype in (torch.float16, torch.bfloat16) else vectors
    return F.normalize(precise, dim=-1)


def _projection(kind: Projection, d_in: int, d_out: int) -> nn.Module:
    """Create CLIP's or CLAP's projection with random weights."""
    if kind == "mlp":
        return nn.Sequential(nn.Linear(d_in, d_out), nn.ReLU(), nn.Linear(d_out, d_out))
    linear = nn.Linear(d_in, d_out, bias=False)
    nn.init.normal_(linear.weight, std=d_in**-0.5)
    return linear


def check_projection(setting: str, path: str | None, modality: str, kind: Projection, dim: int) -> None:
    """Raise ValueError if a folder of CLIP, of CLAP or of a Router has a projection of another kind or dimension."""
    if path is None:
        return
    folder = Path(path)
    if layers := projection_layers(route_of(folder, modality)):
        own: Projection = "linear" if len(layers) == 1 else "mlp"
        size = read_json(layers[-1] / "config.json")["out_features"]
    else:
        config = AutoConfig.from_pretrained(half(folder, modality) if folder.is_dir() else path)
        if config.model_type not in NATIVE:
            return
        own, size = NATIVE[config.model_type], config.projection_dim
    if (own, size) != (kind, dim):
        raise ValueError(
            f"{setting}={path!r} has a projection {own!r} to {size} dimensions, but the method has "
            f"method.projection={kind!r}, method.embed_dim={dim}; set method.projection {own} and method.embed_dim "
            f"{size}, or use a folder without a projection"
        )


def _saved(path: str | None, names: tuple[str, ...]) -> dict[str, Tensor]:
    """Return the tensors in the safetensors of a model with names that start with one of `names`."""
    found: dict[str, Tensor] = {}
    for file in [] if path is None else sorted(ENCODER.folder(path).glob("*.safetensors")):
        with safe_open(str(file), "pt") as content:
            keys = content.keys()  # safetensors has no iteration over the file itself
            found |= {key: content.get_tensor(key) for key in keys if key.startswith(names)}
    return found


def _load_projection(projection: nn.Module, path: str | None, modality: str) -> None:
    """Load the weights of a projection from a CLIP, CLAP or Router folder if it contains them."""
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
    """Return the logarithm of a saved dual encoder's scale (CLAP: of its audio scale), otherwise of 1 / .07."""
    found = {key: float(value) for key, value in _saved(path, ("logit_scale",)).items()}
    return found.get("logit_scale", found.get("logit_scale_a", -math.log(FIRST_TEMPERATURE)))
