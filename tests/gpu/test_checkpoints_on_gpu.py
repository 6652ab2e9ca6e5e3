"""Checkpoints of what lies on a GPU (`gpu_or_cpu`)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gpu_or_cpu import DEVICE, ON_A_GPU, only_there
from hotloop.checkpoint import Checkpointer, store
from hotloop.checkpoint.state import capture, restore

pytestmark = [
    *ON_A_GPU,
    pytest.mark.filterwarnings("ignore"),  # of a driver and a build that are others there
]
SOURCE = Path(__file__).parents[2] / "src"


def trained(
    width: int = 2048, kind: str = "fused"
) -> tuple[nn.Module, torch.optim.Optimizer, list[Tensor]]:
    """A model of 2 * width^2 weights after one step, and what it is given."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, width)).to(DEVICE)  # fmt: skip
    named = {"fused": True} if kind == "fused" else {"capturable": DEVICE == "cuda"} if kind == "capturable" else {}  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, **named)
    batches = [torch.randn(64, width, device=DEVICE) for _ in range(4)]
    step(model, optimizer, batches[0])
    return model, optimizer, batches


def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
    loss: Tensor = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def cloned(value: Any) -> Any:
    """A copy on the CPU that nothing else holds."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: cloned(each) for key, each in value.items()}
    return [cloned(each) for each in value] if isinstance(value, list | tuple) else value


def assert_same(found: Any, wanted: Any) -> None:
    if isinstance(wanted, Tensor):
        torch.testing.assert_close(found.cpu(), wanted, rtol=0, atol=0)
    elif isinstance(wanted, dict):
        assert found.keys() == wanted.keys()
        for key, each in wanted.items():
            assert_same(found[key], each)
    elif isinstance(wanted, list | tuple):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert_same(one, other)
    else:
        assert found == wanted


@pytest.mark.parametrize("kind", ["fused", "foreach", "capturable"])
def test_what_is_saved_is_the_state_of_the_step_while_training_goes_on(
    tmp_path: Path, kind: str
) -> None:
    """Steps are queued before each save; weights are overwritten at once after it, and trained on."""
    model, optimizer, batches = trained(kind=kind)
    wanted = {}
    with Checkpointer(tmp_path, keep=4) as checkpointer:
        for number in range(1, 4):
            for x in batches:
                step(model, optimizer, x)
            # queued behind the steps on the same stream, as a copy without any wait would be
            before = {name: each.detach().clone() for name, each in model.state_dict().items()}
            moments = [
                {slot: each.clone() for slot, each in own.items()}
                for own in optimizer.state.values()
            ]
            checkpointer.save(number, model=model, optimizer=optimizer, extra={"x": batches[0]})
            with torch.no_grad():
                for p in model.parameters():
                    p.fill_(float("nan"))
                for own in optimizer.state.values():
                    for each in own.values():
                        each.fill_(1.0)
            for x in batches:
                step(model, optimizer, x)
            checkpointer.wait()
            with torch.no_grad():
                for name, p in model.named_parameters():
                    p.copy_(before[name])
                for own, kept in zip(optimizer.state.values(), moments, strict=True):
                    for slot, each in own.items():
                        each.copy_(kept[slot])
            wanted[number] = cloned(before), cloned(moments)
    for number, (weights, moments) in wanted.items():
        found = store.of_step(tmp_path, number)
        tensors, _ = store.load(found, ("model", "optimizer"))
        assert_same(tensors["model"], weights)
        stored = [
            {slot: tensors["optimizer"][f"state/{index}/{slot}"] for slot in own}
            for index, own in enumerate(moments)
        ]
        assert_same(stored, moments)

    other, other_optimizer, _ = trained(kind=kind)
    resumed = Checkpointer(tmp_path).load_latest(model=other, optimizer=other_optimizer)
    assert resumed is not None
    assert resumed.step == 3
    assert resumed.extra["x"].device.type == "cpu"
    assert_same(dict(other.state_dict()), wanted[3][0])
    assert_same([dict(own) for own in other_optimizer.state.values()], wanted[3][1])
    for p, own in other_optimizer.state.items():
        assert own["exp_avg"].device == p.device


@only_there
def test_a_save_sees_what_a_stream_of_its_own_has_computed(tmp_path: Path) -> None:
    """Training on a stream that is not the default one, and saved from within it."""
    big = torch.randn(4096, 4096, device=DEVICE)
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
        value = big
        for _ in range(30):
            value = (value @ big) / 64
        with Checkpointer(tmp_path) as checkpointer:
            checkpointer.save(1, ema={"only": _Holds(value)})
            wanted = value.clone()
            value.zero_()
    torch.cuda.synchronize()
    tensors, _ = store.load(store.of_step(tmp_path, 1), ("ema.only",))
    assert_same(tensors["ema.only"]["value"], wanted.cpu())


class _Holds:
    def __init__(self, value: Tensor) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Tensor]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.value = state["value"]


def test_layouts_and_types_on_the_gpu_come_back_as_they_were(tmp_path: Path) -> None:
    torch.manual_seed(1)
    base = torch.randn(8, 4, 6, 6, device=DEVICE)
    own = {
        "last": base.to(memory_format=torch.channels_last),
        "half": base.half(),
        "bf16": base.bfloat16(),
        "float8": base.to(torch.float8_e4m3fn),
        "complex": torch.complex(base, base).conj(),
        "bool": base > 0,
        "view": base[:, 1:3],
        "turned": base.flatten(1).t(),
        "scalar": base.sum(),
        "empty": base[:0],
    }
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, model=_Nested(own))
        for each in own.values():
            if each.dtype != torch.float8_e4m3fn:
                each.zero_()
    base.zero_()
    torch.manual_seed(1)
    again = torch.randn(8, 4, 6, 6, device=DEVICE)
    held = _Nested({})
    Checkpointer(tmp_path).load_latest(model=held)
    found = held.state
    assert found["last"].is_contiguous(memory_format=torch.channels_last)
    for name, wanted in {
        "last": again, "half": again.half(), "bf16": again.bfloat16(), "bool": again > 0, "view": again[:, 1:3],
        "turned": again.flatten(1).t(), "scalar": again.sum(), "empty": again[:0], "complex": torch.complex(again, again).conj(),
    }.items():  # fmt: skip
        assert torch.equal(found[name], wanted.cpu()), name
    wanted = again.to(torch.float8_e4m3fn).view(torch.uint8).cpu()
    assert torch.equal(found["float8"].view(torch.uint8), wanted)


class _Nested:
    def __init__(self, state: dict[str, Tensor]) -> None:
        self.state = state

    def state_dict(self) -> dict[str, Tensor]:
        return self.state

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.state = state


def test_random_states_of_the_gpu_continue(tmp_path: Path) -> None:
    """Dropout on the device draws the same after a load as it would have without."""
    model, optimizer, batches = trained(256)
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, model=model, optimizer=optimizer)
    losses = [step(model, optimizer, x).item() for x in batches]
    drawn = torch.rand(5, device=DEVICE)
    other, other_optimizer, _ = trained(256)
    torch.manual_seed(99)
    Checkpointer(tmp_path).load_latest(model=other, optimizer=other_optimizer)
    assert [step(other, other_optimizer, x).item() for x in batches] == losses
    assert torch.equal(torch.rand(5, device=DEVICE), drawn)


LOOP = """
import os, signal, sys
import torch
from torch import nn
from hotloop.checkpoint import Checkpointer, ResumableLoader
device, kill_at = sys.argv[1], int(sys.argv[2])
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(512, 512), nn.Dropout(0.2), nn.Linear(512, 512)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
loader = ResumableLoader(torch.utils.data.DataLoader(torch.sin(torch.arange(40 * 512.0)).view(40, 512), 4, shuffle=True, pin_memory=device == "cuda"))
checkpointer = Checkpointer("saved")
parts = dict(model=model, optimizer=optimizer, loader=loader)
resumed = checkpointer.load_latest(**parts)
step = resumed.step if resumed else 0
while step < 24:
    for x in loader:
        x = x.to(device, non_blocking=True)
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        step += 1
        checkpointer.save(step, **parts)
        if step == kill_at: os.kill(os.getpid(), signal.SIGKILL)
        if step == 24: break
