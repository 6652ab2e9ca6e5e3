"""Somebody's own command, examined: what holds it back, in words."""

from __future__ import annotations

from hotloop.core.command_run import CommandRun, Killed, describe_end, kill_hint, signal_name
from hotloop.core.judgement import Bound, Diagnosis, Finding
from hotloop.core.step import WOULD_DO
from hotloop.report import numbers
from hotloop.report.numbers import percent, ratio

OTHERS = "other programs"

CLAUSES = {
    "data_wait_fraction": "{who} waits for data {share} of the time",
    "restart_fraction": "{who} waits for the first batches of epochs {share} of the time",
    "late_fraction": "{who} waits for batches that come late {share} of the time",
    "overhead_fraction": "{who} waits for what workers add to a batch {share} of the time",
    "padded_fraction": "padding is {share} of the tokens",
    "pinning_fraction": "pinning batches takes {share} of the time",
    "copy_fraction": "copying batches to the device takes {share} of the time",
    "product_fraction": "matrix products take {share} of the time",
    "elementwise_fraction": "operations on single elements take {share} of the time",
    "forward_backward_fraction": "forward and backward take {share} of the time",
    "launch_fraction": "starting short operations takes {share} of the time",
    "convolution_fraction": "convolutions take {share} of the time",
    "attention_fraction": "attention takes {share} of the time",
    "recompile_fraction": "compiling anew takes {share} of the time",
    "break_fraction": "leaving compiled code takes {share} of the time",
    "optimizer_fraction": "updating the weights takes {share} of the time",
    "communication_fraction": "waiting for the other processes takes {share} of the time",
    "checkpoint_fraction": "saving takes {share} of the time",
    "evaluation_fraction": "evaluating takes {share} of the time",
    "logging_fraction": "logging takes {share} of the time",
    "own_fraction": "the script's own code between the phases takes {share} of the time",
    "parallel_fraction": "{share} of the time one thread computes what more could share",
    "collection_fraction": "collecting garbage takes {share} of the time",
    "throttled_fraction": "heat or power holds the device back {share} of the time",
    "start_fraction": "starting takes {share} of the run",
    "computing_fraction": "computing takes {share} of the time",
    "idle_fraction": "the device idles {share} of the time",
}
"""By the name of a share in a finding's evidence."""

PHASES: dict[Bound, tuple[str, str]] = {
    "input": ("data_wait_fraction", "data_wait"),
    "copy": ("copy_fraction", "host_to_device"),
    "checkpoint": ("checkpoint_fraction", "checkpoint"),
    "evaluation": ("evaluation_fraction", "eval"),
    "logging": ("logging_fraction", "logging"),
    "optimizer": ("optimizer_fraction", "optimizer"),
}
"""Clause and phase of a bound that one phase makes."""

NO_STEPS = (
    "a step was looked for at the end of an optimizer's `step`, else at a `backward` or a forward "
    "with gradients. Where a loop does all this in its own way, one line at the end of its body says "
    "it: `import hotloop; hotloop.step()`"
)

NOT_ATTACHED = (
    "nothing of it was recorded: it imported no torch, or did so in an interpreter that does not read "
    "PYTHONPATH (`-I`, `-E`, `-S`, `env -i`), or it ended at once (`os._exit`)"
)
NOT_WRITTEN = "it made at least one step, and ended before its steps were written"
STILL_RUNS = "what it left running has made no step yet: `hotloop report` with this directory shows the steps to come"
ENDED_BEFORE = (
    "it ended before anything of it was recorded: whether it used torch by then is not known"
)


def examined_answer(
    run: CommandRun,
    diagnosis: Diagnosis | None,
    *,
    num_steps: int,
    foreign_busy: float | None = None,
) -> str:
    """The sentence a reader came for, and what it rests on.

    num_steps: steps it was drawn from. foreign_busy: share of the machine's CPUs that other programs used.
    """
    end = _end(run, diagnosis)
    if diagnosis is None or not num_steps:
        seen = diagnosis.steps.warmup if diagnosis is not None else 0
        what = (
            "No step was recorded"
            if not seen
            else f"Only {numbers.count(seen)} steps of warm-up were seen; it takes {WOULD_DO} steps in all, or more"
        )
        return f"{what}: {end}." if end else f"{what}."
    sentence = _main_clause(diagnosis)
    few = "" if num_steps >= FEW_STEPS else f" Only {num_steps} steps say so."
    busy = ""
    if foreign_busy is not None and foreign_busy >= BUSY_MACHINE and OTHERS not in sentence:
        share = percent(foreign_busy)
        busy = f" {OTHERS.capitalize()} kept {share} of the CPUs busy meanwhile: these numbers are rough."
    return f"{sentence[0].upper()}{sentence[1:]}{f'; {end}' if end else ''}.{few}{busy}"


