"""What is shown of a run directory: in the terminal, as a page, as JSON."""

from __future__ import annotations

import inspect
import json
import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hotloop.core.command_run import CommandRun
from hotloop.core.config import RunConfig
from hotloop.core.course import PairSpeeds
from hotloop.core.errors import UsageError
from hotloop.core.files import to_plain
from hotloop.core.settings import Settings
from hotloop.core.untrusted import read_bytes
from hotloop.doctor.collect import num_under_way
from hotloop.judge.course import arms_course, machine_course, pace, pair_speeds, step_course
from hotloop.judge.findings import FINDINGS
from hotloop.report import memory, numbers, terminal
from hotloop.report.examined import command_rows, examined_answer
from hotloop.report.held_out import CLASS_HEAD, class_tables, measures_in_words
from hotloop.report.html import Page
from hotloop.report.ledger import render_ledger, render_patch
from hotloop.report.machine import (
    goodput_words,
    interval_words,
    mfu_words,
    rank_rows,
    ranks_answer,
    utilization_rows,
)
from hotloop.report.numbers import seconds
from hotloop.report.words import answer, run_answer
from hotloop.runs.notes import num_done
from hotloop.runs.source_lines import source_lines
from hotloop.runs.stored_run import StoredRun


def answer_of(found: StoredRun) -> str:
    """The one sentence a reader came for."""
    if found.verdict is not None:
        return answer(found.verdict)
    run = found.run
    if run.command_run is not None:
        census = run.measurement.census if run.measurement is not None else None
        return examined_answer(
            run.command_run,
            run.diagnosis,
            num_steps=num_under_way(run.measurement),
            foreign_busy=census.foreign_busy if census is not None else None,
        )
    if found.trials is not None and run.measurement is None:
        return "No verdict yet."
    if run.measurement is None or run.measurement.samples:
        return ""

    records = run.measurement.records
    settings = run.settings
    return run_answer(
        done=num_done(records) if settings is not None else len(records),
        planned=settings.config.train.steps if settings is not None else None,
        state=run.state,
        early=_why_early(settings) if run.state == "ended_early" else "",
        pace=pace(records),
        loss=next((r.loss for r in reversed(records) if r.loss is not None), None),
        held_out=run.evals[-1]["loss"] if run.evals else None,
        breakdown=run.diagnosis.breakdown if run.diagnosis is not None else {},
    )


def _why_early(settings: Settings[Any] | None) -> str:
    evaluates: Any = settings.config.eval if settings is not None else None
    num = numbers.counted(evaluates.patience, "evaluation")
    return f"no better `{evaluates.metric}` in {num} (`eval.patience`)"