checkpointer.wait()
print("end", resumed and resumed.step, float(sum(p.double().sum() for p in model.parameters())), torch.rand(3, device=device).tolist())
"""


def in_new_process(script: Path, *words: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, str(script), *words],
        cwd=script.parent,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == code, done.stderr
    return done.stdout


def test_a_killed_loop_ends_with_the_same_bits(tmp_path: Path) -> None:
    ends = []
    for name, kills in (("whole", ()), ("killed", ("13",))):
        (tmp_path / name).mkdir()
        script = tmp_path / name / "loop.py"
        script.write_text(LOOP)
        for kill_at in kills:
            in_new_process(script, DEVICE, kill_at, code=-signal.SIGKILL)
        ends.append(in_new_process(script, DEVICE, "-1").split())
    assert ends[0][1] == "None"
    assert int(ends[1][1]) in (11, 12, 13)
    assert ends[0][2:] == ends[1][2:]


TAKEN_OVER = """
import sys, torch
from torch import nn
device = sys.argv[1]
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(700, 700), nn.Linear(700, 700)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
model(torch.randn(8, 700, device=device)).sum().backward(); optimizer.step()
base = torch.randn(900, 900, device=device)
objects = {
    "whole": {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "shared": [base, base[3:], base.t()], "half": base.half()},
    "state": model.state_dict(), "one": base,
}
def save(folder):
    import os; os.makedirs(folder)
    for name, each in objects.items(): torch.save(each, f"{folder}/{name}.pt")
    try:
        from safetensors.torch import save_file
    except ImportError:
        return
    save_file(model.state_dict(), f"{folder}/model.safetensors")
