"""The checklist in words: every line has its value, its bar and its reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hotloop.core.judgement import Target, TargetUnit
from hotloop.judge.targets import check_targets
from hotloop.report.html import Page, render_html
from hotloop.report.terminal import render_targets
from hotloop.report.words import count_line, target_value

STALL = Target(
    "checkpoint_stall", "checkpoint stall", "< 1 s", "fail", 1.3, "s", None, 1.0,
    "the longest of 4 saves between steps",
)  # fmt: skip


@pytest.mark.parametrize(
    ("unit", "value", "text"),
    [
        ("fraction", 0.051, "5.1 %"),
        ("relative_difference", 3.6e-5, "0.0036 %"),
        ("s", 1.3, "1.3 s"),
        ("ratio", 2.7458, "2.75x"),
        ("tokens/s", 5290.0, "5.29 K tokens/s"),
        ("samples/s", 20.0, "20 samples/s"),
    ],
)
def test_values_have_their_units(unit: TargetUnit, value: float, text: str) -> None:
    assert target_value(replace(STALL, unit=unit, value=value)) == text


def test_terminal_table_aligns_and_wraps_reasons_under_themselves() -> None:
    long = replace(STALL, status="not_applicable", value=None, reason="why " * 40)
    lines = render_targets([STALL, replace(STALL, status="pass"), long]).splitlines()
    assert lines[0] == "targets: 1 passes, 1 fails, 1 does not apply or is not known"
    assert (
        " ".join(lines[1].split())
        == "fail checkpoint stall 1.3 s < 1 s the longest of 4 saves between steps"
    )
    assert lines[3].startswith("  n/a   checkpoint stall")
    assert max(len(line) for line in lines) <= 100
    place = lines[1].index("the longest")
    assert all(line[:place].isspace() and line[place:].startswith("why") for line in lines[4:])
    assert render_targets([]) == ""


def test_page_says_it_in_words_too_and_escapes_what_it_shows() -> None:
    page = render_html(Page("t", targets=[replace(STALL, title="<b>", reason="<i>")]))
    assert "fail" in page
    assert "<b>" not in page
    assert "<i>" not in page


def test_every_target_of_an_empty_run_can_be_shown() -> None:
    targets = check_targets(None)
    text = render_targets(targets)
    assert count_line(targets) in text
    for target in targets:
        assert target.title in text
        assert target.bar in text
