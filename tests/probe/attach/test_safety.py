from __future__ import annotations

import json
from typing import Any

import pytest

from hotloop.probe.attach.install import FEWEST_STEPS, LATER
from hotloop.probe.attach.step_profiler import FIRST_STEP, STEPS

SCRIPTS = {
    "crashes": ("train(*build(), 15)\nraise ValueError('its own')", 1),
    "exits": ("train(*build(), 15)\nsys.exit(7)", 7),
    "ends at once": ("train(*build(), 15)\nprint('now', flush=True)\nos._exit(5)", 5),
    "changes directory": ("train(*build(), 8)\nos.chdir('/')\ntrain(*build(), 8)", 0),
    "loses its directory": ("train(*build(), 8)\nos.remove('train.py'); os.rmdir(os.getcwd())\ntrain(*build(), 8)", 0),
    "closes stdout": ("train(*build(), 8)\nsys.stdout.close(); sys.stderr.close()\ntrain(*build(), 8)", 0),
    "closes every descriptor": (
        "train(*build(), 8)\ntime.sleep(1.2)\nos.closerange(3, 64)\nopen('own', 'w').write('own')\n"
        "held = open('own', 'r+')\ntime.sleep(1.2)\ntrain(*build(), 8)\ntime.sleep(1.2)\n"
        "print(open('own').read())", 0),
    "catches everything": (
        "try:\n    train(*build(), 15)\n    raise KeyboardInterrupt\nexcept BaseException as error: print(repr(error))", 0),
    "own excepthook": ("sys.excepthook = lambda *a: print('hook', a[0].__name__)\ntrain(*build(), 15)\n1/0", 1),
    "own signal handler": (
        "import signal\nsignal.signal(signal.SIGTERM, lambda *a: print('asked to end'))\ntrain(*build(), 15)\n"
        "os.kill(os.getpid(), signal.SIGTERM)", 0),
    "terminated": ("import signal\ntrain(*build(), 15)\ntime.sleep(1.5)\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(9)", -15),
    "forks once": (
        "model, optimizer = build()\ntrain(model, optimizer, 8)\nchild = os.fork()\n"
        "if not child:\n    train(model, optimizer, 20)\n    sys.exit(3)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\ntrain(model, optimizer, 7)", 0),
    "trains in a fork": (
        "child = os.fork()\nif not child:\n    train(*build(), 15)\n    sys.exit(3)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))", 0),
    "trains on a thread": (
        "import threading\nthread = threading.Thread(target=lambda: print(train(*build(), 15)))\nthread.start(); thread.join()", 0),
    "profiles itself": (
        "model, optimizer = build()\ntrain(model, optimizer, 41)\n"
        "with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as p: train(model, optimizer, 3)\n"
        "print(sum(e.count for e in p.key_averages() if e.key == 'aten::addmm'))", 0),
    "warns": ("import warnings\ntrain(*build(), 15)\nwarnings.warn('its own')", 0),
    "prints what print is": (
        "import pickle, copy\nassert pickle.loads(pickle.dumps(print)) is print\nprint('a', 'b', sep='-', end='!\\n')\n"
        "assert copy.deepcopy(torch.nn.Linear(1, 1)) is not None\ntrain(*build(), 15)", 0),
    "scripts a model": (
        "class M(torch.nn.Module):\n    def forward(self, x):\n        print('inside')\n        return x * 2\n"
        "m = torch.jit.script(M())\nm(torch.ones(1))\ntraced = torch.fx.symbolic_trace(build()[0])\nprint(traced.code)\ntrain(*build(), 15)", 0),
    "saves its state": (
        "model, optimizer = build()\ntrain(model, optimizer, 15)\nimport io, hashlib\nb = io.BytesIO()\n"
        "torch.save({'m': model.state_dict(), 'o': optimizer.state_dict(), 'opt': optimizer, 'model': model}, b)\n"
        "print(hashlib.sha256(b.getvalue()).hexdigest())", 0),
}  # fmt: skip


def own(err: str, work: str) -> str:
    """Without what the profiler's library says: it is asked to be silent before the script profiles."""
    lines = [line for line in err.replace(work, "").splitlines() if not line.startswith("USDT:")]
    return "\n".join(lines)


@pytest.mark.at_once(3)
@pytest.mark.parametrize("name", SCRIPTS)
def test_script_does_what_it_does_without_the_probe(run, name: str) -> None:  # type: ignore[no-untyped-def]
    source, code = SCRIPTS[name]
    source = (
        f"losses = train(*build(3), 1)\nprint(losses)\n{source}"
        if not {"forks", "fork", "thread"} & set(name.split())
        else source
    )
    ended, plain = run(source, code=code), run(source, code=code, watched=False)
    assert ended.out == plain.out
    work = str(ended.directory.parent)
    assert own(ended.err, work).replace("work-0", "work-1") == own(plain.err, work)
    assert "failed" not in ended.notes
    assert "not seen" not in ended.notes
    if name == "ends at once":
        return  # within the first second: nothing was flushed
    expected = 8 + 7 if name == "forks once" else 15
    assert len(ended.steps) >= expected, ended.notes


