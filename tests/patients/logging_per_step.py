"""Trains with a log line for every gradient of every step, left over from debugging.

`--healthy` logs the loss every 25 steps.
"""

import argparse
import logging
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

log = logging.getLogger("train")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--healthy", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    bf16 = torch.cpu._is_avx512_bf16_supported()

    layers = [layer for _ in range(6) for layer in (nn.Linear(768, 768), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(768, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, fused=True)
    inputs, labels = torch.randn(16, 384, 768), torch.randint(10, (16, 384))

    with tempfile.TemporaryDirectory() as folder:
        handler = logging.FileHandler(Path(folder) / "train.log")
        log.addHandler(handler)
        log.setLevel(logging.INFO if args.healthy else logging.DEBUG)
        for step in range(args.steps):
            if step == 10:
                start = time.perf_counter()
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                loss = nn.functional.cross_entropy(model(inputs[step % 16]), labels[step % 16])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            for name, parameter in model.named_parameters():
                log.debug("step %d: gradient of %s %s", step, name, parameter.grad)
            if step % 25 == 0:
                log.info("step %d: loss %.4f", step, loss.item())
        took = (time.perf_counter() - start) / (args.steps - 10)
        log.removeHandler(handler)
        handler.close()
    print(f"loss {loss.item():.6f}  {1000 * took:.2f} ms per step")


if __name__ == "__main__":
    main()
