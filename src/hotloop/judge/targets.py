"""The checklist that a run is held against: pass, fail, or why a bar does not apply.

Nothing here is estimated: a value is measured in this run or comparison, or it is not known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hotloop.core.judgement import Diagnosis, ParityClass, Target, TargetStatus, TargetUnit, Verdict
from hotloop.core.measurement import Measurement
from hotloop.core.model_config import ModelConfig
from hotloop.core.step import StepRecord
from hotloop.core.telemetry import TelemetrySample
from hotloop.judge.judged_run import runs_on_cpu
from hotloop.judge.parity import judge_parity
from hotloop.judge.utilization import (
    MIN_SAMPLES,
    Use,
    finite,
    of_gpu,
    steady_tokens_per_s,
    while_training,
)

DATA_CENTRE = frozenset(
    {
        "NVIDIA A100-SXM4-40GB",
        "NVIDIA A100-SXM4-80GB",
        "NVIDIA A100-PCIE-40GB",
        "NVIDIA A100 80GB PCIe",
        "NVIDIA H100 80GB HBM3",
        "NVIDIA H100 PCIe",
        "NVIDIA H100 NVL",
        "NVIDIA H200",
        "NVIDIA H200 NVL",
        "NVIDIA GH200 480GB",
        "NVIDIA B200",
    }
)
"""Whole GPUs that the bars of tokens and samples per second are meant for, by their exact names."""

GPT_SMALL = (12, 768)
"""Layers and width."""


def check_targets(
    measurement: Measurement | None,
    *,
    diagnosis: Diagnosis | None = None,
    verdict: Verdict | None = None,
    telemetry: Sequence[TelemetrySample] = (),
    model: ModelConfig | None = None,
    repeats: Sequence[Sequence[StepRecord]] = (),
) -> tuple[Target, ...]:
    """Every target, always in the same order.

    `measurement`, `diagnosis`, `telemetry` and `model` are of one run; `verdict` is of the comparison
    that it belongs to, if any; `repeats` are the records of processes with the very same settings.
    """
    records = measurement.records if measurement is not None else ()
    used = Use(measurement, while_training(telemetry, records), telemetry)
    return (
        _gpu_busy(used),
        _gpu_memory(used),
        _data_wait(diagnosis),
        _samples_per_s(records),
        _tokens_per_s(measurement, model),
        _cpu(used),
        _host_memory(used),
        _io_wait(used),
        _checkpoint_stall(records),
        _quality(verdict),
        _reproducible(repeats, verdict),
        _Bar("failed_runs", "failed runs", "< 1 %", "fraction", below=0.01).skipped(
            "not known: such a share shows over hundreds of runs"
        ),
        _half_the_time(verdict),
    )


def _gpu_busy(used: Use) -> Target:
    target = _Bar("gpu_busy", "GPU busy", "> 85 %, band 75 to 95 %", "fraction", above=0.85)
    index, why = used.gpu()
    if index is None:
        return target.skipped(why)
    busy = [v for g in of_gpu(index, used.training) if (v := finite(g.busy_fraction)) is not None]
    if len(busy) < MIN_SAMPLES:
        return target.skipped(used.why_none)
    mean = math.fsum(busy) / len(busy)
    band = "below" if mean < 0.75 else "above" if mean > 0.95 else "inside"
    return target.judged(
        mean, f"{band} the band; mean while training, as NVML counts: any kernel at all"
    )


def _gpu_memory(used: Use) -> Target:
    words = "70 to 95 % of the card"
    target = _Bar("gpu_memory", "GPU memory, peak", words, "fraction", above=0.7, below=0.95)
    index, why = used.gpu()
    if index is None:
        return target.skipped(why)
    shares = [
        gpu.memory_bytes / gpu.memory_total_bytes
        for gpu in of_gpu(index, used.everything)
        if gpu.memory_bytes is not None and gpu.memory_total_bytes
    ]
    if not shares:
        return target.skipped("NVML does not tell the memory of this GPU")
    return target.judged(max(shares), "highest of all samples, all processes on the card")


def _data_wait(diagnosis: Diagnosis | None) -> Target:
    target = _Bar("data_wait", "data wait", "< 5 % of the step", "fraction", below=0.05)
    if diagnosis is None or not diagnosis.breakdown:
        return target.skipped("no phases were recorded")
    return target.judged(
        diagnosis.breakdown.get("data_wait", 0.0), "share of the wall time of steps under way"
    )


def _samples_per_s(records: Sequence[StepRecord]) -> Target:
    target = _Bar("samples_per_s", "classification speed", "> 1000 samples/s", "samples/s", 1000.0)
    if not records:
        return target.skipped("no step was recorded")
    return target.skipped("no classification: this trains a language model")


def _tokens_per_s(measurement: Measurement | None, model: ModelConfig | None) -> Target:
    target = _Bar("tokens_per_s", "GPT-small speed", "> 100 K tokens/s", "tokens/s", 100_000.0)
    speed = steady_tokens_per_s(measurement.records) if measurement is not None else None
    if measurement is None or speed is None:
        return target.skipped("no steady step counts its tokens")
    device = measurement.environment.device
    if runs_on_cpu(measurement):
        return target.skipped("a bar for data-centre GPUs: this ran on a CPU", speed)
    if device not in DATA_CENTRE:
        return target.skipped(f"a bar for data-centre GPUs, and {device} is not listed", speed)
    if model is None:
        return target.skipped("the shape of the model is not known", speed)
    if (model.layers, model.width) != GPT_SMALL:
        return target.skipped(
            f"a bar for GPT-small (12 layers, 768 wide); this model has {model.layers} layers, "
            f"{model.width} wide",
            speed,
        )
    return target.judged(speed, "over the steady steps")


def _cpu(used: Use) -> Target:
    target = _Bar("cpu", "CPU", "50 to 80 %", "fraction", above=0.5, below=0.8)
    busy = used.mean("cpu_fraction")
    if busy is None:
        return target.skipped(used.why_none)
    if used.on_cpu:
        return target.skipped("the CPU is the device that trains here: the busier the better", busy)
    return target.judged(busy, "mean over all CPUs of the machine while training")


def _host_memory(used: Use) -> Target:
    target = _Bar("host_memory", "host memory", "< 85 %", "fraction", below=0.85)
    shares = {"of the machine, all processes": 0.0, "of what this process may use": 0.0}
    for sample in used.everything:
        for name, taken, whole in zip(
            shares,
            (sample.memory_bytes, sample.process_bytes),
            (sample.memory_total_bytes, sample.memory_limit_bytes),
        ):
            if taken is not None and whole:
                shares[name] = max(shares[name], taken / whole)
    name = max(shares, key=lambda which: shares[which])
    if not shares[name]:
        return target.skipped("no telemetry was written" if not used.everything else "not told")
    return target.judged(shares[name], f"highest of all samples, {name}")


def _io_wait(used: Use) -> Target:
    target = _Bar("io_wait", "IO wait", "< 10 %", "fraction", below=0.1)
    waiting = used.mean("iowait_fraction")
    if waiting is None:
        known = used.mean("cpu_fraction") is not None
        return target.skipped("this system does not tell" if known else used.why_none)
    return target.judged(waiting, "mean over all CPUs of the machine while training")


def _checkpoint_stall(records: Sequence[StepRecord]) -> Target:
    target = _Bar("checkpoint_stall", "checkpoint stall", "< 1 s", "s", below=1.0)
    stalls = [r.host["checkpoint"] for r in records if r.host.get("checkpoint")]
    if not stalls:
        return target.skipped(
            "no step was recorded" if not records else "nothing was saved between two steps"
        )
    saves = "one save" if len(stalls) == 1 else f"the longest of {len(stalls)} saves"
    return target.judged(max(stalls), f"{saves} between steps")


def _quality(verdict: Verdict | None) -> Target:
    target = _Bar("quality", "no loss of quality", "losses agree", "relative_difference")
    if verdict is None:
        return target.skipped("only a comparison of two arms shows it")
    parity = verdict.parity
    if parity.result == "not_checked":
        return target.skipped(f"the losses were not compared: {parity.reason}")
    passed = parity.result in ("same", "within_noise")
    return target.decided(passed, parity.max_difference, parity.reason)


def _reproducible(repeats: Sequence[Sequence[StepRecord]], verdict: Verdict | None) -> Target:
    target = _Bar("reproducible", "reproducible", "repeated runs agree", "relative_difference")
    if len(repeats) < 2:
        return target.skipped("not known: these settings ran once")
    claimed = verdict.parity.parity_class if verdict is not None else None
    allowed: ParityClass = (
        "reduced_precision" if claimed == "reduced_precision" else "reduction_order"
    )
    parity = judge_parity(repeats[:1], repeats[1:], allowed)
    if parity.result == "not_checked":
        return target.skipped(f"not known: {parity.reason}")
    return target.decided(
        parity.result != "different",
        parity.max_difference,
        f"{len(repeats)} processes with the same settings and seed, over {parity.num_steps} steps",
    )


def _half_the_time(verdict: Verdict | None) -> Target:
    target = _Bar("half_the_time", "half the time to the same loss", "2x or more", "ratio", 2.0)
    if verdict is None:
        return target.skipped("only a comparison of two arms shows it")
    if verdict.ratio_low is None:
        return target.skipped(f"no interval: {'; '.join(verdict.reasons) or verdict.outcome}")
    if verdict.parity.result == "not_checked":
        return target.skipped("the losses were not compared", verdict.ratio_low)
    same = verdict.parity.result != "different"
    what = "low end of the interval, steady steps: compiling is not in it"
    return target.decided(
        same and verdict.ratio_low >= 2.0, verdict.ratio_low, what if same else "the losses differ"
    )


@dataclass(frozen=True, slots=True)
class _Bar:
    """A target before it is decided."""

    name: str
    title: str
    words: str
    unit: TargetUnit
    above: float | None = None
    below: float | None = None

    def judged(self, value: float, reason: str) -> Target:
        high_enough = self.above is None or value > self.above
        low_enough = self.below is None or value < self.below
        return self.decided(high_enough and low_enough, value, reason)

    def decided(self, passed: bool, value: float | None, reason: str) -> Target:
        return self._target("pass" if passed else "fail", value, reason)

    def skipped(self, reason: str, value: float | None = None) -> Target:
        return self._target("not_applicable", value, reason)

    def _target(self, status: TargetStatus, value: float | None, reason: str) -> Target:
        words, reason = self.words, reason.rstrip(".")
        return Target(self.name, self.title, words, status, value, self.unit, self.above, self.below, reason)  # fmt: skip
