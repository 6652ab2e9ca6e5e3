"""The same faults for Hugging Face Trainer, Lightning and torch.distributed.checkpoint.

    python benchmarks/checkpoint_faults/peers.py [--engines hf lightning dcp] [--every 1] [--json FILE]

Needs an environment with torch, transformers, accelerate and lightning; hotloop is not loaded. Each engine trains a small
model for 12 steps on the same batch, saves every 4 steps as its documentation shows, keeps two, and continues from
the newest as its documentation shows: `get_last_checkpoint` and `resume_from_checkpoint`; `ckpt_path="last"`; the newest
directory with a `.metadata`. A fault strikes the third save of 4 (kills at each call, full disk) or the newest of two checkpoints;
then the same script runs again. `recovered`: it ends with the weights of a run that nothing befell, one interval lost at most.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import hashlib
import json
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ |= {
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "CUDA_VISIBLE_DEVICES": "",
}

import torch
from strace import Strace, read_calls, strace_works
from torch import nn

STEPS, EVERY, KEEP = 16, 4, 2
HIT = 3 * EVERY
"""The step whose save is struck."""
Stop = Callable[[int], None]
"""Called before the update that completes a step."""


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(8, 32, generator=generator), torch.randn(8, 32, generator=generator)


class Net(nn.Module):
    """Two layers; its forward answers as transformers' Trainer wants. No dropout: Lightning saves no random state."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 32))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": (self.layers(x) - labels).square().mean()}


def finish(directory: Path, model: nn.Module) -> None:
    """Written whole, since it is the harness's."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.split("net.")[-1].encode() + tensor.numpy().tobytes())
    (directory / "end.json").write_text(json.dumps(digest.hexdigest()))


def hf(directory: Path, stop: Stop, resumed: Callable[[int], None]) -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments
    from transformers.trainer_utils import get_last_checkpoint

    class Stops(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, args: Any, state: Any, control: Any, **named: Any) -> None:
            resumed(state.global_step)

        def on_step_begin(self, args: Any, state: Any, control: Any, **named: Any) -> None:
            stop(state.global_step + 1)

    x, y = data()
    items = [{"x": x[n % 8], "labels": y[n % 8]} for n in range(8 * STEPS)]
    arguments = TrainingArguments(
        str(directory / "out"), max_steps=STEPS, save_steps=EVERY, save_total_limit=KEEP, seed=0, report_to=[],
        per_device_train_batch_size=8, use_cpu=True, disable_tqdm=True, logging_steps=1000, dataloader_num_workers=0,
        learning_rate=1e-2, train_sampling_strategy="sequential",
    )  # fmt: skip
    model = Net()
    trainer = Trainer(model, arguments, train_dataset=items, callbacks=[Stops()])
    last = get_last_checkpoint(str(directory / "out")) if (directory / "out").is_dir() else None
    trainer.train(resume_from_checkpoint=last)
    finish(directory, model)


def lightning(directory: Path, stop: Stop, resumed: Callable[[int], None]) -> None:
    import lightning.pytorch as L
    from lightning.pytorch.callbacks import Callback, ModelCheckpoint

    class Module(L.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            return self.net(batch[0], batch[1])["loss"]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    class Stops(Callback):  # type: ignore[misc]
        def on_train_start(self, trainer: Any, module: Any) -> None:
            resumed(trainer.global_step)

        def on_train_batch_start(self, trainer: Any, *rest: Any) -> None:
            stop(trainer.global_step + 1)

    x, y = data()
    loader = torch.utils.data.DataLoader(
        [(x[n % 8], y[n % 8]) for n in range(8 * STEPS)], batch_size=8
    )
    saves = ModelCheckpoint(
        directory / "out", every_n_train_steps=EVERY, save_top_k=-1, save_last=True
    )
    trainer = L.Trainer(
        max_steps=STEPS, callbacks=[saves, Stops()], logger=False, enable_progress_bar=False, enable_model_summary=False,
        accelerator="cpu", default_root_dir=directory,
    )  # fmt: skip
    module = Module()
    trainer.fit(module, loader, ckpt_path="last")
    finish(directory, module)


def dcp(
    directory: Path, stop: Stop, resumed: Callable[[int], None], *, overwrite: bool = False
) -> None:
    """A loop of one's own: directories of their own, or one that is written over."""
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    out = directory / "out"
    whole = [path for path in out.glob("step-*") if (path / ".metadata").exists()]
    newest = max(whole, key=lambda path: int(path.name[5:]), default=None)
    first = 0
    if newest is not None:
        weights, moments = get_state_dict(model, optimizer)
        state = {"model": weights, "optimizer": moments, "step": 0, "random": torch.get_rng_state()}
        checkpoint.load(state, checkpoint_id=newest)
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
        torch.set_rng_state(state["random"])
        first = state["step"]
    resumed(first)
    x, y = data()
    for step in range(first + 1, STEPS + 1):
        stop(step)
        optimizer.zero_grad()
        model(x, y)["loss"].backward()
        optimizer.step()
        if step % EVERY == 0:
            weights, moments = get_state_dict(model, optimizer)
            state = {
                "model": weights,
                "optimizer": moments,
                "step": step,
                "random": torch.get_rng_state(),
            }
            checkpoint.save(state, checkpoint_id=out / ("step-0" if overwrite else f"step-{step}"))
            for old in sorted(out.glob("step-*"), key=lambda path: int(path.name[5:]))[:-KEEP]:
                shutil.rmtree(old)
    finish(directory, model)


