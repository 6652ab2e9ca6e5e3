"""Hold the doctor against every patient, here and now.

    python tests/patients/live.py [NAME ...] [--plants]

Each script is run by itself, sick and healthy, to see that the sickness takes what `cases.py` says
and that both train alike; then each under `hotloop doctor --no-try`. The sick one must be named, the
healthy one must have nothing that promises 5 %. `--plants`: only the first part. Exits 1 when one fails.
"""

from __future__ import annotations

import argparse
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

NOTHING = 1.05
"""A healthy script may not be promised more."""
LAST_LINE = re.compile(r"loss (\S+)  (\S+) ms per step\n\Z")
TIMEOUT_S = 120
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Ran:
    """What a script printed in its last line."""

    loss: float
    step_ms: float


def environment() -> dict[str, str]:
    """As a user's shell has it: torch chooses its threads."""
    return {name: value for name, value in os.environ.items() if name not in THREADS}


def command(case: Case, *, healthy: bool) -> list[str]:
    return [sys.executable, str(case.script), *(["--healthy"] if healthy else [])]


def last_line(output: str) -> Ran:
    found = LAST_LINE.search(output)
    if found is None:
        raise ValueError(f"the script ended with {output[-200:]!r}")
    return Ran(float(found[1]), float(found[2]))


def run_alone(case: Case, *, healthy: bool) -> Ran:
    """The script without any doctor."""
    return last_line(_output(command(case, healthy=healthy), case.cpus))


def run_examined(
    case: Case, directory: Path, *, healthy: bool
) -> tuple[Ran, Measurement, Diagnosis]:
    """The script under the doctor, which writes to the new `directory`."""
    doctor = [sys.executable, "-m", "hotloop", "doctor", "--no-try", "--out", str(directory), "--"]
    ran = last_line(_output([*doctor, *command(case, healthy=healthy)], case.cpus))
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
    return None


def check_plant(case: Case) -> tuple[str, bool]:
    """Whether the sickness takes its share and nothing else differs."""
    sick, healthy = run_alone(case, healthy=False), run_alone(case, healthy=True)
    share = 1 - healthy.step_ms / sick.step_ms
    apart = abs(sick.loss - healthy.loss) / abs(healthy.loss)
    right = share >= case.share and apart <= case.loss
    times = f"{sick.step_ms:6.1f} ms, healthy {healthy.step_ms:6.1f} ms"
    return f"{times}, share {share:4.0%} of {case.share:.0%}, losses {apart:.1e} apart", right


def check_doctor(case: Case, *, healthy: bool) -> tuple[str, bool]:
    with tempfile.TemporaryDirectory() as folder:
        _, _, diagnosis = run_examined(case, Path(folder) / "run", healthy=healthy)
    wrong = what_is_wrong(diagnosis, case, healthy=healthy)
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
