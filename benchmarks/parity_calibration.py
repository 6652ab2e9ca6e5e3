"""Twelve mistakes and five harmless changes in five kinds of script: which does the doctor's judgement reject?

python benchmarks/parity_calibration.py --seeds 0 1 --out benchmarks/results/parity_calibration.json

Each run is one training of 60 updates in this process (`parity_scripts.py`); what is judged is what
`doctor.loss_parity` judges, by the same functions and in the same order. `compile` takes most of the time.
Exits 1 where fewer than 95 of 100 mistakes are rejected, or fewer than 95 of 100 harmless changes accepted.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from parity_scripts import AS_IT_IS, HARMLESS, MISTAKES, SCRIPTS, Change, Seen, run

from hotloop.core.judgement import Parity, ParityClass
from hotloop.doctor.compared_arms import NOISE, NOISE_RUNS
from hotloop.judge.calibrated_parity import ComparedRun, is_plain, judge_calibrated
from hotloop.judge.parity import judge_parity

ONLY_FOR = {"channels_last": ("resnet",)}
"""What does nothing elsewhere: there are no pictures."""
BAR = 0.95


class Script:
    """One kind of script with one seed; baseline runs, and noisy ones, are made once."""

    def __init__(self, name: str, seed: int) -> None:
        self.name, self.seed = name, seed
        self.parity_class: ParityClass = (
            "reduced_precision" if name.startswith("bf16") else "reduction_order"
        )
        self.baseline = [self._run(), self._run()]
        self._noisy: list[ComparedRun] = []

    def _run(self, change: Change = AS_IT_IS, *, size: float = 0.0, number: int = 1) -> ComparedRun:
        seen: Seen = run(self.name, change, seed=self.seed, size=size, noise_seed=number)
        return ComparedRun(seen.records, seen.weights)

    def judged(self, change: Change) -> tuple[Parity, Parity]:
        """By the one band for all scripts, and as the doctor does."""
        candidate = self._run(change)
        records = [each.records for each in self.baseline]
        plain = judge_parity(records, [candidate.records], self.parity_class)
        if is_plain(plain, self.baseline, candidate):
            return plain, plain
        parity = plain
        for number in range(1, NOISE_RUNS + 1):
            if len(self._noisy) < number:
                size = NOISE[self.parity_class]
                self._noisy.append(self._run(size=size, number=number))
            parity = judge_calibrated(
                self.baseline, candidate, self._noisy[:number], self.parity_class
            )
            if parity.result != "different":
                break
        return plain, parity


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--scripts", nargs="+", default=list(SCRIPTS))
    parser.add_argument("--changes", nargs="+", default=[*MISTAKES, *HARMLESS])
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    rows: list[dict[str, object]] = []
    begun = time.monotonic()
    for seed in given.seeds:
        for name in given.scripts:
            script = Script(name, seed)
            for what, change in {**MISTAKES, **HARMLESS}.items():
                if what not in given.changes or name not in ONLY_FOR.get(what, (name,)):
                    continue
                plain, parity = script.judged(change)
                rows.append(
                    {
                        "script": name,
                        "seed": seed,
                        "change": what,
                        "harmless": what in HARMLESS,
                        "one_band": plain.result,
                        "result": parity.result,
                        "num_steps": parity.num_steps,
                        "reason": parity.reason,
                    }
                )
                print(
                    f"{name:17s} {seed} {what:28s} {plain.result:13s} {parity.result}", flush=True
                )
                if given.out is not None:
                    write(given.out, rows, given.seeds, time.monotonic() - begun)
    return 0 if all(share >= BAR for share in shares(rows).values()) else 1


def shares(rows: Sequence[dict[str, object]]) -> dict[str, float]:
    """Of mistakes those rejected, of harmless changes those accepted."""
    found = {}
    for harmless, what, right in (
        (False, "mistakes rejected", ("different",)),
        (True, "harmless accepted", ("same", "within_noise")),
    ):
        of = [row for row in rows if row["harmless"] == harmless]
        if of:
            found[what] = sum(row["result"] in right for row in of) / len(of)
    return found


def write(
    path: Path, rows: Sequence[dict[str, object]], seeds: Sequence[int], seconds: float
) -> None:
    values = {
        "command": f"python {' '.join(sys.argv)}",
        "torch": torch.__version__,
        "seeds": list(seeds),
        "seconds": round(seconds),
        "shares": shares(rows),
        "counts": {
            "mistakes": sum(not row["harmless"] for row in rows),
            "harmless": sum(bool(row["harmless"]) for row in rows),
        },
        "rows": list(rows),
    }
    path.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
