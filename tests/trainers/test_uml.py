"""UML: the loss of masked patches compared with explicit loops, and errors that name the setting."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import CLIPTextConfig

from tests.models import tiny_encoder
from tests.worlds import example

recipes = example("uml")
UMLConfig, UMLImageConfig = recipes.UMLConfig, recipes.UMLImageConfig
IMAGE = UMLImageConfig(image_size=8, patch_size=4, masked=0.5)


def made(dropout: float = 0.0, **settings: object) -> Any:
    encoder = tiny_encoder.encoder(config=tiny_encoder.bert_config(dropout))
    return UMLConfig.model_validate({"image": IMAGE, **settings}).build(encoder).double().eval()


def patch(image: Tensor, number: int) -> Tensor:
    """Return a view of one of the four patches of an image (3, 8, 8)."""
    row, column = divmod(number, 2)
    return image[:, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4]


@torch.no_grad()
def test_the_error_of_masked_patches_equals_explicit_loops() -> None:
    method, batch = made(), tiny_encoder.image_batch(3)
    images = batch["image"].double()
    torch.manual_seed(7)
    found = method({"image": batch.replace(image=images)}).losses["image"].item()
    torch.manual_seed(7)
    draws = torch.rand(6, 4)
    total = 0.0
    for number, image in enumerate(images.flatten(0, 1)):
        order = sorted(range(4), key=lambda place: float(draws[number, place]))
        visible = image.clone()
        for place in order[:2]:
            patch(visible, place).zero_()
        states = method.sentence_encoder.model.encoder(method.patches(visible[None])).last_hidden_state[0, 1:]
        for place in order[:2]:
            error = method.decoder(states[place]) - patch(image, place).flatten()
            total += float((error**2).sum()) / 48 / 2 / 6
    assert found == pytest.approx(total, rel=1e-10)


def test_updates_alternate_or_are_summed() -> None:
    assert [*UMLConfig(summed=False).updates().values()] == [("image",), ("text",)]
    assert [*UMLConfig().updates().values()] == [("image", "text")]
    method, image = made(), tiny_encoder.image_batch(4)
    batches = {"image": image.replace(image=image["image"].double()), "text": tiny_encoder.text_batch(4)}
    assert {*method(batches).losses} == {"image", "text"} and method.loss_weights == {"image": 1.0}


def test_other_models_are_refused() -> None:
    with pytest.raises(ValueError, match=r"encoder\.path: a 'clip_text_model' model"):
        recipes.demo().method.check(recipes.demo(), CLIPTextConfig())
