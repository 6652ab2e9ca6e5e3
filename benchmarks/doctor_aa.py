"""How often the doctor sees a gain where there is none: fixes that do nothing, through its own `run_campaign`.

    python benchmarks/doctor_aa.py record RUNS.json      96 real runs of a small script, half of them forked as in pairs
    python benchmarks/doctor_aa.py resample RUNS.json    those, and earlier recordings, dealt to trials
    python benchmarks/doctor_aa.py live DIRECTORY        one real doctor's run over five such fixes

`resample` replaces the processes alone: looks, order, parity, stacking and fresh pairs are
the doctor's. Trials of one comparison get runs that were recorded one after the other, from a random place
on, so that what else the machine did is in them; or, as a second way, any runs at all. `live` adds a line
to `DIRECTORY/live.jsonl`; ended in the middle, the same command continues. Both expect nothing kept.
With `--toggled` the fixes go on and off within each process, else they are compared in pairs of processes.
With `--fixes 1`, or a `--budget` in seconds that does not pay for all of them (processes take none here), the first
pairs of a fix are its proof.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch
from zlib import crc32

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "null_fixes"))

from null_fixes import NULL_FIXES, TOGGLED  # noqa: E402

from hotloop.core.census import Census  # noqa: E402
from hotloop.core.child import IMPORTS_FILE  # noqa: E402
from hotloop.core.ledger import Ledger  # noqa: E402
from hotloop.core.measurement import Environment, Measurement, Plan  # noqa: E402
from hotloop.core.step import StepRecord  # noqa: E402
from hotloop.doctor.command import attached_environment  # noqa: E402
from hotloop.doctor.fix_campaign import run_campaign  # noqa: E402
from hotloop.doctor.fixes import Fix  # noqa: E402
from hotloop.optimizations.catalogue import CATALOGUE  # noqa: E402
from hotloop.trial.arm import Arm  # noqa: E402
from hotloop.trial.forking import PAIRS_OF_A_SERVER, ForkServers, Imports  # noqa: E402
from hotloop.trial.measure import server_environment, trial  # noqa: E402
from hotloop.trial.sandbox.layered import Layered  # noqa: E402
from hotloop.trial.snapshot import take_snapshot  # noqa: E402

EARLIER = HERE.parent / "tests" / "golden" / "aa_runs.json.gz"
WARMUP, STEPS, RUNS = 10, 90, 96
FORKS = 2 * PAIRS_OF_A_SERVER
SCRIPT = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.GELU(), torch.nn.Linear(256, 128))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = torch.utils.data.TensorDataset(torch.randn(64 * STEPS, 128), torch.randn(64 * STEPS, 128))
for x, y in torch.utils.data.DataLoader(data, batch_size=64, shuffle=True):
    optimizer.zero_grad()
    loss = (model(x) - y).square().mean()
    loss.backward()
    optimizer.step()
"""
ENVIRONMENT = Environment(
    device="recorded", num_devices=1, cpu_model="recorded", num_cpus=2, cpu_quota=2.0,
    memory_limit_bytes=None, platform="none", kernel=None, python="3", torch=None, cuda=None,
    driver=None, hotloop="0",
)  # fmt: skip
COMMAND = [sys.executable, "train.py"]


def script(steps: int) -> str:
    return SCRIPT.replace("STEPS", str(steps))


def measurement(step_s: list[float], *, plan: Plan, arm: str = "recorded") -> Measurement:
    """A process with these step times; its losses are the same in every one."""
    records = tuple(
        StepRecord(
            step, seconds, loss=1.0 / (1 + step), tags=("warmup",) * (step < plan.warmup_steps)
        )
        for step, seconds in enumerate(step_s)
    )
    census = Census(device="cpu", num_threads=1, start_s=2.0, seen=("loaders",))
    return Measurement(
        arm, tuple(COMMAND), plan, ENVIRONMENT, records, census=census, process_s=sum(step_s) + 2.0
    )


def record(file: Path) -> None:
    """Real processes as the doctor's trials are: some fresh ones, then as many forks of one server, in turns."""
    from hotloop.core.files import write_json

    runs: dict[str, list[dict[str, Any]]] = {"runs": [], "forked": []}
    with tempfile.TemporaryDirectory() as name:
        place = Path(name).resolve()
        work, doctors = place / "work", place / "doctor"
        for each in (work, doctors):
            each.mkdir()
        (work / "train.py").write_text(script(WARMUP + STEPS))
        arm = Arm("baseline", tuple(COMMAND), "step_clock", workdir=work)
        start = Layered(take_snapshot(work, doctors / "before"), doctors)
        cache = doctors / "cache"
        servers = ForkServers(imported(arm, place / "seen"), doctors / "servers")
        for number in range(RUNS):
            forking = number // FORKS % 2 == 1
            server = None
            if forking:
                environment = partial(server_environment, arm, cache=cache)
                server = servers.ready([arm], environment)
                assert server is not None, servers.given_up
            load = os.getloadavg()[0]
            found = trial(
                arm,
                doctors / f"run-{number}",
                plan=Plan(WARMUP, STEPS, 120.0),
                seed=str(number),
                cache=cache,
                workdir=start,
                what=f"run {number}",
                server=server,
            )
            if number % FORKS == FORKS - 1:
                servers.close()
            steps = [round(1e6 * each.wall_s) for each in found.records]
            runs["forked" if forking else "runs"].append(
                {"load_average": round(load, 2), "step_us": steps, "process_s": found.process_s}
            )
            print(f"run {number + 1} of {RUNS}, load {load:.1f}", file=sys.stderr, flush=True)
    write_json(file, {"schema": "hotloop.benchmarks.doctor_aa/1", "warmup": WARMUP, **runs})


