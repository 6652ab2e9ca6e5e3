"""What `Checkpointer` restores, refuses and survives."""

from __future__ import annotations

import copy
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loops import in_new_process, process_of
from torch import nn
from torch.optim import lr_scheduler

import hotloop.checkpoint
from hotloop.checkpoint import Checkpointer, store
from hotloop.core.errors import EnvironmentFailed, UsageError
from processes import wait_for


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(ids))


def trained(model: nn.Module, optimizer: Any, x: torch.Tensor, steps: int = 2) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(x).float().pow(2).mean().backward()
        optimizer.step()


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.stride() == b.stride() and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(equal, a, b))
    return type(a) is type(b) and bool(a == b)


def test_everything_given_is_restored_and_training_continues_the_same(tmp_path: Path) -> None:
    ids = torch.arange(6)
    torch.manual_seed(0)
    runs = []
    for _ in range(2):
        model = Tied().to(torch.bfloat16)
        optimizer = torch.optim.AdamW(model.parameters(), amsgrad=True)
        ema = torch.optim.swa_utils.AveragedModel(model)
        scaler = torch.amp.GradScaler("cpu", enabled=True)
        runs.append((model, optimizer, ema, scaler))
    (model, optimizer, ema, scaler), (other, other_optimizer, other_ema, other_scaler) = runs
    trained(model, optimizer, ids)
    ema.update_parameters(model)
    scaler._lazy_init_scale_growth_tracker(torch.device("cpu"))
    model.count += 5
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(2, model=model, optimizer=optimizer, ema=ema, scaler=scaler)
        trained(model, optimizer, ids, 1)  # beside the save: what is stored is of before
    found = Checkpointer(tmp_path).load_latest(model=other, optimizer=other_optimizer, ema=other_ema, scaler=other_scaler)  # fmt: skip
    assert found is not None
    assert other.head.weight is other.embed.weight
    trained(other, other_optimizer, ids, 1)
    assert equal(model.state_dict(), other.state_dict())
    assert equal(optimizer.state_dict(), other_optimizer.state_dict())
    assert equal(ema.state_dict(), other_ema.state_dict())
    assert equal(scaler.state_dict(), other_scaler.state_dict())


OPTIMIZERS = {
    "AdamW tensor lr": lambda p: torch.optim.AdamW(p, lr=torch.tensor(1e-2), capturable=False, foreach=False),
    "AdamW fused": lambda p: torch.optim.AdamW(p, fused=True),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "Adafactor": lambda p: torch.optim.Adafactor(p),
    "Adagrad": lambda p: torch.optim.Adagrad(p),
    "RMSprop": lambda p: torch.optim.RMSprop(p, momentum=0.1, centered=True),
    "NAdam": lambda p: torch.optim.NAdam(p),
    "ASGD": lambda p: torch.optim.ASGD(p),
    "Rprop": lambda p: torch.optim.Rprop(p),
}  # fmt: skip


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_optimizer_of_channels_last_weights_continues_bit_equally(
    tmp_path: Path, kind: str
) -> None:
    torch.manual_seed(1)
    made = []
    for _ in range(2):
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 3))
        model = model.to(memory_format=torch.channels_last)
        made.append((model, OPTIMIZERS[kind](model.parameters())))
    x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    trained(*made[0], x)
    Checkpointer(tmp_path, background=False).save(2, model=made[0][0], optimizer=made[0][1])
    Checkpointer(tmp_path).load_latest(model=made[1][0], optimizer=made[1][1])
    for each in made:
        trained(*each, x)
    assert equal(made[0][0].state_dict(), made[1][0].state_dict())
    assert equal(made[0][1].state_dict(), made[1][1].state_dict())


SCHEDULERS = {
    "steps": lambda o: lr_scheduler.MultiStepLR(o, [1, 2]),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda n: 1 / (n + 1)),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=9),
    "cyclic": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, cycle_momentum=False),
    "restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2),
    "sequence": lambda o: lr_scheduler.SequentialLR(o, [lr_scheduler.LinearLR(o), lr_scheduler.ExponentialLR(o, 0.9)], [2]),
    "chain": lambda o: lr_scheduler.ChainedScheduler([lr_scheduler.StepLR(o, 2), lr_scheduler.LinearLR(o)]),
}  # fmt: skip


