"""A training loop that may be killed at any time and continues where it was, bit for bit: run the same command again."""

import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

from hotloop.checkpoint import Checkpointer, ResumableLoader

torch.manual_seed(0)
data = TensorDataset(torch.randn(960, 8), torch.randn(960, 1))
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Dropout(0.1), torch.nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters())
loader = ResumableLoader(DataLoader(data, batch_size=32, shuffle=True))
parts = {"model": model, "optimizer": optimizer, "loader": loader}

with Checkpointer(sys.argv[1] if len(sys.argv) > 1 else "checkpoints", keep=2) as checkpointer:
    resumed = checkpointer.load_latest(**parts)
    step = resumed.step if resumed else 0
    while loader.epoch < 3:
        for x, y in loader:
            loss = torch.nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            print(step, loss.item(), flush=True)
            if step % 10 == 0:
                checkpointer.save(step, **parts)
