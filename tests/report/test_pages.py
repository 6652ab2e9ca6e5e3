"""The terminal's tables and the page: complete when parts are missing, safe with any text."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from hotloop.core.judgement import (
    Diagnosis,
    Finding,
    Interval,
    Parity,
    Steps,
    TrialOutcome,
    Verdict,
)
from hotloop.core.measurement import Environment
from hotloop.report.html import Page, render_html, write_html
from hotloop.report.svg import MAX_POINTS, loss_curves, thinned
from hotloop.report.terminal import render_breakdown, render_diagnosis, render_verdict

EVIL = "<script>alert('1')</script>"
VOID = {"meta", "br", "line", "rect", "polyline"}


class Balanced(HTMLParser):
    """Fails on a tag that is closed out of order, or never."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.add(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag


def tags_of(page: str) -> set[str]:
    parser = Balanced()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    return parser.seen


def findings(count: int) -> tuple[Finding, ...]:
    return tuple(
        Finding(f"HL10{i}", EVIL, 1.45, site=EVIL, optimization=EVIL, advice=EVIL)
        for i in range(count)
    )


VERDICT = Verdict(
    outcome="improved",
    ratio=2.71,
    ratio_low=2.60,
    ratio_high=2.82,
    confidence=0.95,
    parity=Parity("within_noise", "reduced_precision", 40, 0.0004, 0.002, reason=EVIL),
    baseline=EVIL,
    candidate="hotloop",
    all_in=Interval(2.4, 2.3, 2.5),
    num_pairs=2,
    num_looks=1,
    noise_floor=0.008,
    minimum_detectable_effect=0.031,
    pair_ratios=(2.6, 2.8),
    baseline_s_per_work=1 / 1600,
    candidate_s_per_work=1 / 4300,
    reasons=(EVIL,),
)
DIAGNOSIS = Diagnosis(
    "input",
    Steps(60, 10, 0.214, 4301.2),
    {"data_wait": 0.333, "forward": 0.333, "backward": 0.334},
    findings=findings(5),
    trials=(
        TrialOutcome("precision", {"k": EVIL}, "improved", 1.4, 1.37, 1.43, "same", True, EVIL),
        TrialOutcome("clip", {}, "incomparable", None, None, None, "not_checked", False, "why"),
    ),
    not_examined=(EVIL,),
)
ENVIRONMENT = Environment(
    device=EVIL,
    num_devices=1,
    cpu_model=None,
    num_cpus=2,
    cpu_quota=1.5,
    memory_limit_bytes=25_000_000_000,
    platform="Linux-x86_64",
    kernel=None,
    python="3.11",
    torch=None,
    cuda=None,
    driver=None,
    hotloop="0.1.0",
    variables={"OMP_NUM_THREADS": EVIL},
)
FULL = Page(
    title=EVIL,
    answer=EVIL,
    verdict=VERDICT,
    diagnosis=DIAGNOSIS,
    breakdowns={EVIL: DIAGNOSIS.breakdown, "other": {"eval": 1.0}, "empty": {}},
    loss_curves={EVIL: [(0, 9.0), (1, float("nan")), (2, 8.0), (3, 7.5)], "empty": []},
    facts=((EVIL, EVIL),),
    settings=((EVIL, EVIL, EVIL),),
    environment=ENVIRONMENT,
    sample=EVIL,
    notes=(EVIL,),
)


def test_full_page_is_well_formed_and_runs_nothing() -> None:
    page = render_html(FULL)
    assert "script" not in tags_of(page)
    assert "<script" not in page
    for outside in ("http://", "https://", "src=", "@import", "url("):
        assert outside not in page


def test_page_escapes_attributes_too() -> None:
    quoted = Page(title="t", loss_curves={'" onload="x': [(0, 1.0)]})
    assert '" onload="' not in render_html(quoted)


@pytest.mark.parametrize(
    "page",
    [
        Page(title="empty"),
        Page(title="verdict only", verdict=VERDICT),
        Page(
            title="no ratio",
            verdict=Verdict(
                "incomparable", None, None, None, None, Parity("not_checked", None), "a", "b"
            ),
        ),
        Page(title="no steady step", diagnosis=Diagnosis(None, Steps(0, 0, None))),
        Page(title="diverged", loss_curves={"a": [(0, float("inf"))]}),
        Page(title="one point", loss_curves={"a": [(5, 2.0)]}),
        Page(title="\udcff lone surrogate of a file name"),
    ],
    ids=lambda page: page.title.encode("ascii", "replace").decode(),
)
def test_page_with_missing_parts_is_well_formed(page: Page, tmp_path: Path) -> None:
    write_html(tmp_path / "page.html", page)
    tags_of((tmp_path / "page.html").read_text(encoding="utf-8"))


def test_page_shows_the_answer_before_anything_else() -> None:
    page = render_html(Page(title="t", answer="THE ANSWER", verdict=VERDICT, facts=(("a", "b"),)))
    body = page.partition("<body>")[2]
    assert body.index("THE ANSWER") < body.index("<dl>") < body.index("<h2>")


def test_long_loss_curve_is_thinned_and_keeps_its_last_point() -> None:
    points = [(step, 1.0) for step in range(100_000)]
    kept = thinned(points)
    assert len(kept) <= MAX_POINTS + 1
    assert kept[-1] == points[-1]
    assert len(loss_curves({"a": points})) < 20_000


def test_at_most_three_findings_are_shown_and_the_rest_counted() -> None:
    text = render_diagnosis(DIAGNOSIS)
    assert text.count("  HL10") == 3
    assert "and 2 more in the JSON" in text
    assert "not examined" in text


def test_breakdown_column_adds_up_to_its_total() -> None:
    lines = render_breakdown({"forward": 1 / 3, "data_wait": 1 / 3, "backward": 1 / 3}).splitlines()
    shares = [float(line.split()[1]) for line in lines[1:-1]]
    assert sum(shares) == pytest.approx(100.0)
    assert lines[-1].split()[:2] == ["total", "100.0"]
    assert [line.split()[0] for line in lines[1:3]] == ["data_wait", "forward"]


def test_ledger_lists_dropped_trials_with_their_reason() -> None:
    text = render_diagnosis(DIAGNOSIS)
    assert "dropped  clip" in text
    assert "why" in text


def test_verdict_shows_every_pair_and_what_it_could_not_have_seen() -> None:
    text = render_verdict(replace(VERDICT, baseline="plain"))
    assert "2.60  2.80" in text
    assert "gains these pairs can show  3.1 % or more" in text
    assert "0.8 % (same against same)" in text