def dcp_over(directory: Path, stop: Stop, resumed: Callable[[int], None]) -> None:
    dcp(directory, stop, resumed, overwrite=True)


ENGINES = {"hf": hf, "lightning": lightning, "dcp": dcp, "dcp, one directory": dcp_over}


class Script:
    """One engine's script in a fork, which stops before the steps that it is told."""

    def __init__(self, engine: str, directory: Path, stops: Sequence[int] = ()) -> None:
        self.directory = directory
        told, tell = os.pipe()
        wait, self._go = os.pipe()
        self._told = os.fdopen(told, "r")
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                directory.mkdir(exist_ok=True)
                output = os.open(directory / "said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
                os.dup2(output, 1)
                os.dup2(output, 2)
                os.chdir(directory)

                def stop(step: int) -> None:
                    if step in stops:
                        os.write(tell, f"{step}\n".encode())
                        os.read(wait, 1)

                def resumed(step: int) -> None:
                    (directory / "resumed").write_text(str(step))

                ENGINES[engine](directory, stop, resumed)
                code = 0
            except BaseException:  # noqa: BLE001 - as Python does
                sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
            finally:
                os._exit(code)
        os.close(tell)
        os.close(wait)

    def next_stop(self) -> int | None:
        line = self._told.readline()
        return int(line) if line else None

    def go_on(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(self._go, b"x")

    def ended(self) -> int:
        while self.next_stop() is not None:
            self.go_on()
        _, status = os.waitpid(self.pid, 0)
        self._told.close()
        os.close(self._go)
        return os.waitstatus_to_exitcode(status)


def again(engine: str, place: Path, wanted: str, least: int) -> str:
    """Run the script again; what came of it."""
    (place / "end.json").unlink(missing_ok=True)
    (place / "resumed").unlink(missing_ok=True)
    if Script(engine, place).ended() != 0:
        return "could not resume"
    if json.loads((place / "end.json").read_text()) != wanted:
        return "silently wrong"
    resumed = place / "resumed"
    at = int(resumed.read_text()) if resumed.exists() else STEPS
    return "recovered" if at >= least else "lost more than an interval"


def traced(engine: str, place: Path, inject: str | None, work: Path) -> tuple[int, list[Any]]:
    script = Script(engine, place, [HIT, HIT + 1])
    assert script.next_stop() == HIT, (place / "said").read_text()[-2000:]
    log = work / "calls"
    log.unlink(missing_ok=True)
    strace = Strace(script.pid, log, inject=inject)
    script.go_on()
    if script.next_stop() is not None and inject is None:
        strace.end()
        script.go_on()
        return script.ended(), [call for call in read_calls(log) if str(place / "out") in call.text]
    script.go_on()
    code = script.ended()
    strace.end()
    return code, read_calls(log)


def files_of(engine: str, place: Path) -> list[Path]:
    """Of the newest checkpoint: what holds tensors or says what does."""
    if engine == "lightning":
        return [place / "out" / "last.ckpt"]
    newest = max((place / "out").glob("*-*"), key=lambda path: int(path.name.rsplit("-")[-1]))
    return sorted(path for path in newest.iterdir() if path.stat().st_size > 100 and path.name != "training_args.bin")  # fmt: skip


def examined(engine: str, work: Path, every: int, damages: int) -> dict[str, Counter[str]]:
    whole, place, before = work / "whole", work / "run", work / "before"
    assert Script(engine, whole).ended() == 0, (whole / "said").read_text()[-2000:]
    wanted = json.loads((whole / "end.json").read_text())
    found: dict[str, Counter[str]] = {}

    def note(fault: str, outcome: str) -> None:
        found.setdefault(fault, Counter())[outcome] += 1

    code, calls = traced(engine, place, None, work)
    assert code == 0
    for call in calls[::every]:
        shutil.rmtree(place)
        traced(engine, place, f"{call.name}:signal=KILL:when={call.number}", work)
        note("killed at a call of a save", again(engine, place, wanted, HIT - EVERY))
    for call in [call for call in calls if call.name.startswith(("write", "pwrite", "mkdir", "rename")) or "O_CREAT" in call.text][::every]:  # fmt: skip
        shutil.rmtree(place)
        traced(engine, place, f"{call.name}:error=ENOSPC:when={call.number}+", work)
        note("disk full during a save", again(engine, place, wanted, HIT - EVERY))
    shutil.rmtree(place)
    script = Script(engine, place, [HIT + 2])
    script.next_stop()
    os.kill(script.pid, signal.SIGKILL)
    script.ended()
    place.rename(before)
    draw = random.Random(0)

    def damaged(fault: str, damage: Callable[[Path], None]) -> None:
        shutil.copytree(before, place, symlinks=True)
        damage(place)
        note(fault, again(engine, place, wanted, HIT - EVERY))
        shutil.rmtree(place)

    damaged("killed between two saves", lambda place: None)

    def flip(place: Path) -> None:
        path = draw.choice(files_of(engine, place))
        content = bytearray(path.read_bytes())
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        path.write_bytes(content)

    def cut(place: Path) -> None:
        path = draw.choice(files_of(engine, place))
        os.truncate(path, draw.randrange(path.stat().st_size))

    def empty(place: Path) -> None:
        if engine == "lightning":
            os.truncate(place / "out" / "last.ckpt", 0)
        else:
            newest = files_of(engine, place)[0].parent
            (newest.parent / f"{newest.name.rsplit('-', 1)[0]}-{HIT + 1}").mkdir()

    for _ in range(damages):
        damaged("flipped bit in the newest", flip)
        damaged("truncated newest", cut)
    damaged("empty newest", empty)
    return found


def two_ranks(kills: int, work: Path) -> Counter[str]:
    """A DCP checkpoint of step 1 of two ranks, written over with step 2 while rank 1 is killed at each of its calls."""
    import torch.distributed as dist
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    def rank(number: int, port: int, place: Path, save: int | None, tell: int, wait: int) -> None:
        os.environ.update(RANK=str(number), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))  # fmt: skip
        dist.init_process_group("gloo")
        mesh = init_device_mesh("cpu", (2,))
        weight = distribute_tensor(torch.full((4096,), float(save or 0)), mesh, [Shard(0)])
        if save is None:
            checkpoint.load({"w": weight}, checkpoint_id=place / "out")
            (place / f"loaded-{number}").write_text(str(set(weight.to_local().tolist())))
        else:
            if tell >= 0 and number == 1:
                os.write(tell, b"1\n")
                os.read(wait, 1)
            checkpoint.save({"w": weight}, checkpoint_id=place / "out")
            if tell >= 0 and number == 1:
                os.write(tell, b"2\n")
                os.read(wait, 1)

    def together(place: Path, save: int | None, inject: str | None, trace: bool) -> list[Any]:
        place.mkdir(exist_ok=True)
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        told, tell = os.pipe()
        wait, go = os.pipe()
        pids = []
        for number in range(2):
            if (pid := os.fork()) == 0:
                try:
                    output = os.open(
                        place / f"said-{number}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC
                    )
                    os.dup2(output, 1)
                    os.dup2(output, 2)
                    rank(number, port, place, save, tell if trace else -1, wait)
                    os._exit(0)
                except BaseException:  # noqa: BLE001
                    sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
                    os._exit(1)
            pids.append(pid)
        os.close(tell)
        calls: list[Any] = []
        with os.fdopen(told) as lines:
            if trace and lines.readline():
                (work / "calls").unlink(missing_ok=True)
                strace = Strace(pids[1], work / "calls", inject=inject)
                os.write(go, b"x")
                if lines.readline() and inject is None:
                    strace.end()
                    calls = [c for c in read_calls(work / "calls") if str(place / "out") in c.text]
                    os.write(go, b"x")
                else:
                    os.write(go, b"x")
        for pid in reversed(pids):
            for _ in range(600):
                if os.waitpid(pid, os.WNOHANG)[0]:
                    break
                time.sleep(0.02)
            else:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        os.close(wait)
        os.close(go)
        return calls

    found: Counter[str] = Counter()
    first = work / "first"
    together(first, 1, None, False)
    shutil.copytree(first, work / "traced")
    calls = together(work / "traced", 2, None, True)
    for call in calls[: kills or None]:
        place = work / "over"
        shutil.copytree(first, place)
        together(place, 2, f"{call.name}:signal=KILL:when={call.number}", True)
        together(place, None, None, False)
        loaded = [(place / f"loaded-{n}").read_text() if (place / f"loaded-{n}").exists() else "" for n in range(2)]  # fmt: skip
        if "" in loaded:
            found["could not resume"] += 1
        elif loaded in (["{1.0}"] * 2, ["{2.0}"] * 2):
            found["recovered"] += 1
        else:
            found["silently wrong"] += 1
        shutil.rmtree(place)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", nargs="+", choices=[*ENGINES, "dcp, two ranks"], default=[*ENGINES, "dcp, two ranks"])  # fmt: skip
    parser.add_argument("--every", type=int, default=1, help="only each nth call")
    parser.add_argument("--damages", type=int, default=50)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if (reason := strace_works()) is not None:
        raise SystemExit(f"error: {reason}")
    warnings.simplefilter("ignore")
    import importlib.metadata as metadata

    result: dict[str, Any] = {"versions": {name: metadata.version(name) for name in ("torch", "transformers", "accelerate", "lightning")}}  # fmt: skip
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="peers-", dir=memory) as folder:
        for engine in given.engines:
            work = Path(folder) / engine.replace(" ", "-").replace(",", "")
            work.mkdir()
            if engine == "dcp, two ranks":
                found = {"two ranks write over, one killed": two_ranks(0, work)}
            else:
                here = Path.cwd()
                work.joinpath("warm").mkdir()  # loads what the forks need
                os.chdir(work / "warm")
                ENGINES[engine](work / "warm", lambda step: None, lambda step: None)
                os.chdir(here)
                gc.collect()
                gc.freeze()
                found = examined(engine, work, given.every, given.damages)
            result[engine] = {fault: {"faults": sum(each.values()), **each} for fault, each in found.items()}  # fmt: skip
            for fault, each in result[engine].items():
                print(f"{engine}: {fault}: {each}", flush=True)
            if given.json:
                given.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
