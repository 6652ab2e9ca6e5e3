"""Run public training scripts, unmodified, with and without `hotloop doctor --no-try`.

    python benchmarks/real_scripts.py CHECKOUTS [NAME ...] [--json FILE] [--markdown FILE] [--runs DIR]

CHECKOUTS holds a checkout of each repository under its own name (`minGPT`, `examples`, ...): nothing of
them is kept here. What is not there, or needs a package that is not installed, is left out and said.
Each script runs in fresh copies of its directory, without network, on data that its checkout holds or
that is made here in the format it reads: by itself and under the doctor. Compared are the exit code,
what it prints on both streams, times taken out, and every byte of the files it leaves. Where something
differs, it runs by itself once more: what differs then, too, does not repeat itself, and is said. A
script that sets no seed is started by a line that does.
Exits 1 when the doctor changed something.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from real_list import SCRIPTS, Script, shakespeare

TIMEOUT_S = 900
PACKAGES = (
    "torch", "torchvision", "transformers", "accelerate", "datasets", "lightning", "gymnasium",
)  # fmt: skip
HOME = "home"
"""Beside the checkout: where data sets are cached."""
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
SEEDED = (
    "-c",
    "import random, runpy, sys, torch; random.seed(0); torch.manual_seed(0); "
    "sys.argv = sys.argv[1:]; sys.path[0] = ''; runpy.run_path(sys.argv[0], run_name='__main__')",
)
"""Starts a script that sets no seed itself."""
TIMES = (
    r"""['"]?(train_|eval_)?(runtime|samples_per_second|steps_per_second)['"]?\s*[:=]\s*['"]?[\d.:]+""",
    r"(?m)^\[?\w?\d{4}-?\d\d-?\d\d[ T].*?(?= )",
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+",
    r"\d\d/\d\d/\d{4} \d\d:\d\d:\d\d",
    r"\d+(\.\d+)?e?-?\d*\s?(ms|s|sec|secs|seconds|it/s)\b",
    r"ms/batch\s+\d+\.\d+",
    r"(mfu|dt|time)[ :=]+-?\d+(\.\d+)?%?",
    r"\d+:\d\d(:\d\d)?",
    r"\d[\d.]* examples/s",
    r"\b[A-Z][a-z]{2}\d\d_\d\d-\d\d-\d\d",
    r"\b(default|cache)-[0-9a-f]{16}",
    r"0x[0-9a-f]{6,}",
    r"\bpid[ =:]?\d+",
)
"""What a script prints about time, and what is named by it; taken out before two runs are compared."""
BAR = re.compile(r"\d+%\|.*\|.*\[|\d(it/s|s/it)|\[\d+:\d\d<")
"""A line of a progress bar: when it is drawn depends on the time."""


@dataclass(frozen=True)
class Seen:
    """One run of a script."""

    returncode: int
    output: str
    """What it printed, times taken out."""
    errors: str
    """The same for its second stream, progress bars taken out."""
    files: dict[str, bytes]
    seconds: float


@dataclass(frozen=True)
class Result:
    """One script, with and without."""

    name: str
    repository: str
    commit: str
    versions: str
    """Of the packages that it needs."""
    what: str
    returncode: int
    unrepeatable: tuple[str, ...]
    """What was other in a second run by itself, too; that one is made where something differs."""
    differences: tuple[str, ...]
    """What was other under the doctor."""
    alone_s: float
    examined_s: float
    iterations: int | None
    """As the script makes them."""
    recorded: int
    """As the doctor saw them, the first ones and the profiled among them."""
    steps: int
    step_ms: float | None
    bound: str | None
    unattributed: float | None
    overhead: float | None
    findings: tuple[str, ...]
    lines: tuple[str, ...]
    """Of the time outside any phase, where the sampler saw it."""
    breakdown: dict[str, float]


def missing(script: Script, checkouts: Path) -> str | None:
    """Why a script cannot run here; `None` where it can."""
    if not (checkouts / script.checkout / script.workdir / script.arguments[0]).is_file():
        return f"no checkout of {script.repository}"
    lacking = [need for need in script.needs if not installed(need)]
    return f"needs {', '.join(lacking)}" if lacking else None


def installed(need: str) -> bool:
    name, _, below = need.partition("<")
    if importlib.util.find_spec(name) is None:
        return False
    return not below or int(version(name).partition(".")[0]) < int(below)


def run_script(
    script: Script, checkouts: Path, text: str, folder: Path, *, doctor: Path | None
) -> Seen:
    """In a fresh copy in `folder`; under the doctor, which writes to `doctor`, where that is given."""
    checkout = folder / "checkout"
    for each in (checkout, folder / HOME):
        if each.exists():
            shutil.rmtree(each)
    shutil.copytree(checkouts / script.checkout, checkout, symlinks=True)
    workdir = checkout / script.workdir
    if script.prepare is not None:
        script.prepare(workdir, text)
    before = files_below(checkout)
    # Its own streams in files of its own: what the doctor prints is not the script's.
    command = [
        "sh", "-c", 'out=$1; err=$2; shift 2; exec "$@" >"$out" 2>"$err"', "sh",
        f"{folder}/out", f"{folder}/err", sys.executable,
        *(() if script.seeded else SEEDED), *script.arguments,
    ]  # fmt: skip
    if doctor is not None:
        own = [
            sys.executable,
            "-m",
            "hotloop",
            "doctor",
            "--no-try",
            "--to-end",
            "--out",
            str(doctor),
            "--",
        ]
        command = [*own, *command]
    start = time.monotonic()
    done = subprocess.run(
        command,
        cwd=workdir,
        env=environment(script, checkout),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    seconds = time.monotonic() - start
    returncode = done.returncode if doctor is None else returncode_of(doctor, done.stderr)
    output, errors = (
        (folder / name).read_text(encoding="utf-8", errors="replace") for name in ("out", "err")
    )
    if returncode:
        print(errors[-1500:], file=sys.stderr)
    after = files_below(checkout)
    new = {name: value for name, value in after.items() if before.get(name) != value}
    return Seen(returncode, without_times(output), without_times(errors), new, seconds)


def environment(script: Script, checkout: Path) -> dict[str, str]:
    """The user's, without network, and with torch's own choice of threads."""
    env = {name: value for name, value in os.environ.items() if name not in THREADS}
    paths = [str(checkout / script.path)] if script.path else []
    if env.get("PYTHONPATH"):
        paths.append(env["PYTHONPATH"])
    env |= {
        "HF_HOME": str(checkout.parent / HOME),
        "HF_HUB_OFFLINE": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "PYTHONPATH": os.pathsep.join(paths),
    }
    return {**env, **script.env}


def returncode_of(run: Path, said: str) -> int:
    """The script's own, as the doctor recorded it."""
    path = run / "doctor.json"
    if not path.is_file():
        raise RuntimeError(f"the doctor recorded nothing: {said[-800:]}")
    code = json.loads(path.read_text(encoding="utf-8"))["returncode"]
    return int(code) if code is not None else -1