@pytest.mark.parametrize("kind", SCHEDULERS)
def test_schedule_continues_where_it_was(tmp_path: Path, kind: str) -> None:
    made = []
    for _ in range(2):
        optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
        made.append((optimizer, SCHEDULERS[kind](optimizer)))
    rates = []
    for step in range(8):
        for optimizer, scheduler in made[:1] if step < 4 else made:
            optimizer.step()
            scheduler.step()
        if step == 3:
            Checkpointer(tmp_path, background=False).save(
                4, optimizer=made[0][0], scheduler=made[0][1]
            )
            Checkpointer(tmp_path).load_latest(optimizer=made[1][0], scheduler=made[1][1])
        rates.append([o.param_groups[0]["lr"] for o, _ in made])
    assert all(a == b for a, b in rates[4:])
    assert len({a for a, _ in rates}) > 1


def test_random_states_return_unless_they_are_not_wanted(tmp_path: Path) -> None:
    model = nn.Linear(1, 1)
    Checkpointer(tmp_path, background=False).save(1, model=model)
    drawn = [torch.rand(1).item(), random.random(), np.random.rand()]
    Checkpointer(tmp_path).load_latest(model=model, random=False)
    assert drawn != [torch.rand(1).item(), random.random(), np.random.rand()]
    Checkpointer(tmp_path).load_latest(model=model)
    assert drawn == [torch.rand(1).item(), random.random(), np.random.rand()]


def test_several_models_and_optimizers_by_list_and_name(tmp_path: Path) -> None:
    nets = {"g": nn.Linear(2, 2), "d": nn.Linear(2, 1)}
    optimizers = [torch.optim.Adam(net.parameters()) for net in nets.values()]
    for net, optimizer in zip(nets.values(), optimizers):
        trained(net, optimizer, torch.ones(1, 2))
    saved = copy.deepcopy([net.state_dict() for net in nets.values()])
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, model=nets, optimizer=optimizers)
    for net, optimizer in zip(nets.values(), optimizers):
        trained(net, optimizer, torch.ones(1, 2))
    with pytest.raises(
        UsageError,
        match=r"`optimizer.0` updates `model.d.weight .* where it updated `model.g.weight",
    ):
        Checkpointer(tmp_path).load_latest(model=nets, optimizer=optimizers[::-1])
    assert not equal(saved, [net.state_dict() for net in nets.values()])
    Checkpointer(tmp_path).load_latest(model=nets, optimizer=optimizers)
    assert equal(saved, [net.state_dict() for net in nets.values()])


def test_compiled_and_plain_model_share_their_checkpoints(tmp_path: Path) -> None:
    compiled = torch.compile(nn.Linear(2, 2), backend="eager")
    Checkpointer(tmp_path, background=False).save(1, model=compiled)
    plain = nn.Linear(2, 2)
    Checkpointer(tmp_path).load_latest(model=plain)
    assert equal(plain.state_dict(), compiled._orig_mod.state_dict())


def saved(root: Path, *steps: int) -> nn.Module:
    model = nn.Linear(3, 3)
    with Checkpointer(root) as checkpointer:
        checkpointer.load_latest(model=model)
        for step in steps:
            checkpointer.save(step, model=model, extra={"step": step})
    return model


def test_model_of_another_shape_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    other = nn.Linear(3, 4)
    before = copy.deepcopy(other.state_dict())
    with pytest.raises(
        UsageError, match=r"weight `weight` is \(3, 3\) in the checkpoint and \(4, 3\)"
    ):
        Checkpointer(tmp_path).load_latest(model=other)
    with pytest.raises(UsageError, match=r"weight `0.bias` is missing in the checkpoint"):
        Checkpointer(tmp_path).load_latest(model=nn.Sequential(nn.Linear(3, 3)))
    with pytest.raises(UsageError, match="the checkpoint has no optimizer"):
        Checkpointer(tmp_path).load_latest(
            model=other, optimizer=torch.optim.SGD(other.parameters())
        )
    assert equal(before, other.state_dict())


def test_damaged_checkpoint_is_passed_over_aloud_and_does_not_come_back(tmp_path: Path) -> None:
    model = saved(tmp_path, 1, 2)
    newest = next(tmp_path.glob("step-00000002-*"))
    path = newest / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with Checkpointer(tmp_path) as checkpointer:
        with pytest.warns(RuntimeWarning, match="passed over: step-00000002-.*altered"):
            found = checkpointer.load_latest(model=model)
        assert found is not None
        assert found.step == 1
        assert found.extra == {"step": 1}
        assert len(found.passed_over) == 1
        checkpointer.save(2, model=model, extra={"step": "again"})
    assert (tmp_path / f"damaged-{newest.name}").is_dir()
    again = Checkpointer(tmp_path).load_latest(model=model)
    assert again is not None
    assert again.extra == {"step": "again"}


