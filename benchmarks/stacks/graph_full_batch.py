"""PyTorch Geometric, full batch, an evaluation after each epoch: 80 updates. Evaluation is part of each step."""

import torch
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

torch.manual_seed(0)
data = Data(
    x=torch.randn(2000, 64), y=torch.arange(2000) % 4, edge_index=torch.randint(0, 2000, (2, 12000))
)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = GCNConv(64, 64), GCNConv(64, 4)

    def forward(self, x, edges):
        return self.second(self.first(x, edges).relu(), edges)


model = Net()
optimizer = torch.optim.Adam(model.parameters(), fused=True)
for _ in range(80):
    model.train()
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(data.x, data.edge_index), data.y)
    loss.backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        right = (model(data.x, data.edge_index).argmax(1) == data.y).float().mean()
print("updates 80", f"loss {loss.item():.5f}")
