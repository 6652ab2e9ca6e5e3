"""MAML: two inner steps by torch.func.functional_call with create_graph, 60 outer updates."""

import torch
from torch import nn
from torch.func import functional_call

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), fused=True)
for _ in range(60):
    optimizer.zero_grad()
    total = torch.zeros(())
    for _ in range(4):
        weights = dict(model.named_parameters())
        shift = torch.randn(())
        for _ in range(2):
            x = torch.randn(16, 8)
            inner = (
                (functional_call(model, weights, (x,)) - x.sum(1, keepdim=True) - shift)
                .square()
                .mean()
            )
            slopes = torch.autograd.grad(inner, tuple(weights.values()), create_graph=True)
            weights = {name: w - 0.01 * s for (name, w), s in zip(weights.items(), slopes)}
        x = torch.randn(16, 8)
        total = (
            total
            + (functional_call(model, weights, (x,)) - x.sum(1, keepdim=True) - shift)
            .square()
            .mean()
        )
    total.backward()
    optimizer.step()
print("updates 60", f"loss {total.item():.5f}")
