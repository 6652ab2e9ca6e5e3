"""Writes `tests/golden/seqeval.json`: what seqeval says of random tags. Needs `pip install seqeval`."""

import json
import random
from pathlib import Path
from typing import Any

TAGS = ["O", "O", "B-LOC", "I-LOC", "B-PER", "I-PER"]


def main() -> None:
    from seqeval import metrics
    from seqeval.metrics.sequence_labeling import get_entities

    draw = random.Random(0)
    cases: list[dict[str, Any]] = []
    for _ in range(60):
        true = [draw.choices(TAGS, k=draw.randint(1, 9)) for _ in range(draw.randint(1, 4))]
        predicted = [[t if draw.random() < 0.6 else draw.choice(TAGS) for t in own] for own in true]
        report = metrics.classification_report(true, predicted, output_dict=True, zero_division=0)
        cases.append(
            {
                "true": true,
                "predicted": predicted,
                "entities": get_entities(predicted[0]),
                "precision": metrics.precision_score(true, predicted, zero_division=0),
                "recall": metrics.recall_score(true, predicted, zero_division=0),
                "f1": metrics.f1_score(true, predicted, zero_division=0),
                "accuracy": metrics.accuracy_score(true, predicted),
                "by_kind": {k: float(report[k]["f1-score"]) for k in ("LOC", "PER") if k in report},
            }
        )
    text = "[\n" + ",\n".join(json.dumps(each) for each in cases) + "\n]\n"
    (Path(__file__).parents[1] / "golden/seqeval.json").write_text(text)


if __name__ == "__main__":
    main()