def facts_of(found: StoredRun, *, brief: bool = False) -> list[tuple[str, str]]:
    """The few numbers a reader looks for first, in words; `brief` leaves the long ones out."""
    run, facts = found.run, list[tuple[str, str]]()
    if run.command_run is not None:
        facts.extend(command_rows(run.command_run))
    elif (trials := found.trials) is not None and trials.of_scripts:
        arms = ((trials.baseline, trials.baseline_runs), (trials.candidate, trials.candidate_runs))
        facts.extend((name, shlex.join(runs[0].command)) for name, runs in arms if runs)
    of = "final training: " if found.trained is not None else ""
    records = run.measurement.records if run.measurement else ()
    if last := next((r for r in reversed(records) if r.loss is not None), None):
        facts.append((f"{of}loss", f"{numbers.loss(last.loss)} at step {last.step}"))
    if run.evals:
        last_eval = run.evals[-1]
        facts.append(
            (f"{of}held-out loss", f"{numbers.loss(last_eval['loss'])} at step {last_eval['step']}")
        )
        if (averaged := last_eval.get("averaged_loss")) is not None:
            facts.append((f"{of}with averaged weights", numbers.loss(averaged)))
    if run.task is not None:
        facts.append((f"{of}on held-out examples", measures_in_words(run.task)))
    if run.diagnosis is not None and run.diagnosis.steps.tokens_per_s is not None:
        speed = numbers.rate(run.diagnosis.steps.tokens_per_s, "tokens")
        facts.append((f"{of}speed, over all steps", speed))
    if run.ranks is not None:
        facts.append((f"{of}processes", ranks_answer(run.ranks)))
        facts.extend([] if brief else rank_rows(run.ranks))
    if run.goodput is not None:
        facts.append((f"{of}goodput", goodput_words(run.goodput)))
        if run.goodput.interval is not None:
            facts.append(("checkpoint interval", interval_words(run.goodput.interval)))
    used = run.utilization
    if not brief:
        facts.extend(utilization_rows(used))
    elif used is not None and used.palm_mfu is not None:
        facts.append(("MFU", mfu_words(used)))
    census = run.measurement.census if run.measurement else None
    if census is not None and census.host_peak_bytes is not None:
        whose = "host memory of rank 0" if run.ranks is not None else "host memory"
        facts.append((f"{of}{whose}, peak", numbers.size(census.host_peak_bytes)))
    measured_peak = (found.quickstart or {}).get("host_peak_bytes")
    if isinstance(measured_peak, int):
        facts.append(("host memory of a measured process, peak", numbers.size(measured_peak)))
    facts.extend(compile_cost(found.quickstart))
    if found.trained is not None:
        facts.append(("trained with it", f"`hotloop report {found.trained.directory}`"))
    environment = run.environment or found.environment
    if environment is not None:
        facts.append(("device", environment.device))
    return facts


def compile_cost(quickstart: dict[str, Any] | None) -> list[tuple[str, str]]:
    """Names and texts: how long compiling took, and after how many steps that has paid. Empty where it is not known."""
    found = quickstart or {}
    spent, pays = found.get("compile_s"), found.get("steps_until_compile_pays")
    if not isinstance(spent, int | float) or not isinstance(pays, int):
        return []
    paid = numbers.counted(pays, "step")
    return [("compiling", f"{seconds(spent)} before the first step, won back after {paid}")]


def settings_rows(settings: Settings[Any] | None) -> list[tuple[str, str, str]]:
    """Every key with its value and where it came from."""
    if settings is None:
        return []
    flat = settings.config.flat()
    return [(key, json.dumps(flat[key]).strip('"'), settings.origin(key)) for key in flat]


def problem_lines(found: StoredRun) -> list[str]:
    """What is damaged, a line each."""
    return [f"{each.where}: {each.what}" if each.where else each.what for each in found.problems]


def text_of(found: StoredRun, *, of_a_block: bool = False) -> str:
    """For a terminal: the answer first. of_a_block: of `hotloop.watch`, whose reader knows what ran, and how it ended."""
    parts = [] if of_a_block else [str(found.directory)]
    if found.verdict is not None:
        parts.append(terminal.render_verdict(found.verdict))
    elif sentence := answer_of(found):
        parts.append(sentence)
    if run_ended := found.run.out_of_memory:
        parts.append(memory.render_out_of_memory(run_ended))
    if found.problems:
        parts.append(
            "\n".join(["damaged, and left out", *(f"  {line}" for line in problem_lines(found))])
        )
    # The diagnosis opens with the speed.
    left_out = ("speed,", "command", "ended") if of_a_block else ("speed,",)
    facts = [fact for fact in facts_of(found) if not fact[0].startswith(left_out)]
    about = [terminal.render_rows("run", facts), "\n".join(found.notes)]
    if found.command_run is None:
        parts.extend(about)
    if found.run.task is not None:
        for title, scored in class_tables(found.run.task):
            parts.append(terminal.render_rows(f"{title}: {', '.join(CLASS_HEAD[1:])}", scored))
    if found.verdict is None:
        parts.append(terminal.render_rows("measured so far", terminal.pair_rows(pairs_of(found))))
    if found.diagnosis is not None:
        parts.append(terminal.render_diagnosis(found.diagnosis))
    if found.command_run is not None:  # who asks what is wrong reads that first
        parts.extend(about)
    if found.ledger is not None:
        parts.append(render_ledger(found.ledger))
        if found.ledger.together and any(fix.patch is not None for fix in found.ledger.fixes):
            parts.append(render_patch(found.ledger))
    parts.append(terminal.render_targets(found.targets))
    rows = settings_rows(found.run.settings)
    chosen = [row for row in rows if row[2] != "default"]
    if rows:
        parts.append(terminal.render_settings(chosen, num_defaults=len(rows) - len(chosen)))
    return "\n\n".join(part for part in parts if part)