FEW_STEPS = 5
"""Steps below which the answer says how little it rests on."""
BUSY_MACHINE = 0.2
"""Share of the CPUs from which on the answer says that others used them."""
WORTH_SAYING = 1.05
"""A finding that could gain less is not what holds a training back."""


def _main_clause(diagnosis: Diagnosis) -> str:
    """What most of the step is, and the first finding with its own share and gain; else what limits the step."""
    worth = [f for f in diagnosis.findings if f.gain_at_most >= WORTH_SAYING]
    best = next((f for f in worth if not f.gain_is_loose), None)
    if worth and worth[0].gain_is_loose:
        title = f"{worth[0].title[0].lower()}{worth[0].title[1:]} ({where(worth[0])})"
        return f"{held_back(diagnosis)}; {title}: what that costs shows only when tried"
    if best is not None:
        clause = cause(best, who="the training" if diagnosis.device is None else "the device")
        if diagnosis.bound == "compute":
            clause = f"{held_back(diagnosis)}; {clause}"
        return f"{clause}{remedy(best)}"
    bound = held_back(diagnosis)
    if diagnosis.worth is not None and diagnosis.worth.answer == "not known":
        steps = diagnosis.steps
        made = f"{steps.made:,} steps"
        few = f" from {made} (about {steps.enough:,} would do)" if steps.enough else ""
        return bound if diagnosis.bound is None else f"{bound}; what would help is not known{few}"
    small = f"{numbers.percent(WORTH_SAYING - 1)} faster"
    loose = any(f.gain_is_loose for f in diagnosis.findings)
    return bound if loose else f"{bound}; nothing was found that would make it {small}"


def cause(finding: Finding, *, who: str) -> str:
    """`the training waits for data 31 % of the time`; its title where it has no share."""
    shares = [
        (name, value)
        for name, value in finding.evidence.items()
        if name in CLAUSES and isinstance(value, int | float)
    ]
    if not shares:
        return f"{finding.title[0].lower()}{finding.title[1:]}"
    name, value = shares[0]
    source = finding.evidence.get("source")
    if name == "padded_fraction" and isinstance(source, str) and source.startswith("trailing id"):
        return f"{percent(value)} of the tokens are runs of {source.removeprefix('trailing ')} at the ends of rows, as padding is"
    clause = CLAUSES[name].format(who=who, share=percent(value))
    others = finding.evidence.get("others_fraction")
    if isinstance(others, float) and others >= WORTH_SAYING - 1:
        clause += f" and other operations in float32 {percent(others)}"
    rank = finding.evidence.get("rank")
    return clause if rank is None else f"on rank {rank} {clause}"


def remedy(finding: Finding) -> str:
    """What mending it could bring, with its code and line; or why that cannot be told."""
    title = f"{finding.title[0].lower()}{finding.title[1:]}"
    others = finding.evidence.get("other_programs_fraction")
    if isinstance(others, float):
        return (
            f" ({where(finding)}); {OTHERS} keep {percent(others)} of the CPUs busy, so this run does not show "
            "whether workers would help: trying them does, best when the machine is quiet"
        )
    gain = ratio(finding.gain_at_most)
    return f"; without that, all else equal, it could be up to {gain} as fast ({where(finding)}: {title})"


def where(finding: Finding) -> str:
    """Its code and line."""
    return f"{finding.code}, {finding.site}" if finding.site is not None else finding.code


def held_back(diagnosis: Diagnosis) -> str:
    """What bounds the step, with its share of the time, as a clause."""
    host, device = diagnosis.breakdown, diagnosis.device
    idle = (device or {}).get("idle", 0.0)

    def share(phase: str) -> str:
        """Exposed: on an accelerator a wait costs time only while the device idles."""
        value = host.get(phase, 0.0)
        return percent(value if device is None else min(value, idle))

    who = "the training" if device is None else "the device"
    match diagnosis.bound:
        case "input" if (own := _own_preparing(diagnosis)) > host.get("data_wait", 0.0):
            return f"the training thread prepares the data itself {percent(own)} of the time"
        case "sync":
            return (
                f"the device idles {share('sync')} of the time while the host waits for its results"
            )
        case "communication":
            waiting = max(host.get("grad_sync", 0.0), (device or {}).get("communication", 0.0))
            return CLAUSES["communication_fraction"].format(share=percent(waiting))
        case "host" if device is not None:
            return f"the device idles {percent(idle)} of the time, waiting for the host"
        case "host":
            return f"code outside of the model takes {share('unattributed')} of the time"
        case "launch":
            idles = "" if device is None else f"the device idles {percent(idle)} of the time: "
            return f"{idles}many small operations are launched one by one"
        case "gc":
            return "collecting garbage holds the training up"
        case "recompile":
            return "compiling anew, again and again, holds the training up"
        case "memory_bandwidth":
            return "the speed of memory holds the training back"
        case "memory_capacity":
            return "the size of memory holds the training back"
        case "compute":
            computing = host.get("forward", 0.0) + host.get("backward", 0.0)
            if device is not None:
                computing = device.get("compute", 0.0)
            return f"{who} computes {percent(computing)} of the time"
        case "balanced":
            return f"no single thing holds {who} back"
        case None:
            return "what holds the training back is not known"
        case bound:
            name, phase = PHASES[bound]
            return CLAUSES[name].format(who=who, share=share(phase))


