"""skorch NeuralNetClassifier.fit: 6 epochs of 20 batches, 120 updates."""

import numpy as np
import torch
from skorch import NeuralNetClassifier
from torch import nn

torch.manual_seed(0)
x = np.random.default_rng(0).normal(size=(640, 256)).astype("float32")
layers = [nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(4)]
net = NeuralNetClassifier(
    nn.Sequential(*layers, nn.Linear(256, 4)), criterion=nn.CrossEntropyLoss, max_epochs=6,
    batch_size=32, optimizer=torch.optim.Adam, train_split=None, verbose=0,
)  # fmt: skip
net.fit(x, (np.arange(640) % 4).astype("int64"))
print("updates", 20 * len(net.history), f"loss {net.history[-1, 'train_loss']:.5f}")
