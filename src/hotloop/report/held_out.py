"""How well a fine-tuned model does on held-out examples, in words and rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hotloop.core.task_scores import ClassScore, TaskScores
from hotloop.report.numbers import counted, loss, rate, seconds

NAMES = {"macro_f1": "macro F1", "micro_f1": "micro F1", "f1": "F1", "mae": "mean absolute error", "rmse": "root mean square error", "r2": "R2", "mean_f1": "mean F1"}  # fmt: skip
CLASS_HEAD = ("label", "precision", "recall", "F1", "examples")
WIDEST = 20
"""Classes of a confusion matrix: a wider one is no picture."""
MOST_MISTAKES = 20


def measures_in_words(scores: TaskScores) -> str:
    found = ", ".join(f"{NAMES.get(n, n)} {value:.4f}" for n, value in scores.measures().items())
    if scores.entities is not None:
        found += f"; of entities {measures_in_words(scores.entities)}"
    if scores.num_targets is not None:
        found += f" over {counted(scores.num_targets, 'held-out token')}"
    return found


def class_rows(scores: Sequence[ClassScore]) -> list[tuple[str, ...]]:
    return [
        (each.label, ratio(each.precision, "never predicted"), ratio(each.recall, "none there"), ratio(each.f1, "neither"), str(each.num_examples))
        for each in scores
    ]  # fmt: skip


def ratio(value: float | None, why_none: str) -> str:
    return f"- ({why_none})" if value is None else f"{value:.3f}"


def class_tables(scores: TaskScores) -> list[tuple[str, list[tuple[str, ...]]]]:
    """Titles and rows: labels, kinds of entities, or both."""
    of_labels = [] if scores.task == "tokens" else [("by label", class_rows(scores.by_class))]
    entities = scores if scores.task == "tokens" else scores.entities
    if entities is not None:
        of_labels.append(("by kind of entity", class_rows(entities.by_class)))
    return [(title, rows) for title, rows in of_labels if rows]


def confusion_table(scores: TaskScores) -> list[tuple[str, ...]]:
    """A row for each true class, of the predicted ones; the first row names them. Empty where it is too wide."""
    if scores.confusion is None or len(scores.confusion) > WIDEST:
        return []
    rows = zip(scores.classes, scores.confusion, strict=False)
    return [("true, then predicted as", *scores.classes), *((n, *map(str, own)) for n, own in rows)]


def mistakes(scores: TaskScores) -> list[tuple[str, str, str]]:
    """The classes that are mistaken most: true, predicted, how many examples."""
    found = [
        (count, true, guess)
        for true, row in zip(scores.classes, scores.confusion or (), strict=False)
        for guess, count in zip(scores.classes, row, strict=False)
        if count and true != guess
    ]
    found.sort(key=lambda each: -each[0])
    return [(true, guess, str(count)) for count, true, guess in found[:MOST_MISTAKES]]


def scores_in_lines(scores: TaskScores) -> list[str]:
    """The measures, then a line for each class."""
    lines = [measures_in_words(scores)]
    answers = {n for row in scores.confusion or () for n, count in enumerate(row) if count}
    if len(answers) == 1 and sum(map(any, scores.confusion or ())) > 1:
        only = scores.classes[answers.pop()]
        lines.append(
            f"  it always answers `{only}`: it has not learned to tell them apart; try a higher `optimizer.learning_rate`, or more `train.epochs`"
        )
    for title, rows in class_tables(scores):
        what = ("entity", "entities") if "entity" in title else ("example",)
        lines += [
            f"  {label}: precision {precision}, recall {recall}, f1 {f1}, {counted(int(num), *what)}"
            for label, precision, recall, f1, num in rows
        ]
    return lines


def profile_lines(found: Mapping[str, Any]) -> list[str]:
    """What `--profile test` found, a line each, and what the whole job would take."""
    losses = [loss(each) for each in (found["first_loss"], found["last_loss"]) if each is not None]
    same = (
        "to the same bits"
        if found["resumed_equal"]
        else "to OTHER weights: it does not resume exactly"
    )
    takes = "not known" if found["full_s"] is None else f"about {seconds(found['full_s'])} of steps, evaluations and saves left out"  # fmt: skip
    before, after = found["before"] or {}, found["after"] or {}
    speeds = [rate(found[f"{each}_per_s"], each) for each in ("tokens", "examples") if found[f"{each}_per_s"]]  # fmt: skip
    told = [f"{NAMES.get(n, n)} {value:.4f} to {after[n]:.4f}" for n, value in before.items() if n in after]  # fmt: skip
    return [
        f"trained    {counted(found['steps'], 'step')} on {counted(found['examples'], 'example')}, loss {' to '.join(losses)}",
        "evaluated  "
        + (
            f"on held-out examples, before the first step and after the last: {', '.join(told)}"
            if found["evaluated"]
            else "no: nothing is held out, or `eval.every_steps` is 0"
        ),
        f"speed      {' and '.join(speeds) or 'not known'} in the median step",
        f"resumed    from the checkpoint of step {found['resumed_from']}, {same}",
        f"exported   {found['model']}: {'an adapter, for peft' if found['is_adapter'] else 'loads in transformers with the same logits'}",
        f"full job   {counted(found['full_examples'], 'example')}, {counted(found['full_steps'], 'step')}, {takes}",
    ]
