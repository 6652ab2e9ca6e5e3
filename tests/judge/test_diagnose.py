"""The bound, the findings, and what was not examined."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from judge_inputs import ENVIRONMENT, phased, run
from script_inputs import HEALTHY as SCRIPT
from script_inputs import STEP, script, steps, waiting

from hotloop.core.census import Census, LineUse
from hotloop.core.judgement import Diagnosis
from hotloop.core.measurement import Measurement, Plan
from hotloop.core.step import StepRecord
from hotloop.judge.diagnose import bound_of, diagnose
from hotloop.judge.findings import FINDINGS, title_of

HEALTHY = Census(
    device="cpu",
    matmul_dtypes=("bfloat16",),
    fast_dtypes=("bfloat16",),
    optimizer="AdamW(fused)",
    compiled=True,
    loader={"num_workers": 2, "site": "train.py:42"},
    clock_read_s=1e-7,
)
BUSY = {"data_wait": 0.01, "forward": 0.3, "backward": 0.6, "optimizer": 0.04, "logging": 0.05}


def measured(host: dict[str, float], census: Census | None = HEALTHY, *extra: StepRecord) -> Measurement:  # fmt: skip
    steps = tuple(phased(n, sum(host.values()), **host) for n in range(10))
    return Measurement("a", (), Plan(0, 10, 1.0), ENVIRONMENT, (*steps, *extra), census=census)


def codes(diagnosis: Diagnosis) -> list[str]:
    return [finding.code for finding in diagnosis.findings]


def test_a_healthy_run_has_no_finding_and_is_compute_bound() -> None:
    diagnosis = diagnose(measured(BUSY))
    assert diagnosis.findings == ()
    assert diagnosis.bound == "compute"
    assert diagnosis.not_examined == ()


def test_waiting_for_data_is_input_bound_with_the_gain_of_no_wait() -> None:
    diagnosis = diagnose(measured({"data_wait": 0.31, "forward": 0.3, "backward": 0.39}))
    assert diagnosis.bound == "input"
    assert codes(diagnosis) == ["HL101"]
    (finding,) = diagnosis.findings
    assert finding.gain_at_most == pytest.approx(1 / 0.69)
    assert finding.evidence == pytest.approx({"data_wait_fraction": 0.31, "num_workers": 2})
    assert (finding.site, finding.optimization) == ("train.py:42", None)


@pytest.mark.parametrize(("wait", "found"), [(0.049, []), (0.051, ["HL101"])])
def test_waiting_is_reported_from_five_per_cent(wait: float, found: list[str]) -> None:
    assert codes(diagnose(measured({"data_wait": wait, "forward": 1 - wait}))) == found


def test_an_unfused_optimizer_is_found_from_five_per_cent_of_the_step() -> None:
    slow = {**BUSY, "optimizer": 0.25}
    for name, found in (
        ("AdamW(foreach)", ["HL401"]),
        ("SGD", ["HL401"]),
        ("SGD(fused=False)", ["HL401"]),
        ("AdamW(fused)", []),
        ("Lion", []),
        (None, []),
    ):
        assert codes(diagnose(measured(slow, replace(HEALTHY, optimizer=name)))) == found
    for name in ("foreach", "foreach=False", "fused=False", "fused=False, foreach=False"):
        (finding,) = diagnose(measured(slow, replace(HEALTHY, optimizer=f"AdamW({name})"))).findings
        assert finding.optimization is None
        assert f"fused=True in place of what the script chose ({name})" in finding.advice
    (finding,) = diagnose(measured(slow, replace(HEALTHY, optimizer="AdamW"))).findings
    assert finding.optimization == "fused_optimizer"
    share = 0.25 / sum(slow.values())
    assert finding.gain_at_most == pytest.approx(1 / (1 - 1.25 * share))
    assert diagnose(measured(slow)).bound == "compute"
    assert diagnose(measured({**slow, "optimizer": 1.0})).bound == "optimizer"
    assert codes(diagnose(measured(BUSY, replace(HEALTHY, optimizer="AdamW")))) == []


def test_float32_products_are_found_only_where_the_device_is_faster_otherwise() -> None:
    plain = replace(HEALTHY, matmul_dtypes=("float32",))
    assert codes(diagnose(measured(BUSY, plain))) == ["HL301"]
    assert codes(diagnose(measured(BUSY, replace(plain, fast_dtypes=())))) == []
    mixed = replace(plain, matmul_dtypes=("float32", "bfloat16"))
    assert codes(diagnose(measured(BUSY, mixed))) == []


def test_eager_is_found_only_when_seen_to_be_eager() -> None:
    assert codes(diagnose(measured(BUSY, replace(HEALTHY, compiled=False)))) == ["HL302"]
    assert codes(diagnose(measured(BUSY, replace(HEALTHY, compiled=None)))) == []


def test_findings_are_ranked_by_gain_and_loose_bounds_come_last() -> None:
    sick = replace(HEALTHY, matmul_dtypes=("float32",), compiled=False, optimizer="AdamW")
    host = {"data_wait": 0.2, "forward": 0.3, "backward": 0.4, "optimizer": 0.1}
    found = diagnose(measured(host, sick)).findings
    assert [f.code for f in found] == ["HL101", "HL401", "HL301", "HL302"]
    assert [f.gain_is_loose for f in found] == [False, False, True, True]
    assert found[0].gain_at_most > found[1].gain_at_most


def test_no_finding_without_a_census_and_that_is_said() -> None:
    diagnosis = diagnose(measured({**BUSY, "data_wait": 0.5}, None))
    assert codes(diagnosis) == ["HL101"]
    assert any("no census" in line for line in diagnosis.not_examined)


@pytest.mark.parametrize(
    ("host", "bound"),
    [
        ({"forward": 0.4, "backward": 0.5, "data_wait": 0.1}, "compute"),
        ({"forward": 0.4, "backward": 0.4, "data_wait": 0.2}, "input"),
        ({"forward": 0.4, "backward": 0.41, "data_wait": 0.19}, "compute"),
        ({"forward": 0.7, "host_to_device": 0.2, "data_wait": 0.1}, "copy"),
        ({"forward": 0.7, "checkpoint": 0.3}, "checkpoint"),
        ({"forward": 0.7, "eval": 0.3}, "evaluation"),
        ({"forward": 0.7, "logging": 0.3}, "logging"),
        ({"forward": 0.7, "grad_sync": 0.3}, "communication"),
        ({"forward": 0.75, "optimizer": 0.25}, "compute"),
        ({"forward": 0.45, "optimizer": 0.29, "data_wait": 0.14, "unattributed": 0.12}, "compute"),
        ({"forward": 0.37, "logging": 0.17, "optimizer": 0.3, "data_wait": 0.16}, "compute"),
        ({"forward": 0.41, "optimizer": 0.48, "data_wait": 0.11}, "optimizer"),
        ({"forward": 0.3, "optimizer": 0.4, "data_wait": 0.3}, "optimizer"),
        ({"forward": 0.5, "optimizer": 0.2, "data_wait": 0.3}, "input"),
        ({"forward": 0.7, "optimizer": 0.15, "data_wait": 0.08, "unattributed": 0.07}, "compute"),
        ({"forward": 0.4, "data_wait": 0.19, "unattributed": 0.19, "logging": 0.19}, "balanced"),
        ({"forward": 0.15, "optimizer": 0.15, "data_wait": 0.15}, "balanced"),
        ({"forward": 0.75, "optimizer": 0.05, "unattributed": 0.2}, "host"),
    ],
)
def test_the_bound_is_a_wait_of_a_fifth_or_what_takes_most_of_the_step(
    host: dict[str, float], bound: str
) -> None:
    assert bound_of(host, None, on_cpu=True) == bound


def test_between_the_phases_torch_computes_where_no_code_of_the_scripts_own_was_seen() -> None:
    """A GAN's losses and the noise that it draws, on a CPU: 22 % outside of the model, 52 % in it."""
    host = {"forward": 0.22, "backward": 0.3, "optimizer": 0.26, "unattributed": 0.22}
    assert bound_of(host, None, on_cpu=True, own_code=False) == "compute"
    assert bound_of(host, None, on_cpu=True, own_code=True) == "host"
    assert bound_of({**host, "forward": 0.0}, None, on_cpu=True, own_code=False) == "compute"
    most = {"forward": 0.3, "optimizer": 0.2, "unattributed": 0.5}
    assert bound_of(most, None, on_cpu=True, own_code=False) == "host"
    waits = {"forward": 0.4, "data_wait": 0.3, "unattributed": 0.3}
    assert bound_of(waits, None, on_cpu=True, own_code=False) == "input"
    seen = (LineUse("unattributed", "gan.py:20", "<module>", 0.22, inside="torch.rand"),)
    spent = measured(host, replace(HEALTHY, lines=seen))
    assert diagnose(spent).bound == "compute"
    seen = (replace(seen[0], inside="metrics.count"),)
    assert diagnose(measured(host, replace(HEALTHY, lines=seen))).bound == "host"


