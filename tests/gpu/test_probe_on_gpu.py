"""What the probe records of a script on a GPU, held against what the script knows of itself.

`pytest tests/gpu -m gpu`; with `HOTLOOP_TEST_DEVICE=cpu` on a CPU, as `gpu_or_cpu` says.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest
from gpu_scripts import run_script

from gpu_or_cpu import ON_A_GPU, ON_GPU
from hotloop.core.child import STEP_CLOCK_STOP, STEP_CLOCK_WEIGHTS
from hotloop.judge.attribute import attribute

pytestmark = ON_A_GPU
NUM_STEPS = 56
"""Those under the profiler are 41 to 43."""


def agree(seen: list[float], truth: list[float]) -> bool:
    """Most of them, one by one: other processes may have their turns on the GPU between two events."""
    ratios = [one / other for one, other in zip(seen, truth, strict=True)]
    near = [ratio for ratio in ratios if 0.6 < ratio < 1.6]
    return 0.8 < median(ratios) < 1.25 and len(near) > 0.7 * len(ratios)


def test_idling_is_what_is_left_of_a_step_beside_its_kernels(tmp_path: Path) -> None:
    ran = run_script(
        tmp_path,
        """
marks = Stopwatch()
model, optimizer = build()
x = torch.randn(256, 64, device=device)
for step in range(56):
    marks.mark(); busy(0.01); marks.mark()
    loss = learn(model, optimizer, x)
    time.sleep(0.025)  # the GPU is through after 10 ms of it
told(marks)
""",
        watched=True,
    )
    assert ran.complaints == ""
    assert len(ran.steps) == NUM_STEPS
    if not ON_GPU:
        return
    kernel_s, step_s = ran.printed
    assert ran.census.profiled_busy_s is not None
    assert ran.census.profiled_busy_s == pytest.approx(kernel_s, rel=0.4)
    shares = attribute(ran.steps, census=ran.census).device
    assert shares is not None
    assert sum(shares.values()) == pytest.approx(1.0)
    assert shares["idle"] == pytest.approx(1 - kernel_s / step_s, abs=0.2)


def test_reading_the_loss_in_each_step_is_a_sync_at_its_line_and_the_gpu_does_not_idle(
    tmp_path: Path,
) -> None:
    ran = run_script(
        tmp_path,
        """
marks = Stopwatch()
model, optimizer = build()
x = torch.randn(256, 64, device=device)
for step in range(56):
    marks.mark(); busy(0.02); marks.mark()
    loss = learn(model, optimizer, x)
    value = loss.item()  # here
told(marks)
""",
        watched=True,
    )
    assert ran.complaints == ""
    if not ON_GPU:
        return
    (read,) = [each for each in ran.census.syncs if each.what == "item"]
    text = (ran.directory / "train.py").read_text().splitlines()
    line = 1 + next(number for number, each in enumerate(text) if each.endswith("# here"))
    assert read.site == f"train.py:{line}"
    assert read.num == pytest.approx(len(ran.counted), abs=1)
    waited = median(each.host.get("sync", 0.0) for each in ran.counted)
    kernel_s, _ = ran.printed
    assert 0.5 * kernel_s < waited < 2 * kernel_s
    shares = attribute(ran.steps, census=ran.census).device
    assert shares is not None
    assert shares["compute"] > 0.7


LOADER = """
class Slow(Dataset):
    def __len__(self): return 56 * 4
    def __getitem__(self, number):
        time.sleep(0.005)
        return torch.full((64,), float(number))
marks = Stopwatch()
model, optimizer = build()
for x in DataLoader(Slow(), batch_size=4):
    x = x.to(device)
    marks.mark(); busy(0.006); marks.mark()
    loss = learn(model, optimizer, x)
told(marks)
"""


def test_a_slow_loader_is_waited_for_and_the_gpu_idles_meanwhile(tmp_path: Path) -> None:
    ran = run_script(tmp_path, LOADER, watched=True)
    assert ran.complaints == ""
    kernel_s, step_s = ran.printed
    assert median(each.host["data_wait"] for each in ran.counted) > 0.02
    if not ON_GPU:
        return
    shares = attribute(ran.steps, census=ran.census).device
    assert shares is not None
    assert shares["idle"] == pytest.approx(1 - kernel_s / step_s, abs=0.2)


@pytest.mark.parametrize("pinned", [False, True])
def test_copies_are_told_to_be_from_pinned_memory_or_not(tmp_path: Path, pinned: bool) -> None:
    ran = run_script(
        tmp_path,
        f"""
