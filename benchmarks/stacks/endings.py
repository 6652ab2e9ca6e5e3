"""A plain loop of 60 updates and one of the ways in which scripts begin, end, or go wrong: `endings.py KIND`."""

import atexit
import os
import signal
import sys
from pathlib import Path

import torch
from torch import nn

kind = sys.argv[1]
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256))
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
ended: list[str] = []


count = os.open(
    "made", os.O_CREAT | os.O_WRONLY
)  # written in place: a new file per step would wait for the disk
BATCHES = torch.randn(8, 512, 256)


def train(updates):
    for made in range(1, updates + 1):
        x = BATCHES[made % 8]
        optimizer.zero_grad()
        loss = (model(x) - x).square().mean()
        loss.backward()
        optimizer.step()
        if kind in ("signals", "endless"):
            os.pwrite(count, b"%d" % made, 0)
        if kind == "signals":
            if made == 50:
                os.kill(os.getpid(), signal.SIGUSR1)
                os.kill(os.getpid(), signal.SIGTERM)
            if ended:
                torch.save(model.state_dict(), "last.pt")
                print("handlers", ended)
                sys.exit(7)
        if kind == "crash" and made == 41:
            raise RuntimeError("the loss is no number")
    print("updates", updates, f"loss {loss.item():.6f}")


match kind:
    case "signals":
        for each in (signal.SIGUSR1, signal.SIGTERM):
            signal.signal(each, lambda number, frame: ended.append(signal.Signals(number).name))
    case "atexit":
        atexit.register(train, 5)
    case "chdir":
        Path("sub").mkdir()
        os.chdir("sub")
    case "stdin":
        print("first line", sys.stdin.readline().strip())
    case "tqdm":
        from tqdm import tqdm

        bar = tqdm(total=100, mininterval=0)  # never closed
        bar.update(60)
train({"endless": 10**9, "three": 3}.get(kind, 60))
match kind:
    case "exit3":
        sys.exit(3)
    case "os_exit":
        sys.stdout.flush()
        os._exit(0)
    case "chdir":
        torch.save(model.state_dict(), "weights.pt")
    case "stdin":
        print("the rest", len(sys.stdin.read().split()))
