"""quickstart = trial(plain loop, hotloop's settings) -> compare -> train with what was proven."""

from __future__ import annotations

import ctypes
import json
import math
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hotloop.core.config import RunConfig
from hotloop.core.errors import CommandFailed, ExitCode, Interrupted
from hotloop.core.files import write_json
from hotloop.core.judgement import Diagnosis, Final, TrialOutcome, Verdict
from hotloop.core.measurement import Measurement
from hotloop.core.progress import Progress, silent
from hotloop.core.settings import Settings, load_settings, store_settings
from hotloop.data.prepare import ensure_prepared
from hotloop.doctor.fix_status import status_of
from hotloop.hardware.device import pick_device, read_machine
from hotloop.judge.diagnose import diagnose
from hotloop.optimizations.catalogue import CONFIGURED, parity_class_of, resolve
from hotloop.quickstart.arms import arms, shipped
from hotloop.train.opened_text import wanted_text
from hotloop.trial.plan import TrialPlan
from hotloop.trial.session import compare_arms

PLAN = TrialPlan(warmup_steps=3, steps=17, timeout_s=1200.0, looks=(6, 10), aa_pairs=1)
"""20 steps a process: all their losses are compared, and the times of the last 17. Rather more pairs
than more steps: what differs on a shared machine is one process from the next. The first look comes
after 6 pairs, since the interval of 4 is twice as wide."""

MIN_FINAL_STEPS = 20
PROMPT = "def __init__(self"


@dataclass(frozen=True, slots=True)
class Trained:
    """The final training."""

    run: str
    settings: str
    """Which arm's settings it used: the proven ones, or the plain ones when nothing was proven."""
    steps: int
    loss: float | None
    held_out_loss: float | None
    tokens_per_s: float | None
    sample: str


@dataclass(frozen=True, slots=True)
class Quickstart:
    """All that the quickstart found; stored as `quickstart.json`."""

    verdict: Verdict
    diagnosis: Diagnosis
    trials: tuple[TrialOutcome, ...]
    final: Final
    trained: Trained
    host_peak_bytes: int | None
    """Highest of the tuned arm's processes."""
    compile_s: float | None
    """Longest that compiling took in one of them; the first has nothing cached."""
    steps_until_compile_pays: int | None
    """Steps after which the time spent compiling is won back; `None` where nothing is won."""
    schema: str = "hotloop.quickstart/1"


@dataclass(frozen=True, slots=True)
class Compared:
    """The plain loop against hotloop's settings, measured and judged."""

    verdict: Verdict
    diagnosis: Diagnosis
    """The tuned arm's process of median speed."""
    trial: TrialOutcome
    chosen: Settings
    """The tuned settings where they were proven, else the plain ones."""
    plain_runs: tuple[Measurement, ...]
    tuned_runs: tuple[Measurement, ...]