model, optimizer = build()
data = TensorDataset(torch.randn(30 * 2048, 64))
for (x,) in DataLoader(data, batch_size=2048, pin_memory={pinned and ON_GPU}):
    x = x.to(device, non_blocking={pinned})
    loss = learn(model, optimizer, x)
""",
        watched=True,
    )
    assert "not seen" not in ran.complaints
    assert "copies" in ran.census.seen if ON_GPU else "copies" not in ran.census.seen
    if not ON_GPU:
        return
    (copy,) = ran.census.copies
    assert copy.what == "Tensor.to"
    assert copy.pageable is not pinned
    assert copy.num_bytes == pytest.approx(len(ran.counted) * 2048 * 64 * 4, rel=0.1)
    assert any((each.device or {}).get("memcpy", 0.0) > 0 for each in ran.counted)


def test_waiting_for_each_kernel_is_seen_as_the_variable_that_asks_for_it(tmp_path: Path) -> None:
    script = """
model, optimizer = build()
x = torch.randn(256, 64, device=device)
for step in range(30):
    busy(0.01)
    learn(model, optimizer, x)
"""
    ran = run_script(tmp_path, script, watched=True, env={"CUDA_LAUNCH_BLOCKING": "1"})
    assert ran.census.has_switch("CUDA_LAUNCH_BLOCKING")
    assert len(ran.steps) == 30


def test_step_times_are_those_of_the_events_that_the_script_records(tmp_path: Path) -> None:
    ran = run_script(
        tmp_path,
        """
watch = Stopwatch()
model, optimizer = build()
x = torch.randn(256, 64, device=device)
for step in range(56):
    busy(0.2 if step == 50 else 0.012 if step % 2 else 0.004)
    loss = learn(model, optimizer, x)
    watch.mark()
print(json.dumps(watch.seconds()))
""",
        watched=True,
    )
    assert ran.complaints == ""
    truth = dict(enumerate(ran.printed, 1))
    counted = {each.step: each for each in ran.counted if each.step in truth}
    assert len(counted) > 35
    if not ON_GPU:
        return
    seen = {step: sum((each.device or {}).values()) for step, each in counted.items()}
    assert all(seen[step] > 0 for step in counted)
    # The steps around the profiler wait for it.
    calm = [step for step in counted if step < 40 or step > 46]
    assert agree([seen[step] for step in calm], [truth[step] for step in calm])
    assert seen[50] > 3 * median(seen.values())
    device = counted[50].device or {}
    assert device["compute"] + device["unknown"] > 0.9 * truth[50]


def test_nothing_of_the_probe_waits_for_the_gpu(tmp_path: Path) -> None:
    ran = run_script(
        tmp_path,
        """
model, optimizer = build()
x = torch.randn(256, 64, device=device)
data = DataLoader(TensorDataset(torch.randn(60 * 8, 64)), batch_size=8, pin_memory=on_gpu)
for step, (batch,) in enumerate(data):
    if step == 2 and on_gpu: torch.cuda.set_sync_debug_mode("error")
    batch = batch.to(device, non_blocking=True)
    optimizer.zero_grad()
    busy(0.002)
    loss = model(batch).square().mean() + model(x).square().mean()
    loss.backward()
    optimizer.step()
if on_gpu: torch.cuda.set_sync_debug_mode("default")
print(json.dumps(loss.item()))
""",
        watched=True,
    )
    assert ran.complaints == ""
    assert len(ran.steps) == 60
    if ON_GPU:
        assert ran.census.operators


def test_a_clocked_script_that_forbids_waiting_ends_with_its_steps_and_losses(
    tmp_path: Path,
) -> None:
    ran = run_script(
        tmp_path,
        """
model, optimizer = build()
x = torch.randn(256, 64, device=device)
for step in range(40):
    if step == 2 and on_gpu: torch.cuda.set_sync_debug_mode("error")
    loss = learn(model, optimizer, x)
""",
        clocked={STEP_CLOCK_STOP: "20", STEP_CLOCK_WEIGHTS: "1"},
    )
    assert ran.complaints == ""
    losses = [each.loss for each in ran.steps]
    assert len(losses) == 20
    assert all(each is not None for each in losses)
    assert losses[-1] < losses[0]  # type: ignore[operator]
    assert (ran.directory / "weights-0.json").exists()


def test_a_trials_clock_agrees_with_the_events_of_the_script(tmp_path: Path) -> None:
    ran = run_script(
        tmp_path,
        """
