"""The picture of an answer holds what the terminal said, and nothing that it would load from elsewhere."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from judge_inputs import ENVIRONMENT

from hotloop.core.judgement import Diagnosis, Parity, Steps, Verdict
from hotloop.core.ledger import Ledger, TriedFix
from hotloop.core.measurement import Environment
from hotloop.report.kept_patch import MOST_OF_COMMAND, render_card

TOGETHER = Verdict(
    *("improved", 2.9, 2.2, 3.8, 0.99, Parity("same", "bitwise", num_steps=60, max_difference=0.0)),
    *("baseline", "loader_workers"),
    num_pairs=4,
)
DIAGNOSIS = Diagnosis(
    "input", Steps(60, 10, 0.0655), breakdown={"data_wait": 0.75, "forward": 0.25}
)


def text_of(*command: str, environment: Environment | None = ENVIRONMENT) -> str:
    """The words of the picture of a run of this command."""
    fix = TriedFix("loader_workers", 2, "kept", "faster")
    ledger = Ledger(command, (fix,), ("loader_workers",), TOGETHER, 3, 10, 1.0, None)
    picture = render_card(ledger, DIAGNOSIS, environment, "It waits for data.")
    tree = ElementTree.fromstring(picture)
    found = set(re.findall(r"""(?:href|src|url)\W+http[^"') ]*""", picture))
    assert found == set(), "it asks for something"
    assert "script" not in {each.tag.rpartition("}")[2] for each in tree.iter()}
    lines: dict[str, str] = {}
    for each in tree.iter("{http://www.w3.org/2000/svg}text"):
        row = each.get("y", "")
        lines[row] = lines.get(row, "") + (each.text or "")
    return "\n".join(lines.values()).replace("\u00a0", " ")


def test_it_says_what_held_the_run_back_what_was_proven_and_where() -> None:
    text = text_of("python", "train.py")
    for words in (
        "$ hotloop doctor -- python train.py",
        "It waits for data.",
        "  data_wait   75.0 %  ████████████████████████",
        "With loader_workers: 2.20 to 3.80x (4 pairs), improved, on fresh pairs.",
        "The losses are identical over 60 steps.",
        "AMD EPYC, 2 CPUs, torch 2.13.0, hotloop 0.1",
    ):
        assert words in text
    assert "AMD" not in text_of("python", "train.py", environment=None)


def test_any_command_fits_and_is_text_alone() -> None:
    text = text_of("python", "<script>&'\".py", *["--an-option"] * 40)
    assert "<script>&" in text
    line = next(each for each in text.split("\n") if "doctor" in each)
    assert line.strip().endswith("...")
    assert len(line.strip()) <= len("$ hotloop doctor -- ") + MOST_OF_COMMAND
