"""What describe says of a recipe, against what is known about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines import describe, parts
from tests.small import write_encoder


def test_a_recipe_is_shown_with_its_steps_and_parameters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    encoder = parts.SMALL.model_copy(update={"path": write_encoder(tmp_path / "encoder")})
    monkeypatch.setattr(parts, "SMALL", encoder)
    text = describe.describe_recipe("visualcse", "smoke")
    assert "visualcse/smoke" in text and "image, text (one optimizer each)" in text
    assert "steps       8 (1,254 per pass over 'text')" in text
    assert "1,797" in text  # digits of scikit-learn


def test_unknown_papers_and_recipes(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no paper 'visual'"):
        describe.describe_recipe("visual", "demo")
    with pytest.raises(ValueError, match="did you mean 'smoke'"):
        describe.describe_recipe("visualcse", "smok")