def test_host_waits_are_no_cause_while_the_device_is_busy() -> None:
    host = {"forward": 0.2, "sync": 0.7, "data_wait": 0.1}
    assert bound_of(host, {"compute": 0.97, "idle": 0.03}, on_cpu=False) == "compute"
    assert bound_of(host, {"compute": 0.3, "idle": 0.7}, on_cpu=False) == "sync"
    idle = {"compute": 0.5, "idle": 0.5}
    assert bound_of({"forward": 0.95, "data_wait": 0.05}, idle, on_cpu=False) == "host"


def test_an_accelerator_without_device_clocks_has_no_bound() -> None:
    assert bound_of({"forward": 0.2, "sync": 0.8}, None, on_cpu=False) is None
    diagnosis = diagnose(measured(BUSY, replace(HEALTHY, device="cuda:0")))
    assert diagnosis.bound is None
    assert any("device time" in line for line in diagnosis.not_examined)


def test_steps_left_out_of_the_breakdown_are_named() -> None:
    compiling = phased(10, 5.0, "compile", "gc", forward=5.0)
    diagnosis = diagnose(measured(BUSY, HEALTHY, compiling))
    assert diagnosis.not_examined == (
        "1 step in which something was compiled: not in the breakdown",
    )
    assert diagnosis.steps.measured == 11


