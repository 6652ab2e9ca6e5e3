"""The table of `hotloop bench effectiveness`: nothing of it is left out for being slow, or early."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from judge_inputs import ENVIRONMENT

from hotloop.core.effectiveness import Effectiveness
from hotloop.core.judgement import Interval, Outcome, Parity, ParityName, Verdict
from hotloop.core.ledger import Ledger, TriedFix
from hotloop.report.effectiveness import effectiveness_markdown, effectiveness_table
from hotloop.report.ledger import ledger_answer


def verdict(
    ratios: tuple[float, ...],
    low: float | None,
    high: float | None,
    outcome: Outcome = "inconclusive",
    parity: ParityName = "same",
) -> Verdict:
    return Verdict(
        outcome, ratios[0], low, high, 0.95, Parity(parity, "bitwise"), "a", "b",
        num_pairs=len(ratios), pair_ratios=ratios,
    )  # fmt: skip


FASTER = verdict((1.5,) * 4, 1.45, 1.55, "improved", "within_noise")
WHOLE = TriedFix(
    "auto", "a=1 b=1", "kept", "faster, and learns the same", verdict=FASTER, start_s=23.0,
    pays_after_steps=36, details="a=1\n b=1",
)  # fmt: skip


def table(*rows: TriedFix, **more: Any) -> Effectiveness:
    ledger = Ledger(("x",), (WHOLE, *rows), ("auto",), FASTER, 3, 20, 60.0, 300.0, **more)
    environment = replace(ENVIRONMENT, torch="2.13.0+cpu", variables={"OMP_NUM_THREADS": "1"})
    made_with = "hotloop bench effectiveness c.yaml --budget 20m"
    return Effectiveness(made_with, "2026-11-25", environment, WHOLE, rows, (), ledger)


def cells(found: Effectiveness) -> list[list[str]]:
    """Of its Markdown, below the heads."""
    lines = effectiveness_markdown(found).partition("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def test_the_whole_comes_first_with_what_its_start_costs() -> None:
    (whole,) = cells(table())
    assert whole == [
        "**all that `auto` chooses**", "1.50x (1.45 to 1.55, 4 pairs)", "within noise",
        "23 s, paid after 36 steps", "**faster**",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("row", "measured", "learns", "said"),
    [
        (TriedFix("a=1", "a=1", "rejected", "slower", verdict=verdict((0.9,) * 6, 0.85, 0.95, "regressed")),
         "0.90x (0.85 to 0.95, 6 pairs)", "yes", "slower"),
        (TriedFix("a=1", "a=1", "rejected", "no gain", verdict=verdict((1.0,) * 6, 0.99, 1.01, "unchanged")),
         "1.00x (0.99 to 1.01, 6 pairs)", "yes", "no gain"),
        (TriedFix("a=1", "a=1", "stopped", "x", verdict=verdict((0.9, 1.1), 1e-9, 1e90)),
         "0.90x and 1.10x (<0.01 to >100, 2 pairs)", "yes", "open: out of budget"),
        (TriedFix("a=1", "a=1", "stopped", "x", verdict=verdict((0.9, 0.91), 0.5, 2.5)),
         "0.90x and 0.91x (0.50 to 2.50, 2 pairs)", "yes", "open: out of budget"),
        (TriedFix("a=1", "a=1", "stopped", "x", verdict=verdict((0.9,), None, None)),
         "0.90x (1 pair)", "yes", "open: out of budget"),
        (TriedFix("a=1", "a=1", "not_tried", "out of budget before its first pair"),
         "-", "-", "out of budget before its first pair"),
        (TriedFix("a=1", "a=1", "failed", "it ended | with 1"), "-", "-", r"failed: it ended \| with 1"),
        (TriedFix("a=1", "a=1", "rejected", "faster, but it learns something else",
                  verdict=replace(FASTER, parity=Parity("different", "bitwise"))),
         "1.50x (1.45 to 1.55, 4 pairs)", "**no**", "faster, but it learns something else"),
        (TriedFix("a=1", "a=1", "rejected", "not on top of b: no gain", verdict=FASTER),
         "1.50x (1.45 to 1.55, 4 pairs)", "within noise", "**faster**, not kept: not on top of b: no gain"),
        (TriedFix("a=1", "a=1", "what_if", "it is not a fix", verdict=FASTER),
         "1.50x (1.45 to 1.55, 4 pairs)", "within noise", "faster without it; it is not a fix"),
        (TriedFix("a=1", "a=1", "kept", "", verdict=verdict((1.1,) * 4, 0.9, 1.4)),
         "0.90 to 1.40x (4 pairs)", "yes", "inconclusive alone, faster on top of the others"),
    ],
)  # fmt: skip
def test_a_row_shows_its_interval_and_its_answer(
    row: TriedFix, measured: str, learns: str, said: str
) -> None:
    assert cells(table(row))[1] == ["`a=1`", measured, learns, "-", said]


def test_what_was_predicted_is_a_column_where_anything_was() -> None:
    row = TriedFix("precision", "bf16", "rejected", "slower", predicted=Interval(1.2, 1.1, 1.3))
    assert cells(table(row))[1][:2] == ["`precision` bf16", "1.10 to 1.30x"]
    assert cells(table(row))[0][1] == "-"


def test_below_the_table_stands_how_where_and_when_it_was_measured_and_what_goes_on() -> None:
    found = table(continue_with="hotloop bench effectiveness c.yaml --budget 9m")
    text = effectiveness_markdown(found)
    assert "20 steps after 3 of warm-up" in text
    assert "The whole is a=1 b=1." in text
    assert "go on with: `hotloop bench effectiveness c.yaml --budget 9m`" in text
    last = text.splitlines()[-1]
    assert "torch 2.13.0+cpu, OMP_NUM_THREADS=1, hotloop" in last
    assert last.endswith("2026-11-25: `hotloop bench effectiveness c.yaml --budget 20m`.")


def test_a_table_without_the_whole_says_why() -> None:
    said = "No row of the whole: `auto` chooses at most one other setting here"
    assert said in effectiveness_markdown(replace(table(), whole=None))
    assert said not in effectiveness_markdown(table())


def test_the_table_of_a_terminal_has_aligned_columns_and_no_marks() -> None:
    text = effectiveness_table(table(TriedFix("a=1", "a=1", "rejected", "slower")))
    head, whole, row = text.splitlines()[:3]
    assert head.index("verdict") == whole.index("faster") == row.index("slower")
    assert not {"`", "*"} & set(text)


def test_the_ledger_says_what_was_faster_alone_where_nothing_was_put_together() -> None:
    rows = (TriedFix("a=1", "a=1", "kept", "", verdict=FASTER), replace(WHOLE, status="rejected"))
    ledger = Ledger(("x",), rows, (), None, 3, 20, 60.0, None)
    assert ledger_answer(ledger) == "2 fixes tested alone, of which faster: a=1."