def files_below(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and ".git" not in path.parts
    }


def without_times(output: str) -> str:
    output = "\n".join(line for line in re.split("[\r\n]", output) if not BAR.search(line))
    for pattern in TIMES:
        output = re.sub(pattern, "<time>", output)
    return output


def differences(one: Seen, other: Seen) -> dict[str, str]:
    """What was other, by what it is."""
    found = {}
    if one.returncode != other.returncode:
        found["exit code"] = f"exit code {one.returncode}, then {other.returncode}"
    for what, before, after in (
        ("output", one.output, other.output),
        ("errors", one.errors, other.errors),
    ):
        if before != after:
            lines = zip(before.splitlines(), after.splitlines())
            first = next(((a, b) for a, b in lines if a != b), ("", "fewer or more lines"))
            found[what] = f"{what}: {first[0][:80]!r}, then {first[1][:80]!r}"
    # The names of TensorBoard's files hold the time, and the process.
    names, others = (
        {re.sub(r"tfevents.*", "tfevents", name): value for name, value in each.files.items()}
        for each in (one, other)
    )
    for name in sorted(names.keys() ^ others.keys()):
        found[name] = f"file {name} only {'without' if name in names else 'under'} the doctor"
    for name in sorted(names.keys() & others.keys()):
        if not same_file(name, names[name], others[name]):
            found[name] = f"file {name} differs"
    return found


def same_file(name: str, one: bytes, other: bytes) -> bool:
    """TensorBoard's hold the time of each line; what is JSON may hold times by their names."""
    if one == other or name.endswith("tfevents"):
        return True
    if not name.endswith(".json"):
        return False
    return without_times(one.decode()) == without_times(other.decode())


