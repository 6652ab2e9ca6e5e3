from __future__ import annotations

from itertools import pairwise
from statistics import median

import pytest

from hotloop.core.census import NO_OPTIMIZER
from hotloop.probe.attach.boundary import BACKWARDS_WITHOUT_UPDATE, FORWARDS_WITHOUT_BACKWARD
from hotloop.probe.step_rule import MOST_UPDATES


def test_step_ends_with_the_update_and_its_losses_are_the_scripts(run) -> None:  # type: ignore[no-untyped-def]
    source = "print(json.dumps(train(*build(), 30)))"
    ended = run(source)
    assert [record.loss for record in ended.steps] == ended.last
    assert [record.step for record in ended.steps] == list(range(30))
    assert ["warmup" in record.tags for record in ended.steps] == [True] * 10 + [False] * 20
    assert ended.clock["boundary"] == "optimizer"
    assert ended.last == run(source, watched=False).last


def test_losses_are_those_before_a_gradient_scaler_multiplies_them(run) -> None:  # type: ignore[no-untyped-def]
    ended = run("""
model, optimizer = build()
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
losses = []
for _ in range(12):
    optimizer.zero_grad()
    loss = loss_of(model)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    losses.append(loss.item())
print(json.dumps(losses))
""")
    assert [record.loss for record in ended.steps] == ended.last


def test_step_is_the_period_of_several_optimizers(run) -> None:  # type: ignore[no-untyped-def]
    ended = run("""
critic, generator = build(0), build(1)
for _ in range(20):
    train(*critic, 5); train(*generator, 1)
""")
    assert ended.census.microbatches == 6.0
    assert [record.step for record in ended.steps] == list(
        range(1, 20)
    )  # the first was cut wrongly
    assert ended.clock["steps"] == 20
    assert {record.loss is not None for record in ended.steps} == {True}


def test_trainings_one_after_the_other_are_all_counted(run) -> None:  # type: ignore[no-untyped-def]
    ended = run("""
first, second = build(0), build(1)
print(json.dumps([train(*first, 30), train(*second, 60)]))
""")
    long = [record for record in ended.steps if "resumed" in record.tags]
    assert [record.step for record in long] == [30]
    assert len(ended.steps) == 30 + 60 - MOST_UPDATES
    first, second = ended.last
    assert [record.loss for record in ended.steps[:30]] == first
    assert [record.loss for record in ended.steps[31:]] == second[MOST_UPDATES + 1 :]
    assert any("another one took over" in note for note in ended.census.notes)


BY_HAND = """
    with torch.no_grad():
        for p in model.parameters(): p.sub_(p.grad, alpha=0.01); p.grad = None
"""
WITHOUT_UPDATES = {
    "an optimizer that never steps": (f"""
model, optimizer = build()
for _ in range({BACKWARDS_WITHOUT_UPDATE + 20}):
    loss_of(model).backward(){BY_HAND}""", "backward", 21),
    "no optimizer": (f"""
model = torch.nn.Linear(8, 1)
for _ in range(20):
    loss_of(model).backward(){BY_HAND}""", "backward", 20),
    "no module": ("""
w = torch.ones(8, requires_grad=True)
for _ in range(40):
    (w * 2).sum().backward()
    with torch.no_grad(): w -= 0.01 * w.grad; w.grad.zero_()
""", "backward", 40),
    "no pass backward": (f"""
model = torch.nn.Linear(8, 1)
for _ in range({FORWARDS_WITHOUT_BACKWARD + 10}):
    gradients = torch.autograd.grad(loss_of(model), list(model.parameters()))
""", "forward", 11),
}  # fmt: skip


@pytest.mark.parametrize("lacks", WITHOUT_UPDATES)
def test_script_without_updates_steps_with_its_passes(run, lacks: str) -> None:  # type: ignore[no-untyped-def]
    source, boundary, steps = WITHOUT_UPDATES[lacks]
    ended = run(source)
    assert ended.clock["boundary"] == boundary
    assert len(ended.steps) == steps
    assert (NO_OPTIMIZER in ended.census.notes) is (boundary == "backward")


def test_passes_backward_before_the_first_module_are_forgotten(run) -> None:  # type: ignore[no-untyped-def]
    ended = run("""
w = torch.ones(8, requires_grad=True)
for _ in range(3): (w * 2).sum().backward()
model = torch.nn.Linear(8, 1)
for _ in range(20):
    y = model(torch.ones(4, 8))
    y.sum().backward(retain_graph=True); y.mean().backward()
""")
    assert [record.step for record in ended.steps] == list(range(20))
    assert any("until a module went forward" in note for note in ended.census.notes)


def test_what_was_taken_for_steps_is_forgotten_once_an_optimizer_steps(run) -> None:  # type: ignore[no-untyped-def]
    ended = run(f"""
model, optimizer = build()
for _ in range({FORWARDS_WITHOUT_BACKWARD + 10}): model(torch.ones(4, 8))
time.sleep(1.2)  # they have been written
train(model, optimizer, 15)
""")
    assert [record.step for record in ended.steps] == list(range(15))
    assert ended.clock["boundary"] == "optimizer"
    assert any("until" in note for note in ended.census.notes)


