"""Tries random configs, checkpoints, run directories and prepared directories until the time is over.

    python benchmarks/fuzz_inputs.py --minutes 60

Prints each finding with the case that shows it, and how many inputs of each kind were tried and how their
commands ended. Exit code 1 when there was a finding. The same cases, fewer and always the same ones, are
in tests/fuzz.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "fuzz"))

from fuzzers import FUZZERS
from ground import Ground
from hypothesis import HealthCheck, Phase, given, seed, settings
from warm import Warm

ROUND = 40
"""Inputs of one kind in a row."""
MAX_FINDINGS = 30


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--only", action="append", choices=list(FUZZERS), help="this kind of input")
    parser.add_argument(
        "--seed", type=int, default=None, help="of the first round [default: random]"
    )
    asked = parser.parse_args()
    number = random.randrange(2**32) if asked.seed is None else asked.seed
    print(f"seed {number}", flush=True)
    with tempfile.TemporaryDirectory(prefix="hotloop-fuzz-") as directory:
        root = Path(directory)
        warm = Warm(root / "warm")
        ground = Ground(warm, root)
        until = time.monotonic() + 60 * asked.minutes
        ends: dict[str, Counter[str]] = {name: Counter() for name in FUZZERS}
        findings: dict[str, str] = {}
        while time.monotonic() < until and len(findings) < MAX_FINDINGS:
            for name in asked.only or FUZZERS:
                _round(ground, name, number, until, ends[name], findings)
                number += 1
        warm.close()
    for name, counted in ends.items():
        codes = ", ".join(f"{n} x exit {code}" for code, n in sorted(counted.items()))
        print(f"{sum(counted.values()):6} {name}: {codes}")
    print(f"{sum(map(Counter.total, ends.values()))} inputs, {len(findings)} findings")
    return 1 if findings else 0


def _round(
    ground: Ground,
    name: str,
    number: int,
    until: float,
    ends: Counter[str],
    findings: dict[str, str],
) -> None:
    fuzzer = FUZZERS[name]

    @seed(number)
    @settings(
        max_examples=ROUND,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(fuzzer.cases)
    def check(case: Any) -> None:
        if time.monotonic() > until:
            return
        ended = fuzzer.run(ground, case)
        ends[str(ended.code)] += 1
        problem = ended.problem()
        if problem is not None:
            places = re.findall(r'src/hotloop/(\S+)", line (\d+)', problem)
            kind = str(places[-1]) if places else f"{name} {problem[:30]}"
            if kind not in findings:
                findings[kind] = problem
                print(f"\nFINDING in {name}, seed {number}: {case}\n{problem}\n", flush=True)

    check()


if __name__ == "__main__":
    sys.exit(main())
