"""pytorch-metric-learning: two optimizers (weights, and those of the loss); 40 updates.

Planted: a TensorDataset of which 512 rows are picked one by one and stacked for a small model.
"""

import torch
from pytorch_metric_learning.losses import ProxyAnchorLoss
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(5120, 64), torch.arange(5120) % 8)
model = nn.Linear(64, 32)
criterion = ProxyAnchorLoss(num_classes=8, embedding_size=32)
optimizers = [torch.optim.Adam(each.parameters(), lr=0.001) for each in (model, criterion)]
for _ in range(4):
    for rows, labels in DataLoader(data, batch_size=512, shuffle=True):
        loss = criterion(model(rows), labels)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
print("updates 40", f"loss {loss.item():.5f}")
