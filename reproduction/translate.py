"""Back-translations: ``python reproduction/translate.py --there DIR --back DIR --text sentences.txt --out translated.tsv``.

Or paraphrases. DIR is the folder of any Hugging Face encoder-decoder (Marian, FSMT, T5, mBART, NLLB, ...), or its name on
the hub. The result has the columns ``original`` and ``translation``; a run that was ended goes on where its file ends.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tyro
from tqdm import tqdm

if not __package__:  # run as a file: this clone comes first, not an installed copy
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from multicse.data.errors import DataError, cli_errors
from multicse.data.order import seed_of
from multicse.data.shards import RawSample, ShardSet, read
from multicse.data.streams.decode import text
from multicse.data.text_files import read_lines

HEADER = "original\ttranslation\n"


@dataclass(frozen=True, kw_only=True)
class Translate:
    """Sentences, one a line of a .txt or .gz or packed as shards, to another language and back; or paraphrased."""

    text: Path
    """A file with a sentence a line, or a folder of shards with the field txt."""
    out: Path
    """The .tsv that is written; its settings lie beside it as OUT.json."""
    there: str | None = None
    """Model that translates from the sentences' language."""
    back: str | None = None
    """Model that translates back from that."""
    paraphrase: str | None = None
    """Instead of both: a model that says a sentence in other words."""
    languages: tuple[str, str] | None = None
    """For models of many languages: how their tokenizer calls the sentences' language and the other (en_XX de_DE)."""
    prefix: str = ""
    """Put before a sentence, as T5's models want: 'translate English to German: '."""
    back_prefix: str = ""
    """Put before a translation on its way back."""
    device: str = "auto"
    """Where it runs: cpu, cuda, ...; auto: a GPU where there is one."""
    beams: int = 5
    """Width of the beam search; 1: greedy."""
    sample: bool = False
    """Draw words instead, with `temperature`, from the `top_p` most probable."""
    temperature: float = 1.0
    """With `sample`: what the scores are divided by; lower is less varied."""
    top_p: float = 1.0
    """With `sample`: words are drawn from the most probable ones that together have this share."""
    max_length: int = 128
    """Tokens of a sentence and of its translation; longer ones are cut."""
    batch: int = 32
    """Sentences that are translated at a time."""
    seed: int = 0
    """Seed of the draws. Those of a batch depend on it and on the batch alone, so a run that went on equals one that did
    not."""

    def run(self) -> str:
        """Write what is not yet there; what was done, in a line.

        Raises DataError for another choice than there and back, or paraphrase alone; and as `read_sentences`, `resume` and
        `Model` do.
        """
        if bool(self.there) != bool(self.back) or bool(self.there) == bool(self.paraphrase):
            raise DataError("give --there and --back for back-translations, or --paraphrase alone")
        sentences = read_sentences(self.text)
        settings = self.settings(sentences)
        done = resume(self.out, sentences, settings, self.batch)
        if done < len(sentences):
            self.write(sentences, done)
        return f"{self.out}: {len(sentences):,} rows, {len(sentences) - done:,} of them new"

    def settings(self, sentences: Sequence[str]) -> dict[str, Any]:
        """What decides about the result."""
        given = asdict(self)
        for name in ("text", "out", "device"):
            del given[name]
        return given | {"sentences": hashlib.sha256("\n".join(sentences).encode()).hexdigest()}

    def write(self, sentences: Sequence[str], done: int) -> None:
        steps = self.steps()
        with (
            self.out.open("a", encoding="utf-8", newline="\n") as file,
            tqdm(total=len(sentences), initial=done, desc="translating", mininterval=1.0, disable=None, leave=False) as bar,
        ):
            for start in range(done, len(sentences), self.batch):
                originals = sentences[start : start + self.batch]
                found = list(originals)
                for step in steps:
                    found = step(found, seed_of(self.seed, start))
                rows = zip(originals, map(one_line, found), strict=True)
                file.write("".join(f"{original}\t{translation}\n" for original, translation in rows))
                file.flush()
                bar.update(len(originals))

    def steps(self) -> list[Callable[[list[str], int], list[str]]]:
        """The models, one after the other."""
        own, other = self.languages or (None, None)
        if self.paraphrase:
            return [Model("--paraphrase", self.paraphrase, self, self.prefix, (own, own))]
        assert self.there and self.back
        return [
            Model("--there", self.there, self, self.prefix, (own, other)),
            Model("--back", self.back, self, self.back_prefix, (other, own)),
        ]


