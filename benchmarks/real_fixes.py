"""Fix public training scripts, unmodified, with `hotloop doctor`, and confirm what it keeps a second time.

    python benchmarks/real_fixes.py CHECKOUTS [NAME ...] --runs DIR [--budget 10m] [--markdown FILE]

CHECKOUTS as for `real_scripts.py`, and scripts as in its list. Each is examined and fixed in a fresh copy
of its directory. What is kept is tried again by a second, independent run of the doctor, of these fixes
alone: confirmed where that one keeps it as well. The run directories stay in DIR, and what is there
already is not run again.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from real_list import SCRIPTS, Script, shakespeare
from real_scripts import commit_of, environment, missing

LEDGER = "ledger.json"
LIMIT_S = 3600


@dataclass(frozen=True)
class Fixed:
    """What came of one script."""

    script: Script
    commit: str
    ledger: dict[str, Any] | None
    again: dict[str, Any] | None
    """Of the second run; `None` where nothing was kept."""
    said: str
    """The last lines of a doctor that tried nothing."""

    @property
    def kept(self) -> list[dict[str, Any]]:
        fixes = self.ledger["fixes"] if self.ledger is not None else []
        return [fix for fix in fixes if fix["status"] == "kept"]

    def second(self, name: str) -> dict[str, Any] | None:
        """What the second run says of a fix."""
        fixes = self.again["fixes"] if self.again is not None else []
        return next((fix for fix in fixes if fix["name"] == name), None)

    def confirmed(self, name: str) -> bool:
        second = self.second(name)
        return second is not None and second["status"] == "kept"


def fix(script: Script, checkouts: Path, text: str, runs: Path, budget: str) -> Fixed:
    name = re.sub(r"\W+", "-", script.name)
    ledger, said = doctor(script, checkouts, text, runs / name, ["--budget", budget])
    kept = [] if ledger is None else [f for f in ledger["fixes"] if f["status"] == "kept"]
    again = None
    if kept:
        said = [f"{each['name']}={json.dumps(each['value'])}".replace('"', "") for each in kept]
        only = [part for each in said for part in ("--only", each)]
        again, said = doctor(script, checkouts, text, runs / f"{name}-again", only)
    return Fixed(script, commit_of(checkouts / script.checkout), ledger, again, said)


def doctor(
    script: Script, checkouts: Path, text: str, run: Path, options: list[str]
) -> tuple[dict[str, Any] | None, str]:
    """Its ledger, and what it said last."""
    said = ""
    if not (run / LEDGER).is_file():
        if run.exists():
            shutil.rmtree(run)
        with tempfile.TemporaryDirectory() as folder:
            checkout = Path(folder) / "checkout"
            shutil.copytree(checkouts / script.checkout, checkout, symlinks=True)
            workdir = checkout / script.workdir
            if script.prepare is not None:
                script.prepare(workdir, text)
            done = subprocess.run(
                [
                    *(sys.executable, "-m", "hotloop", "doctor", *options, "--out", str(run)),
                    *("--", sys.executable, *script.arguments),
                ],
                cwd=workdir,
                env=environment(script, checkout),
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
                check=False,
            )
        said = "\n".join(done.stderr.strip().splitlines()[-6:])
        (run.parent / f"{run.name}.txt").write_text(done.stderr, encoding="utf-8")
    if not (run / LEDGER).is_file():
        return None, said
    return json.loads((run / LEDGER).read_text(encoding="utf-8")), said


def markdown(results: list[Fixed]) -> str:
    lines = [
        "| script | kept: alone, predicted | again | together, fresh pairs | losses | not kept, and why |",
        "|---|---|---|---|---|---|",
    ]
    for each in results:
        if each.ledger is None:
            lines.append(
                f"| {each.script.name} ({each.script.repository}) | | | | | {one_line(each.said)} |"
            )
            continue
        fixes = each.ledger["fixes"]
        others = [
            f"`{fix['name']}`: {fix['why']}{_ratio(fix['verdict'], ', ')}"
            for fix in fixes
            if fix["status"] != "kept"
        ]
        kept = [
            f"`{fix['name']}` {_value(fix)}{_measured(fix)}{_predicted(fix['predicted'])}"
            for fix in each.kept
        ]
        again = [
            f"{_measured(each.second(fix['name'])).strip()}, "
            + ("confirmed" if each.confirmed(fix["name"]) else "**not confirmed**")
            for fix in each.kept
        ]
        together = each.ledger["together"]
        parity = together["parity"] if together else None
        cells = [
            f"{each.script.name} ({each.script.repository})",
            "<br>".join(kept) or "none",
            "<br>".join(again),
            _ratio(together, ""),
            "" if parity is None else parity["result"].replace("_", " "),
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
    parser.add_argument("checkouts", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--budget", default="10m")
    parser.add_argument("--markdown", type=Path)
    args = parser.parse_args()
    args.runs.mkdir(parents=True, exist_ok=True)
    text = shakespeare(args.checkouts)
    results = []
    for script in SCRIPTS:
        if args.names and script.name not in args.names:
            continue
        if why := missing(script, args.checkouts):
            print(f"{script.name}: left out, {why}")
            continue
        results.append(fix(script, args.checkouts, text, args.runs.resolve(), args.budget))
        print(markdown(results[-1:]).splitlines()[-1], flush=True)
    table = markdown(results)
    if args.markdown is not None:
        args.markdown.write_text(table + "\n", encoding="utf-8")
    confirmed = all(each.confirmed(fix["name"]) for each in results for fix in each.kept)
    return 0 if confirmed else 1


if __name__ == "__main__":
    sys.exit(main())
