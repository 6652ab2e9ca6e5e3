"""Fine-tuning against transformers' Trainer: is what was learned as good? Accuracy and F1 over seeds.

    python benchmarks/finetune_quality.py [--entities] [--seeds 5] [--examples 1200] [--epochs 6] [--out FILE.json]

The task of `finetune_speed.py`: which package of the Python standard library a piece of text is from (chance: 0.25; macro F1), or with `--entities`
which of its words are keywords, names and numbers (F1 of whole entities). Both
sides start from the same random BERT (2 layers, width 128), take 8 texts per step, the same rate, its linear decay, clipping
at 1 and no weight decay, in fp32; a seed is that of the order and of dropout. The test is Welch's, two-sided, on the seeds;
the interval is of the difference of the means, 95 %. Needs `accelerate` and scipy.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import finetune_speed
from scipy import stats

RATE = 5e-4


def of_one(arm: str, place: Path, out: Path, epochs: int, seed: int) -> dict[str, Any]:
    """Called in a process of its own."""
    finetune_speed.RATE = RATE
    by = finetune_speed.by_trainer if arm.startswith("trainer") else finetune_speed.by_hotloop
    return by(place, out, epochs, arm, few=False, seed=seed)


def main() -> None:
    if sys.argv[1:2] == ["--arm"]:
        arm, place, out, epochs, seed = sys.argv[2:]
        print(json.dumps(of_one(arm, Path(place), Path(out), int(epochs), int(seed))))
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("--entities", action="store_true")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--examples", type=int, default=1200)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found: dict[str, list[dict[str, Any]]] = {"hotloop": [], "trainer-dynamic": []}
    with tempfile.TemporaryDirectory() as directory:
        finetune_speed.make(Path(directory), given.examples, "tiny", given.entities)
        os.environ["HOTLOOP_CACHE"] = str(Path(directory) / "cache")
        for seed in range(given.seeds):
            for arm, results in found.items():
                out = Path(directory) / f"{arm}-{seed}"
                words = [sys.executable, __file__, "--arm", arm, directory, str(out)]
                words += [str(given.epochs), str(seed)]
                ended = subprocess.run(words, check=True, capture_output=True, text=True)
                shutil.rmtree(out, ignore_errors=True)
                results.append(json.loads(ended.stdout.splitlines()[-1]))
                print(seed, arm, json.dumps(results[-1]), flush=True)
    for metric in ("accuracy", "f1" if given.entities else "macro_f1"):
        own, theirs = ([each[metric] for each in results] for results in found.values())
        test = stats.ttest_ind(own, theirs, equal_var=False)
        low, high = test.confidence_interval(0.95)
        print(
            f"{metric}: hotloop {statistics.fmean(own):.4f} (sd {statistics.stdev(own):.4f}), Trainer "
            f"{statistics.fmean(theirs):.4f} (sd {statistics.stdev(theirs):.4f}); difference "
            f"{low:+.4f} to {high:+.4f}, p {test.pvalue:.2f}"
        )
    if given.out:
        given.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