def test_damaged_checkpoint_that_is_passed_over_between_saves_pushes_out_no_good_one(
    tmp_path: Path,
) -> None:
    model = nn.Linear(3, 3)
    with Checkpointer(tmp_path, keep=2, background=False) as checkpointer:
        for step in (100, 200):
            checkpointer.save(step, model=model)
        newest = next(tmp_path.glob("step-00000200-*"))
        (newest / "model.safetensors").write_bytes(b"")
        with pytest.warns(RuntimeWarning, match="passed over: step-00000200-"):
            found = checkpointer.load_latest(model=model)
        assert found is not None
        assert found.step == 100
        checkpointer.save(150, model=model)
        assert store.steps(tmp_path) == (100, 150)
        assert (tmp_path / f"damaged-{newest.name}").is_dir()
        checkpointer.save(250, model=model)
    assert store.steps(tmp_path) == (150, 250)


def test_only_damaged_checkpoints_are_an_error_not_a_start_from_nothing(tmp_path: Path) -> None:
    model = saved(tmp_path, 1)
    (next(tmp_path.glob("step-*")) / "state.json").unlink()
    with (
        pytest.warns(RuntimeWarning),
        pytest.raises(UsageError, match="no checkpoint here verifies"),
    ):
        Checkpointer(tmp_path).load_latest(model=model)


def test_checkpoints_of_an_earlier_run_are_not_mixed_with_those_of_one_that_began_anew(
    tmp_path: Path,
) -> None:
    model = saved(tmp_path, 1, 5)
    with Checkpointer(tmp_path) as checkpointer:
        with pytest.raises(UsageError, match="a checkpoint of step 5 is here, of an earlier run"):
            checkpointer.save(2, model=model)
        assert checkpointer.load_latest(model=model)
        with pytest.raises(UsageError, match="step 2 comes after step 5"):
            checkpointer.save(2, model=model)
        checkpointer.save(6, model=model)
    assert store.steps(tmp_path) == (5, 6)


def test_step_that_is_saved_again_takes_the_place_of_the_first(tmp_path: Path) -> None:
    model = saved(tmp_path, 1, 2)
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.load_latest(model=model)
        checkpointer.save(2, model=model, extra="final")
    assert len(list(tmp_path.glob("step-*"))) == 2
    found = Checkpointer(tmp_path).load_latest(model=model)
    assert found is not None
    assert found.extra == "final"


def test_error_of_a_save_beside_the_steps_is_raised_by_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = saved(tmp_path, 1)

    def full(*args: Any, **named: Any) -> None:
        raise OSError(28, "full")

    with monkeypatch.context() as patch, Checkpointer(tmp_path) as checkpointer:
        checkpointer.load_latest(model=model)
        patch.setattr(store, "_write_tensors", full)
        checkpointer.save(2, model=model)
        with pytest.raises(EnvironmentFailed, match="no space left"):
            checkpointer.save(3, model=model)
        checkpointer.save(4, model=model)
        with pytest.raises(EnvironmentFailed, match="no space left"):
            checkpointer.wait()
        patch.undo()
        checkpointer.save(5, model=model)
    assert store.steps(tmp_path) == (1, 5)
    assert not list(tmp_path.glob("step-00000002-*"))


def hold(root: Path) -> None:
    model = nn.Linear(3, 3)
    with Checkpointer(root) as checkpointer:
        checkpointer.load_latest(model=model)
        checkpointer.save(7, model=model)
        checkpointer.wait()
        child = os.fork()  # like a loader's worker, it outlives what made it
        if child:
            (root / "ready").touch()
        while not (root / "end").exists():
            time.sleep(0.02)
        if not child:
            os._exit(0)


def test_directory_has_one_process_that_saves_and_is_free_when_that_was_killed(
    tmp_path: Path,
) -> None:
    model = saved(tmp_path, 1)
    process = process_of(hold, tmp_path)
    try:
        assert wait_for((tmp_path / "ready").exists, 120)
        with Checkpointer(tmp_path) as checkpointer:
            found = checkpointer.load_latest(model=model)
            assert found is not None
            assert found.step == 7
            with pytest.raises(
                EnvironmentFailed, match="another process saves its checkpoints here"
            ):
                checkpointer.save(8, model=model)
            process.kill()
            process.join(60)
            checkpointer.save(8, model=model)
    finally:
        (tmp_path / "end").touch()
    assert store.steps(tmp_path) == (7, 8)


