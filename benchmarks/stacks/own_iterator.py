"""An iterator class of the script's own, as DALI's and FFCV's are used: 300 updates, so that a second passes.

Planted: `__next__` decodes for 2 to 5 ms of CPU, on the training thread.
"""

import zlib

import numpy as np
import torch
from torch import nn

noise = np.random.default_rng(0).integers(0, 40, 100_000, dtype=np.uint8)
PACKED = zlib.compress(noise.tobytes())


class Pipe:
    def __init__(self, num):
        self.left = num

    def __iter__(self):
        return self

    def __next__(self):
        if not self.left:
            raise StopIteration
        self.left -= 1
        waves = [np.frombuffer(zlib.decompress(PACKED), dtype=np.uint8)[:256] for _ in range(4)]
        return torch.from_numpy(np.stack(waves).astype(np.float32)) / 40, torch.arange(4)


torch.manual_seed(0)
model = nn.Linear(256, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
made = 0
for waves, labels in Pipe(300):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(waves), labels)
    loss.backward()
    optimizer.step()
    made += 1
print("updates", made, f"loss {loss.item():.5f}")
