"""As torchtitan starts: a config in YAML, weights on meta first, accumulation over 2; 60 updates.

Planted: a model of many tiny operations, so starting them is the work.
"""

from pathlib import Path

import torch
import yaml
from torch import nn

Path("config.yaml").write_text("dim: 32\nlayers: 12\nsteps: 60\naccumulation: 2\n")
config = yaml.safe_load(Path("config.yaml").read_text())


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.LayerNorm(dim)

    def forward(self, x):
        return x + self.down(nn.functional.silu(self.up(self.norm(x))) * 0.5 + 0.1)


with torch.device("meta"):
    model = nn.Sequential(*(Block(config["dim"]) for _ in range(config["layers"])))
model.to_empty(device="cpu")
torch.manual_seed(0)
for module in model.modules():
    if hasattr(module, "reset_parameters"):
        module.reset_parameters()
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
for _ in range(config["steps"]):
    optimizer.zero_grad()
    for _ in range(config["accumulation"]):
        x = torch.randn(4, config["dim"])
        loss = (model(x) - x).square().mean() / config["accumulation"]
        loss.backward()
    optimizer.step()
print("updates", config["steps"], f"loss {loss.item():.5f}")
