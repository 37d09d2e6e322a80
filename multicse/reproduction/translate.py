"""Back-translate: ``python reproduction/translate.py --there DIR --back DIR --text sentences.txt --out translated.tsv``.

DIR is a folder or model ID of a Hugging Face encoder-decoder for translation (Marian, FSMT, ...). The result has the columns
``original`` and ``translation``. An interrupted command resumes; use the same models.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

if not __package__ and __name__ != "__mp_main__":  # run as a file
    import _clone  # noqa: F401

from multicse.commands import read_options
from multicse.data.errors import DataError, cli_errors
from multicse.evaluation.load import fit_sentences

HEADER = "original\ttranslation\n"


@dataclass(frozen=True, kw_only=True)
class Translate:
    """Translate sentences to another language and back, from a .txt or .gz with one per line, or from shards."""

    text: Path
    """File with one sentence per line, or folder of shards with the field txt."""
    out: Path
    """TSV file for the output."""
    there: str
    """Model that translates from the language of the sentences to a second language."""
    back: str
    """Model that translates back."""
    device: str = "auto"
    """Device: cpu, cuda, ...; auto selects a GPU if available."""
    beams: int = 5
    """Number of beams; 1 is greedy decoding."""
    max_length: int = 128
    """Maximum number of tokens of a sentence and of its translation; longer ones are truncated."""
    batch: int = 32
    """Batch size in sentences."""

    def run(self) -> str:
        """Write the missing rows, and return a summary in one line."""
        sentences = [_one_line(sentence) for sentence in fit_sentences(self.text)]
        done = self._resume(sentences)
        if done < len(sentences):
            self._write(sentences, done)
        return f"{self.out}: {len(sentences):,} rows, {len(sentences) - done:,} of them new"

    def _resume(self, sentences: Sequence[str]) -> int:
        """Create the file, or truncate it to complete batches, and return the number of translated sentences."""
        content = self.out.read_bytes().splitlines(keepends=True) if self.out.exists() else []
        lines = [line for line in content if line.endswith(b"\n")] or [HEADER.encode()]
        if [line.decode().split("\t")[0] for line in lines[1:]] != list(sentences[: len(lines) - 1]):
            raise DataError(f"{self.out} contains translations of other sentences; delete it, or specify another --out")
        rows = len(lines) - 1
        done = rows if rows == len(sentences) else rows // self.batch * self.batch
        self.out.parent.mkdir(parents=True, exist_ok=True)
        self.out.write_bytes(b"".join(lines[: done + 1]))
        return done

    def _write(self, sentences: Sequence[str], done: int) -> None:
        """Append the rows of the sentences from index `done`."""
        there, back = (_translator(f"--{name}", getattr(self, name), self) for name in ("there", "back"))
        with (
            self.out.open("a", encoding="utf-8", newline="\n") as file,
            tqdm(total=len(sentences), initial=done, desc="translating", mininterval=1.0, disable=None, leave=False) as bar,
        ):
            for start in range(done, len(sentences), self.batch):
                originals = sentences[start : start + self.batch]
                rows = zip(originals, map(_one_line, back(there(originals))), strict=True)
                file.write("".join(f"{original}\t{translation}\n" for original, translation in rows))
                file.flush()
                bar.update(len(originals))


def _translator(option: str, name: str, settings: Translate) -> Callable[[Sequence[str]], list[str]]:
    """Load an encoder-decoder with its tokenizer, and return a function that translates sentences."""
    import torch
    from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer

    from multicse.models.pretrained import PretrainedRef

    saved = PretrainedRef(option, tokenizer=True, kind="AutoModelForSeq2SeqLM")
    folder = saved.folder(name)
    saved.refuse_unreadable(name, folder)
    try:
        tokenizer, config = AutoTokenizer.from_pretrained(folder), AutoConfig.from_pretrained(folder)
    except (OSError, ImportError) as error:  # some tokenizers need the package sentencepiece or sacremoses
        raise saved.cannot_load(name, error) from error
    loaded, _ = saved.load(AutoModelForSeq2SeqLM, name, folder, config)
    loaded.generation_config.max_length = None  # max_new_tokens limits the length
    device = ("cuda" if torch.cuda.is_available() else "cpu") if settings.device == "auto" else settings.device
    model: Any = loaded.eval().to(device)

    @torch.inference_mode()
    def translate(sentences: Sequence[str]) -> list[str]:
        shape = {"padding": True, "truncation": True, "max_length": settings.max_length, "return_tensors": "pt"}
        inputs = tokenizer(list(sentences), **shape).to(device)
        tokens = model.generate(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            num_beams=settings.beams,
            do_sample=False,
            max_new_tokens=settings.max_length,
        )
        found: list[str] = tokenizer.batch_decode(tokens, skip_special_tokens=True)
        return found

    return translate


def _one_line(sentence: str) -> str:
    """Replace tabs and line ends, which separate the cells of the result, by spaces."""
    return " ".join(sentence.split())


@cli_errors
def main(argv: list[str] | None = None) -> int:
    """Run the command line; invalid input ends with exit code 2."""
    from multicse.trainers.engine.cluster import quiet

    arguments: Translate = read_options(Translate, argv, description=__doc__)
    quiet()
    print(arguments.run())
    return 0


if __name__ == "__main__":
    sys.exit(main())