@pytest.mark.parametrize(("phase", "bound"), [("eval", "evaluation"), ("checkpoint", "checkpoint")])
def test_training_that_mostly_evaluates_or_saves_is_bound_by_that(phase: str, bound: str) -> None:
    spent = phased(10, 5.0, phase, **{phase: 5.0})
    diagnosis = diagnose(measured(BUSY, HEALTHY, spent))
    assert diagnosis.bound == bound
    assert diagnosis.breakdown[phase] > 0.2


def test_phases_that_miss_wall_time_are_reported() -> None:
    short = measured(BUSY, HEALTHY, phased(10, 1.0, forward=0.5))
    assert any("disagree" in line for line in diagnose(short).not_examined)


def test_a_step_clock_alone_gives_steps_and_says_what_is_missing() -> None:
    diagnosis = diagnose(run(steps=30, step_s=0.1))
    assert diagnosis.steps.measured == 30
    assert diagnosis.steps.warmup == 2
    assert diagnosis.steps.tokens_per_s == pytest.approx(10_000)
    assert diagnosis.steps.samples_per_s is None
    assert diagnosis.breakdown == {}
    assert diagnosis.bound is None
    assert diagnosis.not_examined == ("phases: only a step clock was carried",)


def test_samples_of_all_ranks_are_counted() -> None:
    first = run(steps=30, step_s=0.1)
    taken = [replace(each, samples=6) for each in first.records]
    first = replace(first, records=tuple(taken))
    before = replace(first, records=tuple(replace(each, samples=0) for each in taken))
    assert diagnose(before).steps.samples_per_s is None  # drawn before the steps
    # The last steps of the other were not written.
    other = replace(first, records=tuple(replace(each, samples=2) for each in taken[:-8]))
    assert diagnose(first).steps.samples_per_s == pytest.approx(60)
    assert diagnose(first, others={1: other}).steps.samples_per_s is None  # each has its own?
    several = replace(first, census=Census(num_ranks=2))
    assert diagnose(several).steps.samples_per_s is None  # nobody saw what the other takes
    counted = [each for each in other.records if "warmup" not in each.tags]
    both = 60 + 10 * 2 * len(counted) / 30
    first = replace(first, census=Census(parallel="DistributedDataParallel"))
    assert diagnose(first, others={1: other}).steps.samples_per_s == pytest.approx(both)


