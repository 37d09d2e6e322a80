"""What others distribute, in a form that is read here: ``python pipelines/convert.py htsat HTSAT.ckpt models/htsat``."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import tyro

if __name__ == "__main__":
    # The repository instead of this folder: the rooms are found without installation.
    sys.path[0] = str(Path(__file__).resolve().parents[1])


@dataclass(frozen=True)
class Htsat:
    """HTSAT's AudioSet checkpoint (HTSAT-fullset-imagenet-map=0.467.ckpt) to a folder for method.tower.path."""

    checkpoint: tyro.conf.Positional[Path]
    """The file. It is a pickle; only its tensors are read, nothing of it is executed."""
    out: tyro.conf.Positional[Path]
    """Folder that is made: config.json and model.safetensors."""

    def run(self) -> None:
        from models.htsat_checkpoint import convert_htsat

        convert_htsat(self.checkpoint, self.out)


@dataclass(frozen=True)
class Prompts:
    """OpenAI's notebook Prompt_Engineering_for_ImageNet.ipynb to class names and templates for zero-shot tasks."""

    notebook: tyro.conf.Positional[Path]
    """The file, from the repository of CLIP."""
    out: tyro.conf.Positional[Path]
    """JSON file that is written, prompts/imagenet.json for the recipes: {"classes": [1,000], "templates": [80]}."""

    def run(self) -> None:
        from evaluation.tasks.zero_shot import read_notebook

        prompts = read_notebook(self.notebook)
        self.out.parent.mkdir(parents=True, exist_ok=True)
        self.out.write_text(json.dumps(prompts._asdict(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def main(argv: list[str] | None = None) -> int:
    """The command line; 2 when the input was bad."""
    command: Htsat | Prompts = tyro.extras.subcommand_cli_from_dict({"htsat": Htsat, "prompts": Prompts}, args=argv)
    try:
        command.run()
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"written to {command.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
