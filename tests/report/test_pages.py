"""The terminal's tables and the page: complete when parts are missing, safe with any text."""

from __future__ import annotations

import math
import re
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path

import pytest

from full_page import DIAGNOSIS, FULL, VERDICT, course, machine
from hotloop.core.course import PairSpeeds
from hotloop.core.judgement import Diagnosis, Parity, Steps, Verdict
from hotloop.core.step import StepRecord
from hotloop.judge.course import step_course
from hotloop.report.html import Page, render_html, write_html
from hotloop.report.terminal import render_breakdown, render_diagnosis, render_verdict

VOID = {"meta", "br"}


class Balanced(HTMLParser):
    """Fails on a tag that is closed out of order, or never."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.ids: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        found = dict(attrs)
        assert not any(name.startswith("on") for name in found)
        self.ids += [found["id"]] if found.get("id") else []
        self.links += [found["href"]] if found.get("href") else []

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def parsed(page: str) -> Balanced:
    parser = Balanced()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    assert len(set(parser.ids)) == len(parser.ids)
    assert set(parser.links) <= {f"#{name}" for name in parser.ids}
    return parser


def test_full_page_is_well_formed_and_runs_nothing_but_its_own_script() -> None:
    page = render_html(FULL)
    found = parsed(page)
    assert found.seen & {"link", "img", "iframe", "object", "form"} == set()
    (script,) = re.findall(r"<script>(.*?)</script>", page, flags=re.DOTALL)
    allowed = b64encode(sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{allowed}'" in page
    for outside in ("http://", "https://", "src=", "@import", "url(", "javascript:"):
        assert outside not in page
    assert "\x00" not in page
    assert "\x1b" not in page
    assert set(found.ids) == {
        "before-after", "time", "loss", "speed", "targets", "hardware", "findings", "sample",
        "environment", "settings", *(finding.code for finding in DIAGNOSIS.findings),
    }  # fmt: skip


def test_every_column_head_says_what_it_heads() -> None:
    heads = re.findall(r"<th(?!ead)[^>]*", render_html(FULL))
    assert heads
    assert all('scope="col"' in head for head in heads)


def test_the_page_of_a_finding_is_folded_below_it() -> None:
    (finding, *_) = DIAGNOSIS.findings
    page = render_html(
        Page(title="t", diagnosis=DIAGNOSIS, explanations={finding.code: "what <it> means"})
    )
    folded = page.index("<details>")
    assert page.index(f"<strong>{finding.code}</strong>") < folded < page.index("what &lt;it&gt;")
    assert page.count("<details>") == 1  # none for a code that has no page


def test_a_code_leads_to_its_finding_and_no_link_is_dead() -> None:
    (finding, *_) = DIAGNOSIS.findings
    page = render_html(Page("t", answer=f"slow ({finding.code}, HL999)", diagnosis=DIAGNOSIS))
    code = finding.code
    assert f'slow (<a href="#{code}">{code}</a>, HL999)</p>' in page
    parsed(page)
    twice = replace(DIAGNOSIS, findings=(finding, finding))
    parsed(render_html(Page("t", diagnosis=twice)))


def test_commands_between_backticks_are_shown_as_code_and_still_escaped() -> None:
    page = render_html(Page(title="t", notes=("run `hotloop report <b>` and `more`",)))
    assert "<code>hotloop report &lt;b&gt;</code> and <code>more</code>" in page


def test_page_escapes_attributes_too() -> None:
    quoted = Page(title="t", held_out={'" onload="x': [(0, 1.0), (1, 2.0)]})
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
        Page(title="ratio without end", verdict=replace(VERDICT, ratio_high=math.inf)),
        Page(title="no time at all", verdict=replace(VERDICT, baseline_s_per_work=0.0)),
        Page(title="no steady step", diagnosis=Diagnosis(None, Steps(0, 0, None))),
        Page(title="diverged", steps=course(loss=float("inf"))),
        Page(title="one step", steps=course(1)),
        Page(title="one evaluation", held_out={"held-out": [(5, 2.0)]}),
        Page(title="pairs without a verdict", pairs=(PairSpeeds(1, None, 4.0),)),
        Page(title="no pair measured", pairs=(PairSpeeds(1, None, None),)),
        Page(title="eight GPUs", machine=machine(num_gpus=8)),
        Page(title="two samples", machine=machine(num_gpus=0, count=2)),
        Page(title="\udcff lone surrogate of a file name"),
    ],
    ids=lambda page: page.title.encode("ascii", "replace").decode(),
)
def test_page_with_missing_parts_is_well_formed(page: Page, tmp_path: Path) -> None:
    write_html(tmp_path / "page.html", page)
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    parsed(text)
    drawn = text.partition("<body>")[2]
    assert not re.search(r"\bnan\b|\binf\b", re.sub("<title>.*?</title>", "", drawn), re.IGNORECASE)


def test_page_shows_the_answer_before_anything_else() -> None:
    page = render_html(Page(title="t", answer="THE ANSWER", verdict=VERDICT, facts=(("a", "b"),)))
    body = page.partition("<body>")[2]
    assert body.index("THE ANSWER") < body.index("<dl") < body.index("<h2>")


def test_damage_is_said_right_below_the_answer() -> None:
    body = render_html(
        Page(title="t", answer="ANSWER", problems=("steps.jsonl:5",), facts=(("a", "b"),))
    )
    assert body.index("ANSWER") < body.index("steps.jsonl:5") < body.index("<dl")


def test_every_pair_and_the_interval_are_drawn_with_their_numbers() -> None:
    page = render_html(FULL)
    for text in (
        "2.71x (2.60 to 2.82)",
        "pair 1: 2.6000x",
        "pair 2: 2.8000x",
        "1.60 K tokens/s",
        "4.30 K tokens/s",
        "noise floor, 0.8 %",
        "ratio and its 95 % interval",
    ):
        assert text in page, text


def test_pairs_without_a_verdict_are_listed_with_their_speeds() -> None:
    page = render_html(replace(FULL, verdict=None))
    assert "1.60 K and 4.20 K per second, 2.62x" in page
    assert "1.50 K and not known per second" in page


def test_bars_over_time_mark_tagged_steps_and_name_the_one_that_is_cut_off() -> None:
    page = render_html(Page(title="t", steps=course()))
    assert "1 bar is cut off at the top; the highest is 20 s a step (step 0)" in page
    assert "each bar is one step" in page
    assert "compile: 1 in step 0" in page
    assert page.count("<title>eval: 1 in step") == 4
    assert "step 15: 200 ms a step; forward 20.0 %; backward 30.0 %; eval 50.0 %" in page


def test_a_step_clock_without_phases_is_drawn_as_whole_bars() -> None:
    found = step_course([StepRecord(n, 0.1) for n in range(5)])
    page = render_html(Page(title="t", steps=found))
    assert 'class="ph-other" d="M0' in page


def test_losses_that_are_no_numbers_are_said_where_nothing_can_be_drawn() -> None:
    page = render_html(Page(title="t", steps=course(3, loss=float("nan"))))
    assert "no number at 3 steps, first at step 0" in page


def test_limits_far_above_the_values_are_named_and_not_drawn() -> None:
    page = render_html(Page(title="t", machine=machine(), cpus=2.0))
    assert "allowed: 2 CPUs (dashed)" in page
    assert "limit of this run: 25 GB (above this scale)" in page
    assert "the run was stopped and continued (1)" in page


def test_what_held_a_gpu_down_is_said() -> None:
    page = render_html(Page(title="t", machine=machine()))
    assert "in 100 % of the samples" in page
    assert "GPU busy: GPU 0" in page
    many = render_html(Page(title="t", machine=machine(num_gpus=8)))
    assert "3 more GPUs are not drawn" in many


def test_a_page_of_a_million_steps_is_small() -> None:
    records = [
        StepRecord(n, 0.1, host={"forward": 0.04, "backward": 0.06}, tokens=512, loss=3.0 + n % 7)
        for n in range(1000)
    ]
    few = len(render_html(Page(title="t", steps=step_course(records))))
    many = len(render_html(Page(title="t", steps=step_course(records * 20))))
    assert few < 200_000
    assert many < 1.3 * few


def test_at_most_three_findings_are_shown_and_the_rest_counted() -> None:
    text = render_diagnosis(DIAGNOSIS)
    assert text.count("  HL10") == 3
    assert "and 2 more in the page and the JSON" in text
    assert "not examined" in text


def test_breakdown_column_adds_up_to_its_total() -> None:
    lines = render_breakdown({"forward": 1 / 3, "data_wait": 1 / 3, "backward": 1 / 3}).splitlines()
    shares = [float(line.split()[1]) for line in lines[1:-1]]
    assert sum(shares) == pytest.approx(100.0)
    assert lines[-1].split()[:2] == ["total", "100.0"]
    assert [line.split()[0] for line in lines[1:3]] == ["data_wait", "forward"]


def test_breakdown_on_the_page_adds_up_and_its_bar_too() -> None:
    fractions = {"forward": 1 / 3, "data_wait": 1 / 3, "backward": 1 / 3}
    page = render_html(Page(title="t", breakdowns={"run": fractions}))
    table = page.partition('class="breakdown"')[2].partition("</table>")[0]
    *shares, total = (float(text) for text in re.findall(r"([\d.]+) %</td>", table))
    assert sum(shares) == pytest.approx(total) == 100.0
    bar = page.partition('class="stack"')[2].partition("</div>")[0]
    assert sum(map(float, re.findall(r"flex:([\d.]+)", bar))) == pytest.approx(1.0, abs=1e-4)


def test_verdict_shows_every_pair_and_what_it_could_not_have_seen() -> None:
    text = render_verdict(replace(VERDICT, baseline="plain"))
    assert "2.60  2.80" in text
    assert "gains these pairs can show  3.1 % or more" in text
    assert "0.8 % (same against same)" in text