def measure_and_judge(
    directory: Path,
    *,
    progress: Progress = silent,
    warn: Callable[[str], None] = lambda message: None,
    plan: TrialPlan = PLAN,
    overrides: tuple[str, ...] = (),
) -> Compared:
    """Prepare the text and compare the two arms; a rerun continues with what was measured.

    `overrides` are `key=value` settings of both arms. Raises what its parts raise.
    """
    tuned = load_settings(shipped("configs/quickstart.yaml"), overrides)
    plain = load_settings(shipped("configs/quickstart-plain.yaml"), overrides)
    tuned, notes = resolve(tuned, read_machine(pick_device(tuned.config.train.device)))
    for note in notes:
        warn(note)
    text = tuned.config.data
    data = ensure_prepared(wanted_text(text, text.corpora[0]), progress=progress)
    baseline, candidate = arms(directory, tuned, data, plan)
    session = compare_arms(
        baseline,
        candidate,
        directory=directory / "trials",
        plan=plan,
        parity_class=parity_class_of(tuned.config.flat()),
        progress=progress,
    )
    verdict = session.verdict
    tuned_runs = tuple(pair[1] for pair in session.pairs)
    # The median: the last process may be the one that another tenant slowed down.
    by_speed = sorted(
        tuned_runs, key=lambda run: statistics.median(r.wall_s for r in run.counted())
    )
    diagnosis = diagnose(by_speed[len(by_speed) // 2])
    write_json(directory / "verdict.json", verdict)
    write_json(directory / "diagnosis.json", diagnosis)
    return Compared(
        verdict=verdict,
        diagnosis=diagnosis,
        trial=ledger_line(tuned.config, verdict, not_applied(tuned.config, tuned_runs)),
        chosen=tuned if verdict.is_proven else plain,
        plain_runs=tuple(pair[0] for pair in session.pairs),
        tuned_runs=tuned_runs,
    )


def train_with(directory: Path, compared: Compared, *, minutes: float) -> Quickstart:
    """Train for about `minutes` with what was proven, let the model write, and store it all."""
    verdict, trial, config = compared.verdict, compared.trial, compared.chosen.config
    per_token = verdict.candidate_s_per_work if trial.kept else verdict.baseline_s_per_work
    step_s = (per_token or 1e-3) * config.global_batch_tokens
    steps = max(int(minutes * 60 / step_s), MIN_FINAL_STEPS)
    seen = [run.census for run in compared.tuned_runs if run.census]
    compile_s = max((c.compile_s for c in seen if c.compile_s), default=None)
    found = Quickstart(
        verdict=verdict,
        diagnosis=compared.diagnosis,
        trials=(trial,),
        final=final_of(verdict, trial),
        trained=train_and_sample(
            directory, compared.chosen, steps, name="hotloop" if trial.kept else "plain"
        ),
        host_peak_bytes=max((c.host_peak_bytes for c in seen if c.host_peak_bytes), default=None),
        compile_s=compile_s,
        steps_until_compile_pays=steps_until_compile_pays(
            verdict, compile_s, config.global_batch_tokens
        ),
    )
    write_json(directory / "quickstart.json", found)
    return found


def final_of(verdict: Verdict, trial: TrialOutcome) -> Final:
    """What was kept, all together. The one trial was of the whole stack, so its pairs are these."""
    if not trial.kept:
        return Final(None, None, None, kept=(), parity=verdict.parity.result)
    return Final(
        verdict.ratio,
        verdict.ratio_low,
        verdict.ratio_high,
        kept=tuple(trial.optimization.split("+")),
        parity=verdict.parity.result,
        outcome=verdict.outcome,
    )


def steps_until_compile_pays(
    verdict: Verdict, spent: float | None, tokens_per_step: int
) -> int | None:
    """Seconds of the longest compile over those won per step, as whole steps."""
    before, after = verdict.baseline_s_per_work, verdict.candidate_s_per_work
    if spent is None or before is None or after is None or before <= after:
        return None
    return math.ceil(spent / ((before - after) * tokens_per_step))


def not_applied(config: RunConfig, runs: tuple[Measurement, ...]) -> tuple[str, ...]:
    """Techniques that were asked for and not seen in a process's census."""
    values = config.flat()
    return tuple(
        name
        for name, optimization in CONFIGURED.items()
        if any(
            run.census is not None
            and optimization.observed(run.census, values[optimization.key]) is False
            for run in runs
        )
    )


def ledger_line(config: RunConfig, verdict: Verdict, missing: tuple[str, ...]) -> TrialOutcome:
    """The stack of settings as one trial: they were compared together, not one at a time."""
    values = config.flat()
    used = {
        name: values[o.key]
        for name, o in CONFIGURED.items()
        if values[o.key] != o.off and name not in missing
    }
    reason = "; ".join(verdict.reasons)
    if missing:
        reason += f"; not applied: {', '.join(missing)}"
    return TrialOutcome(
        optimization="+".join(used) or "none",
        setting={CONFIGURED[name].key: value for name, value in used.items()},
        outcome=verdict.outcome,
        ratio=verdict.ratio,
        ratio_low=verdict.ratio_low,
        ratio_high=verdict.ratio_high,
        parity=verdict.parity.result,
        kept=verdict.is_proven,
        reason=reason,
        status=status_of(verdict)[0],
    )


def train_and_sample(directory: Path, settings: Settings, steps: int, *, name: str) -> Trained:
    """Train in a fresh process that shows its own progress, then let the model write."""
    run, outcome = directory / "train", directory / "train.json"
    stored = run / "config.yaml"
    if stored.is_file():  # continue what an interrupted quickstart began, with its number of steps
        steps = load_settings(stored).config.train.steps
    warmup = min(settings.config.schedule.warmup_steps, max(1, steps // 10))
    settings = settings.with_values(
        {"train.steps": steps, "schedule.warmup_steps": warmup}, origin="quickstart --minutes"
    )
    config_file = directory / "train.yaml"
    store_settings(settings, config_file)
    _hotloop("train", str(config_file), "--out", str(run), "--json", str(outcome))
    text = directory / "sample.json"
    _hotloop(
        *("generate", str(run), "--prompt", PROMPT, "--tokens", "120", "--json", str(text)),
        quiet=True,
    )
    found = json.loads(outcome.read_bytes())
    written = json.loads(text.read_bytes())
    return Trained(
        run=str(run),
        settings=name,
        steps=found["steps"],
        loss=found["loss"],
        held_out_loss=found["held_out_loss"],
        tokens_per_s=found["tokens_per_s"],
        sample=written["prompt"] + written["text"],
    )


def _die_with_parent() -> None:
    """Have the kernel send SIGTERM, on which training saves, when the quickstart is killed."""
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM)


def _hotloop(*arguments: str, quiet: bool = False) -> None:
    """Run a hotloop command as a child that writes to our terminal, or to nowhere."""
    command = [sys.executable, "-m", "hotloop", *arguments]
    # A session of its own: it hears of a Ctrl-C from us, once. A second signal would end it unsaved.
    child = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL if quiet else None,
        start_new_session=True,
        preexec_fn=_die_with_parent if sys.platform == "linux" else None,
    )
    try:
        code = child.wait()
    except KeyboardInterrupt:
        child.send_signal(signal.SIGTERM)
        code = child.wait()
    if code == ExitCode.RESUMABLE:
        raise Interrupted("stopped", do="run the same command again to continue")
    if code:
        raise CommandFailed(
            f"`hotloop {arguments[0]}` ended with exit code {code}", returncode=code
        )
