"""MFU: the arithmetic, both conventions, and no number where the denominator is not known."""

from __future__ import annotations

import pytest

from hotloop.core.ceilings import Ceilings, MatmulCeiling
from hotloop.core.census import Census
from hotloop.core.judgement import ModelFlops
from hotloop.core.step import StepRecord
from hotloop.judge.utilization import utilize

STEPS = [
    StepRecord(0, 50.0, tokens=1000, tags=("compile",)),
    StepRecord(1, 1.0, tokens=1000),
    StepRecord(2, 3.0, tokens=1000),
]
FLOPS = ModelFlops(matmul=800.0, attention=200.0)
CENSUS = Census(device="cpu", num_threads=2, matmul_dtypes=("bfloat16",))
CEILINGS = Ceilings(
    "CPU",
    "CPU",
    2.0,
    2,
    "2.13",
    matmul=(
        MatmulCeiling("bfloat16", 1e6, (2048, 384, 1536), 9e5, True, 1.0),
        MatmulCeiling("float32", 5e5, (512, 512, 512), 4e5, True, 1.0),
    ),
    not_measured={"float16": "not implemented for 'Half'"},
)


def test_both_conventions_over_the_peak_of_the_dtype_that_was_used() -> None:
    used = utilize(STEPS, FLOPS, CENSUS, CEILINGS)
    assert used.tokens_per_s == 500.0  # the step that compiled is left out
    assert used.palm_flops_per_s == 500.0 * 1000
    assert used.causal_flops_per_s == 500.0 * 900
    assert used.palm_mfu == pytest.approx(0.5)
    assert used.causal_mfu == pytest.approx(0.45)
    assert used.peak_flops_per_s == 1e6
    assert used.reason is None
    assert "bfloat16 matrix product 2048 x 384 x 1536" in (used.peak or "")


@pytest.mark.parametrize(
    ("census", "ceilings", "expected"),
    [
        (CENSUS, None, "`hotloop env --threads 2` there measures it"),
        (Census(device="cuda:0", num_threads=2, matmul_dtypes=("tf32",)), None, "`hotloop env` "),
        (None, CEILINGS, "not observed"),
        (Census(matmul_dtypes=()), CEILINGS, "not observed"),
        (Census(matmul_dtypes=("bfloat16", "float32")), CEILINGS, "several dtypes"),
        (Census(matmul_dtypes=("float16",)), CEILINGS, "not implemented for 'Half'"),
        (Census(matmul_dtypes=("tf32",)), CEILINGS, "`hotloop env --measure`"),
    ],
)
def test_unknown_denominator_gives_no_mfu_and_the_reason(
    census: Census | None, ceilings: Ceilings | None, expected: str
) -> None:
    used = utilize(STEPS, FLOPS, census, ceilings)
    assert used.palm_mfu is None
    assert used.causal_mfu is None
    assert used.peak is None
    assert used.palm_flops_per_s == 500_000  # what was achieved is known all the same
    assert expected in (used.reason or "")


def test_unknown_model_and_unknown_tokens_each_have_their_reason() -> None:
    assert "shape of the model" in (utilize(STEPS, None, CENSUS, CEILINGS).reason or "")
    none = utilize([StepRecord(0, 1.0)], FLOPS, CENSUS, CEILINGS)
    assert none.tokens_per_s is None
    assert "tokens" in (none.reason or "")
    warm = [StepRecord(0, 1.0, tokens=5, tags=("warmup",))]
    assert utilize(warm, FLOPS, CENSUS, CEILINGS).palm_mfu is None


def test_first_step_alone_is_no_steady_state() -> None:
    evaluating = [StepRecord(n, 1.0, tokens=5, tags=("eval",)) for n in (1, 2)]
    used = utilize([StepRecord(0, 9.0, tokens=5), *evaluating], FLOPS, CENSUS, CEILINGS)
    assert used.tokens_per_s is None
    alone = utilize([StepRecord(0, 9.0, tokens=9)], FLOPS, CENSUS, CEILINGS)
    assert alone.tokens_per_s == 1.0


def test_emulated_dtype_is_named_as_such() -> None:
    slow = MatmulCeiling("bfloat16", 1e6, (8, 8, 8), 1e6, False, 1.0)
    ceilings = Ceilings("CPU", "CPU", 2.0, 2, "2.13", matmul=(slow,))
    assert (utilize(STEPS, FLOPS, CENSUS, ceilings).peak or "").startswith("emulated bfloat16")
