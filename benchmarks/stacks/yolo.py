"""ultralytics YOLOv8n on pictures of noise: 3 epochs of 8 batches, 24 updates."""

import os
from pathlib import Path

os.environ |= {"YOLO_CONFIG_DIR": str(Path.cwd() / "settings"), "YOLO_OFFLINE": "true"}

import numpy as np
import torchvision
from PIL import Image
from ultralytics import YOLO
from ultralytics.utils.nms import TorchNMS

try:
    torchvision.extension._assert_has_ops()
except RuntimeError:  # built for another torch: ultralytics has its own
    torchvision.ops.nms = TorchNMS.nms

draw = np.random.default_rng(0)
for kind in ("images", "labels"):
    Path("data", kind).mkdir(parents=True)
for i in range(16):
    picture = draw.integers(0, 255, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(picture).save(f"data/images/{i}.png")
    Path(f"data/labels/{i}.txt").write_text(f"{i % 2} 0.5 0.5 0.4 0.4\n")
Path("data.yaml").write_text(
    f"path: {Path.cwd() / 'data'}\ntrain: images\nval: images\nnames: [one, two]\n"
)
model = YOLO("yolov8n.yaml", verbose=False)
made = []
model.add_callback("on_train_batch_end", lambda trainer: made.append(1))
model.train(
    data="data.yaml", epochs=3, batch=2, imgsz=64, device="cpu", workers=0, val=False, plots=False,
    nbs=2, verbose=False, amp=False, project="runs", warmup_epochs=0,
)  # fmt: skip
print("batches", len(made))
