"""Trains with Lightning: `python lightning_training.py DIRECTORY KILL_AT`; prints the digest of its end."""

import hashlib
import os
import signal
import sys
from pathlib import Path

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from hotloop.checkpoint import LightningCheckpointIO, ResumableLoader


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.save_hyperparameters({"lr": 1e-2})
        self.net = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1)
        )

    def training_step(self, batch, index):
        if self.trainer.global_step == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 2)]


DEVICE = os.environ.get("HOTLOOP_TEST_DEVICE", "cpu")  # as tests/gpu sets it
pl.seed_everything(3, verbose=False)
draw = torch.Generator().manual_seed(0)
data = torch.utils.data.TensorDataset(
    torch.randn(40, 4, generator=draw), torch.randn(40, 1, generator=draw)
)
loader = ResumableLoader(torch.utils.data.DataLoader(data, 4, shuffle=True))
root = Path(sys.argv[1])
saves = ModelCheckpoint(root, filename="{step}", every_n_train_steps=3, save_top_k=-1)
trainer = pl.Trainer(
    max_epochs=2, callbacks=[saves], plugins=[LightningCheckpointIO()], logger=False, enable_progress_bar=False,
    enable_model_summary=False, accelerator="cpu" if DEVICE == "cpu" else "gpu", devices=1,
)  # fmt: skip
whole = sorted(
    (int(p.parents[1].stem.split("=")[1]), p.parents[1])
    for p in root.glob("step=*.ckpt/step-*/manifest.json")
)
print("resumed", whole[-1][1] if whole else None)
model = Model()
trainer.fit(model, loader, ckpt_path=whole[-1][1] if whole else None)
digest = hashlib.sha256()
for tensor in model.state_dict().values():
    digest.update(tensor.cpu().numpy().tobytes())
print("end", digest.hexdigest())