def test_update_that_raises_leaves_no_phase_open(run) -> None:  # type: ignore[no-untyped-def]
    ended = run("""
model, _ = build()
class Optimizer(torch.optim.SGD):
    def step(self, closure=None):
        if self.raises: raise RuntimeError("once")
        return super().step(closure)
optimizer = Optimizer(model.parameters(), lr=0.01)
for step in range(20):
    optimizer.raises = step == 12
    loss_of(model).backward()
    try: optimizer.step()
    except RuntimeError: pass
    time.sleep(0.01)
""")
    assert len(ended.steps) == 19
    assert all(record.host["unattributed"] > 0.009 for record in ended.steps[14:])
    assert median(record.host["optimizer"] for record in ended.steps[14:]) < 0.009


THREE_CLOCKS = """
from hotloop.optimizations.hooks import after_each_step
from hotloop.probe import step_clock
from pathlib import Path
Path("clock").mkdir()
clock, ended = step_clock.install(Path("clock")), []
after_each_step(lambda number, optimizer: ended.append(number))
"""
SHAPES = {
    "one optimizer": ("train(*build(), 30)", 30),
    "accumulation": ("""
model, optimizer = build()
for _ in range(14):
    for _ in range(3): loss_of(model).backward()
    optimizer.step(); optimizer.zero_grad()
""", 14, 3.0),
    "GAN, one update each": ("""
first, other = build(0), build(1)
for _ in range(15): train(*first, 1); train(*other, 1)
""", 15, 2.0),
    "GAN, five updates and one": ("""
critic, generator = build(0), build(1)
for _ in range(50): train(*critic, 5); train(*generator, 1)
""", 50),
    "GAN, one update and five": ("""
critic, generator = build(0), build(1)
for _ in range(50): train(*generator, 1); train(*critic, 5)
""", 50),
    "two trainings": ("""
train(*build(0), 30); train(*build(1), 60)
""", 30 + 60),
    "two trainings at once known": ("""
first, other = build(0), build(1)
train(*first, 30); train(*other, 60)
""", 30 + 60 - MOST_UPDATES),
    "LBFGS": ("""
model, _ = build()
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=4)
def closure():
    optimizer.zero_grad(); loss = loss_of(model); loss.backward(); return loss
for _ in range(12): optimizer.step(closure)
""", 12),
    "an optimizer for each layer": ("""
model, _ = build()
optimizers = [torch.optim.SGD(each.parameters(), lr=0.01) for each in (model[0], model[2])]
for _ in range(20):
    loss_of(model).backward()
    for optimizer in optimizers: optimizer.step(); optimizer.zero_grad()
""", 20),
    "hotloop.step()": ("""
import hotloop
model, optimizer = build()
for _ in range(15): train(model, optimizer, 2); hotloop.step()
""", 15, 2.0),
    "hotloop.step() without an optimizer": ("""
import hotloop
model = torch.nn.Linear(8, 1)
for _ in range(30):
    loss_of(model).backward()
    with torch.no_grad():
        for p in model.parameters(): p.sub_(p.grad, alpha=0.01); p.grad = None
    hotloop.step()
""", 30),
    "hotloop.step() after some updates": ("""
import hotloop
model, optimizer = build()
train(model, optimizer, 7)
for _ in range(15): train(model, optimizer, 2); hotloop.step()
""", 15),
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_doctor_trials_and_techniques_count_the_same_steps(run, shape: str) -> None:  # type: ignore[no-untyped-def]
    source, steps, *microbatches = SHAPES[shape]
    ended = run(THREE_CLOCKS + source + "\nprint(json.dumps([len(clock._records()), ended[-1]]))\n")
    clock, technique = ended.last
    assert {"doctor": ended.clock["steps"], "clock": clock, "technique": technique} == {
        "doctor": steps,
        "clock": steps,
        "technique": steps,
    }
    assert NO_OPTIMIZER not in ended.census.notes  # so fixes are tried
    assert not microbatches or microbatches == [ended.census.microbatches]
    assert ended.clock["boundary"] == ("explicit" if "hotloop" in shape else "optimizer")


def test_trial_times_every_step_of_a_gan_from_its_own_end(run) -> None:  # type: ignore[no-untyped-def]
    ended = run(f"""{THREE_CLOCKS}
critic, generator = build(0), build(1)
ends = []
for number in range(12):
    time.sleep(0.05 if number in (0, 7) else 0)
    losses, before = train(*critic, 5), time.perf_counter()
    losses += train(*generator, 1)
    ends.append((before, time.perf_counter()))
records = clock._records()
print(json.dumps([[r.wall_s for r in records[1:]], ends, [r.step for r in records], records[-1].loss, sum(losses)]))
""")
    seconds, ends, steps, last, losses = ended.last
    assert steps == list(range(12))
    assert seconds[6] >= 0.05
    for took_s, (one, other) in zip(seconds, pairwise(ends), strict=True):
        assert other[0] - one[1] <= took_s <= other[1] - one[0]
    assert last == pytest.approx(losses)