save("before")
import hotloop.checkpoint
hotloop.checkpoint.save_in_background()
from hotloop.checkpoint import background_files as files
for each in range(3):
    kept = [t.clone() for t in (base, *model.parameters())]
    save(f"after{each}")
    with torch.no_grad():  # the copies must be done, not only begun
        for t in (base, *model.parameters()): t.fill_(float("nan"))
        for t, k in zip((base, *model.parameters()), kept): t.copy_(k)
def same(a, b):
    if isinstance(a, torch.Tensor): return a.device == b.device and a.stride() == b.stride() and torch.equal(a, b)
    if isinstance(a, dict): return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)): return len(a) == len(b) and all(map(same, a, b))
    return a == b
import os
for each in range(3):
    for name in sorted(os.listdir("before")):
        before, after = (open(f"{folder}/{name}", "rb").read() for folder in ("before", f"after{each}"))
        assert before == after, name
        if name.endswith(".pt"):
            assert same(torch.load(f"after{each}/{name}"), objects[name[:-3]]), name
shared = torch.load("after0/whole.pt")["shared"]
assert shared[0].untyped_storage().data_ptr() == shared[2].untyped_storage().data_ptr()
print("in background", files.SAVES.num_saved)
"""


def test_files_of_a_script_are_the_same_to_the_byte(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(TAKEN_OVER)
    assert int(in_new_process(script, DEVICE).split()[-1]) >= 9


@only_there
def test_draws_of_a_training_go_on_where_its_gpu_has_another_number() -> None:
    model, optimizer, _ = trained(8)
    tensors, state = capture(model, optimizer, None)
    wanted = torch.rand(8, device=DEVICE)
    assert state["cuda_device"] == 0
    # As if it had been saved on the second GPU, beside one that drew otherwise.
    tensors["random"] |= {"cuda0": torch.cuda.get_rng_state(), "cuda1": tensors["random"]["cuda0"]}
    state["cuda_device"] = 1
    restore(tensors, state, model=model, optimizer=optimizer, scaler=None, updated=True)
    assert torch.equal(torch.rand(8, device=DEVICE), wanted)