watch, losses = Stopwatch(), []
model, optimizer = build()
x = torch.randn(256, 64, device=device)
for step in range(30):
    busy(0.012 if step % 2 else 0.004)
    loss = learn(model, optimizer, x)
    watch.mark()
    losses.append(loss.detach())
print(json.dumps([watch.seconds(), [each.item() for each in losses]]))
""",
        clocked={},
    )
    assert ran.complaints == ""
    seconds, losses = ran.printed
    assert [each.loss for each in ran.steps] == pytest.approx(losses)
    assert agree([each.wall_s for each in ran.steps[5:]], seconds[4:])


GRAPHS = {
    "passes are captured, the optimizer steps": """
if on_gpu:
    model = torch.cuda.make_graphed_callables(model, (x.clone(),))
for step in range(60):
    optimizer.zero_grad(set_to_none=False)
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.detach().clone())
""",
    "whole steps are captured, and the script says where each ends": """
import hotloop
def train():
    optimizer.zero_grad(set_to_none=False)
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()  # a graph that is kept would keep the stream of its gradients, too
replay = None
for step in range(60):
    if on_gpu and step == 20:  # a clock has been at work for a while
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3): train()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            held = train()
        replay = graph.replay
    if replay is not None: replay()
    else: held = train()
    hotloop.step()
    losses.append(held.detach().clone())
""",
}


@pytest.mark.parametrize("name", GRAPHS)
def test_a_script_that_captures_graphs_trains_as_without_the_probe(
    tmp_path: Path, name: str
) -> None:
    script = f"""
losses = []
model, _ = build()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.randn(256, 64, device=device)
{GRAPHS[name]}
print(json.dumps([each.item() for each in losses]))
"""
    plain = run_script(tmp_path, script)
    ran = run_script(tmp_path, script, watched=True)
    assert ran.printed == plain.printed
    assert "failed" not in ran.complaints
    assert "no device times" not in ran.complaints
    assert len(ran.steps) >= 55


def test_work_on_another_stream_is_unknown_and_harms_nothing(tmp_path: Path) -> None:
    script = """
model, optimizer = build()
x = torch.randn(256, 64, device=device)
side = torch.cuda.Stream() if on_gpu else None
losses = []
for step in range(50):
    if on_gpu:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            busy(0.004)
            loss = model(x).square().mean()
        torch.cuda.current_stream().wait_stream(side)
    else:
        loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.detach().clone())
print(json.dumps([each.item() for each in losses]))
"""
    plain = run_script(tmp_path, script)
    ran = run_script(tmp_path, script, watched=True)
    assert ran.printed == pytest.approx(plain.printed, rel=1e-5)
    assert "failed" not in ran.complaints
    assert "no device times" not in ran.complaints
    if ON_GPU:
        told = [each.device for each in ran.counted if each.device]
        assert len(told) > 20
        assert all(each["idle"] < 0.5 * sum(each.values()) for each in told)


def test_memory_and_name_of_the_gpu_are_in_what_is_written(tmp_path: Path) -> None:
    ran = run_script(
        tmp_path,
        """
held = torch.zeros(64 << 20, dtype=torch.uint8, device=device)
model, optimizer = build()
x = torch.randn(256, 64, device=device)
for step in range(30):
    learn(model, optimizer, x)
print(json.dumps(torch.cuda.get_device_name() if on_gpu else None))
""",
        watched=True,
    )
    assert "not seen" not in ran.complaints
    if not ON_GPU:
        return
    census = ran.census
    assert census.device == "cuda:0"
    assert census.device_allocated_bytes is not None
    assert 64 << 20 <= census.device_allocated_bytes < 256 << 20
    assert census.alloc_retries == 0
    assert (census.device_uuid or "").startswith("GPU-")
    assert ran.printed in (ran.directory / "clock-0.json").read_text()


def test_a_loop_that_updates_by_hand_is_timed_by_the_gpu_as_well(tmp_path: Path) -> None:
    ran = run_script(
        tmp_path,
        """
model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)).to(device)
x = torch.randn(256, 64, device=device)
for step in range(40):
    busy(0.004)
    loss = model(x).square().mean()
    loss.backward()
    with torch.no_grad():
        for weight in model.parameters():
            weight -= 0.1 * weight.grad
            weight.grad = None
synchronize()
""",
        watched=True,
    )
    assert "failed" not in ran.complaints
    assert len(ran.steps) >= 30
    if ON_GPU:
        assert ran.census.device == "cuda:0"
        assert median(sum((each.device or {}).values()) for each in ran.counted) > 0.002
