"""Fix training scripts, unmodified, with `hotloop doctor`, and time apart what its patches gain.

    python benchmarks/real_fixes.py CHECKOUTS [NAME ...] --runs DIR [--budget 10m | --default] [--json FILE]
    python benchmarks/real_fixes.py --table FILE

CHECKOUTS as for `real_scripts.py`; scripts as in its list, and the slow ones of `shapes/`. Each is examined
and fixed in a fresh copy of its directory. Where a patch was written, a copy with it and one without are
timed in turns without hotloop (`apart.py`): the printed gain should be what that patch sustains. The run
directories stay in DIR, and what is there already is not run again. Rows of FILE that are not run again stay in it;
`--table` prints all of them. `--default` gives the doctor no options at all and walks through `walk_list.py`, too: what
somebody gets who types `hotloop doctor -- python SCRIPT`, and after how many seconds.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from apart import Apart, Copy, timed_apart
from real_list import SCRIPTS, Script, shakespeare
from real_scripts import commit_of, environment, missing
from walk_list import WALKS

LEDGER, TIMED, PATCH = "ledger.json", "apart.json", "fix.patch"
DIAGNOSIS, TIMES = "diagnosis.json", "seconds.json"
LIMIT_S = 3600
WITHIN = 1.10
"""The printed gain and the one timed apart may differ by this factor."""
OURS = "hotloop"
SHAPES = Path(__file__).parent / "shapes"


def shape(file: str, name: str, what: str, steps: int, only: str, **env: str) -> Script:
    """A slow script of our own, of which only one fix is tried."""
    said = "".join(f", {key}={value}" for key, value in env.items())
    return Script(
        f"{file} {name}{said}", str(SHAPES), OURS, ".", (f"{file}.py", name, str(steps)), what, iterations=steps,
        env=env, options=("--only", only),
    )  # fmt: skip


OWN = (
    *(
        shape("slow_loader", name, "waits for its loader", steps, "loader_workers")
        for name, steps in (
            ("latency", 60), ("cpu", 200), ("latency-and-cpu", 60), ("cpu-and-step", 100), ("few-workers", 60),
            ("two-workers", 60), ("short-latency", 200), ("many-workers", 60), ("bursts", 150),
            ("slow-first-step", 100), ("long-latency", 60), ("latency-and-step", 60), ("small-batch", 200),
            ("three-workers", 80), ("half-hidden", 120), ("two-of-three", 80), ("short-two-workers", 150),
            ("wide-batches", 60), ("unpacked-and-far", 100),
        )
    ),
    shape("augmented", "pictures", "augments on its own thread", 200, "loader_workers"),
    shape("small_models", "deep-perceptron", "many small tensors", 1000, "fused_optimizer"),
    shape("small_models", "tokens", "many small tensors", 500, "fused_optimizer"),
    shape("small_models", "wide-perceptron", "matrix products", 500, "precision"),
    shape("small_models", "wide-tokens", "matrix products", 300, "precision"),
    shape("small_models", "pictures", "convolutions", 300, "channels_last"),
    shape("small_models", "elementwise", "many passes over memory", 500, "compile"),
    shape("small_models", "wide-perceptron", "one thread of two", 300, "threads", OMP_NUM_THREADS="1"),
    shape("small_models", "wide-tokens", "one thread of two", 150, "threads", OMP_NUM_THREADS="1"),
)  # fmt: skip


@dataclass(frozen=True)
class Fixed:
    """What came of one script."""

    script: Script
    commit: str
    ledger: dict[str, Any] | None
    said: str
    """The last lines of the doctor."""
    seconds: dict[str, float | None]
    """From the command to the diagnosis and to the end."""
    apart: Apart | None
    """The patched copy against the script; `None` where there is no patch."""

    @property
    def printed(self) -> dict[str, Any] | None:
        """The verdict whose gain is the doctor's answer: of all that is kept, together."""
        if self.ledger is None:
            return None
        together: dict[str, Any] | None = self.ledger["together"]
        return together

    def off_by(self) -> float | None:
        """The gain timed apart over the printed one."""
        if self.apart is None or self.printed is None:
            return None
        return self.apart.ratio()[0] / float(self.printed["ratio"])

    def holds(self) -> bool:
        off = self.off_by()
        return off is None or abs(math.log(off)) <= math.log(WITHIN)


