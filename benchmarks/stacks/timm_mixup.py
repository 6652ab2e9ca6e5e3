"""timm: mixup, RandAugment, an average of the weights, clipping; 40 updates.

Planted: Adam, one tensor after the other, over the many small tensors; forward and backward take the most.
"""

import numpy as np
import timm
import torch
from PIL import Image
from timm.data import Mixup, create_transform
from timm.loss import SoftTargetCrossEntropy
from timm.utils import ModelEmaV3, dispatch_clip_grad
from torch.utils.data import DataLoader, Dataset

PICTURES = [
    Image.fromarray(np.random.default_rng(i).integers(0, 255, (40, 40, 3), dtype=np.uint8))
    for i in range(32)
]
TRANSFORM = create_transform(
    32, is_training=True, auto_augment="rand-m5", no_aug=False, scale=(0.8, 1)
)


class Pictures(Dataset):
    def __len__(self):
        return 160

    def __getitem__(self, index):
        return TRANSFORM(PICTURES[index % 32]), index % 10


torch.manual_seed(0)
np.random.seed(0)
model = timm.create_model("resnet10t", num_classes=10)
optimizer = torch.optim.Adam(model.parameters(), foreach=False)
average = ModelEmaV3(model, decay=0.99)
mixup = Mixup(mixup_alpha=0.2, num_classes=10)
criterion = SoftTargetCrossEntropy()
made = 0
for _ in range(2):
    for pictures, labels in DataLoader(Pictures(), batch_size=8, drop_last=True):
        pictures, labels = mixup(pictures, labels)
        loss = criterion(model(pictures), labels)
        optimizer.zero_grad()
        loss.backward()
        dispatch_clip_grad(model.parameters(), 1.0)
        optimizer.step()
        average.update(model)
        made += 1
print("updates", made)
