"""Ignite: trainer and an evaluator per epoch; 4 epochs of 20, 80 updates.

Planted: evaluating 60 batches per epoch, and Adam not fused.
"""

import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.metrics import Accuracy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(640, 256), torch.arange(640) % 4)
held_out = TensorDataset(torch.randn(1920, 256), torch.arange(1920) % 4)
layers = [nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(6)]
model = nn.Sequential(*layers, nn.Linear(256, 4))
optimizer = torch.optim.Adam(model.parameters())
trainer = create_supervised_trainer(model, optimizer, nn.CrossEntropyLoss())
evaluator = create_supervised_evaluator(model, {"accuracy": Accuracy()})


@trainer.on(Events.EPOCH_COMPLETED)
def evaluate(engine):
    evaluator.run(DataLoader(held_out, batch_size=32))


trainer.run(DataLoader(data, batch_size=32), max_epochs=4)
print("updates", trainer.state.iteration)
