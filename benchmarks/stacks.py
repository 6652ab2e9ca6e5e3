"""Run the doctor on the stacks people train with, and hold what it says against what was planted.

    python benchmarks/stacks.py [NAME ...] [--bin DIR] [--runs DIR] [--busy] [--markdown FILE] [--json FILE]

NAME: a part of a stack's name in `stacks_list.py`. DIR of `--bin` holds the `python` that has the libraries, and
their programs; what is not installed there is left out and said. Each command runs in fresh copies of
`benchmarks/stacks`: by itself and under `hotloop doctor --no-try`, one at a time, with one thread and without a network.
Compared are: the steps recorded and made, the bound, the findings that were planted, those that would be
false, the doctor's exit code, and the command's own output and exit code without the doctor.
`--runs` keeps the run directories, and what a command prints by itself is not asked again there;
`--stored` judges them again; `--not-alone` leaves that comparison out.
Exits 1 when a row is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from real_scripts import without_times
from stacks_list import STACKS, Stack, judged, named

SCRIPTS = Path(__file__).with_name("stacks")
TIMEOUT_S = 600
VERSIONS = """
import importlib.metadata as m, importlib.util as u, json, platform, sys
names, of = sys.argv[1:], m.packages_distributions()
print(json.dumps({n: m.version(of[n][0]) for n in names if u.find_spec(n) and n in of} | {"Python": platform.python_version()}))
"""


@dataclass(frozen=True)
class Row:
    """A row of the table: one stack, examined."""

    name: str
    command: str
    steps: str
    """Recorded / made."""
    bound: str | None
    findings: tuple[str, ...]
    answer: str
    code: int
    wrong: tuple[str, ...]


@contextmanager
def burning(wanted: bool) -> Iterator[None]:
    """Two processes that spin, as other programs on the machine."""
    command = [sys.executable, "-c", "while True: pass"]
    running = [subprocess.Popen(command) for _ in range(2 if wanted else 0)]
    try:
        yield
    finally:
        for each in running:
            each.kill()
            each.wait()


def environment(programs: Path) -> dict[str, str]:
    """Without network, with the libraries' programs first, and one thread."""
    kept = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "PYTHONPATH")}
    return kept | {
        "PATH": f"{programs.absolute()}{os.pathsep}{kept['PATH']}",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def fresh(folder: Path, stack: Stack, env: dict[str, str]) -> Path:
    """A directory with the scripts, and what `before` leaves."""
    if folder.exists():
        shutil.rmtree(folder)
    shutil.copytree(SCRIPTS, folder)
    if stack.before:
        subprocess.run(to_files(stack.before), cwd=folder, env=env, check=True)
    return folder


def to_files(command: str) -> list[str]:
    """Its own streams in files of its own: what the doctor prints is not the command's."""
    return ["bash", "-c", f"{{ {command}; }} >out 2>err"]


def run_alone(stack: Stack, folder: Path, env: dict[str, str]) -> tuple[int, str]:
    """Exit code and standard output; kept in `folder` for the next time."""
    kept = folder / "alone.json"
    if not kept.is_file():
        workdir = fresh(folder / "alone", stack, env)
        command = to_files(stack.command)
        done = subprocess.run(command, cwd=workdir, env=env, timeout=TIMEOUT_S, check=False)
        time.sleep(stack.wait_s)
        kept.write_text(json.dumps([done.returncode, (workdir / "out").read_text()]))
    code, output = json.loads(kept.read_text())
    return code, without_times(output)


def run_doctor(stack: Stack, folder: Path, env: dict[str, str]) -> None:
    """Leaves the run directory, the report and the exit code in `folder`."""
    workdir = fresh(folder / "under", stack, env)
    for name in ("run", "report.json"):
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    # Every step is counted, also where there is more than a minute of them.
    whole = () if "--steps" in stack.options else ("--to-end",)
    own = [sys.executable, "-m", "hotloop", "doctor", "--no-try", *whole, *stack.options]
    own += ["--out", str(folder / "run"), "--json", str(folder / "report.json"), "--"]
    running = subprocess.Popen(
        [*own, *to_files(stack.command)], cwd=workdir, env=env,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    if stack.signal_after_s:
        time.sleep(stack.signal_after_s)
        running.send_signal(signal.SIGTERM)
    try:
        report, _ = running.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        running.kill()
        report, _ = running.communicate()
        report += "\nthe doctor did not end\n"
    time.sleep(stack.wait_s)
    (folder / "report.txt").write_text(report)
    (folder / "code").write_text(str(running.returncode))


def examine(stack: Stack, folder: Path, alone: tuple[int, str] | None) -> Row:
    """The row of what `run_doctor` left in `folder`."""
    code, report = int((folder / "code").read_text()), (folder / "report.txt").read_text()
    run, workdir = folder / "run", folder / "under"
    files = sorted(run.glob("steps-*.jsonl"))
    last = (each.read_text().splitlines()[-1:] for each in files)
    recorded = tuple(json.loads(lines[0])["step"] + 1 if lines else 0 for lines in last)
    made = (workdir / "made").read_text() if stack.steps is None else ""
    steps = stack.steps if stack.steps is not None else (int(made or 0),)
    path = folder / "report.json"
    diagnosis = json.loads(path.read_text()) if path.is_file() else {}
    wrong = [] if path.is_file() or not steps else ["no diagnosis"]
    # A command that is ended may have made one more step than it noted.
    one_more = stack.steps is None and len(recorded) == 1 and recorded[0] == steps[0] + 1
    # One that a signal kills loses up to a second, and the report has to say so.
    said = stack.signal_after_s and "up to a second of its last steps is missing" in report
    cut_off = bool(said) and len(recorded) == 1 and 0.9 * steps[0] < recorded[0] <= steps[0]
    if recorded != steps and not one_more and not cut_off:
        wrong.append(f"recorded {recorded} of {steps} steps")
    if code != stack.code:
        wrong.append(f"exit code {code}, not {stack.code}")
    if alone is not None and path.is_file():
        under = without_times((workdir / "out").read_text())
        own = json.loads((run / "doctor.json").read_text())["returncode"]
        if alone != (own, under):
            wrong.append(f"other output, or exit code {own}, than by itself ({alone[0]})")
    wrong += judged(stack, diagnosis, report, (workdir / "err").read_text(errors="replace"))
    return Row(
        name=stack.name,
        command=stack.command,
        steps=f"{'+'.join(map(str, recorded)) or 0}/{'+'.join(map(str, steps)) or 0}",
        bound=diagnosis.get("bound"),
        findings=tuple(named(each) for each in diagnosis.get("findings", ())),
        answer=str(diagnosis.get("answer", "")),
        code=code,
        wrong=tuple(wrong),
    )


def markdown(rows: list[Row], left_out: list[str], versions: dict[str, str]) -> str:
    wrong = sum(bool(each.wrong) for each in rows)
    lines = [
        f"{len(rows)} stacks, {wrong} wrong, {datetime.now(UTC):%Y-%m-%d}. "
        f"{os.cpu_count()} CPUs ({platform.machine()}), shared; "
        + ", ".join(f"{name} {version}" for name, version in sorted(versions.items())) + ".",
        "", "| stack | command | steps: recorded/made | bound | findings | exit | wrong |",
        "|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for row in rows:
        cells = (row.name, f"`{row.command}`", row.steps, row.bound or "-", ", ".join(row.findings) or "-",
                 str(row.code), "; ".join(row.wrong) or "nothing")  # fmt: skip
        lines.append(f"| {' | '.join(each.replace('|', '/') for each in cells)} |")
    return "\n".join([*lines, *(f"\nLeft out: {each}." for each in left_out), ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--bin", type=Path, default=Path(sys.executable).parent)
    parser.add_argument("--runs", type=Path)
    parser.add_argument("--busy", action="store_true", help="two spinning processes beside each")
    parser.add_argument("--not-alone", action="store_true", help="never by itself")
    parser.add_argument("--stored", action="store_true", help="judge the runs of --runs again")
    for name in ("--markdown", "--json"):
        parser.add_argument(name, type=Path)
    asked = parser.parse_args()
    env = environment(asked.bin)
    needs = sorted({"torch", *(need for stack in STACKS for need in stack.needs)})
    out = subprocess.run(
        [asked.bin / "python", "-c", VERSIONS, *needs], capture_output=True, text=True, check=True
    )
    versions = json.loads(out.stdout)
    rows: list[Row] = []
    left_out = []
    with tempfile.TemporaryDirectory() as scratch:
        runs = (asked.runs or Path(scratch)).absolute()
        for stack in STACKS:
            if asked.names and not any(name in stack.name for name in asked.names):
                continue
            lacking = [need for need in stack.needs if need not in versions]
            if lacking:
                left_out.append(f"{stack.name}: needs {', '.join(lacking)}")
                continue
            folder = runs / re.sub(r"\W+", "-", stack.name)
            folder.mkdir(parents=True, exist_ok=True)
            if not asked.stored:
                with burning(asked.busy or stack.busy):
                    run_doctor(stack, folder, env)
            elif not (folder / "code").is_file():
                continue
            compared = stack.alike and not asked.not_alone
            row = examine(stack, folder, run_alone(stack, folder, env) if compared else None)
            rows.append(row)
            print(row.name, row.steps, row.bound, *row.findings, row.answer, *(f"WRONG {each}" for each in row.wrong), sep=" | ", flush=True)  # fmt: skip
            if asked.markdown:
                asked.markdown.write_text(markdown(rows, left_out, versions))
            if asked.json:
                asked.json.write_text(json.dumps([asdict(each) for each in rows], indent=1))
    print(markdown(rows, left_out, versions))
    return any(row.wrong for row in rows)


if __name__ == "__main__":
    raise SystemExit(main())
