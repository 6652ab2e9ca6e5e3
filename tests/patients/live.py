"""Hold the doctor against every patient, here and now.

    python tests/patients/live.py [NAME ...] [--plants]

Each script is run by itself, sick and healthy, to see that the sickness takes what `cases.py` says
and that both train alike; then each under `hotloop doctor --no-try`. The sick one must be named first,
at its place; the healthy one must have nothing that promises 5 %. `--plants`: only the first part. Exits
1 when one fails, or other programs were seen to take its CPUs and it came out wrong: not proven.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from cases import CASES, Case, why_not_here

from hotloop.core.files import read_json
from hotloop.core.judgement import Diagnosis
from hotloop.core.measurement import Measurement
from hotloop.judge.data_wait import is_crowded

NOTHING = 1.05
"""A healthy script may not be promised more."""
LEFT_ALONE = 0.8
"""Of its CPUs: a script that got as much had its times to itself."""
LAST_LINE = re.compile(r"loss (\S+)  (\S+) ms per step\n\Z")
TIMEOUT_S = 300
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Ran:
    """What a script printed in its last line."""

    loss: float
    step_ms: float


def environment() -> dict[str, str]:
    """As a user's shell has it: torch chooses its threads."""
    return {name: value for name, value in os.environ.items() if name not in THREADS}


def command(case: Case, *more: str, healthy: bool) -> list[str]:
    return [sys.executable, str(case.script), *more, *(["--healthy"] if healthy else [])]


def last_line(output: str) -> Ran:
    found = LAST_LINE.search(output)
    if found is None:
        raise ValueError(f"the script ended with {output[-200:]!r}")
    return Ran(float(found[1]), float(found[2]))


def run_alone(case: Case, *more: str, healthy: bool) -> Ran:
    """The script, with `more` arguments, without any doctor."""
    return last_line(_output(command(case, *more, healthy=healthy), case.cpus))


def run_examined(
    case: Case, directory: Path, *more: str, healthy: bool
) -> tuple[Ran, Measurement, Diagnosis]:
    """The script under the doctor, which writes to the new `directory`."""
    doctor = [sys.executable, "-m", "hotloop", "doctor", "--no-try", "--to-end"]
    doctor += ["--out", str(directory), "--"]
    ran = last_line(_output([*doctor, *command(case, *more, healthy=healthy)], case.cpus))
    measurement = read_json(directory / "measurement.json", Measurement)
    return ran, measurement, read_json(directory / "diagnosis.json", Diagnosis)


def _output(arguments: list[str], cpus: int) -> str:
    allowed = sorted(os.sched_getaffinity(0))[-cpus:]
    done = subprocess.run(
        arguments,
        capture_output=True,
        text=True,
        env=environment(),
        timeout=TIMEOUT_S,
        check=False,
        preexec_fn=lambda: os.sched_setaffinity(0, allowed),
    )
    if done.returncode:
        raise ValueError(f"exit code {done.returncode}: {done.stderr[-800:]}")
    return done.stdout


def what_is_wrong(diagnosis: Diagnosis, case: Case, *, healthy: bool) -> str | None:
    """`None` where the diagnosis is right."""
    found = [f"{each.code} {each.gain_at_most:.2f}" for each in diagnosis.findings]
    if healthy:
        loud = [each for each in diagnosis.findings if each.gain_at_most >= NOTHING]
        return f"healthy, but {', '.join(found)}" if loud else None
    if not diagnosis.findings or diagnosis.findings[0].code != case.code:
        return f"{case.code} expected, found {', '.join(found) or 'nothing'}"
    site = diagnosis.findings[0].site
    if case.site is not None and not re.search(case.site, place(case, site)):
        return f"{case.code} at {site}, expected: {case.site}"
    return None


def place(case: Case, site: str | None) -> str:
    """`function: line` of a site in the script; empty where it lies elsewhere."""
    file, _, number = (site or "").rpartition(":")
    if Path(file).name != case.script.name:
        return ""
    source = case.script.read_text(encoding="utf-8")
    line = source.splitlines()[int(number) - 1]
    return f"{_function_at(ast.parse(source), int(number))}: {line.strip()}"


def _function_at(node: ast.AST, number: int) -> str:
    for child in ast.iter_child_nodes(node):
        first, last = getattr(child, "lineno", 0), getattr(child, "end_lineno", 0)
        if first <= number <= last and isinstance(child, (ast.ClassDef, ast.FunctionDef)):
            return ".".join(filter(None, (child.name, _function_at(child, number))))
    return ""


def robbed(measurement: Measurement, case: Case) -> str | None:
    """Why a verdict would be about other programs, as measured; `None` where they left it alone.

    They fill the machine, and the script got less than most of the CPUs it was to have.
    """
    census = measurement.census
    if census is None or census.cpu_busy is None or not is_crowded(census):
        return None
    if census.cpu_busy >= LEFT_ALONE * case.cpus:
        return None
    return (
        f"other programs kept {census.foreign_busy:.0%} of the machine busy, the script got "
        f"{census.cpu_busy:.2f} of {case.cpus} CPUs"
    )


def check_plant(case: Case) -> tuple[str, bool]:
    """Whether the sickness takes its share and nothing else differs."""
    runs: dict[bool, list[Ran]] = {False: [], True: []}
    for is_healthy in (False, True, True, False):
        runs[is_healthy].append(run_alone(case, healthy=is_healthy))
    # The faster of two: what other programs do only ever makes a script slower.
    sick, healthy = (min(runs[which], key=lambda ran: ran.step_ms) for which in (False, True))
    share = 1 - healthy.step_ms / sick.step_ms
    apart = abs(sick.loss - healthy.loss) / abs(healthy.loss)
    right = share >= case.share and apart <= case.loss
    times = f"{sick.step_ms:6.1f} ms, healthy {healthy.step_ms:6.1f} ms"
    return f"{times}, share {share:4.0%} of {case.share:.0%}, losses {apart:.1e} apart", right


def check_doctor(case: Case, *, healthy: bool) -> tuple[str, bool]:
    with tempfile.TemporaryDirectory() as folder:
        _, measurement, diagnosis = run_examined(case, Path(folder) / "run", healthy=healthy)
    wrong = what_is_wrong(diagnosis, case, healthy=healthy)
    if wrong and (why := robbed(measurement, case)):
        wrong = f"not proven, run it again on a quiet machine: {why}; {wrong}"
    found = [f"{each.code} {each.gain_at_most:.2f}" for each in diagnosis.findings[:3]]
    return wrong or f"{', '.join(found) or 'nothing'}", wrong is None


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="of cases.py; all where none is given"
    )
    parser.add_argument("--plants", action="store_true", help="only the scripts by themselves")
    args = parser.parse_args()
    unknown = set(args.names) - {case.name for case in CASES}
    if unknown:
        parser.error(f"no such patient: {', '.join(sorted(unknown))}")
    failures = 0
    for case in CASES:
        if args.names and case.name not in args.names:
            continue
        reason = why_not_here(case)
        if reason is not None:
            print(f"{case.name:20} not run: {reason}")
            continue
        checks = [("plant", lambda: check_plant(case))]  # noqa: B023 - called before the next turn
        if not args.plants:
            checks += [
                ("sick", lambda: check_doctor(case, healthy=False)),  # noqa: B023
                ("healthy", lambda: check_doctor(case, healthy=True)),  # noqa: B023
            ]
        for name, check in checks:
            text, right = check()
            failures += not right
            print(f"{case.name:20} {name:8} {'ok   ' if right else 'WRONG'} {text}", flush=True)
    print(f"{failures} wrong" if failures else "all right")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