def _own_preparing(diagnosis: Diagnosis) -> float:
    """Share of the time in which the loop makes its data, outside of any loader."""
    found = (f.evidence.get("own_fraction") for f in diagnosis.findings if f.code == "HL107")
    return max((float(each) for each in found if isinstance(each, int | float)), default=0.0)


def _end(run: CommandRun, diagnosis: Diagnosis | None) -> str:
    """How the command ended, where that is not by itself and well, and with all the steps that were asked for."""
    if run.ended == "failed":
        if run.returncode is None:  # of `hotloop.watch`
            return "the block ended with an error"
        return f"the command {describe_end(run.returncode, run.killed_for_memory)}"
    if run.ended == "interrupted":
        return "it was interrupted"
    if run.ended is None:
        return "its end was not recorded"
    num = 0 if diagnosis is None else diagnosis.steps.measured
    if run.ended == "by_itself" and num < (run.steps or 0):
        return f"it ended before the {run.steps:,} steps that were asked for: {num:,} were counted"
    return ""


def command_rows(run: CommandRun) -> list[tuple[str, str]]:
    """The command, and how it ended."""
    rows = [("command", run.line)]
    took = f" after {numbers.seconds(run.wall_s)}" if run.wall_s is not None else ""
    own = f"; its exit code was {run.returncode}" if run.returncode else ""
    match run.ended:
        case "by_itself":
            whole = "at the end of the block" if run.of_a_block else "by itself, with exit code 0,"
            ended = whole + took
        case "failed":
            ended = _row_of_failure(run.returncode, took, run.killed_for_memory)
        case "enough_steps" if run.of_a_block:
            ended = f"when {run.steps} steps were counted: those after them were not looked at"
        case "enough_steps":
            ended = f"by {_enough(run)}{took}, without its own ending"
        case "interrupted":
            ended = f"interrupted{took}{own}"
        case None:
            ended = "not recorded: it still runs, or hotloop was killed"
    rows.append(("ended", ended))
    if run.left_running:
        processes = numbers.counted(len(run.left_running), "process", "processes")
        ids = ", ".join(map(str, run.left_running[:5]))
        name = "ids" if len(run.left_running) > 1 else "id"
        rows.append(
            (
                "left running",
                f"{processes} that it started ({name} {ids}); steps they make are still recorded",
            )
        )
    return rows


def _enough(run: CommandRun) -> str:
    if run.steps is not None:
        return f"`--steps {run.steps}`"
    return f"hotloop when {run.seconds:g} s of steps were counted"


def _row_of_failure(returncode: int | None, took: str, killed: Killed | None) -> str:
    if returncode is None:
        return f"with an error{took}, which is its caller's"
    if returncode >= 0:
        return f"with exit code {returncode}{took}; its own message is in its output"
    name = signal_name(returncode)
    return f"killed by {name}{took}{kill_hint(name, killed)}"


def why_no_step(
    *, attached: bool, told: bool, stepped: bool, backwards: int, run: CommandRun
) -> list[str]:
    """What a reader should know where no step was recorded.

    attached: a process that used torch told at its end what it saw; told: the probe itself said why;
    stepped: a process began to make steps; backwards: passes backward that were seen all the same.
    """
    if run.ended is None:
        return []
    if run.left_running:
        return [STILL_RUNS]
    if stepped:
        return [NOT_WRITTEN]
    if not attached:
        return [] if told else [NOT_ATTACHED if run.ended == "by_itself" else ENDED_BEFORE]
    if run.ended != "by_itself" and not backwards:
        return ["it ended before its first step"]
    passes = numbers.counted(backwards, "pass backward", "passes backward")
    return [f"torch was used; seen: no step of an optimizer, {passes}; {NO_STEPS}"]
