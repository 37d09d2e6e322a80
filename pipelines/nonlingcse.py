"""Images and sounds together (NonLing-CSE): a turn on images, one on sounds, one on text in every step."""

from __future__ import annotations

from typing import Any

from pipelines import audiocse, parts, visualcse
from pipelines.cli import main
from trainers.nonling import NonLingCSEConfig
from trainers.recipe import Recipe


def _both(row: str, visual: Recipe, audio: Recipe) -> Recipe:
    images: Any = visual.method
    sounds: Any = audio.method
    method = NonLingCSEConfig(text=images.text, image=images.image, audio=sounds.audio)
    content = visual.model_dump() | {
        "name": f"nonlingcse/{row}",
        "method": method.model_dump(),
        "streams": audio.model_dump()["streams"] | visual.model_dump()["streams"],
        "optim": audio.model_dump()["optim"] | visual.model_dump()["optim"],
    }
    return Recipe.model_validate(content).replace("run.output", f"runs/nonlingcse/{row}")


def bert_base() -> Recipe:
    """BERT-base with the rates and weights of Tables 1 and 2."""
    return _both("bert-base", visualcse.bert_base(), audiocse.bert_base())


def demo() -> Recipe:
    """Minutes on a laptop, offline."""
    return _both("demo", visualcse.demo(), audiocse.demo())


def smoke() -> Recipe:
    """Eight steps: what tests run."""
    return parts.smoke(demo(), "nonlingcse")


RECIPES = {"demo": demo, "smoke": smoke, "bert-base": bert_base}

if __name__ == "__main__":
    main(RECIPES, __doc__)