def test_a_run_without_steady_steps_is_not_examined_at_all() -> None:
    diagnosis = diagnose(run(steps=0))
    assert diagnosis.steps.median_s is None
    assert diagnosis.not_examined == (
        "everything: no step after the start was recorded; it takes 50 in all, or more",
    )


def test_every_finding_has_its_code_title_and_page() -> None:
    for code, module in FINDINGS.items():
        assert re.fullmatch(r"HL[1-8]\d\d", code)
        page = module.__doc__ or ""
        for word in (
            "What it means.",
            "Evidence.",
            "Gain at most.",
            "Remedy.",
            "What can go wrong.",
        ):
            assert word in page, (code, word)
        assert page.startswith(f"{code}: ")
        assert title_of(code)[0].isupper()


def test_few_steps_are_those_that_the_speed_is_of() -> None:
    """A start that is seen by its course alone is in neither."""
    slow = {phase: 8 * seconds for phase, seconds in STEP.items()}
    first = steps(slow, num=4)
    diagnosis = diagnose(script((*first, *steps(num=28)[4:])))
    assert (diagnosis.steps.measured, diagnosis.steps.warmup) == (24, 4)
    assert any("24 counted steps of 2.4 s together" in each for each in diagnosis.not_examined)


@pytest.mark.parametrize(
    ("num", "times", "loose"),
    [(29, 1.0, True), (30, 1.0, False), (60, 0.1, True), (60, 0.2, False)],
)
def test_little_time_promises_no_gain(num: int, times: float, loose: bool) -> None:
    """Fewer than 30 steps, or less than a second of them: what is found is told, and no more."""
    host = {phase: times * seconds for phase, seconds in {**STEP, "logging": 0.02}.items()}
    diagnosis = diagnose(script(steps(host, num=num)))
    (finding,) = diagnosis.findings
    assert finding.gain_is_loose is loose
    (told, *_) = [each for each in diagnosis.not_examined if "too few to promise" in each] or [""]
    assert bool(told) is loose
    enough = diagnosis.steps.enough
    assert (enough is not None) is loose
    if enough is not None:  # so many do, and hardly fewer
        assert f"too few to promise a gain; about {enough:,} steps in all would do" in told
        assert diagnose(script(steps(host, num=enough))).steps.enough is None
        if enough > 50:
            assert diagnose(script(steps(host, num=enough - 20))).steps.enough is not None
    assert diagnosis.worth is not None
    assert (diagnosis.worth.gain_at_most == 1) is loose


def test_the_share_of_a_whole_run_is_known_from_few_steps() -> None:
    slow = replace(script(steps(num=5)).census or Census(), start_s=100.0)
    (finding,) = diagnose(script(steps(num=5), slow, returncode=0)).findings
    assert (finding.code, finding.gain_is_loose) == ("HL806", False)


@pytest.mark.parametrize(
    ("loader", "code"),
    [
        ({"num_workers": 0, "fetch_s": 0.03, "in_memory": True, "batch_size": 1000}, "HL102"),
        ({"num_workers": 0, "fetch_s": 0.03, "fetch_cpu_fraction": 0.1}, "HL106"),
        ({"num_workers": 8, "fetch_s": 0.9}, "HL105"),
        ({"num_workers": 0, "fetch_s": 0.03, "collate_s": 0.03}, "HL103"),
    ],
)
def test_the_place_is_the_users_own_line_where_one_is_known(
    loader: dict[str, object], code: str
) -> None:
    """A TensorDataset's samples are made in torch, and a collate function may be a library's."""
    installed = "/venv/lib/python3.11/site-packages/torch/utils/data/dataset.py:205"
    full = replace(SCRIPT, cpu_busy=7.9 if code == "HL105" else 4.0)
    theirs = {**loader, "dataset_site": installed, "collate_site": installed}
    (finding,) = [f for f in diagnose(waiting(0.03, theirs, full)).findings if f.code == code]
    assert finding.site == "train.py:30"
    mine = waiting(0.03, {**loader, "dataset_site": "data.py:3", "collate_site": "data.py:3"}, full)
    (finding,) = [f for f in diagnose(mine).findings if f.code == code]
    assert finding.site == "data.py:3"
