"""A training that saves every 8 steps and can resume: `python foreign_training.py [--resume]`; LACK names what it gets wrong."""

import os
import random
import sys
from pathlib import Path

import torch
from torch import nn

lack = os.environ.get("LACK", "")
if lack != "seed":
    torch.manual_seed(0)
    random.seed(0)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 1)
        )
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.layers(x) * (1 + self.calls / 100)


numbers = torch.randn(96, 5, generator=torch.Generator().manual_seed(1))
data = torch.utils.data.TensorDataset(numbers[:, :4], numbers[:, 4:])
scale = nn.Identity()  # a transform of the data that is a module
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
loader = torch.utils.data.DataLoader(data, batch_size=12, shuffle=True)
path, beside = Path("last.pt"), Path("last.tmp")
epoch = 0
if "--resume" in sys.argv and lack != "start":
    state = torch.load(path, weights_only=False)
    weights = state["model"]
    if lack == "weights":
        weights = {name: each.half().to(each.dtype) for name, each in weights.items()}
    elif lack == "buffers":
        weights = {name: each for name, each in weights.items() if "running" not in name}
    model.load_state_dict(weights, strict=lack != "buffers")
    model.calls = 0 if lack == "loss" else state["calls"]
    epoch = state["epoch"]
    if lack != "optimizer":
        optimizer.load_state_dict(state["optimizer"])
    if lack != "learning rate":
        scheduler.load_state_dict(state["scheduler"])
    if lack != "samples":
        torch.set_rng_state(state["random"])
    if lack == "failure":
        input("which one? ")
end = epoch + 4 if lack == "steps" else 4
while epoch < end:
    batches = list(loader)
    if lack == "random state" and "--resume" in sys.argv:
        torch.manual_seed(5)
    for x, y in batches:
        loss = nn.functional.mse_loss(model(x * scale(1.0)), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    scheduler.step()
    epoch += 1
    state = {"model": model.state_dict(), "calls": model.calls, "epoch": epoch}
    state |= {"optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}
    state["random"] = torch.get_rng_state()
    if lack != "save":
        torch.save(state, path if lack == "continuing" else beside)
    if lack not in ("continuing", "save"):
        beside.replace(path)
