"""A prefetch thread that fills a queue.Queue: 100 updates.

Planted: the thread waits 20 ms for each batch, so the training waits in `queue.get`.
"""

import queue
import threading
import time

import torch
from torch import nn

torch.manual_seed(0)
BATCHES = [(torch.randn(32, 256), torch.arange(32) % 4) for _ in range(10)]
ready: queue.Queue = queue.Queue(maxsize=2)


def fill():
    for i in range(100):
        time.sleep(0.02)
        ready.put(BATCHES[i % 10])
    ready.put(None)


threading.Thread(target=fill, daemon=True).start()
model = nn.Linear(256, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
made = 0
while (batch := ready.get()) is not None:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
    loss.backward()
    optimizer.step()
    made += 1
print("updates", made, f"loss {loss.item():.5f}")
