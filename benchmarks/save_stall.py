"""How long a save holds the training up, and what it costs the steps beside it: hotloop and its peers.

    python benchmarks/save_stall.py DIRECTORY [--megabytes 1024] [--rounds 5] [--device cuda] [--ways NAME ...] [--json FILE]

One process, the same state (weights and two moments in fp32) and the same steps (products of matrices) for all; the
ways to save take turns. `stall`: seconds from asking to the next step. `durable`: until the files were flushed to the
disk by whoever saves (torch.save flushes nothing). `checkpointer` is `hotloop.checkpoint.Checkpointer`, of one's own loop. `beside`: seconds of a step until then over one without any save.
`copy`: one copy of the state in memory, below which no snapshot can be. DCP is `async_save` with its thread; on a GPU `dcp_pinned` is
the same with its copies in pinned memory. Hugging Face
Trainer and Lightning, where they are installed, save weights and AdamW's moments of the same size, with their own methods, on a CPU.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import platform
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn

from hotloop.checkpoint import Checkpointer, nested, store
from hotloop.checkpoint.background import Saver

STEPS_BEFORE = 10
Tensors = dict[str, dict[str, Tensor]]


def state_of(megabytes: int, device: str) -> Tensors:
    """Weights and two moments, in tensors of 4 million values; random numbers of no size beside them."""
    count = max(round(megabytes * 2**20 / 4 / 3 / 2**22), 1)
    weights = {f"w{number}": torch.randn(2**22, device=device) for number in range(count)}
    moments = {
        f"{name}/{slot}": torch.randn(2**22, device=device)
        for name in weights
        for slot in ("first", "second")
    }
    return {"model": weights, "optimizer": moments, "random": {"torch": torch.get_rng_state()}}


def copied(state: Tensors) -> Tensors:
    return {
        file: {name: each.to("cpu", copy=True) for name, each in group.items()}
        for file, group in state.items()
    }


Still = Callable[[], bool]
"""Whether it is still being saved."""


class Part:
    """What has a state, as `Checkpointer.save` takes it."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = tensors

    def state_dict(self) -> dict[str, Tensor]:
        return self.tensors

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = tensors


class Weights(nn.Module):
    """The model of `state_of`, with a gradient of zeros for each weight."""

    def __init__(self, weights: dict[str, Tensor]) -> None:
        super().__init__()
        self.weights = nn.ParameterDict(
            {name: nn.Parameter(each.clone()) for name, each in weights.items()}
        )

    def forward(self, inputs: Tensor | None = None) -> dict[str, Tensor]:
        return {"loss": sum((each.sum() * 0 for each in self.weights.values()), torch.zeros(()))}


def hf_trainer(weights: dict[str, Tensor], directory: Path) -> Callable[[], object]:
    import transformers

    model = Weights(weights)
    arguments = transformers.TrainingArguments(
        output_dir=str(directory), save_total_limit=1, report_to=[], use_cpu=True, disable_tqdm=True, max_steps=1,
        save_strategy="no",
    )  # fmt: skip
    trainer = transformers.Trainer(model, arguments, train_dataset=[{"inputs": torch.zeros(1)}] * 8)
    trainer.train()  # fills the moments
    return lambda: trainer._save_checkpoint(trainer.model, trial=None)


def lightning_trainer(weights: dict[str, Tensor], directory: Path) -> Callable[[], object]:
    import lightning.pytorch as lightning

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Trained(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Weights(weights)

        def training_step(self, batch: Tensor, number: int) -> Tensor:
            return self.model()["loss"]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters())

    trainer = lightning.Trainer(
        max_steps=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Trained(), torch.utils.data.DataLoader(torch.zeros(2, 1)))
    return lambda: trainer.save_checkpoint(directory / "last.ckpt")


