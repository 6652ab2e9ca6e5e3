from __future__ import annotations

import math
from pathlib import Path
from statistics import median

import pytest

PHASES = (
    "data_wait", "forward", "backward", "optimizer", "logging", "eval", "checkpoint", "unattributed",
)  # fmt: skip


@pytest.mark.parametrize("where", PHASES)
def test_planted_delay_lands_in_its_phase(run, where: str) -> None:  # type: ignore[no-untyped-def]
    delay = 0.02
    script = Path(__file__).with_name("planted_delays.py").read_text()
    ended = run(script, model="", env={"DELAY": str(delay), "WHERE": where})
    steps = [record for record in ended.counted if record.host]
    assert len(steps) == 7, ended.notes
    for phase in PHASES:
        seconds = median(record.host.get(phase, 0.0) for record in steps)
        if phase == where:
            assert delay <= seconds < delay + 0.02
        else:
            assert seconds < 0.012, phase
    missing = [record.wall_s - math.fsum(record.host.values()) for record in steps]
    assert min(missing) > -1e-4
    # Wall time is of a second clock: between the reads of the two a busy machine may take the CPU away.
    assert median(missing) < 1e-4


def test_line_outside_every_phase_is_named(run) -> None:  # type: ignore[no-untyped-def]
    ended = run("""
model, optimizer = build()
def prepare():
    time.sleep(0.04)
for _ in range(30):
    train(model, optimizer, 1)
    prepare()
""")
    first = ended.census.lines[0]
    number = 1 + (ended.directory.parent / "work-0" / "train.py").read_text().splitlines().index(
        "    time.sleep(0.04)"
    )
    assert (first.phase, first.site, first.function) == (
        "unattributed",
        f"train.py:{number}",
        "prepare",
    )
    assert first.fraction > 0.5
    assert sum(line.fraction for line in ended.census.lines) <= 1 + 1e-9


def test_lbfgs_closure_runs_forward_and_backward_inside_the_update(run) -> None:  # type: ignore[no-untyped-def]
    ended = run("""
model, _ = build()
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=4)
def closure():
    optimizer.zero_grad()
    loss = loss_of(model)
    time.sleep(0.005)
    loss.backward()
    return loss
for _ in range(15): optimizer.step(closure)
""")
    assert len(ended.steps) == 15
    for record in ended.counted:
        assert record.host["optimizer"] > 0.005  # the closure's own time: none of its phases
        assert record.host["forward"] > 0
        assert record.host["backward"] > 0
    assert ended.census.microbatches is not None
    assert ended.census.microbatches > 1


def test_evaluation_between_steps_is_one_event_with_its_place(run) -> None:  # type: ignore[no-untyped-def]
    ended = run("""
model, optimizer = build()
for step in range(36):
    train(model, optimizer, 1)
    if step % 12 == 11:
        model.eval()
        for _ in range(5):
            with torch.no_grad(): model(torch.ones(4, 8))
            time.sleep(0.004)
        model.train()
train(model, optimizer, 2)
""")
    tagged = [record.step for record in ended.steps if "eval" in record.tags]
    assert tagged == [12, 24, 36]
    (use,) = ended.census.evaluations
    assert use.num == 3
    assert use.site is not None
    assert use.site.startswith("train.py:")
    assert use.seconds > 3 * 4 * 0.004
    # Between two passes without gradients lies evaluation; after the last one, nobody knows.
    assert all(r.host["eval"] > 4 * 0.004 for r in ended.steps if "eval" in r.tags)


def test_pass_without_gradients_in_every_step_sets_no_step_apart_and_is_a_forward(run) -> None:  # type: ignore[no-untyped-def]
    ended = run("""
model, optimizer = build()
teacher, _ = build()
teacher.eval()
for step in range(30):
    with torch.no_grad(): teacher(torch.ones(4, 8))
    train(model, optimizer, 1)
""")
    assert sum("eval" in record.tags for record in ended.counted) == 0
    assert not any(record.host.get("eval") for record in ended.counted)


def test_frozen_module_that_gradients_pass_through_does_not_evaluate(run) -> None:  # type: ignore[no-untyped-def]
    ended = run("""
model, optimizer = build()
perceives = torch.nn.Linear(1, 4).eval().requires_grad_(False)
for step in range(30):
    with torch.no_grad(): wanted = perceives(torch.ones(4, 1))
    loss = (perceives(model(torch.ones(4, 8))) - wanted).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
""")
    assert not any(record.host.get("eval") for record in ended.counted)
    assert ended.census.evaluations == ()


