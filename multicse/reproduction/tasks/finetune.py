"""Classification of texts or pairs by fine-tuning a copy of the encoder, which is discarded afterwards."""

from __future__ import annotations

import copy
import logging
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from multicse.data.settings import Settings
from multicse.evaluation.encoders.encoder import FolderEncoder, evaluation_mode, on_device
from multicse.evaluation.kind import Kind
from multicse.evaluation.task import Encoded, Encoder, EvaluationError, Score, Task
from multicse.evaluation.tasks.classification import Labelled, LabelledTask, accuracy, check_labelled, read_labelled, score
from multicse.reproduction.tasks.probe import MODULES

logger = logging.getLogger(__name__)


class Training(Settings):
    """Settings of fine-tuning with AdamW, linear warm-up over a fraction of the steps, and linear decay to 0."""

    epochs: int = Field(3, gt=0)
    lr: float = Field(2e-5, gt=0)
    batch: int = Field(32, gt=0)
    weight_decay: float = 0.01
    warmup: float = 0.1
    schedule: Literal["linear", "constant"] = "linear"
    """Decay of the learning rate after the warm-up, to 0 or not at all."""
    clip: float = 1.0
    """Maximum norm of the gradient; 0 disables clipping."""
    max_length: int | None = None
    """Maximum number of tokens per text. If None, the limit of the encoder."""
    accumulate: bool = False
    """Never zero gradients, so that they accumulate over all steps, as in MoCoUTRL's released script."""
    seed: int = 0


class FinetuneTask(LabelledTask):
    """Classification by fine-tuning a copy of a `FolderEncoder`, with the metrics of `classification.score` in points.

    The head is applied to the sentence embedding; the sentences of a pair form one sequence, as in BERT. The best epoch on
    dev is tested once.

    Args:
        name: Name of the task.
        data: Training, dev and test set.
        training: Settings of training. Default: `Training()`.
        head: Key of `probe.MODULES`.
    """

    def __init__(self, name: str, data: Labelled, training: Training | None = None, head: str = "linear") -> None:
        check_labelled(name, data)
        super().__init__(name, data)
        self.training = training or Training()
        self.head = head

    def sentences(self) -> list[str]:
        """Return no sentences, since embeddings change during training."""
        return []

    def score(self, encoder: Encoder) -> Score:
        """Return the metrics, and counts, classes, confusion matrix, settings and dev accuracy by epoch as details."""
        while isinstance(encoder, Encoded):
            encoder = encoder.encoder
        if not isinstance(encoder, FolderEncoder):
            raise EvaluationError(
                f"task {self.name}: fine-tuning needs the weights of a model folder (load_encoder), but "
                f"{type(encoder).__name__} has none. Use the task classify, which supports any encoder"
            )
        if self.data.pairs and not callable(getattr(encoder.model[0], "tokenizer", None)):
            raise EvaluationError(f"task {self.name}: the tokenizer of {encoder.path} does not support sentence pairs")
        _, predicted, dev = self.train(encoder)
        details: dict[str, Any] = {"head": self.head, "dev_accuracy": max(dev), "dev_by_epoch": dev}
        return score(self.data, predicted, details | {"training": self.training.model_dump()})

    def train(self, encoder: FolderEncoder) -> tuple[FolderEncoder, np.ndarray, list[float]]:
        """Train a copy of the encoder; return it without the head, classes (N,) of test, and dev accuracy by epoch."""
        device = encoder.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(self.training.seed)
            run = _Run(encoder, self.data, self.training, self.head)
            return run.encoder, *run.run()


class Finetune(Training, Kind):
    """The same texts: the encoder itself is trained."""

    kind: Literal["finetune"] = "finetune"
    trains: ClassVar[bool] = True
    head: Literal["linear", "three-layers"] = "linear"
    """Classifier on the embedding."""

    def make(self, seed: int) -> Task:
        """Return the task."""
        given = {"seed": seed} | self.model_dump(include=self.model_fields_set & Training.model_fields.keys())
        return FinetuneTask(self.title, read_labelled(self.place, seed), Training.model_validate(given), self.head)


class _Run:
    """Fine-tuning of a copy of the encoder's model."""

    def __init__(self, encoder: FolderEncoder, data: Labelled, training: Training, head: str) -> None:
        self.device, self.data, self.training = encoder.device, data, training
        trained = copy.deepcopy(encoder.model).requires_grad_(True)
        if training.max_length is not None:
            trained.max_seq_length = training.max_length
        self.encoder = FolderEncoder(trained, encoder.path, encoder.pooling, 128)
        self.width = encoder.model.truncate_dim or encoder.model.get_embedding_dimension()
        self.model = nn.ModuleList([trained, MODULES[head](self.width, len(data.classes)).to(self.device)])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=training.lr, weight_decay=training.weight_decay)
        total = training.epochs * -(-len(data.parts["train"]) // training.batch)
        warm, falls = round(training.warmup * total), training.schedule == "linear"
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer,
            lambda step: min((step + 1) / max(1, warm), (total - step) / max(1, total - warm) if falls else 1.0, 1.0),
        )

    def run(self) -> tuple[np.ndarray, list[float]]:
        """Return the predicted classes (N,) of the test set by the best epoch, and dev accuracy by epoch."""
        dev: list[float] = []
        kept: dict[str, Tensor] = {}
        for epoch in range(self.training.epochs):
            self._epoch()
            found = accuracy(self.data.y["dev"], self._predict("dev"))
            if not dev or found > max(dev):
                kept = {name: value.detach().cpu().clone() for name, value in self.model.state_dict().items()}
            dev.append(found)
            logger.info("epoch %d of %d: dev accuracy %.2f", epoch + 1, self.training.epochs, found)
        self.model.load_state_dict(kept)
        return self._predict("test"), dev

    def _epoch(self) -> None:
        self.model.train()
        labels = torch.from_numpy(self.data.y["train"])
        order = torch.randperm(len(labels))
        for batch in order.split(self.training.batch):
            loss = nn.functional.cross_entropy(self._logits("train", batch), labels[batch].to(self.device))
            if not torch.isfinite(loss):
                raise EvaluationError(f"{self.data.source}: the fine-tuning loss is {loss.item()}; use a smaller lr")
            if not self.training.accumulate:
                self.optimizer.zero_grad()
            loss.backward()
            if self.training.clip:
                nn.utils.clip_grad_norm_(self.model.parameters(), self.training.clip)
            self.optimizer.step()
            self.schedule.step()

    def _logits(self, part: str, rows: Tensor) -> Tensor:
        chosen = [self.data.parts[part][i] for i in rows]
        texts: list[Any] = [(row.text, row.second) if self.data.pairs else row.text for row in chosen]
        features = self.encoder.tokenize(texts)
        encoder, head = self.model
        return head(encoder(on_device(features, self.device))["sentence_embedding"][:, : self.width])

    @torch.no_grad()
    def _predict(self, part: str) -> np.ndarray:
        rows = self.data.parts[part]
        order = np.argsort([-len(row.text) for row in rows], kind="stable")
        classes = np.zeros(len(rows), dtype=np.int64)
        with evaluation_mode(self.model):
            for batch in torch.from_numpy(order).split(4 * self.training.batch):
                classes[batch.numpy()] = self._logits(part, batch).argmax(1).cpu().numpy()
        return classes