class Ways:
    """Each begins a save of `state` and says whether it is still under way."""

    def __init__(self, state: Tensors, directory: Path, *, on_gpu: bool) -> None:
        self.state, self.directory = state, directory
        self.number = 0
        self.own = Checkpointer(directory / "own")
        self.snapshot: Tensors = {}
        self.names = ["copy_alone", "torch_save", "hotloop_within", "hotloop_beside", "checkpointer", "dcp_async"]  # fmt: skip
        self.peers: dict[str, Callable[[], object]] = {}
        for peer, module in ((hf_trainer, "accelerate"), (lightning_trainer, "lightning")):
            if not on_gpu and importlib.util.find_spec(module) is not None:
                (directory / peer.__name__).mkdir()
                self.peers[peer.__name__] = peer(state["model"], directory / peer.__name__)
        self.names += ["dcp_pinned"] if on_gpu else self.peers
        if on_gpu:
            from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

            self.stager = DefaultStager(StagingOptions(use_pinned_memory=True, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=True))  # fmt: skip
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

    def place(self) -> Path:
        self.number += 1
        return self.directory / f"save-{self.number}"

    def begin(self, name: str) -> Still:
        """Save in this way; returns once the training may go on."""
        if name not in self.peers:
            return getattr(self, name)()  # type: ignore[no-any-return]
        self.peers[name]()
        return lambda: False

    def copy_alone(self) -> Still:
        copied(self.state)
        return lambda: False

    def torch_save(self) -> Still:
        torch.save(self.state, self.place())
        return lambda: False

    def hotloop_within(self) -> Still:
        store.save(self.place(), 1, tensors=copied(self.state), state={}, keep=2)
        return lambda: False

    def hotloop_beside(self) -> Still:
        ended = threading.Event()

        def save(tensors: Tensors, place: Path) -> None:
            store.save(place, 1, tensors=tensors, state={}, keep=2)
            ended.set()

        self.snapshot = {
            file: nested.copied(group, self.snapshot.get(file, {}))
            for file, group in self.state.items()
        }
        Saver().begin(partial(save, self.snapshot, self.place()))
        return lambda: not ended.is_set()

    def checkpointer(self) -> Still:
        self.number += 1
        parts = {file: Part(self.state[file]) for file in ("model", "optimizer")}
        self.own.save(self.number, **parts)
        ended = self.own._saver._ended
        assert ended is not None
        return lambda: not ended.is_set()

    def dcp_pinned(self) -> Still:
        return self.dcp_async(async_stager=self.stager)

    def dcp_async(self, **named: Any) -> Still:
        flat = {f"{file}.{name}": each for file, group in self.state.items() for name, each in group.items()}  # fmt: skip
        future = dcp.async_save(flat, checkpoint_id=str(self.place()), **named)
        return lambda: not future.done()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--ways", nargs="+")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    given.directory.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    on_gpu = given.device != "cpu"
    width = 4096 if on_gpu else 768
    left, right = (torch.randn(width, width, device=given.device) for _ in range(2))

    def step() -> float:
        start = time.perf_counter()
        for _ in range(10):
            (left @ right).sum().item()
        return time.perf_counter() - start

    with tempfile.TemporaryDirectory(dir=given.directory) as folder:
        ways = Ways(state_of(given.megabytes, given.device), Path(folder), on_gpu=on_gpu)
        names = given.ways or ways.names
        seen: dict[str, dict[str, list[float]]] = {
            name: {"stall": [], "durable": [], "beside": []} for name in names
        }
        for turn in range(given.rounds):
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                alone = statistics.median(step() for _ in range(STEPS_BEFORE))
                start = time.perf_counter()
                still = ways.begin(name)
                seen[name]["stall"].append(time.perf_counter() - start)
                beside = []
                while still():
                    beside.append(step())
                seen[name]["durable"].append(time.perf_counter() - start)
                if beside:
                    seen[name]["beside"].append(statistics.fmean(beside) / alone)
                for old in Path(folder).glob("save-*"):
                    shutil.rmtree(old) if old.is_dir() else old.unlink()
    result = {
        "megabytes": given.megabytes,
        "rounds": given.rounds,
        "torch": torch.__version__,
        "machine": platform.processor() or platform.machine(),
        "device": torch.cuda.get_device_name() if on_gpu else "cpu",
        "cpus": torch.get_num_threads(),
        "seconds": seen,
    }
    print(f"{'':16}  stall s (least to most)   durable s   a step beside it")
    for name, each in seen.items():
        stall, steps = each["stall"], each["beside"]
        slower = f"{statistics.median(steps):.2f} times" if steps else ""
        print(
            f"{name:16}  {statistics.median(stall):.3f} ({min(stall):.3f} to {max(stall):.3f})"
            f"     {statistics.median(each['durable']):.2f}        {slower}"
        )
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