def _patch_of(found: StoredRun) -> str:
    """The diff that the run's ledger names, if it still lies there."""
    if found.ledger is None or found.ledger.diff is None or found.command_run is None:
        return ""
    try:
        file = Path(found.command_run.workdir, found.ledger.diff)
        text = read_bytes(file).decode("utf-8", "replace")  # with its line ends: it is copied
    except (OSError, ValueError):
        return ""
    return text if text.startswith("--- ") else ""  # a ledger may name any file


def _fit_command(run: StoredRun) -> str:
    """How this page gets memory against the microbatch; of what ran out of it the proof that something is enough."""
    config = run.directory / "config.yaml"
    if run.settings is None or not isinstance(run.settings.config, RunConfig):
        return ""
    words, ended = ["hotloop", "fit", str(config)], run.out_of_memory
    if ended is None and run.memory is None:
        return ""
    if ended is not None and ended.limit_bytes:
        words += ["--memory", f"{ended.limit_bytes // 10**6}M", "--prove"]
        return f"Which settings are predicted to be enough, and proof of the cheapest: `{shlex.join(words)}`"
    does = "predicts memory against the microbatch, which this page then shows"
    return "" if run.fit is not None else f"`{shlex.join(words)}` {does}."


def pairs_of(found: StoredRun) -> tuple[PairSpeeds, ...]:
    """Work per second of every pair that was measured."""
    if found.trials is None:
        return ()
    try:
        return pair_speeds(found.trials.pairs)
    except UsageError:  # a time that is no time: the verdict says so
        return ()


def page_of(found: StoredRun) -> Page:
    """The same, as a `report.html.Page`."""
    run, trials = found.run, found.trials
    records = run.measurement.records if run.measurement else ()
    held_out = {}
    if run.evals:
        held_out["held-out"] = [(e["step"], e["loss"]) for e in run.evals]
    averaged = [(e["step"], e["averaged_loss"]) for e in run.evals if "averaged_loss" in e]
    if averaged:
        held_out["held-out, averaged weights"] = averaged
    environment = run.environment or found.environment
    sample = ((found.quickstart or {}).get("trained") or {}).get("sample")
    name = run.settings.config.name if run.settings else found.directory.name
    found_codes = [finding.code for finding in found.diagnosis.findings] if found.diagnosis else []
    return Page(
        title=f"hotloop: {'quickstart' if found.trained is not None else name}{_when(run.command_run)}",
        answer=answer_of(found),
        problems=problem_lines(found),
        notes=found.notes,
        facts=facts_of(found, brief=True),
        verdict=found.verdict,
        pairs=pairs_of(found),
        arm_names=(trials.baseline, trials.candidate) if trials else ("", ""),
        arms=arms_course(
            [m.records for m in trials.baseline_runs], [m.records for m in trials.candidate_runs]
        )
        if trials
        else None,
        breakdowns=_breakdowns(found),
        device=run.diagnosis.device if run.diagnosis is not None else None,
        ranks=rank_rows(run.ranks) if run.ranks is not None else (),
        steps=step_course(records),
        held_out=held_out,
        task=run.task,
        machine=machine_course(run.telemetry),
        cpus=environment.cpu_quota if environment is not None else None,
        use=utilization_rows(run.utilization),
        targets=found.targets,
        memory=run.memory,
        fit=run.fit,
        fit_command=_fit_command(run),
        out_of_memory=run.out_of_memory,
        diagnosis=found.diagnosis,
        explanations={
            code: inspect.cleandoc(FINDINGS[code].__doc__ or "")
            for code in found_codes
            if code in FINDINGS
        },
        examined=run.measurement.census if run.command_run and run.measurement else None,
        sample=sample if isinstance(sample, str) else "",
        ledger=found.ledger,
        patch=_patch_of(found),
        next_command=_next_command(found),
        sources=_sources_of(found),
        environment=environment,
        settings=settings_rows(run.settings),
        footer=f"Made by `hotloop report {found.directory}` from the files in that directory.",
    )