def test_what_a_script_does_between_two_passes_of_a_teacher_is_its_own(run) -> None:  # type: ignore[no-untyped-def]
    ended = run("""
model, optimizer = build()
teacher, _ = build()
teacher.eval()
def augment(): time.sleep(0.02)
for step in range(40):
    with torch.no_grad():
        teacher(torch.ones(4, 8))
        augment()
        teacher(torch.ones(4, 8))
    train(model, optimizer, 1)
""")
    assert not any(record.host.get("eval") for record in ended.counted)
    assert all(record.host["unattributed"] >= 0.02 for record in ended.counted)
    lines = [line for line in ended.census.lines if line.function == "augment"]
    own = sum(line.fraction for line in lines if line.phase == "unattributed")
    # A sample that has to wait between reading the line and the phase gets that of a moment later.
    assert own > 0.7 * sum(line.fraction for line in lines)


def test_module_that_trains_inside_another_evaluates_in_every_step(run) -> None:  # type: ignore[no-untyped-def]
    ended = run("""
class Wrapper(torch.nn.Module):
    def __init__(self, module): super().__init__(); self.module = module
    def forward(self, x): return self.module(x)
model, optimizer = build()
wrapper, valid = Wrapper(model), torch.ones(4, 8)
for step in range(30):
    train(wrapper, optimizer, 1)
    model.eval()
    with torch.no_grad():
        for _ in range(3): model(valid); time.sleep(0.004)
    model.train()
train(wrapper, optimizer, 1)
""")
    assert all(record.host["eval"] > 2 * 0.004 for record in ended.counted)
    (use,) = ended.census.evaluations
    assert use.num == len(ended.counted)


def test_beside_a_teacher_an_evaluation_is_told_apart(run) -> None:  # type: ignore[no-untyped-def]
    ended = run("""
class Slow(torch.nn.Linear):
    def forward(self, x): time.sleep(0.004); return super().forward(x)
model, optimizer = build()
teacher, valid = Slow(8, 1).eval(), torch.ones(4, 8)
for step in range(40):
    if step % 10 == 9:
        model.eval()
        with torch.no_grad():
            for _ in range(20): model(valid); time.sleep(0.004)
        model.train()
    with torch.no_grad(): wanted = teacher(valid)
    train(model, optimizer, 1)
""")
    tagged = [record.step for record in ended.counted if "eval" in record.tags]
    assert tagged == [19, 29, 39]
    for record in ended.counted:
        if record.step in tagged:
            assert record.host["eval"] > 0.08
        else:
            assert not record.host.get("eval")
            assert record.host["forward"] > 0.004
    (use,) = ended.census.evaluations
    assert use.num == 3


def test_agent_that_plays_between_updates_does_not_evaluate(run) -> None:  # type: ignore[no-untyped-def]
    ended = run("""
agent, optimizer = build()
def play():
    for _ in range(5):
        with torch.no_grad(): agent(torch.ones(4, 8))
        time.sleep(0.004)
for _ in range(10):
    play()
    train(agent, optimizer, 3)
""")
    assert ended.census.evaluations == ()
    assert not any("eval" in record.tags or "eval" in record.host for record in ended.steps)
    after_play = [record for record in ended.counted if record.step % 3 == 0]
    assert after_play
    assert all(record.host["unattributed"] > 0.02 for record in after_play)


def test_batches_of_a_loader_without_gradients_evaluate_in_any_mode(run) -> None:  # type: ignore[no-untyped-def]
    ended = run("""
model, optimizer = build()
loader = torch.utils.data.DataLoader(torch.ones(16, 8), batch_size=4)
for step in range(40):
    train(model, optimizer, 1)
    if step % 10 == 9:
        with torch.no_grad():
            for x in loader: model(x); time.sleep(0.004)
train(model, optimizer, 1)
""")
    assert [record.step for record in ended.steps if "eval" in record.tags] == [10, 20, 30, 40]
    assert all(r.host["eval"] > 3 * 0.004 for r in ended.steps if "eval" in r.tags)


def test_what_makes_a_save_last_belongs_to_it_and_nothing_else_does(run) -> None:  # type: ignore[no-untyped-def]
    ended = run("""
from pathlib import Path
model, optimizer = build()
def save():
    torch.save({}, "new.pt")
    with open("new.pt", "rb+") as file:
        os.fsync(file.fileno())
    Path("new.pt").replace("last.pt")
def elsewhere():
    Path("a").touch()
    os.rename("a", "b")
for _ in range(20):
    train(model, optimizer, 1)
    save()
    elsewhere()
""")
    assert {use.what for use in ended.census.saves} == {"torch.save", "os.fsync", "os.replace"}
    assert {use.num for use in ended.census.saves} == {10}


def test_a_pass_that_raises_while_it_evaluates_is_an_evaluation_of_its_length(run) -> None:  # type: ignore[no-untyped-def]
    ended = run("""
class Fails(torch.nn.Module):
    def forward(self, x): time.sleep(0.004); raise ValueError("too long")
model, optimizer = build()
fails = Fails().eval()
for step in range(36):
    train(model, optimizer, 1)
    if step % 8 == 7:
        with torch.no_grad():
            try: fails(torch.ones(4, 8))
            except ValueError: pass
""")
    (use,) = ended.census.evaluations
    assert use.num == 3
    assert 3 * 0.004 <= use.seconds < 3
