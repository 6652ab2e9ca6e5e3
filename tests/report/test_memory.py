"""What `hotloop fit` says."""

from __future__ import annotations

from dataclasses import replace

from hotloop.core.memory_use import Fit, MemoryProfile, OutOfMemory, Proof, Way
from hotloop.report.html import Page, render_html
from hotloop.report.memory import render_fit, render_out_of_memory

MB = 10**6
FOUND = Fit(
    device="cpu",
    microbatch=8,
    grad_accum_steps=1,
    parts={"weights": 100 * MB, "averaged weights": 0, "logits": 300 * MB, "process": 600 * MB},
    steps_bytes=950 * MB,
    whole_bytes=1000 * MB,
    calibrated_by="train.microbatch=1",
    measured_bytes=1000 * MB,
    error_fraction=-0.05,
    limit_bytes=2000 * MB,
    limit_from="--memory",
    fits=True,
    largest_microbatch=20,
    least_bytes=700 * MB,
)


def test_the_parts_add_up_to_the_peak_and_empty_ones_are_left_out() -> None:
    text = render_fit(FOUND)
    assert text.startswith("It fits in 2,000 MB (--memory): microbatch 8, 1,000 MB at the peak")
    assert "averaged" not in text
    for line in (
        "weights                             100 MB   10.0 %",
        "peak, predicted                   1,000 MB  100.0 %",
    ):
        assert " ".join(line.split()) in " ".join(text.split())
    assert "predicted 950 MB, measured 1,000 MB: 5 % less than it takes" in text


def test_without_a_real_run_it_says_that_nothing_calibrated_it() -> None:
    text = render_fit(replace(FOUND, calibrated_by=None, measured_bytes=None, error_fraction=None))
    assert "uncalibrated" in text
    assert "measured" not in text


def test_what_does_not_fit_is_said_with_ways_to_copy() -> None:
    ways = (Way(("train.microbatch=4", "train.grad_accum_steps=2"), 900 * MB, "more products"),)
    text = render_fit(replace(FOUND, fits=False, ways=ways))
    assert text.startswith("It does NOT fit")
    assert "  train.microbatch=4 train.grad_accum_steps=2\n      900 MB; more products" in text


def test_what_fits_at_no_microbatch_says_what_one_sequence_takes() -> None:
    text = render_fit(replace(FOUND, fits=False, largest_microbatch=0))
    assert "at any microbatch" in text
    assert "700 MB with a microbatch of 1" in text


def test_a_proof_says_what_was_recommended_and_what_was_killed() -> None:
    proof = Proof(4, 2, 200, "a group", True, 800 * MB, {8: None, 4: 1000.0}, 5)
    text = render_fit(replace(FOUND, proof=proof))
    assert "microbatch 8: took too much memory" in text
    assert "microbatch 4: 1.00 K tokens/s" in text
    assert "train.microbatch=4 train.grad_accum_steps=2" in text
    assert "5 real processes" in text


PROFILE = MemoryProfile(
    "cpu",
    900 * MB,
    {"weights": 300 * MB, "start": 400 * MB, "activations and the rest": 200 * MB},
    {"optimizer": 850 * MB, "forward": 900 * MB},
    1000 * MB,
    "the control group <x>",
)
ENDED = OutOfMemory(
    certainty="probably",
    said=None,
    where="backward of step 3",
    used_bytes=990 * MB,
    limit_bytes=1000 * MB,
    limit_from="the control group <x>",
    profile=PROFILE,
    ways=("half the batch",),
)


def test_an_end_for_memory_says_how_sure_it_is_where_it_went_and_what_takes_less() -> None:
    lines = render_out_of_memory(ENDED).splitlines()
    assert lines[0] == (
        "It was probably killed for its memory, last seen in backward of step 3; "
        "990 MB of 1,000 MB (the control group <x>) in use when last looked at."
    )
    words = [" ".join(each.split()) for each in lines]
    assert "weights 300 MB 33.4 %" in words or "weights 300 MB 33.3 %" in words
    assert "peak 900 MB 100.0 %" in words
    assert words.index("forward 900 MB") < words.index("optimizer 850 MB")  # as a step goes
    assert words[-1] == "- half the batch"
    said = render_out_of_memory(replace(ENDED, certainty="said", said="MemoryError", profile=None))
    assert said.startswith("It ran out of memory, in backward of step 3;")
    assert "\n  MemoryError" in said


def test_the_page_has_a_memory_section_of_a_run_and_of_one_that_ended_for_it() -> None:
    page = render_html(Page(title="x", memory=PROFILE))
    assert "<h2>Memory</h2>" in page
    assert "the control group &lt;x&gt;" in page
    assert "probably killed" not in page
    page = render_html(Page(title="x", memory=PROFILE, out_of_memory=ENDED))
    assert "It was probably killed for its memory" in page
    assert "half the batch" in page
    ways = (Way(("train.microbatch=4",), 900 * MB, "more products"),)
    fit = replace(FOUND, fits=False, ways=ways)
    page = render_html(Page(title="x", out_of_memory=ENDED, fit=fit, fit_command="prove it"))
    assert "900 MB; more products" in page
    assert "prove it" in page
    assert "<h2>Memory</h2>" not in render_html(Page(title="x"))


def test_memory_against_the_microbatch_stands_in_a_table() -> None:
    sizes = {4: 900 * MB, 8: 1000 * MB, 16: 1400 * MB, 32: 2200 * MB}
    fit = replace(FOUND, by_microbatch=sizes, measured={1: 700 * MB, 8: 1010 * MB})
    lines = [each.split() for each in render_fit(fit).splitlines()]
    assert ["8", "1,000", "MB", "1,010", "MB", "fits"] in lines
    assert ["1", "700", "MB", "fits"] in lines
    assert ["32", "2,200", "MB", "does", "not", "fit"] in lines
    page = render_html(Page(title="x", memory=PROFILE, fit=fit, fit_command="`hotloop fit x`"))
    assert "<td>2,200 MB</td>" in page.replace(' class="number"', "")
    assert "<code>hotloop fit x</code>" in page


def test_a_proof_of_other_settings_names_them() -> None:
    proof = Proof(8, 1, 200, "a group", True, 800 * MB, {8: 1.0}, 3, ("train.loss=chunked",))
    text = render_fit(replace(FOUND, proof=proof))
    assert "  train.microbatch=8 train.grad_accum_steps=1 train.loss=chunked" in text
