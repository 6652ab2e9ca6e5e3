"""Accelerate: accumulation over 2 of a loader without workers.

Planted: each sample is decoded (zlib, numpy) for about 2 ms of CPU. 50 updates.
"""

import zlib

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, Dataset

PACKED = zlib.compress(np.random.default_rng(0).integers(0, 40, 200_000, dtype=np.uint8).tobytes())


class Recordings(Dataset):
    def __len__(self):
        return 800

    def __getitem__(self, index):
        wave = np.frombuffer(zlib.decompress(PACKED), dtype=np.uint8)
        return torch.from_numpy(wave[index : index + 256].astype(np.float32)) / 40, index % 4


torch.manual_seed(0)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4))
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
model, optimizer, loader = accelerator.prepare(
    model, optimizer, DataLoader(Recordings(), batch_size=8)
)
made = 0
for waves, labels in loader:
    with accelerator.accumulate(model):
        loss = nn.functional.cross_entropy(model(waves), labels)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        made += accelerator.sync_gradients
print("updates", made, f"loss {loss.item():.6f}")
