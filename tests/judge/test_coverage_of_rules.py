"""What was not looked at is said, and no rule guesses."""

from __future__ import annotations

import inspect
from dataclasses import replace

import pytest
from script_inputs import BUSY_DEVICE, EVERYTHING, GPU_HEALTHY, HEALTHY, STEP, script, steps

from hotloop.core.census import Census, CollectionUse
from hotloop.judge.diagnose import diagnose
from hotloop.judge.findings import FINDINGS, reason_without_fix
from hotloop.judge.judged_run import judged_run
from hotloop.optimizations.catalogue import CATALOGUE

SEEN = replace(HEALTHY, collections=CollectionUse(1, 1e-4, 0, 0.0))


def without(name: str, census: Census = SEEN) -> Census:
    return replace(census, seen=tuple(each for each in EVERYTHING if each != name))


def test_where_everything_was_seen_nothing_is_missing() -> None:
    assert diagnose(script(steps(), SEEN)).not_examined == ()


@pytest.mark.parametrize("name", ["loaders", "lines", "operators", "logs", "saves", "evaluations"])
def test_each_thing_that_was_not_watched_is_named(name: str) -> None:
    assert len(diagnose(script(steps(), without(name))).not_examined) == 1


@pytest.mark.parametrize("name", ["copies", "syncs"])
def test_copies_and_syncs_matter_on_an_accelerator_alone(name: str) -> None:
    assert diagnose(script(steps(), without(name))).not_examined == ()
    seen = replace(GPU_HEALTHY, collections=SEEN.collections, throttled_fraction=0.0)
    on_gpu = script(steps(device=BUSY_DEVICE), without(name, seen))
    assert len(diagnose(on_gpu).not_examined) == 1


def test_what_an_accelerator_did_not_tell_is_named() -> None:
    blind = replace(
        GPU_HEALTHY, device_memory_bytes=None, num_ranks=2, collections=SEEN.collections
    )
    missing = diagnose(script(steps(device=BUSY_DEVICE), blind)).not_examined
    assert [line.partition(":")[0] for line in missing] == [
        "waiting for the other processes",
        "memory of the device",
        "heat and power of the device",
        "which process is slower than the others",
    ]


def test_a_census_that_saw_nothing_gives_no_finding_but_what_the_clock_saw() -> None:
    """An empty census of a run with every phase in it: only waits may be spoken of."""
    host = {**STEP, "data_wait": 0.05, "optimizer": 0.05, "unattributed": 0.05}
    diagnosis = diagnose(script(steps(host), Census(device="cpu")))
    assert [f.code for f in diagnosis.findings] == ["HL101"]
    assert len(diagnosis.not_examined) >= 8


@pytest.mark.parametrize("census", [None, Census(), Census(device="cpu"), Census(device="cuda:0")])
@pytest.mark.parametrize("num", [1, 2, 60])
def test_no_rule_fails_on_what_is_not_known(census: Census | None, num: int) -> None:
    run = judged_run(replace(script(steps(num=num)), census=census))
    for module in FINDINGS.values():
        assert module.find(run) is None


def test_a_finding_names_only_optimizations_that_exist() -> None:
    for technique in CATALOGUE.values():
        assert set(technique.answers) <= set(FINDINGS)
    for module in FINDINGS.values():
        text = inspect.getsource(inspect.getmodule(module.find))  # type: ignore[arg-type]
        for part in text.split('optimization="')[1:]:
            assert part.partition('"')[0] in CATALOGUE


def test_finding_has_a_fix_or_says_why_none_is_possible() -> None:
    fixed = {
        code
        for technique in CATALOGUE.values()
        if technique.live_form is not None and not technique.what_if
        for code in technique.answers
    }
    reasons = {code for code, module in FINDINGS.items() if reason_without_fix(module)}
    assert fixed | reasons == set(FINDINGS)
    assert fixed & reasons == set()


def test_own_training_is_judged_as_before_and_has_no_worth() -> None:
    own = replace(HEALTHY, loader={"kind": "memory map"}, seen=(), loaders=(), operators=())
    diagnosis = diagnose(script(steps(), own))
    assert (diagnosis.findings, diagnosis.not_examined, diagnosis.worth) == ((), (), None)