class Model:
    """An encoder-decoder and its tokenizer: sentences and a seed -> sentences.

    `languages` are those from and to which it translates, as its tokenizer calls them. Raises ValueError, which begins with
    `option`, for what is no such folder, weights that are pickled, and unknown languages.
    """

    def __init__(
        self, option: str, name: str, settings: Translate, prefix: str, languages: tuple[str | None, str | None]
    ) -> None:
        import torch
        from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer

        from multicse.models.hub_folders import PretrainedRef

        self.settings, self.prefix = settings, prefix
        saved, (own, other) = PretrainedRef(option, tokenizer=True, kind="AutoModelForSeq2SeqLM"), languages
        folder = saved.folder(name)
        saved.refuse_pickles(name, folder)
        try:
            self.tokenizer = AutoTokenizer.from_pretrained(folder, **({"src_lang": own} if own else {}))
            config = AutoConfig.from_pretrained(folder)
        except (OSError, ImportError) as error:  # some tokenizers need the package sentencepiece or sacremoses
            raise saved.cannot_load(name, error) from error
        model, _ = saved.load(AutoModelForSeq2SeqLM, name, folder, config)
        model.generation_config.max_length = None  # max_new_tokens says it
        device = ("cuda" if torch.cuda.is_available() else "cpu") if settings.device == "auto" else settings.device
        self.model = model.eval().to(device)
        self.first = None if other is None else self.tokenizer.convert_tokens_to_ids(other)
        if other is not None and self.first in (None, self.tokenizer.unk_token_id):
            raise DataError(f"--languages: the tokenizer of {name} knows no {other!r}")

    def __call__(self, sentences: list[str], seed: int) -> list[str]:
        import torch

        settings = self.settings
        inputs = self.tokenizer(
            [self.prefix + sentence for sentence in sentences],
            padding=True,
            truncation=True,
            max_length=settings.max_length,
            return_tensors="pt",
        )
        drawn = {"temperature": settings.temperature, "top_p": settings.top_p, "top_k": 0} if settings.sample else {}
        torch.manual_seed(seed % 2**63)
        with torch.inference_mode():
            tokens = self.model.generate(
                input_ids=inputs["input_ids"].to(self.model.device),
                attention_mask=inputs["attention_mask"].to(self.model.device),
                num_beams=settings.beams,
                do_sample=settings.sample,
                max_new_tokens=settings.max_length,
                **drawn,
                **({} if self.first is None else {"forced_bos_token_id": self.first}),
            )
        found: list[str] = self.tokenizer.batch_decode(tokens, skip_special_tokens=True)
        return found


def read_sentences(place: Path) -> list[str]:
    """The sentences of a file, or of a folder of shards, without empty ones and each in one line. Raises DataError."""
    if not place.is_dir():
        return [one_line(line) for _, line in read_lines(place)]
    found = []
    for shard in ShardSet.open(str(place)).shards:
        for sample in read(shard, range(shard.samples)):
            if not isinstance(sample, RawSample):
                raise DataError(f"shard {shard.name}, sample {sample.key!r}: {sample.reason}")
            found.append(one_line(text(sample.fields, ("txt",), sample.key)[0]))
    return found


def one_line(sentence: str) -> str:
    """Without tabs and line ends, which would part the cells of the result."""
    return " ".join(sentence.split())


def resume(out: Path, sentences: Sequence[str], settings: dict[str, Any], batch: int) -> int:
    """How many sentences are done: the file is cut to whole batches, or begun.

    Raises DataError for a file that other settings or sentences made, naming the first that differs.
    """
    record = out.with_name(f"{out.name}.json")
    content = out.read_bytes() if out.exists() else b""
    ends = [place + 1 for place, byte in enumerate(content) if byte == ord("\n")]
    if not ends:
        out.parent.mkdir(parents=True, exist_ok=True)
        record.write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
        out.write_text(HEADER, encoding="utf-8")
        return 0
    before = json.loads(record.read_text(encoding="utf-8")) if record.exists() else {}
    for name, value in json.loads(json.dumps(settings)).items():
        if (made := before.get(name, "unknown")) != value:
            raise DataError(
                f"{out} was made with {name} {made!r}, now it is {value!r}; remove the file, or name another --out"
            )
    rows = len(ends) - 1
    done = rows if rows == len(sentences) else rows // batch * batch
    with out.open("rb+") as file:
        file.truncate(ends[done])
    return done


@cli_errors
def main(argv: list[str] | None = None) -> int:
    """The command line; 2 when the input was bad."""
    from multicse.trainers.engine.cluster import quiet

    arguments: Translate = tyro.cli(Translate, args=argv, description=__doc__)
    quiet()
    print(arguments.run())
    return 0


if __name__ == "__main__":
    sys.exit(main())