def save_once(root: Path) -> None:
    Checkpointer(root, background=False).save(99, model=nn.Linear(3, 3))


@pytest.mark.parametrize("loads", [True, False])
def test_second_one_of_a_process_waits_for_the_first_and_takes_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loads: bool
) -> None:
    written, go = threading.Event(), threading.Event()
    real = store.commit

    def late(*args: Any, **named: Any) -> Any:
        written.set()
        assert go.wait(120)
        return real(*args, **named)

    model = nn.Linear(3, 3)
    first, second = Checkpointer(tmp_path), Checkpointer(tmp_path)
    wait = first._saver.wait
    try:
        monkeypatch.setattr(store, "commit", late)
        first.save(1, model=model)
        assert written.wait(120)
        monkeypatch.setattr(first._saver, "wait", lambda: (go.set(), wait()))
        if loads:  # as in a notebook's cell that is run again
            found = second.load_latest(model=model)
            assert found is not None
            assert found.step == 1
        second.save(2, model=model)
    finally:
        go.set()
    second.wait()
    assert store.steps(tmp_path) == (1, 2)
    for _ in range(2):
        with pytest.raises(UsageError, match="another Checkpointer of this process has saved here"):
            first.save(3, model=model)
        with first:
            pass  # it has no lock to give up
    assert first.load_latest(model=model)
    first.save(3, model=model)
    with second:
        assert in_new_process(save_once, tmp_path) == 1
    assert in_new_process(save_once, tmp_path) == 1
    with first:
        pass
    assert in_new_process(save_once, tmp_path) == 0
    assert store.steps(tmp_path) == (3, 99)


def test_second_one_that_is_refused_leaves_the_first_alone_and_a_removed_directory_is_a_new_one(
    tmp_path: Path,
) -> None:
    root, model = tmp_path / "checkpoints", nn.Linear(3, 3)
    first = Checkpointer(root, background=False)
    first.save(5, model=model)
    with pytest.raises(UsageError, match="a checkpoint of step 5 is here"):
        Checkpointer(root).save(1, model=model)
    first.save(6, model=model)
    shutil.rmtree(root)
    with Checkpointer(root) as second:
        second.save(1, model=model)
        assert in_new_process(save_once, root) == 1
    assert store.steps(root) == (1,)


def fork_while_saving(root: Path) -> None:
    writing, go = threading.Event(), threading.Event()
    real = store.save

    def slow(*args: Any, **named: Any) -> Any:
        writing.set()
        assert go.wait(120)
        return real(*args, **named)

    store.save = slow
    model = nn.Linear(3, 3)
    checkpointer = Checkpointer(root)
    checkpointer.save(1, model=model)
    assert writing.wait(120)
    pid = os.fork()
    if pid == 0:
        signal.alarm(100)
        checkpointer.wait()  # of the parent's save: there is nothing here to wait for
        with Checkpointer(root / "child") as own:
            go.set()
            own.save(3, model=model)
        os._exit(0)
    code = os.waitpid(pid, 0)[1]
    go.set()
    os.environ["HOTLOOP_TEST"] = str(code)
    assert code == 0


def test_forked_process_waits_for_no_save_of_its_parent(tmp_path: Path) -> None:
    assert in_new_process(fork_while_saving, tmp_path) == 0
    assert store.steps(tmp_path) == (1,)  # also written at the end, which waited for it
    assert store.steps(tmp_path / "child") == (3,)


LAST = """
import atexit, sys
atexit.register(lambda: print('a handler', flush=True))
import torch, time
from hotloop.checkpoint import Checkpointer, store
real = store.save
def late(*args, **named):
    time.sleep(0.3)
    if sys.argv[2] == 'full':
        raise store.EnvironmentFailed('cannot save a checkpoint: no space left on the disk')
    return real(*args, **named)
store.save = late
Checkpointer(sys.argv[1]).save(1, model=torch.nn.Linear(1, 1))
print('end of the script', end='')
"""


