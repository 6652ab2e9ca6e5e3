"""LBFGS with a closure: 30 updates of 8 evaluations each. Forward and backward run inside of `step`."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(128, 256), nn.Tanh(), nn.Linear(256, 128))
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=8, max_eval=8, history_size=4)
x = torch.randn(512, 128)


def closure():
    optimizer.zero_grad()
    loss = (model(x) - x.roll(1, 1)).square().mean()
    loss.backward()
    return loss


for _ in range(30):
    loss = optimizer.step(closure)
print("updates 30", f"loss {loss.item():.5f}")
