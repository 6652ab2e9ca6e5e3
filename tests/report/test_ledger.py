"""Fixes that were tried, in words: the ledger on the terminal and on the page."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest

from hotloop.cli.trial_view import result
from hotloop.core.census import Census
from hotloop.core.files import to_plain
from hotloop.core.judgement import Interval, Parity, Status, Verdict
from hotloop.core.ledger import Ledger, TriedFix
from hotloop.doctor.fix_status import status_of
from hotloop.report.html import Page, render_html
from hotloop.report.ledger import ledger_answer, render_ledger

PARITY = Parity("same", "reduction_order")
VERDICT = Verdict(
    "improved", 1.076, 1.06, 1.09, 0.99, PARITY, "baseline", "fused_optimizer", num_pairs=4
)
KEPT = TriedFix(
    *("fused_optimizer", True, "kept", "faster, and learns the same", ("HL401",)),
    gain_at_most=1.115,
    predicted=Interval(1.07, 1.05, 1.09),
    verdict=VERDICT,
)
MISSED = TriedFix("precision", "bf16", "not_applied", "nothing <here> to apply it to", ("HL301",))


def ledger(*fixes: TriedFix, kept: tuple[str, ...] = ()) -> Ledger:
    return Ledger(("python", "train.py"), fixes, kept, VERDICT if kept else None, 3, 20, 75.0, None)


def page_of(tried: Ledger) -> str:
    return render_html(Page("doctor", examined=Census(), ledger=tried))


def test_answer_comes_first_and_every_fix_has_its_line() -> None:
    said = render_ledger(ledger(KEPT, MISSED, kept=("fused_optimizer",))).splitlines()
    assert said[0].startswith("With fused_optimizer: 1.08x (1.06 to 1.09, 4 pairs), improved")
    assert "kept" in said[2]
    assert "predicted 1.05 to 1.09" in said[2]
    assert "not applied" in said[3]
    assert "nothing <here> to apply it to" in said[3]
    assert render_ledger(ledger(MISSED)).startswith("No fix was kept, and none came as far")
    assert "No fix that can be tried" in render_ledger(ledger())
    assert "predicted 1.05 to 1.09, all else equal" in render_ledger(ledger(KEPT))
    epochs = replace(ledger(KEPT, kept=("fused_optimizer",)), together_over_epochs=1.05)
    assert ledger_answer(epochs).endswith(
        "fresh pairs; 1.05x over whole epochs, as each starts its workers again."
    )


def test_a_reason_that_many_share_is_said_once() -> None:
    names = [f"train.num_threads={number}" for number in range(1, 9)]
    why = "out of budget: its first pairs take about 9 s, and 5 s were left"
    left = [TriedFix(name, name, "not_tried", why) for name in names]
    said = render_ledger(replace(ledger(KEPT, *left), run_with="train")).splitlines()
    assert [line for line in said if why in line] == [f"  not tried    8 values: {why}"]
    assert "".join(each.strip() for each in said[4:6]).replace(",", ", ").split() == [
        *(f"{name}," for name in names[:-1]), names[-1],
    ]  # fmt: skip
    assert render_ledger(ledger(KEPT, *left[:2])).count(why) == 2
    promising = [replace(each, gain_at_most=1.2) for each in left[:3]]
    assert render_ledger(ledger(*promising)).count(why) == 3


def test_budget_that_ended_before_anything_was_proven_is_the_answer() -> None:
    begun = ledger(TriedFix("fused", True, "stopped", "out of budget", verdict=VERDICT))
    assert ledger_answer(begun) == "1 fix tested, none proven faster."
    assert ledger_answer(ledger(replace(begun.fixes[0], verdict=None))) == "No fix was tried."
    goes_on = replace(begun, continue_with="hotloop doctor --budget 4m")
    assert ledger_answer(goes_on) == "No fix is proven yet: the budget ended first."


def test_gain_near_the_smallest_that_shows_is_said_to_be_overstated() -> None:
    found = ledger(KEPT, kept=("fused_optimizer",))
    near = replace(found, together=replace(VERDICT, minimum_detectable_effect=0.07))
    said = "show gains from 1.07x on; one near or below that is on average overstated"
    assert said in render_ledger(near)
    assert said in page_of(near)
    far = replace(found, together=replace(VERDICT, minimum_detectable_effect=0.02))
    assert "overstated" not in render_ledger(far)
    pooled = replace(far, together_pooled=1.061)
    assert "over all its pairs, those that chose it too: 1.06x" in render_ledger(pooled)


def test_a_gain_that_is_not_known_to_a_tenth_is_said_as_a_range() -> None:
    wide = replace(VERDICT, ratio=1.25, ratio_low=1.09, ratio_high=1.44, num_pairs=10)
    found = ledger(replace(KEPT, verdict=wide), kept=("fused_optimizer",))
    said = render_ledger(replace(found, together=wide))
    assert said.startswith("With fused_optimizer: 1.09 to 1.44x (10 pairs), improved")
    assert "1.25" not in said
    one_sided = replace(wide, ratio_low=1.2, ratio_high=1.39)
    assert "1.20 to 1.39x" in render_ledger(replace(found, together=one_sided))
    known = replace(wide, ratio_low=1.15, ratio_high=1.37)
    assert "1.25x (1.15 to 1.37" in render_ledger(replace(found, together=known))


@pytest.mark.parametrize("status", get_args(Status))
@pytest.mark.parametrize("verdict", [None, replace(VERDICT, outcome="inconclusive")])
def test_each_word_that_a_reader_sees_is_the_status_of_the_json(
    status: Status, verdict: Verdict | None
) -> None:
    fix = TriedFix(
        "fused_optimizer", True, status, "why", predicted=KEPT.predicted, verdict=verdict
    )
    found, word = ledger(fix), to_plain(fix)["status"].replace("_", " ")
    assert f"\n  {word:<12} fused_optimizer  why" in render_ledger(found)
    assert result(fix).startswith(word)
    assert f"<tr><td>{word}</td>" in page_of(found)


PAIRS = {"num_pairs": 10, "minimum_detectable_effect": 0.2}
DIFFERENT = Parity("different", "reduction_order", reason="losses part")


@pytest.mark.parametrize(
    ("changes", "status", "why"),
    [
        ({}, "kept", "faster, and learns the same"),
        ({"parity": DIFFERENT}, "rejected", "faster, but it learns something else: losses part"),
        ({"outcome": "inconclusive", "parity": DIFFERENT, **PAIRS}, "rejected", "it learns something else: losses part"),
        ({"parity": Parity("not_checked", None)}, "rejected",
         "faster, but whether it learns the same is not known: its losses were not seen"),
        ({"outcome": "inconclusive", **PAIRS}, "undecided", "inconclusive (its pairs differ too much to show a gain below 20 %)"),
        ({"outcome": "inconclusive", "doubts": ("Which?",), **PAIRS}, "undecided", "inconclusive: Which?"),
        ({"outcome": "inconclusive", "ratio_high": 1.005, **PAIRS}, "rejected", "no gain"),
        ({"outcome": "inconclusive", "ratio_high": 0.999, **PAIRS}, "rejected", "slower"),
        ({"outcome": "inconclusive", "num_pairs": 2, "pair_ratios": (1.1, 0.9)}, "stopped", "2 pairs showed 1.10x and 0.90x"),
        ({"outcome": "unchanged"}, "rejected", "no gain"),
        ({"outcome": "regressed", "parity": DIFFERENT}, "rejected", "slower"),
        ({"outcome": "incomparable", "reasons": ("Two.",)}, "rejected", "the runs cannot be compared: Two."),
    ],
)  # fmt: skip
def test_a_status_follows_from_pairs_and_losses(
    changes: dict[str, Any], status: Status, why: str
) -> None:
    assert status_of(replace(VERDICT, **changes)) == (status, why)


def test_page_shows_it_and_escapes_what_scripts_said() -> None:
    page = render_html(Page(title="doctor", ledger=ledger(KEPT, MISSED, kept=("fused_optimizer",))))
    assert "<code>fused_optimizer</code>" not in page  # only pages of examined commands show it
    section = page_of(ledger(KEPT, MISSED, kept=("fused_optimizer",)))
    assert "<code>fused_optimizer</code>" in section
    assert "<code>precision</code> bf16" in section
    assert "nothing &lt;here&gt; to apply it to" in section
    assert "<svg" in section


LATE = replace(KEPT, name="item_cache", warmup_steps=210, steps=40)
SOON = replace(KEPT, warmup_steps=3, steps=20)


@pytest.mark.parametrize(
    ("tried", "said"),
    [
        (ledger(SOON), "each over 20 steps after 3 of warm-up, in interleaved pairs"),
        (ledger(LATE), "each over 40 steps after 210 of warm-up, in interleaved pairs"),
        (
            replace(
                ledger(SOON, LATE, kept=("fused_optimizer", "item_cache")),
                together_warmup_steps=210,
                together_steps=40,
            ),
            "fused_optimizer over 20 steps after 3 of warm-up, "
            "item_cache and all together over 40 steps after 210 of warm-up, in interleaved pairs",
        ),
        (ledger(MISSED), "none was timed; 75 s in all"),
    ],
)
def test_steps_are_those_of_each_fix(tried: Ledger, said: str) -> None:
    assert said in render_ledger(tried)
    assert said in page_of(tried)


def test_time_of_a_continued_run_is_not_said_to_be_all() -> None:
    said = render_ledger(replace(ledger(SOON), continued=True))
    assert "75 s in the last call, which went on from an earlier one" in said
    assert "in all" not in said


def test_machines_that_trials_reached_are_named() -> None:
    layer = replace(ledger(SOON), isolation="layer")
    assert "in a layer of its own and no network;" in render_ledger(layer)
    some = replace(layer, network=True, network_hosts=("a:1", "b:2"))
    assert "in a layer of its own and no network but a:1, b:2;" in render_ledger(some)
    assert "in a layer of its own;" in render_ledger(replace(layer, network=True))


def test_what_was_asked_for_and_cannot_be_tried_is_not_blamed_on_the_findings() -> None:
    said = render_ledger(replace(ledger(), asked=("compile", "threads")))
    assert said == "Nothing that was asked for could be tried here: compile, threads."
