"""fastai Learner.fit_one_cycle: 3 epochs of 10 batches, 30 updates.

fastai's own Adam (no torch.optim.Optimizer) takes much of a step.
"""

import torch
from fastai.callback.schedule import fit_one_cycle  # noqa: F401  (adds it to Learner)
from fastai.data.core import DataLoaders
from fastai.learner import Learner
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(320, 128), torch.arange(320) % 4)
loaders = DataLoaders(DataLoader(data, batch_size=32), DataLoader(data, batch_size=160))
layers = [nn.Sequential(nn.Linear(128, 128), nn.ReLU()) for _ in range(20)]
learner = Learner(
    loaders, nn.Sequential(*layers, nn.Linear(128, 4)), loss_func=nn.CrossEntropyLoss()
)
with learner.no_bar(), learner.no_logging():
    learner.fit_one_cycle(3)
print("updates", 3 * len(learner.dls.train))