def fix(script: Script, checkouts: Path, text: str, runs: Path, options: list[str]) -> Fixed:
    run = runs / re.sub(r"\W+", "-", script.name)
    if not (run / TIMES).is_file():
        if run.exists():
            shutil.rmtree(run)
        doctor(script, checkouts, text, run, options)
    said = (run.parent / f"{run.name}.txt").read_text(encoding="utf-8").strip().splitlines()
    seconds = json.loads((run / TIMES).read_text(encoding="utf-8"))
    ledger = run / LEDGER
    found = json.loads(ledger.read_text(encoding="utf-8")) if ledger.is_file() else None
    apart = time_apart(script, checkouts, text, run)
    commit = commit_of(checkouts / script.checkout)
    return Fixed(script, commit, found, "\n".join(said[-6:]), seconds, apart)


def doctor(script: Script, checkouts: Path, text: str, run: Path, options: list[str]) -> None:
    """Let it examine and fix the script; what it says lies beside the run directory, which it wants empty."""
    said = run.parent / f"{run.name}.txt"
    with tempfile.TemporaryDirectory() as folder, said.open("w", encoding="utf-8") as stderr:
        workdir = laid_out(script, checkouts, text, Path(folder))
        start, diagnosed = time.monotonic(), None
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "hotloop", "doctor", *options, "--out", str(run)),
                *("--", sys.executable, *script.arguments),
            ],
            cwd=workdir,
            env=environment(script, Path(folder) / "checkout"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
        )
        while process.poll() is None:
            if diagnosed is None and (run / DIAGNOSIS).is_file():
                diagnosed = time.monotonic() - start
            if time.monotonic() - start > LIMIT_S:
                process.kill()
            time.sleep(0.1)
        seconds = {"diagnosis": diagnosed, "all": time.monotonic() - start}
    run.mkdir(exist_ok=True)
    (run / TIMES).write_text(json.dumps(seconds), encoding="utf-8")


def laid_out(script: Script, checkouts: Path, text: str, folder: Path) -> Path:
    """A fresh copy of the checkout with the script's data; the working directory in it."""
    checkout = folder / "checkout"
    shutil.copytree(checkouts / script.checkout, checkout, symlinks=True)
    workdir = checkout / script.workdir
    if script.prepare is not None:
        script.prepare(workdir, text)
    return workdir


def copy_of(script: Script, checkouts: Path, text: str, folder: Path, num_workers: int) -> Copy:
    workdir = laid_out(script, checkouts, text, folder)
    return Copy(workdir, environment(script, folder / "checkout"), num_workers)


def counted(run: Path) -> tuple[int, int]:
    """(steps before, steps counted) of the pairs that confirmed what is kept."""
    ledger = json.loads((run / LEDGER).read_text(encoding="utf-8"))
    return ledger["together_warmup_steps"], ledger["together_steps"]


def workers(run: Path) -> tuple[int, int]:
    """Of the loader that trains: as the script has it, and as it was kept."""
    measurement = json.loads((run / "measurement.json").read_text(encoding="utf-8"))
    loaders = (measurement["census"] or {}).get("loaders", ())
    before = max((each["num_workers"] for each in loaders if each["trains"]), default=0)
    fixes = json.loads((run / LEDGER).read_text(encoding="utf-8"))["fixes"]
    kept = (fix for fix in fixes if fix["status"] == "kept" and fix["name"] == "loader_workers")
    return before, next((int(fix["value"]) for fix in kept), before)


def time_apart(script: Script, checkouts: Path, text: str, run: Path) -> Apart | None:
    """The script and its patched copy, without hotloop."""
    timed, patch = run / TIMED, run / PATCH
    if timed.is_file():
        return Apart(**json.loads(timed.read_text(encoding="utf-8")))
    if not patch.is_file():
        return None
    with tempfile.TemporaryDirectory() as folder:
        before, after = workers(run)
        as_it_was = copy_of(script, checkouts, text, Path(folder) / "before", before)
        patched = copy_of(script, checkouts, text, Path(folder) / "after", after)
        subprocess.run(["git", "apply", str(patch)], cwd=patched.workdir, check=True)
        window = counted(run) if script.repository == OURS else None
        apart = timed_apart(as_it_was, patched, script.arguments, window=window)
    timed.write_text(json.dumps(asdict(apart)), encoding="utf-8")
    return apart


