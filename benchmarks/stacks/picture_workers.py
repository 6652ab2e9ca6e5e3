"""A CIFAR-like loop whose transforms are modules, in two forked loader workers: 60 updates.

The workers call modules under gradients long before the training makes its first step. `--torchvision`: with its
RandomCrop and RandomHorizontalFlip.
"""

import os
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)


class Crop(nn.Module):
    """As torchvision's RandomCrop(32, padding=4)."""

    def forward(self, picture):
        padded = nn.functional.pad(picture, (4, 4, 4, 4))
        top, left = torch.randint(0, 9, (2,)).tolist()
        return padded[:, top : top + 32, left : left + 32]


class Flip(nn.Module):
    def forward(self, picture):
        return picture.flip(-1) if torch.rand(()) < 0.5 else picture


if "--torchvision" in sys.argv:
    from torchvision import transforms

    TRANSFORMS = [transforms.RandomCrop(32, padding=4), transforms.RandomHorizontalFlip()]
else:
    TRANSFORMS = [Crop(), Flip()]


class Pictures(Dataset):
    pictures = torch.randn(64, 3, 32, 32)

    def __len__(self):
        return 7680

    def __getitem__(self, index):
        picture = self.pictures[index % 64]
        for transform in TRANSFORMS:
            picture = transform(picture)
        return picture, index % 10


model = nn.Sequential(
    nn.Conv2d(3, 16, 3, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(), nn.Flatten(),
    nn.Linear(32 * 49, 10),
)  # fmt: skip
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
count = os.open("made", os.O_CREAT | os.O_WRONLY)
made = 0
for pictures, labels in DataLoader(Pictures(), batch_size=128, num_workers=2, shuffle=True):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(pictures), labels)
    loss.backward()
    optimizer.step()
    made += 1
    os.pwrite(count, b"%d" % made, 0)
print("updates", made, f"loss {loss.item():.5f}")
