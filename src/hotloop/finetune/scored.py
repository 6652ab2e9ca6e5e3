"""Predictions held against the labels that stand beside their texts, counted as in the evaluations of a training."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import torch

from hotloop.core.errors import UsageError
from hotloop.core.finetune_config import ExamplesConfig
from hotloop.core.task_scores import TaskScores
from hotloop.finetune.entities import Entities
from hotloop.finetune.examples import label_of
from hotloop.finetune.input_rows import InputRow
from hotloop.finetune.labels import OneLabel
from hotloop.finetune.multilabel import MultiLabel
from hotloop.finetune.predict import Predictor
from hotloop.finetune.regression import Number


class Scored:
    """The answers of one model."""

    def __init__(self, own: Predictor, config: ExamplesConfig) -> None:
        """config: names of the columns."""
        kinds = sorted({name[2:] for name in own.names if name[1:2] == "-"})
        named = {name.lower() for name in own.names}  # what it gives is no missing label
        missing = [word for word in config.no_label if word.lower() not in named]
        self._own, self._config = own, config.model_copy(update={"no_label": missing})
        self._known = {*kinds, ""} if own.kind == "tokens" else set(own.names)
        heads: dict[str, Any] = {
            "classification": OneLabel(own.names),
            "multilabel": MultiLabel(own.names),
            "regression": Number(own.names),
            "tokens": Entities(tuple(kinds)),
        }
        self._head = heads[own.kind]
        self._tally = self._head.tally()
        self.num = 0
        """Rows that were scored."""
        self.unknown: Counter[str] = Counter()
        """Labels that the model does not give, and how many rows have each of them."""

    def add(self, given: InputRow, answer: dict[str, Any]) -> None:
        """answer: also as a csv file has it."""
        true = self._true(given)
        found: Any = answer.get("entities" if self._own.kind == "tokens" else "predicted")
        has_none = found is None or (found == "" and self._own.kind != "multilabel")
        if true is None or has_none or not given.text.strip():
            return
        self.num += 1
        if self._own.kind == "tokens":
            self._tally.count(_tags(given, found), true)
            return
        names = self._own.names
        if self._own.kind == "regression":
            values = [float(found)]
        elif self._own.kind == "classification":
            values = [float(name == found) for name in names]
        else:
            if isinstance(found, str):
                found = json.loads(found) if found.startswith('["') else found.split("|")
            values = [1.0 if name in found else -1.0 for name in names]
        label = self._head.label(true, None)
        self._tally.add(torch.tensor([values]), self._head.targets([label]), [label])

    def scores(self) -> TaskScores:
        """Of `num` rows, which are some."""
        scores: TaskScores = self._head.scores(self._tally.metrics())
        return scores

    def _true(self, given: InputRow) -> Any:
        """The label, labels, number or tags; `None` where there are none, or others than the model's."""
        kind = self._own.kind
        if kind == "tokens":
            true, own = given.tags, {tag[2:] for tag in given.tags or ()}
        else:
            try:
                true = label_of(self._config, kind, given.row, "")
            except UsageError:
                return None
            own = set(true) if kind == "multilabel" else {true}
        if kind != "regression" and (unknown := own - self._known):
            self.unknown[min(unknown)] += 1
            return None
        return true


def _tags(given: InputRow, entities: Any) -> list[str]:
    """Of each word of the text."""
    spans = given.spans
    tags = ["O"] * len(spans)
    for each in json.loads(entities) if isinstance(entities, str) else entities:
        mark = "B"
        for number, (begin, end) in enumerate(spans):
            if each["start"] <= begin and end <= each["end"]:
                tags[number], mark = f"{mark}-{each['label']}", "I"
    return tags