@pytest.mark.parametrize("disk", ["well", "full"])
@pytest.mark.usefixtures("without_compiler")
def test_end_of_the_process_waits_for_the_last_save_and_its_failure_is_the_exit_code(
    tmp_path: Path, disk: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LAST, tmp_path, disk], capture_output=True, text=True
    )
    assert done.returncode == (0 if disk == "well" else 4), done.stderr
    assert done.stdout == "end of the scripta handler\n"
    assert store.steps(tmp_path) == ((1,) if disk == "well" else ())
    assert ("no space left on the disk" in done.stderr) == (disk == "full")
    assert "Traceback" not in done.stderr


def test_functions_are_the_same_for_a_loop_that_keeps_no_object(tmp_path: Path) -> None:
    model = nn.Linear(1, 1)
    assert hotloop.checkpoint.load_latest(tmp_path, model=model) is None
    for step in range(1, 5):
        hotloop.checkpoint.save(tmp_path, step, model=model, extra=step)
    hotloop.checkpoint.wait()
    assert store.steps(tmp_path) == (3, 4)
    found = hotloop.checkpoint.load_latest(tmp_path, model=model)
    assert found is not None
    assert (found.step, found.extra) == (4, 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "nothing is given"),
        ({"model": nn.Linear(1, 1).state_dict()}, "`model` is a|`model.weight` is a Tensor, without state_dict"),
        ({"model": 3}, "`model` is a int, without state_dict"),
        ({"loader": torch.utils.data.DataLoader([1, 2])}, "`loader` is a DataLoader, without state_dict"),
        ({"random": nn.Linear(1, 1)}, "`random` is a name of hotloop's own"),
        ({"optimizer": {"../x": nn.Linear(1, 1)}}, "`optimizer` has the key '../x'"),
        ({"é": nn.Linear(1, 1)}, "`é` is no name for a file"),
        ({"../x": nn.Linear(1, 1)}, "`../x` is no name for a file"),
        ({"optimizer": {"é": nn.Linear(1, 1)}}, "`optimizer.é` is no name for a file"),
    ],
)  # fmt: skip
def test_what_has_no_state_is_refused_with_what_to_do(
    tmp_path: Path, arguments: Any, message: str
) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        Checkpointer(tmp_path / "new").save(1, **arguments)
    assert caught.value.do
    assert not (tmp_path / "new").exists()


def test_part_whose_name_begins_with_an_underscore_is_one_like_any_other(tmp_path: Path) -> None:
    parts = [{"model": nn.Linear(2, 2), "_ema": nn.Linear(2, 2)} for _ in range(2)]
    Checkpointer(tmp_path, background=False).save(1, **parts[0])
    assert Checkpointer(tmp_path).load_latest(**parts[1])
    assert all(equal(parts[0][name].state_dict(), parts[1][name].state_dict()) for name in parts[0])


def test_one_checkpoint_is_too_few_to_keep(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="keep is 1"):
        Checkpointer(tmp_path, keep=1)


def test_trainers_checkpoint_is_refused(tmp_path: Path) -> None:
    tensors = {name: {"w": torch.zeros(1)} for name in store.FILES}
    store.save(tmp_path, 1, tensors=tensors, state={"rules": 2}, keep=2)
    with pytest.raises(UsageError, match=r"not a checkpoint of hotloop.checkpoint"):
        Checkpointer(tmp_path).load_latest(model=nn.Linear(1, 1))


def test_importing_loads_no_torch() -> None:
    code = (
        "import hotloop.checkpoint, sys; assert 'torch' not in sys.modules; hotloop.checkpoint.save"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


WAITS = """
import builtins, runpy, sys, time
def told(step, *rest, write=print, **how):
    write(step, *rest, **how)
    if step == 39: time.sleep(600)
builtins.print = told
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""A script that waits, in step 39, for whoever kills it: with the next one it saves steps that nobody may have read of."""


@pytest.mark.usefixtures("without_compiler")
def test_shipped_example_is_killed_and_ends_with_the_same_losses(tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "examples" / "resumable_loop.py"
    lines: list[dict[str, str]] = []
    for name, kills in (("whole", ()), ("killed", (37,))):
        seen: dict[str, str] = {}
        for kill_at in (*kills, None):
            waits = () if kill_at is None else ("-c", WAITS)
            command = [sys.executable, *waits, str(example), str(tmp_path / name)]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout is not None
                for line in process.stdout:
                    step, loss = line.split()
                    seen[step] = loss
                    if step == str(kill_at):
                        process.kill()
                        break
            assert process.returncode == (0 if kill_at is None else -signal.SIGKILL)
        lines.append(seen)
    assert lines[0] == lines[1]
    assert len(lines[0]) == 90