def markdown(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| script | kept: alone, predicted | printed | timed apart | off by | losses | not kept, and why |",
        "|---|---|---|---|---|---|---|",
    ]
    for each in rows:
        script = f"{each['script']} ({each['repository']})"
        if each["fixes"] is None:
            lines.append(f"| {script} | | | | | | {one_line(each['said'])} |")
            continue
        others = [
            f"`{fix['name']}`: {fix['why']}{_ratio(fix['verdict'], ', ')}"
            for fix in each["fixes"]
            if fix["status"] != "kept"
        ]
        kept = [
            f"`{fix['name']}` {_value(fix)}{_measured(fix)}{_predicted(fix['predicted'])}"
            for fix in each["fixes"]
            if fix["status"] == "kept"
        ]
        together = each["together"] if kept else None
        off = each["off_by"]
        cells = [
            script,
            "<br>".join(kept) or "none",
            _ratio(together, ""),
            _apart(each["apart"]),
            "" if off is None else f"{off - 1:+.1%}",
            "" if together is None else together["parity"]["result"].replace("_", " "),
            "<br>".join(others),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "/")


def _value(fix: dict[str, Any]) -> str:
    return "" if fix["value"] is True else str(fix["value"])


def _measured(fix: dict[str, Any] | None) -> str:
    if fix is None:
        return "not tried"
    on_top = _ratio(fix["added"], ", on top ")
    return _ratio(fix["verdict"], " ") + on_top


def _apart(apart: dict[str, Any] | None) -> str:
    if apart is None:
        return ""
    ratio, low, high = Apart(**apart).ratio()
    return f"{ratio:.2f} ({low:.2f} to {high:.2f})"


def _ratio(verdict: dict[str, Any] | None, before: str) -> str:
    if verdict is None or verdict["ratio"] is None or verdict["num_pairs"] < 4:
        return ""
    low, high = verdict["ratio_low"], verdict["ratio_high"]
    spread = "" if low is None else f" ({low:.2f} to {high:.2f})"
    return f"{before}{verdict['ratio']:.2f}{spread}"


def _predicted(interval: dict[str, Any] | None) -> str:
    if interval is None:
        return ""
    return f", {interval['ratio_low']:.2f} to {interval['ratio_high']:.2f}"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("checkouts", type=Path, nargs="?")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--runs", type=Path)
    parser.add_argument("--budget", default="10m")
    parser.add_argument("--default", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--table", type=Path)
    args = parser.parse_args()
    if args.table is not None:
        print(markdown(stored(args.table)))
        return 0
    if args.checkouts is None or args.runs is None:
        parser.error("give CHECKOUTS and --runs DIR")
    args.runs.mkdir(parents=True, exist_ok=True)
    text = shakespeare(args.checkouts)
    results = []
    for script in (*SCRIPTS, *WALKS) if args.default else (*OWN, *SCRIPTS):
        if args.names and script.name not in args.names:
            continue
        if why := missing(script, args.checkouts):
            print(f"{script.name}: left out, {why}")
            continue
        given = [] if args.default else [*(script.options or ("--budget", args.budget))]
        results.append(fix(script, args.checkouts, text, args.runs.resolve(), given))
        print(markdown([row(results[-1])]).splitlines()[-1], flush=True)
    if args.json is not None:
        rows = {each["script"]: each for each in stored(args.json)}
        rows |= {each.script.name: row(each) for each in results}
        args.json.write_text(json.dumps(list(rows.values()), indent=1) + "\n", encoding="utf-8")
    return 0 if all(each.holds() for each in results) else 1


def stored(file: Path) -> list[dict[str, Any]]:
    """Rows of an earlier call; those of scripts that are not run again stay."""
    rows: list[dict[str, Any]] = json.loads(file.read_text("utf-8")) if file.is_file() else []
    return rows


def row(each: Fixed) -> dict[str, Any]:
    """One script's numbers, for others to count with."""
    return {
        "script": each.script.name,
        "repository": each.script.repository,
        "commit": each.commit,
        "fixes": each.ledger["fixes"] if each.ledger is not None else None,
        "together": each.printed,
        "apart": None if each.apart is None else asdict(each.apart),
        "off_by": each.off_by(),
        "said": each.said,
        "seconds": each.seconds,
    }


if __name__ == "__main__":
    sys.exit(main())