def test_losses_are_bit_identical_with_random_layers_and_workers(run) -> None:  # type: ignore[no-untyped-def]
    source = """
import random
class Data(torch.utils.data.Dataset):
    def __len__(self): return 48
    def __getitem__(self, index): return torch.rand(8) + random.random()
torch.manual_seed(0); random.seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.5), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
losses = []
for workers in (0, 2):
    for epoch in range(4):
        loader = torch.utils.data.DataLoader(Data(), batch_size=4, shuffle=True, num_workers=workers)
        for x in loader:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward(); optimizer.step(); losses.append(loss.item())
print(json.dumps([losses, random.random(), torch.rand(1).item()]))
"""
    watched, plain = run(source), run(source, watched=False)
    assert watched.out == plain.out
    assert [record.loss for record in watched.steps] == watched.last[0]


def test_nothing_but_torch_and_the_standard_library_is_imported(run) -> None:  # type: ignore[no-untyped-def]
    source = """
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("pydantic", "scipy", "yaml", "click", "rich", "psutil", "platformdirs"):
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Refuse())
train(*build(), 60)
print(json.dumps(sorted(m for m in sys.modules if m.startswith("hotloop"))))
"""
    ended = run(source)
    allowed = {
        "hotloop",
        "hotloop.core",
        "hotloop.core.census",
        "hotloop.core.child",
        "hotloop.core.connections",
        "hotloop.core.errors",
        "hotloop.core.memory_use",
        "hotloop.core.step",
        "hotloop.core.untrusted",
        "hotloop.hardware",
        "hotloop.hardware.limits",
    }
    assert all(name in allowed or name.startswith("hotloop.probe") for name in ended.last)
    assert len(ended.steps) == 60
    assert ended.notes == ""
    assert ended.census.operators


def test_process_that_never_steps_starts_no_thread_and_says_what_it_saw(run) -> None:  # type: ignore[no-untyped-def]
    ended = run("""
import threading
model, optimizer = build()
for _ in range(3): loss_of(model).backward()
print(threading.active_count())
""")
    assert ended.last == 1
    (of_memory,) = ended.directory.glob("memory-*.json")
    assert json.loads(of_memory.read_text())["owners"]["weights"] > 0
    names = [path.name for path in ended.directory.iterdir() if path != of_memory]
    assert len(names) == 1
    assert names[0].startswith("idle-")


@pytest.mark.parametrize("seconds", [0.0, 0.4])
def test_run_that_is_to_end_after_so_many_seconds_of_steps_makes_a_few_all_the_same(
    run: Any, seconds: float
) -> None:
    source = "train(*build(), 10**9)\nprint('never')"
    ended = run(source, env={"HOTLOOP_DOCTOR_STOP": f"{seconds}s"})
    assert ended.out == ""
    took_s = [record.wall_s for record in ended.counted]
    assert len(took_s) >= FEWEST_STEPS
    assert sum(took_s) >= seconds
    # On a slow machine it is the profile that is waited for.
    assert sum(took_s[:-1]) < seconds or ended.steps[-1].step <= FIRST_STEP + STEPS + LATER
    assert ended.clock["stopped"]
    assert ended.census.operators


def test_run_that_is_to_end_after_so_many_steps_ends_after_its_profile(run) -> None:  # type: ignore[no-untyped-def]
    ended = run("train(*build(), 10**9)\nprint('never')", env={"HOTLOOP_DOCTOR_STOP": "20"})
    assert ended.out == ""
    assert len(ended.counted) == 20
    assert [record.step for record in ended.steps if "profiled" in record.tags] == [30, 31, 32]
    assert ended.clock["stopped"]
    assert ended.clock["finished"]
    assert ended.census.operators


def test_what_was_flushed_stays_when_the_process_is_killed(run) -> None:  # type: ignore[no-untyped-def]
    ended = run(
        "import signal\nfile = os.path.join(os.environ['HOTLOOP_DOCTOR'], 'steps-0.jsonl')\ntrain(*build(), 50)\n"
        "while not os.path.exists(file) or open(file).read().count('\\n') < 50: time.sleep(0.02)\n"
        "os.kill(os.getpid(), signal.SIGKILL)",
        code=-9,
    )
    assert len(ended.steps) == 50
    assert not ended.clock["finished"]


def test_failure_of_the_probe_is_noted_and_the_script_goes_on(run) -> None:  # type: ignore[no-untyped-def]
    ended = run("""
from hotloop.probe.attach.watch import Watch
Watch._tag_unlike = lambda self: 1 / 0
print(len(train(*build(), 20)))
""")
    assert ended.last == 20
    assert "ZeroDivisionError" in ended.notes


def test_two_probes_share_each_entry_point(run, tmp_path) -> None:  # type: ignore[no-untyped-def]
    clock = tmp_path / "clock"
    clock.mkdir()
    ended = run("train(*build(), 20)", env={"HOTLOOP_STEP_CLOCK": str(clock)})
    assert len(ended.steps) == 20
    assert (clock / "steps-0.jsonl").read_text().count("\n") == 20


