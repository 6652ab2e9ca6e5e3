"""What `hotloop fit` says."""

from __future__ import annotations

from dataclasses import replace

from hotloop.core.memory_use import Fit, Proof, Way
from hotloop.report.memory import render_fit

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
