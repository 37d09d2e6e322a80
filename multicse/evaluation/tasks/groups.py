"""Retrieval between texts of one meaning, such as the captions of an image: each looks for the others of its group."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Literal

import numpy as np

from multicse.data.text_files import read_rows
from multicse.evaluation.kind import Kind
from multicse.evaluation.task import Encoder, EvaluationError, Score, Task, embed
from multicse.evaluation.tasks.retrieval import found_metrics, relevant_ranks


class GroupsTask:
    """Recall at 1, 5 and 10, and mAP@10, in points: every text is a query, the other texts are the database.

    A text of the same group is right. Equal texts are one text, of all their groups; a text that is alone in its
    groups is no query, but is in the database.

    Args:
        name: Name of the task.
        rows: Texts and their groups.
    """

    primary = "map10"

    def __init__(self, name: str, rows: list[tuple[str, str]]) -> None:
        self.name = name
        self.hash = hashlib.sha256("".join(map(repr, rows)).encode()).hexdigest()
        self.texts = list(dict.fromkeys(text for text, _ in rows))
        row, members = {text: number for number, text in enumerate(self.texts)}, dict[str, set[int]]()
        for text, group in rows:
            members.setdefault(group, set()).add(row[text])
        right: list[set[int]] = [set() for _ in self.texts]
        for alike in members.values():
            for one in alike:
                right[one] |= alike - {one}
        self.groups = len(members)
        self.queries = [number for number, others in enumerate(right) if others]
        self.relevant = [np.array(sorted(right[number])) for number in self.queries]
        if not self.queries:
            raise EvaluationError("no group contains two different texts; give texts of one meaning the same label")

    def sentences(self) -> list[str]:
        """Return the distinct texts."""
        return self.texts

    def score(self, encoder: Encoder) -> Score:
        """Return recall and mAP; details are the numbers of texts, queries and groups."""
        vectors = embed(encoder, self.texts)
        found = relevant_ranks(vectors[self.queries], vectors, self.relevant, self.queries)
        counts = {"texts": len(self.texts), "queries": len(self.queries), "groups": self.groups}
        return Score(found_metrics(found), counts)


class Groups(Kind):
    """A TSV or CSV with the columns label and text: texts with one label are of one meaning, and look for each other."""

    kind: Literal["groups"] = "groups"

    def make(self, seed: int) -> Task:
        """Return the task, named after the file."""
        path = Path(self.place).expanduser()
        rows = [(row["text"].strip(), row["label"].strip()) for _, row in read_rows(path, ("label", "text"))]
        if any(not text for text, _ in rows):
            raise EvaluationError(f"{path}: a text is empty; remove its row")
        try:
            return GroupsTask(self.title, rows)
        except EvaluationError as error:
            raise EvaluationError(f"{path}: {error}") from None