def examine(script: Script, checkouts: Path, text: str, runs: Path | None) -> Result:
    """runs: where the doctor's run directory stays; `None`: it is thrown away."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run = folder / "run" if runs is None else runs / re.sub(r"\W+", "-", script.name)
        if run.exists():
            shutil.rmtree(run)
        alone = run_script(script, checkouts, text, folder, doctor=None)
        under = run_script(script, checkouts, text, folder, doctor=run)
        found = differences(alone, under)
        by_itself = {}
        if found:  # does it at least repeat itself?
            again = run_script(script, checkouts, text, folder, doctor=None)
            by_itself = differences(alone, again)
        diagnosis = json.loads((run / "diagnosis.json").read_text(encoding="utf-8"))
        measurement = json.loads((run / "measurement.json").read_text(encoding="utf-8"))
    census = measurement["census"] or {}
    between = [each for each in census.get("lines", ()) if each["phase"] == "unattributed"]
    between.sort(key=lambda each: -each["fraction"])
    median_s = diagnosis["steps"]["median_s"]
    return Result(
        name=script.name,
        repository=script.repository,
        commit=commit_of(checkouts / script.checkout),
        versions=", ".join(
            f"{name} {version(name)}" for name in (each.partition("<")[0] for each in script.needs)
        ),
        what=script.what,
        returncode=under.returncode,
        unrepeatable=tuple(by_itself),
        differences=tuple(
            difference for what, difference in found.items() if what not in by_itself
        ),
        alone_s=round(alone.seconds, 2),
        examined_s=round(under.seconds, 2),
        iterations=iterations_of(script, under.output),
        recorded=len(measurement["records"]),
        steps=diagnosis["steps"]["measured"],
        step_ms=None if median_s is None else round(1000 * median_s, 3),
        bound=diagnosis["bound"],
        unattributed=diagnosis["breakdown"].get("unattributed"),
        overhead=diagnosis["probe_overhead_fraction"],
        findings=tuple(
            f"{each['code']} {each['gain_at_most']:.2f}"
            + (" (loose)" if each["gain_is_loose"] else "")
            for each in diagnosis["findings"][:3]
        ),
        lines=tuple(line_text(each) for each in between[:3]),
        breakdown=diagnosis["breakdown"],
    )


def line_text(line: dict[str, Any]) -> str:
    inside = f" in {line['inside']}" if line["inside"] else ""
    return f"{Path(line['site']).name}{inside} {line['fraction']:.1%}"


def iterations_of(script: Script, output: str) -> int | None:
    if not isinstance(script.iterations, str):
        return script.iterations
    said = re.search(script.iterations, output)
    return int(said[1]) if said else None


def commit_of(checkout: Path) -> str:
    """Of a git checkout, or from a file COMMIT beside the files of an archive."""
    if (checkout / "COMMIT").is_file():
        return (checkout / "COMMIT").read_text(encoding="utf-8").strip()[:12]
    done = subprocess.run(
        ["git", "-C", str(checkout), "rev-parse", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip()[:12] or "unknown"


def markdown(results: list[Result]) -> str:
    lines = [
        "| script | how it trains | steps seen of made | median, ms | alone / examined, s "
        "| same output, files, exit code | outside of every phase | cost of the probe | findings |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for each in results:
        same = "; ".join(each.differences) or "yes"
        if each.unrepeatable:
            same += f" (not repeatable: {', '.join(each.unrepeatable)})"
        lines.append(
            f"| {each.name} | {each.what} | {each.recorded} of {each.iterations or '?'} "
            f"| {'-' if each.step_ms is None else format(each.step_ms, '.3g')} "
            f"| {each.alone_s:.1f} / {each.examined_s:.1f} | {same}, {each.returncode} "
            f"| {outside(each)} | {percent(each.overhead)} | {', '.join(each.findings) or 'none'} |"
        )
    return "\n".join(lines) + "\n"


def outside(result: Result) -> str:
    """The share, and where it is much the lines."""
    share = percent(result.unattributed)
    if result.unattributed is None or result.unattributed < 0.05:
        return share
    return f"{share}: {', '.join(result.lines) or 'no line was seen'}"


def percent(fraction: float | None) -> str:
    return "-" if fraction is None else f"{fraction:.1%}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("checkouts", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help="scripts; all where none is given")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--runs", type=Path, metavar="DIR", help="keep the run directories there")
    parser.add_argument("--markdown", type=Path, metavar="FILE")
    args = parser.parse_args()
    unknown = set(args.names) - {script.name for script in SCRIPTS}
    if unknown:
        parser.error(f"no such script: {', '.join(sorted(unknown))}")
    checkouts = args.checkouts.resolve()
    text = shakespeare(checkouts)
    results = earlier(args.json)
    for script in SCRIPTS:
        if args.names and script.name not in args.names:
            continue
        reason = missing(script, checkouts)
        if reason is not None:
            print(f"{script.name:34} left out: {reason}", flush=True)
            continue
        result = results[script.name] = examine(script, checkouts, text, args.runs)
        print(f"{script.name:34} {json.dumps(asdict(result))}", flush=True)
        if args.json:
            args.json.write_text(json.dumps(document(results), indent=1) + "\n", encoding="utf-8")
    listed = [results[script.name] for script in SCRIPTS if script.name in results]
    if args.markdown:
        args.markdown.write_text(markdown(listed), encoding="utf-8")
    return 1 if any(each.differences for each in listed) else 0


def earlier(path: Path | None) -> dict[str, Result]:
    """What an earlier part of the same list found: those that run now replace theirs."""
    if path is None or not path.is_file():
        return {}
    found = json.loads(path.read_text(encoding="utf-8"))["results"]
    tuples = ("unrepeatable", "differences", "findings", "lines")
    return {
        each["name"]: Result(**(each | {name: tuple(each[name]) for name in tuples}))
        for each in found
    }


def document(results: dict[str, Result]) -> dict[str, Any]:
    return {
        "packages": {name: version(name) for name in PACKAGES if importlib.util.find_spec(name)},
        "results": [asdict(each) for each in results.values()],
    }


if __name__ == "__main__":
    sys.exit(main())
