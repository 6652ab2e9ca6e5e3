"""A training that sleeps DELAY seconds per step in one place, WHERE. Run by a test and by a benchmark."""

import logging
import os
import time

import torch

torch.set_num_threads(1)
DELAY, WHERE = float(os.environ["DELAY"]), os.environ["WHERE"]


slept = []


def late(where):
    if where == WHERE:
        start = time.perf_counter()
        time.sleep(DELAY)
        slept.append(time.perf_counter() - start)


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        if index == 0:
            late("data_wait")
        return torch.ones(8), torch.ones(1)


class Slow(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        late("backward")
        return gradient


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def forward(self, x):
        late("forward" if torch.is_grad_enabled() else "eval")
        return Slow.apply(self.layer(x))


class Optimizer(torch.optim.SGD):
    def step(self, closure=None):
        late("optimizer")
        return super().step(closure)


class Handler(logging.Handler):
    def emit(self, record):
        late("logging")


class Saved:
    def __reduce__(self):
        late("checkpoint")
        return (list, ())


logging.getLogger("own").addHandler(Handler())
logging.getLogger("own").propagate = False
torch.manual_seed(0)
model = Model()
optimizer = Optimizer(model.parameters(), lr=1e-3)
one = torch.utils.data.Subset(Data(), [0])
for _ in range(int(os.environ.get("STEPS", "17"))):
    for x, y in torch.utils.data.DataLoader(one):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
        late("unattributed")
        logging.getLogger("own").warning("step")
        model.eval()
        with torch.no_grad():
            model(x)
        model.train()
        torch.save(Saved(), os.devnull)
print(slept)
