"""What `hotloop doctor --pid` costs the training that it watches: CPU and wall seconds a step, watched and not, in turns.

    python benchmarks/pid_cost.py [PAIRS]

The loop is made of short Python calls and short operations: the worst case for a sampler that stops what it
samples. Run on a quiet machine for wall time; CPU time a step is less disturbed.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WINDOW_S = 8
LOOP = """
import time, torch
torch.set_num_threads(1)
layers = [torch.nn.Sequential(torch.nn.LayerNorm(64), torch.nn.Linear(64, 64), torch.nn.ReLU()) for _ in range(12)]
model = torch.nn.Sequential(*layers, torch.nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
def small(x):
    return x + 1
for step in range(10**9):
    model(torch.randn(32, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    total = 0
    for _ in range(20000):
        total = small(total)
    print(time.time(), time.process_time(), flush=True)
"""


def main() -> None:
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "log"
        with log.open("w") as file:
            loop = subprocess.Popen([sys.executable, "-c", LOOP], stdout=file)
        try:
            windows = _watched_in_turns(loop.pid, log, pairs)
        finally:
            loop.kill()
            loop.wait()
        steps = [tuple(map(float, line.split())) for line in log.read_text().splitlines()[:-1]]
    for name, column in (("wall", 0), ("CPU", 1)):
        ratios = [
            _per_step(steps, watched, column) / _per_step(steps, plain, column)
            for plain, watched in windows
        ]
        plain_s = statistics.median(_per_step(steps, plain, column) for plain, _ in windows)
        print(
            f"{name}: {1e3 * plain_s:.2f} ms a step; watched over not: median {statistics.median(ratios):.3f}, "
            f"{' '.join(f'{each:.3f}' for each in sorted(ratios))}"
        )


Window = tuple[float, float]


def _watched_in_turns(pid: int, log: Path, pairs: int) -> list[tuple[Window, Window]]:
    while log.stat().st_size < 2000:
        time.sleep(0.5)
    found = []
    for number in range(pairs):
        window = {}
        for watched in (number % 2 == 0, number % 2 == 1):
            begin = time.time()
            if watched:
                command = ["doctor", "--pid", str(pid), "--seconds", str(WINDOW_S), "--json", "-"]
                words = [sys.executable, "-m", "hotloop", *command]
                subprocess.run(words, check=True, capture_output=True)
                # Less what Python needs to start and to end.
                window[watched] = (time.time() - WINDOW_S, time.time() - 1)
            else:
                time.sleep(WINDOW_S)
                window[watched] = (begin + 1, time.time())
        found.append((window[False], window[True]))
    return found


def _per_step(steps: list[tuple[float, ...]], window: Window, column: int) -> float:
    inside = [step for step in steps if window[0] <= step[0] <= window[1]]
    return (inside[-1][column] - inside[0][column]) / (len(inside) - 1)


if __name__ == "__main__":
    main()
