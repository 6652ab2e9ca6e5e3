import time, torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __getitem__(self, i):
        time.sleep(0.0015)
        return torch.randn(32, generator=torch.Generator().manual_seed(i)), i % 4
    def __len__(self):
        return 100_000

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(32, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
loader = DataLoader(Slow(), batch_size=16, shuffle=True)
for epoch in range(2):
    for x, y in loader:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
