"""What a machine is and can do, how much of it a run used, and how its processes waited for each other, in words."""

from __future__ import annotations

from dataclasses import fields
from datetime import UTC, datetime

from hotloop.core.ceilings import Ceilings, MatmulCeiling
from hotloop.core.judgement import Goodput, RankComparison, Utilization
from hotloop.core.measurement import Environment
from hotloop.core.sessions import SaveInterval
from hotloop.report import numbers

MAX_RANKS = 8
"""Listed one by one; of more, those that compute longest."""
BUSY = 0.8
"""A median below this share of the best means that repetitions disturbed each other or were disturbed."""


def goodput_words(found: Goodput) -> str:
    """Which part of the time since its start a training used for steps that count, and what took the rest."""
    shares = numbers.shares({name: s / (found.wall_s or 1.0) for name, s in found.seconds.items()})
    parts = [f"{name.replace('_', ' ')} {share.strip()}" for name, share in shares.items()]
    ended = f", {found.killed} killed" if found.killed else ""
    lost = f"; {numbers.counted(found.lost_steps, 'step')} made again" if found.lost_steps else ""
    processes = numbers.counted(found.processes, "process", "processes")
    said = ", ".join(p for p in parts if not p.endswith(" 0.0 %"))
    return f"{said} of {numbers.seconds(found.wall_s)} ({processes}{ended}{lost})"


def interval_words(interval: SaveInterval) -> str:
    """What `auto` chose for the steps between two checkpoints, and why."""
    cost = numbers.seconds(interval.save_s)
    often = f"{numbers.count(interval.interruptions_per_day)} interruptions a day"
    return f"{numbers.counted(interval.steps, 'step')}, for saves that cost {cost} and {often}"


def environment_rows(environment: Environment) -> list[tuple[str, str]]:
    """Names and values in words, for every place that shows an environment."""
    rows: list[tuple[str, str]] = []
    for each in fields(environment):
        value = getattr(environment, each.name)
        if each.name == "variables":
            rows.extend((name, str(text)) for name, text in value.items())
        elif each.name.endswith("_bytes"):
            rows.append((each.name.removesuffix("_bytes").replace("_", " "), numbers.size(value)))
        else:
            text = (
                numbers.UNKNOWN
                if value is None
                else f"{value:g}"
                if isinstance(value, float)
                else str(value)
            )
            rows.append((each.name.replace("_", " "), text))
    return rows


def ceiling_rows(ceilings: Ceilings) -> list[tuple[str, str]]:
    """Names and values for a table: matrix products fastest first, what is missing."""
    fp32 = ceilings.of("float32")
    rows = [(f"{each.dtype} products", _product(each, fp32)) for each in ceilings.matmul]
    rows += [(name, f"not measured: {why}") for name, why in ceilings.not_measured.items()]
    rows.append(("measured", _when(ceilings)))
    return rows


def _product(each: MatmulCeiling, fp32: MatmulCeiling | None) -> str:
    m, k, n = each.shape
    ratio = ""
    if fp32 is not None and each is not fp32:
        ratio = f", {numbers.ratio(each.flops_per_s / fp32.flops_per_s)} float32"
    # Two different statements: there is no instruction for it here, and this is what that costs.
    kind = "" if each.native else ", emulated here"
    return f"{flops(each.flops_per_s)}{ratio}{kind} ({m} x {k} x {n})"


def _when(ceilings: Ceilings) -> str:
    times = [each.measured_at for each in ceilings.matmul]
    when = (
        datetime.fromtimestamp(max(times), UTC).strftime("%Y-%m-%d %H:%M UTC")
        if times
        else "at an unknown time"
    )
    threads = numbers.counted(ceilings.num_threads, "thread")
    text = f"{when}, {threads}, torch {ceilings.torch}; the best of many"
    if any(
        each.native and each.median_flops_per_s < BUSY * each.flops_per_s
        for each in ceilings.matmul
    ):
        text += "; the machine was busy: `hotloop env --measure` again when it is not"
    return text


def flops(per_s: float | None) -> str:
    """`820 GFLOP/s`, `1.2 TFLOP/s`"""
    if per_s is None:
        return numbers.UNKNOWN
    if per_s >= 0.9995e12:
        return f"{numbers.count(per_s / 1e12)} TFLOP/s"
    return f"{numbers.count(per_s / 1e9)} GFLOP/s"


def mfu_words(used: Utilization) -> str:
    """`41 % (PaLM), 38 % (causal)`"""
    return f"{numbers.percent(used.palm_mfu)} (PaLM), {numbers.percent(used.causal_mfu)} (causal)"


def utilization_rows(used: Utilization | None) -> list[tuple[str, str]]:
    """Model FLOP/s and MFU in both conventions, with the denominator; or why there is none."""
    rows: list[tuple[str, str]] = []
    if used is None:
        return rows
    if used.palm_flops_per_s is not None:
        both = f"{flops(used.palm_flops_per_s)} counting attention fully (PaLM)"
        rows.append(
            ("model arithmetic", f"{both}, {flops(used.causal_flops_per_s)} counting half (causal)")
        )
    if used.palm_mfu is not None:
        rows.append(("MFU", mfu_words(used)))
        rows.append(("  of", f"{flops(used.peak_flops_per_s)}: {used.peak}"))
    elif used.palm_flops_per_s is not None:
        rows.append(("MFU", f"{numbers.UNKNOWN}: {used.reason}"))
    return rows


def ranks_answer(found: RankComparison) -> str:
    """Says which one holds the others up, if any does."""
    if found.reason is not None:
        return f"not compared: {found.reason}"
    if found.slowest is not None and found.hidden:
        by = numbers.percent(found.slower_by)
        return (
            f"rank {found.slowest} holds the others up {by} of a step: it takes longer outside of the "
            "pass backward, and they wait for it inside theirs"
        )
    if found.hidden:
        return (
            f"{len(found.ranks)}, none slower outside of the pass backward; inside, waiting is not told "
            "from computing"
        )
    if found.slowest is not None:
        by = numbers.percent(found.slower_by)
        return f"rank {found.slowest} is {by} slower than the others, who wait for it"
    return f"{len(found.ranks)}, none reliably slower than the others"


def rank_rows(found: RankComparison) -> list[tuple[str, str]]:
    """Each with its share of a step, the slowest first where not all are shown."""
    shown = list(found.ranks)
    if len(shown) > MAX_RANKS:
        shown = sorted(shown, key=lambda each: -each.computing_s)[:MAX_RANKS]
    rows = []
    for each in shown:
        computing, waiting = numbers.seconds(each.computing_s), numbers.seconds(each.waiting_s)
        # Where waiting is not told apart, computing is not known either.
        part = f"computes {computing}, waits {waiting}" if found.reason is None else computing
        if found.hidden:
            part = f"{computing} outside of the pass backward"
        rows.append((f"rank {each.rank}", f"{part} a step"))
    if len(found.ranks) > len(shown):
        rows.append(("", f"and {len(found.ranks) - len(shown)} others that compute no longer"))
    return rows
