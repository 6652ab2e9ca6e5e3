"""torchrun, two ranks, DDP over gloo: 50 updates each.

Planted: 4 MB of gradients for hardly any arithmetic, so the ranks wait for each other.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(
    nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512))
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
for _ in range(50):
    x = torch.randn(4, 512)
    optimizer.zero_grad()
    loss = (model(x) - x).square().mean()
    loss.backward()
    optimizer.step()
if dist.get_rank() == 0:
    print("updates 50", f"loss {loss.item():.4f}")
dist.destroy_process_group()
