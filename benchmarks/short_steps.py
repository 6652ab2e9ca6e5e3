"""A small transformer with steps of about 10 ms: what a probe costs shows here first.

Every step calls 50 modules, takes a batch from a DataLoader, reads its loss and writes a log line.
"""

from __future__ import annotations

import logging
import os
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

WIDTH, HEADS, LAYERS, CONTEXT, BATCH, IDS = 96, 4, 4, 32, 4, 256


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(IDS, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, IDS)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.layers(self.embedding(ids))
        logits: torch.Tensor = self.head(hidden)
        return logits


def main() -> None:
    torch.manual_seed(0)
    log = logging.getLogger("train")
    log.addHandler(logging.FileHandler(os.devnull))
    log.setLevel(logging.INFO)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = TensorDataset(torch.randint(0, IDS, (4096, CONTEXT)))
    step, steps = 0, int(sys.argv[1])
    while step < steps:
        for (ids,) in DataLoader(data, batch_size=BATCH, shuffle=True):
            loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            log.info("step %d loss %.4f", step, loss.item())
            step += 1
            if step == steps:
                return


if __name__ == "__main__":
    main()
