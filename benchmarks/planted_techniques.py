"""Bad techniques that are faster, and one that is slower by a hundredth: does `hotloop tune` reject each for the right reason?

    python benchmarks/planted_techniques.py --data DIR --out FILE [--budget 15m]

DIR holds prepared tokens (`hotloop prepare`). Each is claimed to change no more than the order of sums (`planted_train.py`
says what it does); one that leaves out a wait and does nothing else has to be kept. Exits 1 where one is not as `EXPECTED`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

EXPECTED = {
    "--no-wait on": ("kept", "faster, and learns the same"),
    "--skip-clipping on": ("rejected", "learns something else"),
    "--no-decay on": ("rejected", "learns something else"),
    "--other-order on": ("rejected", "learns something else"),
    "--slower on": ("not kept", ""),
}
"""Of each: what becomes of it, and words of the reason."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--budget", default="15m")
    given = parser.parse_args()
    script = Path(__file__).with_name("planted_train.py")
    vary = []
    for name in EXPECTED:
        flag = name.split()[0]
        vary += ["--vary", flag, "--parity", f"{flag.lstrip('-')}=reduction_order"]
    with tempfile.TemporaryDirectory() as directory:
        found = Path(directory) / "ledger.json"
        command = [sys.executable, "-m", "hotloop", "tune", *vary, "--budget", given.budget]
        command += ["--json", str(found), "--", sys.executable, str(script)]
        command += ["--data", str(given.data.resolve())]
        subprocess.run(command, cwd=directory, check=True)
        fixes = {each["name"]: each for each in json.loads(found.read_text())["fixes"]}
    rows, wrong = [], 0
    for name, (status, words) in EXPECTED.items():
        fix = fixes[name]
        is_kept = fix["status"] == "kept"
        right = words in fix["why"] and (fix["status"] == status or (status == "not kept" and not is_kept))  # fmt: skip
        wrong += not right
        verdict = fix["verdict"] or {}
        numbers = {key: verdict.get(key) for key in ("ratio", "ratio_low", "ratio_high", "num_pairs")}  # fmt: skip
        rows.append({"name": name, "status": fix["status"], "why": fix["why"], "is_as_expected": right, **numbers})  # fmt: skip
        print(f"{'ok   ' if right else 'WRONG'} {name:20} {fix['status']}: {fix['why']}")
    given.out.write_text(json.dumps(rows, indent=1) + "\n")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
