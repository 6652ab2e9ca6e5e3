"""Trains with Lightning, which saves at each end of an epoch; `steps`: every 7 steps; `hotloop`: so, with hotloop's plugin."""

import sys
from pathlib import Path

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(8, 32), torch.nn.Dropout(0.1), torch.nn.Linear(32, 1)
        )

    def training_step(self, batch, index):
        return torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


pl.seed_everything(1)
data = torch.utils.data.TensorDataset(torch.randn(320, 8), torch.randn(320, 1))
loader = torch.utils.data.DataLoader(data, 32, shuffle=True)
options = {"logger": False, "enable_progress_bar": False, "accelerator": "cpu", "max_epochs": 5}
latest = "last"
if "hotloop" in sys.argv:
    from hotloop.checkpoint import LightningCheckpointIO, ResumableLoader

    loader, options["plugins"] = ResumableLoader(loader), [LightningCheckpointIO()]
    saves = ModelCheckpoint("saves", filename="{step}", every_n_train_steps=7, save_top_k=-1)
    whole = [each.parents[1] for each in Path("saves").glob("step=*.ckpt/step-*/manifest.json")]
    latest = max(whole, key=lambda each: int(each.stem.split("=")[1]), default=None)
elif "steps" in sys.argv:
    saves = ModelCheckpoint("saves", every_n_train_steps=7, save_last=True)
else:
    saves = ModelCheckpoint("saves", every_n_epochs=1, save_last=True)
pl.Trainer(callbacks=[saves], **options).fit(Model(), loader, ckpt_path=latest)
