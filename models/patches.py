"""Images and sounds as sequences of vectors that a text transformer's layers can take."""

from __future__ import annotations

import torch
from torch import Tensor, nn

# Weights the VisualCSE authors use, by hidden size. Their RobertaForCL loads ViT-large whatever the encoder
# ([errata 2.1]), which cannot run for roberta-base; picking by size is the repair.
VIT_OF_SIZE = {768: "google/vit-base-patch16-224-in21k", 1024: "google/vit-large-patch16-224-in21k"}


class ImagePatches(nn.Module):
    """ViT's embedding module (NonLing-CSE, section 3): square patches, its own CLS and its own positions, no dropout.

    images (B, channels, size, size) -> (B, 1 + (size / patch_size)^2, hidden_size), the CLS first. Trained, not frozen.
    Without `path` the weights are fresh, as Hugging Face initialises a ViT; `path` is a ViT folder or hub name, or
    ``"auto"``: the authors' choice for this hidden size.
    """

    def __init__(self, hidden_size: int, image_size: int = 224, patch_size: int = 16, path: str | None = None) -> None:
        from transformers import ViTConfig, ViTModel  # here: a third of a second, which --help need not wait for

        super().__init__()
        # A ViT without layers is its embedding module, with Hugging Face's initialisation and loading.
        if path is None:
            config = ViTConfig(hidden_size=hidden_size, image_size=image_size, patch_size=patch_size)
            config.num_hidden_layers, config.hidden_dropout_prob = 0, 0.0
            vit = ViTModel(config, add_pooling_layer=False)
        else:
            vit = ViTModel.from_pretrained(
                _vit_path(path, hidden_size),
                num_hidden_layers=0,
                hidden_dropout_prob=0.0,
                add_pooling_layer=False,
                use_safetensors=True,
                dtype=torch.float32,
            )
        self.embeddings = vit.embeddings

    def forward(self, images: Tensor) -> Tensor:
        return self.embeddings(images)


class AudioPatches(nn.Module):
    """Patches of a log-mel spectrogram (NonLing-CSE, section 3, after SSAST): its own CLS, no dropout.

    spectrograms (B, frames, bins) -> (B, 1 + patches, hidden_size), the CLS first.

    SSAST: 16 x 16 patches, learned positions, spectrograms normalised as (x - mean) / (2 std). The paper's 211 tokens are
    the released code's ([errata 2.2]): 24 x 24 patches, ``positions=False``, ``statistics=None``, random weights. `path`
    is an AST folder of Hugging Face, whose CLS, patch projection and positions are taken (not its distillation token).
    """

    def __init__(
        self,
        hidden_size: int,
        frames: int = 1024,
        bins: int = 128,
        patch_size: int = 16,
        positions: bool = True,
        statistics: tuple[float, float] | None = None,
        path: str | None = None,
    ) -> None:
        from transformers import ASTModel

        super().__init__()
        ast = None if path is None else ASTModel.from_pretrained(
            path, num_hidden_layers=0, use_safetensors=True, dtype=torch.float32
        ).embeddings  # fmt: skip
        stride = (patch_size, patch_size) if ast is None else ast.patch_embeddings.projection.stride
        self.statistics = statistics
        self.projection = nn.Conv2d(1, hidden_size, patch_size, stride)
        self.cls_token = nn.Parameter(torch.empty(1, 1, hidden_size))
        nn.init.trunc_normal_(self.cls_token, std=0.02)
        self.positions: nn.Parameter | None = None
        if positions:
            rows, columns = ((n - patch_size) // s + 1 for n, s in zip((bins, frames), stride, strict=True))
            self.positions = nn.Parameter(torch.empty(1, 1 + rows * columns, hidden_size))
            nn.init.trunc_normal_(self.positions, std=0.02)
        if ast is not None:
            self.projection.load_state_dict(ast.patch_embeddings.projection.state_dict())
            self.cls_token.data.copy_(ast.cls_token)
            if self.positions is not None:
                own = [0, *range(2, ast.position_embeddings.shape[1])]  # 1 is the distillation token's
                self.positions.data.copy_(ast.position_embeddings[:, own])

    def forward(self, spectrograms: Tensor) -> Tensor:
        if self.statistics is not None:
            mean, std = self.statistics
            spectrograms = (spectrograms - mean) / (2 * std)
        patches = self.projection(spectrograms.mT[:, None]).flatten(2).mT  # (B, 1, bins, frames) -> (B, patches, d)
        tokens = torch.cat([self.cls_token.expand(len(patches), -1, -1), patches], dim=1)
        return tokens if self.positions is None else tokens + self.positions


def check_image_patches(hidden_size: int, image_size: int, patch_size: int, path: str | None) -> None:
    """Raise ValueError when such patches cannot enter an encoder of `hidden_size`; reads the ViT's config.json only."""
    if image_size % patch_size:
        raise ValueError(f"method.image.patch_size: {patch_size} does not divide image_size {image_size}")
    if path is None:
        return
    sizes = {"hidden_size": hidden_size, "image_size": image_size, "patch_size": patch_size}
    _check_folder("method.image.path", _vit_path(path, hidden_size), sizes)


def check_audio_patches(hidden_size: int, frames: int, bins: int, patch_size: int, path: str | None) -> None:
    """The same for `AudioPatches`."""
    if patch_size > min(frames, bins):
        raise ValueError(
            f"method.audio.patch_size: {patch_size} is larger than the spectrogram ({frames} frames x {bins} bins)"
        )
    if path is None:
        return
    sizes = {"hidden_size": hidden_size, "max_length": frames, "num_mel_bins": bins, "patch_size": patch_size}
    _check_folder("method.audio.path", path, sizes)


def _vit_path(path: str, hidden_size: int) -> str:
    if path != "auto":
        return path
    if hidden_size not in VIT_OF_SIZE:
        raise ValueError(
            f"method.image.path: 'auto' knows a ViT for hidden sizes {', '.join(map(str, VIT_OF_SIZE))}, and the "
            f"encoder has {hidden_size}. Give the path of one with that hidden size, or leave the path out (fresh weights)."
        )
    return VIT_OF_SIZE[hidden_size]


def _check_folder(setting: str, path: str, sizes: dict[str, int]) -> None:
    """sizes: what the folder's config.json must say, by its names."""
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(path)
    except OSError as error:
        raise ValueError(
            f"{setting}: {path!r} cannot be read. Give a folder with config.json and model.safetensors, or leave the "
            f"path out (fresh weights). ({error})"
        ) from error
    for name, value in sizes.items():
        if (found := getattr(config, name)) != value:
            raise ValueError(
                f"{setting}: {path!r} has {name} {found}, and here it is {value} (hidden_size is the text encoder's, whose "
                "layers the patches go through). Make them equal, or leave the path out (fresh weights)."
            )