def test_cost_is_known_and_small(run) -> None:  # type: ignore[no-untyped-def]
    """On steps of 10 ms: calls times the measured cost of a call.

    They compute so long, and longer where a call takes longer, too; but other programs may run while a call is
    measured, and not in the steps: the least of three processes counts.
    """
    fractions = []
    while not fractions or (min(fractions) >= 0.05 and len(fractions) < 3):
        ended = run("""
model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(50)))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(240, 8)), batch_size=4)
for (x,) in loader:
    optimizer.zero_grad(); model(x).square().mean().backward(); optimizer.step()
    sum(range(800_000))
""")
        read_s = ended.census.clock_read_s
        assert read_s is not None
        assert read_s > 0
        steps = [record for record in ended.counted if not record.tags]
        fractions.append(read_s * sum(r.clock_reads for r in steps) / sum(r.wall_s for r in steps))
    assert 0 < min(fractions) < 0.05


def test_the_training_thread_is_seldom_asked_for_its_cpu_time(run) -> None:  # type: ignore[no-untyped-def]
    """At a system call a busy machine takes the CPU away, and that time goes to the phase that is open."""
    ended = run("""
import threading
asked, thread, thread_time = [], threading.get_ident(), time.thread_time
def counted():
    if threading.get_ident() == thread: asked.append(1)
    return thread_time()
time.thread_time = counted
model, optimizer = build()
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(240, 8)), batch_size=4)
def closure():
    optimizer.zero_grad(); loss = model(x).square().mean(); loss.backward(); return loss
for number, (x,) in enumerate(loader):
    if number == 1: asked.clear()  # of what a look at the clock costs, measured once
    optimizer.step(closure)
print(len(asked))
""")
    assert len(ended.steps) == 60
    assert int(ended.out) <= 2 * len(ended.steps) / 4


def test_who_asks_whether_torch_is_there_before_importing_it_is_watched(run) -> None:  # type: ignore[no-untyped-def]
    ended = run(
        """
import importlib.util, os, sys
os.mkdir("tensorboardX"); open("tensorboardX/__init__.py", "w").close()
with open("tensorboardX/writer.py", "w") as file:
    file.write("import time\\nclass SummaryWriter:\\n    def add_scalar(self): time.sleep(0.001)\\n")
sys.path.insert(0, os.getcwd())
for _ in range(2): assert importlib.util.find_spec("torch")
import torch
for _ in range(2): assert importlib.util.find_spec("tensorboardX.writer")
from tensorboardX.writer import SummaryWriter
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(20):
    model(torch.ones(4, 8)).square().mean().backward(); optimizer.step()
    SummaryWriter().add_scalar()
""",
        model="",
    )
    assert len(ended.steps) == 20
    assert [use.what for use in ended.census.logs] == ["SummaryWriter.add_scalar"]


WITHOUT_NUMPY = """
sys.modules["numpy"] = None
data = [torch.ones(8) for _ in range(32)]
model, optimizer = build()
for batch in torch.utils.data.DataLoader(data, batch_size=2):
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
"""
BUILTINS = """
import pickle
class Printing:
    log = print
    move = os.replace
Printing().log("as an attribute of a class")
open("a", "w").close()
Printing().move("a", "b")
print(os.rename in os.supports_dir_fd, os.path.exists("b"), print.__name__, pickle.loads(pickle.dumps(print)) is print)
train(*build(), 15)
"""
DEEP = """
class Nest(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
    def forward(self, x): return self.inner(x)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(235): model = Nest(model)
for _ in range(15):
    optimizer.zero_grad()
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
"""
ON_A_THREAD = """
import threading
thread = threading.Thread(target=lambda: train(*build(), 43))
thread.start()
thread.join()
print("ended")
"""


@pytest.mark.at_once(2)
@pytest.mark.parametrize("code", [WITHOUT_NUMPY, BUILTINS, DEEP, ON_A_THREAD])
def test_script_that_relies_on_what_a_hook_could_change(run, code: str) -> None:  # type: ignore[no-untyped-def]
    ended, plain = run(code), run(code, watched=False)
    assert (ended.returncode, ended.out) == (0, plain.out)
    assert plain.returncode == 0
    assert len(ended.steps) >= 15


def test_an_update_that_raised_does_not_stay_open(run) -> None:  # type: ignore[no-untyped-def]
    ended = run("""
model, optimizer = build()
other = torch.optim.LBFGS(model.parameters())
def fails(): raise ValueError
for step in range(40):
    if step == 5:
        try:
            other.step(fails)
        except ValueError:
            pass
    train(model, optimizer, 1)
    time.sleep(0.01)
""")
    sleeping = sum(record.host["unattributed"] for record in ended.counted)
    assert sleeping > 0.2
    assert sum(record.host["optimizer"] for record in ended.counted) < sleeping


def test_the_optimizer_is_named_with_its_place_and_whose_it_is(run) -> None:  # type: ignore[no-untyped-def]
    ended = run("""
class AdamW(torch.optim.SGD): pass
model, _ = build()
optimizer = AdamW(model.parameters(), lr=0.1)
train(model, optimizer, 20)
""")
    assert ended.census.optimizer == "__main__.AdamW"
    assert ended.census.optimizer_site.startswith("train.py:")
