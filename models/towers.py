"""The towers beside the text encoder, by their kinds: images or spectrograms to vectors."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from multicse.models.audio_towers import ASTTower as ASTTower
from multicse.models.audio_towers import HTSATTower as HTSATTower
from multicse.models.image_towers import ResNetTower as ResNetTower
from multicse.models.image_towers import ViTTower as ViTTower

AnyTower = Annotated[ViTTower | ResNetTower | HTSATTower | ASTTower, Field(discriminator="kind")]
