"""The whole walk, small: real processes, the real plain script, the real judge."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from hotloop.core.census import Census
from hotloop.core.config import RunConfig
from hotloop.core.errors import UsageError
from hotloop.core.files import read_json
from hotloop.core.judgement import Diagnosis, Parity, Verdict
from hotloop.core.measurement import Environment, Measurement, Plan
from hotloop.quickstart.arms import refuse_what_the_script_cannot_do
from hotloop.quickstart.program import (
    Quickstart,
    final_of,
    ledger_line,
    measure_and_judge,
    not_applied,
    train_with,
)
from hotloop.report.html import render_html
from hotloop.runs.run_page import page_of
from hotloop.runs.stored_run import read_run
from hotloop.trial.plan import TrialPlan

PLAN = TrialPlan(warmup_steps=2, steps=20, timeout_s=120, looks=(2,), aa_pairs=1)


def small(texts: Path) -> tuple[str, ...]:
    return (
        f"data.source={texts}", "data.tokenizer=bytes", "model.layers=1", "model.width=16",
        "model.heads=2", "model.context=32", "train.compile=false", "eval.windows=4",
    )  # fmt: skip


@pytest.mark.usefixtures("without_compiler")
def test_quickstart_walks_from_text_to_a_judged_run_and_a_sample(
    tmp_path: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path / "cache"))
    out = tmp_path / "quickstart"
    compared = measure_and_judge(out, plan=PLAN, overrides=small(prepared.parent / "texts"))
    parity = compared.verdict.parity
    assert parity.result in ("same", "within_noise"), parity.reason
    assert parity.num_steps == 22
    assert compared.verdict.num_pairs == 2
    assert compared.verdict.unit == "token"
    assert sum(compared.diagnosis.breakdown.values()) == pytest.approx(1.0, abs=5e-3)
    plain, tuned = compared.plain_runs[0], compared.tuned_runs[0]
    # Same weights at the start, same first batch: the first losses differ by the precision alone.
    assert tuned.records[0].loss == pytest.approx(plain.records[0].loss, rel=1e-3)
    assert tuned.records[0].tokens == plain.records[0].tokens == 256
    assert read_json(out / "verdict.json", Verdict) == compared.verdict
    assert read_json(out / "diagnosis.json", Diagnosis) == compared.diagnosis

    found = train_with(out, compared, minutes=1e-6)
    assert found.trained.steps == 20
    assert found.trained.loss is not None
    assert found.trained.sample.startswith("def __init__(self")
    assert read_json(out / "quickstart.json", Quickstart) == found
    drawn = render_html(page_of(read_run(out)))
    HTMLParser().feed(drawn)
    for section in ("before-after", "time", "loss", "speed", "targets", "sample", "settings"):
        assert f'id="{section}"' in drawn

    again = measure_and_judge(out, plan=PLAN, overrides=small(prepared.parent / "texts"))
    assert again.verdict == compared.verdict  # nothing was measured twice


_PLAN = Plan(warmup_steps=1, steps=1, timeout_s=1)
_ENVIRONMENT = Environment(
    device="cpu", num_devices=1, cpu_model="cpu", num_cpus=1, cpu_quota=1.0, memory_limit_bytes=None,
    platform="Linux-x86_64", kernel=None, python="3.11", torch="2.13", cuda=None, driver=None,
    hotloop="0.1.0",
)  # fmt: skip
_VERDICT = Verdict(
    "improved", 1.5, 1.4, 1.6, 0.95, Parity("same", "bitwise"), "plain", "hotloop",
    reasons=("The whole interval lies above 1.01.",),
)  # fmt: skip


@pytest.mark.usefixtures("without_compiler")
def test_other_settings_are_measured_anew_and_never_taken_from_old_trials(
    tmp_path: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path / "cache"))
    texts = prepared.parent / "texts"
    for out in ("one", "other"):  # the arms alone: nothing is run
        (tmp_path / out).mkdir()
    from hotloop.core.settings import load_settings
    from hotloop.data.prepare import ensure_prepared
    from hotloop.data.spec import Spec
    from hotloop.quickstart.arms import arms, shipped

    data = ensure_prepared(Spec((str(texts),)))
    found = []
    for extra in ((), ("train.precision=fp32",), ("data.seed=5",)):
        settings = load_settings(
            shipped("configs/quickstart.yaml"), (*small(texts), "train.num_threads=1", *extra)
        )
        found.append([arm.to_mapping() for arm in arms(tmp_path / "one", settings, data, PLAN)])
    assert found[0][0] == found[1][0]  # precision is not the plain arm's
    assert found[0][1] != found[1][1]
    assert found[0][0] != found[2][0]  # another order is


def test_setting_that_only_one_arm_would_have_is_refused() -> None:
    config = resolved(grad_accum_steps=2)
    with pytest.raises(UsageError, match="grad_accum_steps"):
        refuse_what_the_script_cannot_do(config)
    refuse_what_the_script_cannot_do(resolved())


def test_nothing_kept_means_no_final_ratio() -> None:
    verdict = replace(_VERDICT, outcome="regressed", num_pairs=6)
    line = ledger_line(resolved(), verdict, ())
    final = final_of(verdict, line)
    assert (line.status, final.ratio, final.kept) == ("rejected", None, ())


def resolved(**train: object) -> RunConfig:
    values = {
        "compile": False, "precision": "bf16", "attention": "sdpa", "clip": "builtin",
        "gelu": "tanh", "host_memory": "default", "thread_binding": "none", "gradient_compression": "none", "loss": "plain",
        "activation_checkpointing": "none", **train,
    }  # fmt: skip
    return RunConfig.model_validate(
        {"data": {"source": "x"}, "train": values, "optimizer": {"fused": True}}
    )


def test_technique_that_did_not_take_effect_is_named_and_not_counted(prepared: Path) -> None:
    census = Census(matmul_dtypes=("float32",), optimizer="AdamW(fused)", compiled=False)
    run = Measurement(
        arm="hotloop",
        command=(),
        plan=_PLAN,
        environment=_ENVIRONMENT,
        census=census,
    )
    assert not_applied(resolved(), (run,)) == ("precision",)
    line = ledger_line(resolved(), _VERDICT, ("precision",))
    assert line.optimization == "fused_optimizer"
    assert line.setting == {"optimizer.fused": True}
    assert "not applied: precision" in line.reason
