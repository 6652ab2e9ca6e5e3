"""Lightning Fabric: 50 updates.

Planted: Adam, one tensor after the other, takes much of a step; forward and backward take the most.
"""

import lightning as L
import torch
from torch import nn

L.seed_everything(0, verbose=False)
fabric = L.Fabric(accelerator="cpu", devices=1)
fabric.launch()
model = nn.Sequential(*(nn.Sequential(nn.Linear(384, 384), nn.GELU()) for _ in range(8)))
model, optimizer = fabric.setup(model, torch.optim.Adam(model.parameters(), foreach=False))
for _ in range(50):
    x = torch.randn(96, 384)
    optimizer.zero_grad()
    loss = (model(x) - x).square().mean()
    fabric.backward(loss)
    optimizer.step()
print("updates 50", f"loss {loss.item():.6f}")
