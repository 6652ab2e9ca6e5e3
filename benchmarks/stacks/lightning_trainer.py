"""Lightning Trainer: validation loop, two loggers, three callbacks; 60 updates.

Planted: reading a sample waits 3 ms (`time.sleep`), Adam is not fused.
"""

import time
import warnings

import lightning as L
import torch
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint, Timer
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from torch import nn
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")


class Slow(Dataset):
    def __init__(self, num):
        self.num = num

    def __len__(self):
        return self.num

    def __getitem__(self, index):
        time.sleep(0.003)
        return torch.full((128,), index / 160), index % 4


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 4)
        )

    def training_step(self, batch, _):
        loss = nn.functional.cross_entropy(self.layers(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, _):
        self.log("val_loss", nn.functional.cross_entropy(self.layers(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


L.seed_everything(0, verbose=False)
trainer = L.Trainer(
    max_epochs=3, accelerator="cpu", log_every_n_steps=5, enable_progress_bar=False,
    enable_model_summary=False, logger=[CSVLogger("logs"), TensorBoardLogger("logs")],
    callbacks=[LearningRateMonitor(), ModelCheckpoint("saved"), Timer()],
)  # fmt: skip
trainer.fit(Classifier(), DataLoader(Slow(160), batch_size=8), DataLoader(Slow(16), batch_size=8))
print("updates", trainer.global_step)