def _when(examined: CommandRun | None) -> str:
    """The examined command and the day it ran, for the page's title."""
    if examined is None:
        return ""
    try:
        day = datetime.fromtimestamp(examined.started_at, UTC).strftime(", %Y-%m-%d")
    except (OverflowError, ValueError, OSError):  # no time
        day = ""
    return f", {examined.line}{day}"


def _next_command(found: StoredRun) -> str:
    """What tries fixes, or goes on with them; empty where nothing is left to try."""
    run = found.command_run
    if found.ledger is not None:
        return found.ledger.continue_with or ""
    if run is None or run.ended not in ("by_itself", "enough_steps") or run.reads_input:
        return ""
    if found.diagnosis is None or not found.diagnosis.findings:
        return ""
    asked = ["--steps", str(run.steps)] if run.steps is not None else []
    asked += ["--out", str(found.directory)]
    words = ["hotloop", "doctor", *([] if run.of_a_block else asked), "--", *run.command]
    return run.again(words)


def _sources_of(found: StoredRun) -> dict[str, str]:
    """Lines of the script that the page names."""
    census = found.measurement.census if found.measurement is not None else None
    if found.command_run is None or census is None:
        return {}
    sites = [finding.site for finding in found.diagnosis.findings] if found.diagnosis else []
    sites += [line.site for line in census.lines]
    return source_lines(found.directory, found.command_run, sites)


def _breakdowns(found: StoredRun) -> dict[str, dict[str, float]]:
    bars: dict[str, dict[str, float]] = {}
    if found.diagnosis is not None:
        compared = found.verdict is not None or found.trials is not None
        name = "the measured process of median speed" if compared else "this run"
        bars[name] = found.diagnosis.breakdown
    if found.trained is not None and found.trained.diagnosis is not None:
        bars["the final training"] = found.trained.diagnosis.breakdown
    return bars


def object_of(found: StoredRun) -> dict[str, Any]:
    """Everything that was found, as one object."""
    return {
        "schema": "hotloop.report/1",
        "run": str(found.directory),
        "state": found.run.state,
        "answer": answer_of(found),
        "notes": list(found.notes),
        "problems": [
            {"what": each.what, "where": each.where, "do": each.do} for each in found.problems
        ],
        "verdict": to_plain(found.verdict),
        "diagnosis": to_plain(found.diagnosis),
        "targets": [to_plain(target) for target in found.targets],
        "utilization": to_plain(found.utilization),
        "goodput": to_plain(found.goodput),
        "ranks": to_plain(found.ranks),
        "pairs": [to_plain(pair) for pair in pairs_of(found)],
        "quickstart": found.quickstart,
        "evals": list(found.evals),
        "task": to_plain(found.run.task),
        "memory": to_plain(found.run.memory),
        "fit": to_plain(found.run.fit),
        "out_of_memory": to_plain(found.run.out_of_memory),
        "settings": {
            key: {"value": found.settings.config.flat()[key], "origin": origin}
            for key, _, origin in settings_rows(found.settings)
        }
        if found.settings
        else None,
        "doctor": to_plain(found.run.command_run),
        "ledger": to_plain(found.ledger),
        "environment": to_plain(found.environment),
        "measurement": to_plain(found.measurement),
        "trained": None if found.trained is None else object_of(found.trained),
    }