def imported(arm: Arm, place: Path) -> Imports:
    """What it imports, as the probe sees it."""
    place.mkdir()
    env = attached_environment(os.environ, place, steps=3)
    subprocess.run(arm.command, cwd=arm.workdir, env=env, check=True)
    found = Imports.read(place / IMPORTS_FILE)
    assert found is not None
    return found


@contextmanager
def null_fixes() -> Iterator[None]:
    """In the catalogue, here and in the trials."""
    with (
        patch.dict(CATALOGUE, {**NULL_FIXES, **TOGGLED}),
        patch.dict(os.environ, {"PYTHONPATH": str(HERE / "null_fixes")}),
    ):
        yield


def fixes(*, toggled: bool) -> list[Fix]:
    chosen = TOGGLED if toggled else NULL_FIXES
    return [Fix(fix, True, ("HL000",), 1.2) for fix in chosen.values()]


class Deal:
    """Stands for `trial`: every process gets a recorded run."""

    def __init__(
        self, runs: list[list[float]], generator: random.Random, *, in_order: bool
    ) -> None:
        self.runs, self.generator, self.in_order = runs, generator, in_order
        self.finished: dict[Path, Measurement] = {}
        self.session: Path | None = None
        self.place = 0

    def __call__(self, arm: Arm, place: Path, *, plan: Plan, **rest: Any) -> Measurement:
        if place in self.finished:
            return self.finished[place]
        if arm.fixes:
            run = place / "run"
            run.mkdir(parents=True, exist_ok=True)
            lines = [{"fix": name, "applied": True, "what": "nothing"} for name in arm.fixes]
            (run / "fixes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
            can = sorted(TOGGLED.keys() & arm.fixes)
            turns = {"can": can, "turned": arm.toggled, "children": 0, "threads": []}
            (run / "turns.json").write_text(json.dumps(turns))
        if place.parent != self.session or not self.in_order:
            self.session = place.parent
            self.place = self.generator.randrange(len(self.runs))
        steps = self.runs[self.place % len(self.runs)][: plan.warmup_steps + plan.steps]
        self.place += 1
        ratio = self.ratio(arm)
        self.finished[place] = measurement([s / ratio for s in steps], plan=plan, arm=arm.name)
        return self.finished[place]

    def ratio(self, arm: Arm) -> float:
        """What its fixes bring."""
        return 1.0


def doctor_run(
    deal: Deal, tried: list[Fix], *, order: Callable[[bytes], int], budget_s: float | None
) -> Ledger:
    """A whole one, over dealt processes. tried: in the catalogue. order: within the pairs of what it is given."""
    seen = measurement(deal.runs[0], plan=Plan(WARMUP, len(deal.runs[0]) - WARMUP, 60.0))
    with (
        tempfile.TemporaryDirectory() as place,
        patch("hotloop.trial.session.trial", deal),
        patch("hotloop.doctor.trial_runner.trial", deal),
        patch("hotloop.doctor.trial_runner.crc32", order),
        # No process is kept apart: whether this system could is not looked at in every run.
        patch("hotloop.doctor.starting_point.storage_for", lambda *places: None),
    ):
        run, work = Path(place) / "run", Path(place) / "work"
        work.mkdir()
        return run_campaign(COMMAND, tried, seen, directory=run, workdir=work, budget_s=budget_s)


def resampled(
    deal: Deal, *, toggled: bool, num_fixes: int = 5, budget_s: float | None = None
) -> Ledger:
    """A doctor's run over null fixes. The order within pairs is drawn anew for every comparison of every run."""
    drawn, tried = deal.generator.randbytes(8), fixes(toggled=toggled)[:num_fixes]
    with null_fixes():
        return doctor_run(deal, tried, order=lambda text: crc32(text + drawn), budget_s=budget_s)


def tally(ledgers: list[Ledger]) -> dict[str, Any]:
    """Comparisons of single fixes, and doctor's runs that claim anything."""
    outcomes = Counter(
        fix.verdict.outcome for ledger in ledgers for fix in ledger.fixes if fix.verdict is not None
    )
    comparisons = sum(outcomes.values())
    return {
        "comparisons": comparisons,
        "improved": outcomes["improved"],
        "improved_fraction": outcomes["improved"] / max(comparisons, 1),
        "outcomes": dict(sorted(outcomes.items())),
        "doctor_runs": len(ledgers),
        "doctor_runs_with_any_improved": sum(
            any(fix.verdict and fix.verdict.outcome == "improved" for fix in ledger.fixes)
            for ledger in ledgers
        ),
        "doctor_runs_that_claim": sum(bool(ledger.kept) for ledger in ledgers),
    }


def recordings(file: Path) -> dict[str, list[list[float]]]:
    """Step times in seconds, in the order in which the runs were recorded."""
    own = json.loads(file.read_text())
    earlier = json.loads(gzip.decompress(EARLIER.read_bytes()))
    forked = {"this script, forked": own["forked"]} if "forked" in own else {}
    found = {"this script": own["runs"], **forked, **earlier["sets"]}
    return {
        name: [[us * 1e-6 for us in run["step_us"]] for run in runs] for name, runs in found.items()
    }


def resample(file: Path, doctor_runs: int, only: str | None, **how: Any) -> dict[str, Any]:
    """Doctor's runs with null fixes, for each recording and either way of dealing. how: see `resampled`."""
    results = {}
    for name, runs in recordings(file).items():
        if only not in (None, name):
            continue
        for in_order in (True, False):
            generator = random.Random(f"{name} {in_order}")
            deal = Deal(runs, generator, in_order=in_order)
            ledgers = [resampled(deal, **how) for _ in range(doctor_runs)]
            results[f"{name}, {'one after the other' if in_order else 'any'}"] = tally(ledgers)
            print(
                name, in_order, results[f"{name}, {'one after the other' if in_order else 'any'}"]
            )
    return results


def live(directory: Path, *, toggled: bool, steps: int, forked: bool) -> dict[str, Any]:
    """One real doctor's run; its ledger's outcomes as a line of `live.jsonl`."""
    directory.mkdir(parents=True, exist_ok=True)
    log = directory / "live.jsonl"
    number = len(log.read_text().splitlines()) if log.exists() else 0
    work = directory / "work"
    work.mkdir(exist_ok=True)
    if not (work / "train.py").exists():
        (work / "train.py").write_text(script(WARMUP + steps))
    # What the diagnosing run of this script gives, about; the doctor corrects the seconds itself.
    seen = measurement([0.001] * (WARMUP + steps), plan=Plan(WARMUP, steps, 60.0))
    started = time.time()
    if forked:
        arm = Arm("baseline", tuple(COMMAND), "step_clock", workdir=work)
        imported(arm, directory / f"doctor-{number}")
    with null_fixes():
        ledger = run_campaign(
            COMMAND,
            fixes(toggled=toggled),
            seen,
            directory=directory / f"doctor-{number}",
            workdir=work,
        )
    entry = {
        **tally([ledger]),
        "ratios": [fix.verdict and round(fix.verdict.ratio or 0, 4) for fix in ledger.fixes],
        "intervals": [
            fix.verdict and (fix.verdict.ratio_low, fix.verdict.ratio_high) for fix in ledger.fixes
        ],
        "parity": [fix.verdict and fix.verdict.parity.result for fix in ledger.fixes],
        "noise_floor": [fix.verdict and fix.verdict.noise_floor for fix in ledger.fixes],
        "load_average": os.getloadavg()[0],
        "forked": ledger.forked,
        "seconds": time.time() - started,
    }
    with log.open("a") as file:
        file.write(json.dumps(entry) + "\n")
    return entry


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("record", "resample", "live"))
    parser.add_argument("place", type=lambda given: Path(given).resolve())
    parser.add_argument(
        "--doctor-runs", type=int, default=60, help="per recording and way of dealing"
    )
    parser.add_argument("--toggled", action="store_true", help="within each process")
    parser.add_argument(
        "--steps", type=int, default=STEPS, help="that the script of `live` makes after its warm-up"
    )
    parser.add_argument("--forked", action="store_true", help="processes of `live`")
    parser.add_argument("--fixes", type=int, default=5, choices=range(1, 6), help="of `resample`")
    parser.add_argument("--budget", type=float, help="seconds, of `resample`")
    parser.add_argument("--recording", help="only this one [default: all]")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.what == "record":
        record(given.place)
        return
    if given.what == "resample":
        result = resample(
            *(given.place, given.doctor_runs, given.recording),
            toggled=given.toggled,
            num_fixes=given.fixes,
            budget_s=given.budget,
        )
    else:
        result = live(given.place, toggled=given.toggled, steps=given.steps, forked=given.forked)
    print(json.dumps(result, indent=1))
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
