"""`hotloop.watch`, in processes of their own: it hooks torch, and must leave nothing behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import hotloop
import warm_python
from hotloop.cli.main import run
from hotloop.core.census import Census
from hotloop.core.child import DOCTOR
from hotloop.core.errors import UsageError
from hotloop.core.files import read_json
from hotloop.core.measurement import Measurement
from hotloop.doctor.starting_point import start_of
from hotloop.judge.attribute import under_way
from hotloop.judge.judged_run import judged_run

SOURCE = Path(__file__).parents[2] / "src"
LOOP = """
import json, sys, time
import torch
import hotloop

def train(steps, sleep_s=0.0):
    torch.manual_seed(0)
    model = torch.nn.Linear(32, 8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(steps):
        time.sleep(sleep_s)
        loss = model(torch.randn(16, 32)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()

"""


ENTRIES = """
def entries():
    from torch.utils.data import DataLoader
    import os, queue, socket, warnings
    return [vars(torch.distributed.ProcessGroup)["allreduce"], torch.nn.Module.__call__, torch.Tensor.backward, torch.Tensor.item, torch.save, torch.autograd.backward,
            DataLoader.__init__, torch.optim.Optimizer.__init__, os.kill, os._exit, os.abort, sys.excepthook, warnings.showwarning,
            socket.socket.connect, open, print, sys.meta_path[:], hotloop._step_ended,
            queue.SimpleQueue, {*os.supports_dir_fd}, {*os.supports_fd}]
def changed(before):
    return [n for n, (a, b) in enumerate(zip(before, entries())) if a is not b and a != b]
before = entries()
"""
"""What a watch hooks, and which of that is another than it was."""


def ran(body: str, directory: Path, **env: str) -> subprocess.CompletedProcess[str]:
    (directory / "loop.py").write_text(LOOP + body)
    return warm_python.run(
        ["loop.py"], cwd=directory, env={**os.environ, "PYTHONPATH": str(SOURCE), **env}
    )


def said(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_block_is_examined_as_by_the_doctor_again_and_again_and_torch_is_left_as_it_was(
    tmp_path: Path,
) -> None:
    body = """
with hotloop.watch() as seen:
    train(60, 0.01)
with hotloop.watch(steps=20, show=False) as again:
    watched = train(90)
same = changed(before)
seen.save("seen.html")
torch.distributed.init_process_group("gloo", init_method=f"file://{seen.directory}/store", rank=0, world_size=1)
summed = torch.ones(2)
torch.distributed.all_reduce(summed)
torch.distributed.destroy_process_group()
print(json.dumps({
    "same": same, "losses": [watched, train(90)], "shown": str(seen), "summed": summed.tolist(),
    "breakdown": seen.diagnosis.breakdown, "counted": again.diagnosis.steps.measured,
    "object": list(seen.to_dict()), "html": seen._repr_html_()[:60],
}))
"""
    done = ran(ENTRIES + body, tmp_path)
    found = said(done)
    assert found["same"] == []
    assert found["summed"] == [1, 1]
    assert found["losses"][0] == found["losses"][1]
    assert sum(found["breakdown"].values()) == pytest.approx(1, abs=0.01)
    # The loop sleeps outside of everything that has a phase.
    assert found["breakdown"]["unattributed"] > 0.5
    assert 0 < found["counted"] < 40  # of 90 steps
    assert found["shown"] in done.stderr
    assert "watching took" in done.stderr
    assert "diagnosis" in found["object"]
    assert "<iframe srcdoc=" in found["html"]
    page = (tmp_path / "seen.html").read_text()
    title = page.partition("</title>")[0].rpartition("<title>")[2]
    assert title.startswith("hotloop: watch, ")
    assert "loop.py" in title
    assert "at the end of the block after" in page
    assert "Seen by <code>hotloop.watch</code>" in page
    assert [each.name for each in tmp_path.iterdir() if each.is_dir()] == []


def test_while_a_block_trains_only_what_it_needs_is_written_and_its_profile_is_summed_at_the_end(
    tmp_path: Path,
) -> None:
    body = """
from pathlib import Path
with hotloop.watch(out="kept") as seen:
    train(60, 0.02)
    written = [each.name for each in Path("kept").iterdir()]
print(json.dumps([written, json.loads(Path("kept/census-0.json").read_text())["seen"], str(seen), seen.cost]))
"""
    written, looked, shown, cost = said(ran(body, tmp_path))
    assert "steps-0.jsonl" in written
    assert not {"census-0.json", "imports.json"} & {*written}
    assert "operators" in looked
    assert "1 step under torch's profiler" in shown
    last = shown.splitlines()[-1]
    assert re.match(
        r"watching took [\d.]+ % of the steps' time, and \d\.\d s before and after the steps",
        last,
    )
    assert 0 < cost < 0.5


@pytest.mark.parametrize(
    ("cost", "less", "enough", "says"),
    [
        (0.0151, True, False, "1.5 % of the steps' time, and 0.7 s before and after the steps"),
        (0.0312, True, False, "3.1 % of the steps' time, and 0.7 s before and after the steps; of a longer loop it takes less than 2 %"),
        (0.0312, True, True, "3.1 % of the steps' time, and 0.7 s before and after the steps; with more `steps` it takes less than 2 %"),
        (0.0312, False, False, "3.1 % of the steps' time, and 0.7 s before and after the steps"),
        (None, True, False, "0.7 s before and after the steps"),
    ],
)  # fmt: skip
def test_what_watching_took_is_told_with_its_start_and_end_and_whether_the_loop_was_too_short(
    cost: float | None, less: bool, enough: bool, says: str
) -> None:
    took = SimpleNamespace(share=cost, can_be_less=less, beside_share=0.01)
    seen = hotloop.watch()
    seen._took, seen._beside_s, seen.is_enough = took, 0.66, enough  # type: ignore[assignment]
    assert seen._what_it_took() == f"watching took {says}"


LEAVES_OUT = """
import hotloop.probe.attach.install as attached
attach = attached.install
# As where looking costs far too much: what it costs here is a matter of the machine.
attached.install = lambda *args, **given: attach(*args, **given | {"most_cost": 1e-5})
"""


def test_steps_are_left_out_where_watching_costs_and_the_shares_stay_true(tmp_path: Path) -> None:
    """Made before the block, an optimizer's steps are steps all the same."""
    body = """
import logging
class Slow(logging.Handler):
    def emit(self, record):
        start = time.perf_counter()
        time.sleep(0.001)
        # What comes before is no handler's: who called, and the record.
        logged_s[number + 1] = time.perf_counter() - start

logger = logging.getLogger("slow")
logger.addHandler(Slow())
logger.propagate = False
model = torch.nn.Linear(32, 8)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
logged_s, ends = {}, [time.perf_counter()]
with hotloop.watch(steps=60, out="kept") as seen:
    for number in range(2000):
        if seen.is_enough:
            break
        optimizer.zero_grad()
        model(torch.randn(16, 32)).square().mean().backward()
        optimizer.step()
        ends.append(time.perf_counter())
        if number % 2:  # whoever looked at every second step would see it always, or never
            logger.warning("so far")
        else:
            time.sleep(0.001)
found = seen.diagnosis
print(json.dumps({
    "made": number, "ends": ends, "logged_s": logged_s, "logging": found.breakdown["logging"], "steps": [found.steps.measured, found.steps.left_out, found.steps.made],
    "shown": str(seen), "object": seen.to_dict()["diagnosis"]["steps"],
}))
"""
    found = said(ran(LEAVES_OUT + body, tmp_path))
    measurement = read_json(tmp_path / "kept/measurement.json", Measurement)
    num_left_out = sum(each.left_out or 0 for each in measurement.records)
    assert found["made"] == found["steps"][2] == len(measurement.records) + num_left_out
    counted = [each for each in measurement.records if not {"warmup", "profiled"} & set(each.tags)]
    assert num_left_out > 2 * len(counted) == 120
    logged_s = {int(step): seconds for step, seconds in found["logged_s"].items()}
    assert 20 < sum(each.step in logged_s for each in counted) < 40
    # By the script's own clock, of the steps that the shares are of.
    judged = under_way(judged_run(measurement).measurement.records)
    wall_s = sum(each.wall_s for each in judged)
    assert found["logging"] == pytest.approx(
        sum(logged_s.get(each.step, 0) for each in judged) / wall_s, abs=0.05
    )
    passed_s = [after - before for before, after in pairwise(found["ends"])]
    # Those before it that were left out are not in it.
    assert wall_s < 1.5 * sum(passed_s[each.step] for each in judged)
    measured, left_out, made = found["steps"]
    assert f"{measured:,} of {made:,} steps, after" in found["shown"]
    assert f"{left_out:,} of the {made:,} steps: drawn at random and left out" in found["shown"]
    assert "were taken for steps" not in found["shown"]
    assert found["object"]["left_out"] == left_out


def test_a_loop_of_50_steps_of_which_some_are_left_out_has_its_profile(tmp_path: Path) -> None:
    body = """
with hotloop.watch(show=False, out="kept") as seen:
    train(50)
print(seen.diagnosis.steps.left_out)
"""
    left_out = said(ran(LEAVES_OUT + body, tmp_path))
    steps = map(json.loads, (tmp_path / "kept/steps-0.jsonl").read_text().splitlines())
    profiled = [each["step"] for each in steps if "profiled" in each.get("tags", ())]
    # One that takes long is enough.
    assert profiled == [41, 42, 43][: len(profiled) or 1]
    assert 0 < left_out < 20


def test_ctrl_c_in_the_block_is_the_callers_and_the_steps_before_it_are_told(
    tmp_path: Path,
) -> None:
    body = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
left = 60
def stop(module, inputs):
    global left
    left -= 1
    if not left:
        signal.raise_signal(signal.SIGINT)
torch.nn.modules.module.register_module_forward_pre_hook(stop)
try:
    with hotloop.watch() as seen:
        train(1000, 0.01)
except KeyboardInterrupt:
    steps = seen.diagnosis.steps
    print(json.dumps([changed(before), str(seen), seen.to_dict()["doctor"]["ended"], steps.made]))
with hotloop.watch(show=False):  # of the first one nothing is in the way
    pass
print(json.dumps("went on"))
"""
    done = ran(ENTRIES + body, tmp_path)
    assert said(done) == "went on"
    same, shown, ended, steps = json.loads(done.stdout.splitlines()[-2])
    assert same == []
    assert ended == "interrupted"
    assert 40 < steps <= 60
    assert "; it was interrupted." in shown.splitlines()[0]
    assert shown in done.stderr
    assert "watching took" in done.stderr


def test_an_error_in_the_block_is_the_callers_and_what_was_seen_stays(tmp_path: Path) -> None:
    body = """
import traceback
class Broken(torch.nn.Module):
    def forward(self, x):
        raise KeyError("mine")
try:
    with hotloop.watch(show=False, out="kept") as seen:
        train(8)
        Broken()(1)
except KeyError as error:
    print(json.dumps([str(error), seen.to_dict()["doctor"]["ended"], str(seen), traceback.format_exc()]))
"""
    error, ended, shown, trace = said(ran(body, tmp_path))
    assert (error, ended) == ("'mine'", "failed")
    assert "loop.py" in trace
    assert f"hotloop{os.sep}probe" not in trace
    assert (
        "8 steps of warm-up were seen; it takes 50 steps in all, or more: the block ended with an error."
        in shown
    )
    assert (tmp_path / "kept" / "diagnosis.json").is_file()
    again = ran(body, tmp_path)  # what is kept is not written over
    assert again.returncode != 0
    assert "kept" in again.stderr


@pytest.mark.parametrize(
    ("ending", "earlier"),
    [("MemoryError('mine')", None), ("KeyError('mine')", "MemoryError('older')")],
)
def test_memory_that_was_refused_is_told_of_the_block_that_it_ended_and_of_no_other(
    tmp_path: Path, ending: str, earlier: str | None
) -> None:
    body = f"""
sys.last_value = {earlier}  # as a notebook keeps the error of an earlier cell
try:
    with hotloop.watch(show=False, out="kept") as seen:
        train(12)
        raise {ending}
except Exception:
    pass
print(json.dumps([seen.to_dict()["out_of_memory"], seen.to_dict()["memory"]["peak_bytes"]]))
later = torch.ones(100_000_000)
sys.last_value = MemoryError("later")
"""
    told, peak = said(ran(body, tmp_path))
    assert (told is not None) == ending.startswith("MemoryError")
    if told is not None:
        assert "mine" in json.dumps(told)
    kept = hotloop.load_run(tmp_path / "kept").to_dict()
    assert (kept["out_of_memory"], kept["memory"]["peak_bytes"]) == (told, peak)


def test_ctrl_c_before_the_block_begins_leaves_torch_as_it_was(tmp_path: Path) -> None:
    body = """
import hotloop.probe.attach.install as attached
attach = attached.install
def interrupted(*args, **given):
    attach(*args, **given)
    raise KeyboardInterrupt
attached.install = interrupted
try:
    with hotloop.watch():
        pass
except KeyboardInterrupt:
    print(json.dumps(changed(before)))
"""
    assert said(ran(ENTRIES + body, tmp_path)) == []


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("with hotloop.watch(), hotloop.watch(): pass", "hotloop.watch inside hotloop.watch"),
        ("hotloop.watch(steps=0)", "steps=0 is no number of steps"),
        ("with hotloop.watch() as seen: print(seen.findings)", "the block has not ended"),
    ],
)
def test_what_it_cannot_do_is_one_clear_error(tmp_path: Path, body: str, what: str) -> None:
    done = ran(body, tmp_path)
    assert done.returncode != 0
    assert f"UsageError: {what}" in done.stderr or what in done.stderr.splitlines()[-2]
    assert "No step was recorded" not in done.stderr  # no report beside it


def test_so_many_steps_are_needed_is_one_rule(tmp_path: Path) -> None:
    body = """
with hotloop.watch(steps=29, show=False):
    pass
with hotloop.watch(steps=1000, show=False) as seen:
    train(46, 0.005)
with hotloop.watch(steps=1000, show=False) as shorter:
    train(35, 0.01)
print(json.dumps([[str(each), each.diagnosis.steps.measured, each.diagnosis.steps.enough] for each in (seen, shorter)]))
"""
    done = ran(body, tmp_path)
    for (shown, measured, enough), made in zip(said(done), (46, 35), strict=True):
        assert f"before the 1,000 steps that were asked for: {measured} were counted" in shown
        assert made < enough < 300  # a second of them is needed, and they take no 30 ms
        assert f"about {enough} steps in all would do" in shown
        profiled = "no profile: torch's profiler is at work from step 41 on, and 35 were made"
        assert (profiled in shown) is (made == 35)
        assert ("no profile" in shown) is (made == 35)
    assert (
        "steps=29 is too few to say what would help: give 30 or more, in a loop of 50 or more"
        in done.stderr
    )
    assert "steps=1000" not in done.stderr


def test_what_was_compiled_before_the_block_is_not_taken_for_what_runs_in_it(
    tmp_path: Path,
) -> None:
    body = """
def loop(model, steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.ones(16, 32)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

before = torch.compile(torch.nn.Linear(32, 8), backend="eager")
loop(before, 3)
with hotloop.watch(show=False, out="eager"): loop(torch.nn.Linear(32, 8), 50)
with hotloop.watch(show=False, out="short"): loop(torch.nn.Linear(32, 8), 20)
with hotloop.watch(show=False, out="compiled"): loop(before, 50)
print(json.dumps(None))
"""
    assert said(ran(body, tmp_path)) is None
    seen = {
        name: read_json(tmp_path / name / "census-0.json", Census)
        for name in ("eager", "short", "compiled")
    }
    # A short loop has no profile, which alone tells.
    assert {name: census.compiled for name, census in seen.items()} == {
        "eager": False,
        "short": None,
        "compiled": True,
    }
    assert seen["eager"].num_graphs == 0


def test_a_block_without_steps_says_what_was_looked_for(tmp_path: Path) -> None:
    done = ran("with hotloop.watch() as seen: pass\nprint(json.dumps(seen.findings))", tmp_path)
    assert said(done) == []
    assert "No step was recorded" in done.stderr


@pytest.mark.parametrize(
    ("env", "why"),
    [
        ({DOCTOR: "elsewhere"}, "hotloop examines this process from outside"),
        ({"RANK": "1", "WORLD_SIZE": "2"}, "it looks at the first one alone"),
    ],
)
def test_it_does_nothing_where_another_one_looks_and_what_is_asked_of_it_fails_nothing(
    tmp_path: Path, env: dict[str, str], why: str
) -> None:
    """The loop goes on to be the user's own: what stands after the block must not end it."""
    body = """
with hotloop.watch(out=".") as seen: train(20)
seen.save("seen.html")
print(json.dumps([str(seen), seen.to_dict()["notes"], seen.findings, seen.diagnosis.breakdown, seen.kept, seen.diff]))
"""
    done = ran(body, tmp_path, **env)
    shown, notes, *others = said(done)
    assert why in shown
    assert notes == [shown]
    assert others == [[], {}, [], ""]
    assert f"seen.html is not written: {shown}" in done.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["loop.py"]


def test_a_block_that_is_left_early_did_not_fail_and_one_is_used_again(tmp_path: Path) -> None:
    body = """
def numbers():
    with hotloop.watch(show=False) as seen:
        kept.append(seen)
        for number in range(9):
            train(2)
            yield number
kept = []
for number in numbers():
    if number == 4:
        break
for code in (0, 3):
    try:
        with hotloop.watch(show=False) as seen:
            kept.append(seen)
            train(9)
            sys.exit(code)
    except SystemExit:
        pass
again = hotloop.watch(steps=5, show=False)
ended = []
for steps in (60, 9):
    with again:
        train(steps)
    ended.append(again.to_dict()["doctor"]["ended"])
print(json.dumps([each.to_dict()["doctor"]["ended"] for each in kept] + ended))
"""
    assert said(ran(body, tmp_path)) == ["by_itself", "by_itself", "failed", "enough_steps", "by_itself"]  # fmt: skip


def test_a_child_that_ends_in_the_block_leaves_it_to_its_parent(tmp_path: Path) -> None:
    body = """
import os
with hotloop.watch() as seen:
    train(9)
    child = os.fork()
    if not child:
        sys.exit(7)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(json.dumps([code, seen.to_dict()["doctor"]["ended"]]))
"""
    done = ran(body, tmp_path)
    assert said(done) == [7, "by_itself"]
    assert done.stderr.count("steps of warm-up were seen") == 1  # by the parent


def test_what_nobody_holds_is_let_go_of_with_its_files(tmp_path: Path) -> None:
    body = """
import gc, weakref
with hotloop.watch(show=False) as seen:
    train(60)
directory, held = seen.directory, weakref.ref(seen)
there = directory.exists()
del seen
gc.collect()
print(json.dumps([there, held() is None, directory.exists()]))
"""
    assert said(ran(body, tmp_path)) == [True, True, False]


def test_what_cannot_be_shown_does_not_end_the_program(tmp_path: Path) -> None:
    body = """
import shutil
with hotloop.watch(out="kept") as seen:
    loss = train(9)
    shutil.rmtree("kept")
    open("kept", "w").close()
try:
    seen.findings
except hotloop.core.errors.UsageError as error:
    print(json.dumps([loss, str(error)]))
"""
    done = ran(body, tmp_path)
    loss, why = said(done)
    assert loss > 0
    assert why.startswith("not a directory")
    assert "hotloop: what was seen cannot be shown: UsageError: not a directory" in done.stderr


def test_what_is_no_number_in_a_run_is_no_damage_and_null_for_json(tmp_path: Path) -> None:
    body = """
with hotloop.watch(show=False, out="kept") as seen:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e30)
    for _ in range(30):
        optimizer.zero_grad()
        model(torch.ones(4, 2)).square().mean().backward()
        optimizer.step()
print(json.dumps(seen.to_dict(), allow_nan=False))
"""
    found = said(ran(body, tmp_path))
    assert found["problems"] == []
    assert run(["report", str(tmp_path / "kept")]) == 0
    records = found["measurement"]["records"]
    assert records[0]["loss"] is not None
    assert records[-1]["loss"] is None


@pytest.mark.slow
def test_the_doctor_is_started_from_a_program_and_its_run_read_again(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOOP + "train(60, 0.01)")
    (tmp_path / "broken.py").write_text("import torch\nraise SystemExit(3)")
    body = """
run = hotloop.doctor("python train.py", out="run", options="--no-try")
again = hotloop.load_run("run")
try:
    hotloop.doctor(["python", "broken.py"], out="failed")
except hotloop.core.errors.CommandFailed as error:
    code = error.returncode
print(json.dumps([run.diagnosis.breakdown == again.diagnosis.breakdown, str(run) == str(again),
                  run.kept, run.speedup, run.interval, run.verdict, run.diff, code]))
"""
    assert said(ran(body, tmp_path)) == [True, True, [], None, None, None, "", 3]
    for call, what in (
        ('hotloop.doctor("")', "there is no command to examine"),
        ('hotloop.doctor("python none.py", out="other")', "UsageError: no such script `none.py`"),
        ('hotloop.load_run("nowhere")', "no such directory"),
    ):
        done = ran(call, tmp_path)
        assert done.returncode != 0
        assert what in done.stderr


def test_an_error_of_the_doctor_says_where_and_what_to_do(tmp_path: Path) -> None:
    done = ran('hotloop.doctor("python none.py", out="other")', tmp_path)
    what, where, do = done.stderr.splitlines()[-3:]
    assert what.endswith("UsageError: no such script `none.py`")
    assert where.split() == ["at", str(tmp_path)]
    assert do == "  check the spelling, or run this in the script's directory"


def test_a_doctor_that_was_killed_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os, time\nos.kill(os.getppid(), 9)\ntime.sleep(5)")
    done = ran('hotloop.doctor("python train.py", out="run")', tmp_path)
    assert done.returncode != 0
    assert "EnvironmentFailed: `hotloop doctor` was killed by SIGKILL" in done.stderr


@pytest.mark.slow
def test_what_a_command_leaves_running_does_not_hold_the_call(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f"""{LOOP}
import subprocess
left = subprocess.Popen(["sleep", "200"], start_new_session=True)
open("left", "w").write(str(left.pid))
train(60, 0.01)
""")
    body = """
import os
run = hotloop.doctor("python train.py", out="run", options=["--no-try"])
os.kill(int(open("left").read()), 9)  # it has not ended
print(json.dumps(run.diagnosis.steps.measured))
"""
    assert said(ran(body, tmp_path)) > 0


@pytest.mark.slow
def test_ctrl_c_that_reaches_the_caller_alone_ends_the_doctor(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f"{LOOP}train(30_000, 0.01)")
    asked = 'hotloop.doctor("python train.py", out="run", options=["--no-try", "--to-end"])'
    (tmp_path / "call.py").write_text(f"import hotloop\n{asked}")
    env = {**os.environ, "PYTHONPATH": str(SOURCE)}
    call = [sys.executable, "call.py"]
    with subprocess.Popen(call, cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True) as process:  # fmt: skip
        while process.poll() is None and not (tmp_path / "run/steps-0.jsonl").exists():
            time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        err = process.communicate(timeout=100)[1]
    assert process.returncode != 0
    assert "KeyboardInterrupt" in err
    assert "it was interrupted" in err  # with what was seen by then
    assert json.loads((tmp_path / "run/doctor.json").read_text())["ended"] == "interrupted"


@pytest.mark.slow
def test_two_commands_are_compared_and_the_comparison_read_again(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOOP + "train(60, float(sys.argv[1]))")
    body = """
asked = dict(steps=20, warmup_steps=5, out="kept")
short = hotloop.compare("python train.py 0.02", "python train.py 0.005", budget="1s", **asked).verdict.num_pairs
found = hotloop.compare("python train.py 0.02", "python train.py 0.005", **asked)
again = hotloop.load_run("kept").verdict
print(json.dumps([found.verdict.outcome, found.interval[0], found.verdict.parity.result, again == found.verdict, short, str(found)]))
"""
    done = ran(body, tmp_path)
    outcome, low, parity, is_same, short, shown = said(done)
    assert short == 1
    assert re.search(r"\n  candidate  \S+ train\.py 0\.005\n", shown)
    assert "failed runs" not in shown
    assert re.search(r"pair 3 of up to 10: \w+ \(so far \d\.\d\dx\) .* s in all", done.stderr)
    assert outcome == "improved"
    assert low > 1.3
    assert parity in ("same", "within_noise")
    assert is_same


@pytest.mark.slow
def test_steps_of_other_samples_that_nobody_saw_decide_nothing(tmp_path: Path) -> None:
    loop = LOOP.replace("(16, 32)", "(int(sys.argv[1]), 32)")
    (tmp_path / "train.py").write_text(f"{loop}train(60)")
    body = """
asked = dict(steps=20, warmup_steps=5)
found = hotloop.compare("python train.py 512", "python train.py 16", **asked).verdict
known = hotloop.compare("python train.py 512", "python train.py 16", same_samples=True, **asked).verdict
print(json.dumps([found.outcome, found.num_pairs, found.reasons, known.reasons]))
"""
    outcome, num_pairs, reasons, known = said(ran(body, tmp_path))
    assert (outcome, num_pairs) == ("inconclusive", 4)
    assert "How many samples each step takes was not seen" in reasons[0]
    assert not any("was not seen" in each for each in known)


def test_pairs_of_sources_that_were_edited_since_are_not_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, out = tmp_path / "work", tmp_path / "out"
    for name in ("train.py", "model.py", "elsewhere.py"):
        place = work if name != "elsewhere.py" else tmp_path
        place.mkdir(exist_ok=True)
        (place / name).write_text("before")
    monkeypatch.chdir(work)
    start_of(out, work)
    time.sleep(0.02)  # past the grain of a file's time
    commands = "python train.py", f"python {tmp_path / 'elsewhere.py'}"
    (work / "model.py").write_text("edited")
    with pytest.raises(UsageError, match=r"model.py changed after this comparison began"):
        hotloop.compare(*commands, out=out)
    (tmp_path / "elsewhere.py").write_text("edited")
    with pytest.raises(UsageError, match=r"elsewhere.py and 1 other file changed after"):
        hotloop.compare(*commands, out=out)


@pytest.mark.parametrize(
    ("call", "what"),
    [
        ('hotloop.compare("", "python b.py")', "there is no command to examine"),
        ('hotloop.compare("python a.py", "python \'b.py")', "cannot be read: no closing quotation"),
        ('hotloop.doctor("none.ipynb")', "UsageError: no such notebook"),
        (
            "hotloop.doctor(__import__('pathlib').Path('none.ipynb'))",
            "UsageError: no such notebook",
        ),
        ('hotloop.doctor("python a.py", budget=300)', "UsageError: '300' has no unit"),
        ('hotloop.compare("python a.py", "python b.py", budget=0)', "'0' is no time"),
        ('hotloop.compare("nothing-here", "python b.py")', "cannot run `nothing-here`"),
        (
            'hotloop.compare("python a.py", "python b.py", budget="5")',
            "'5' has no unit; say 5m or 5s",
        ),
    ],
)
def test_a_comparison_that_cannot_begin_is_one_clear_error(
    tmp_path: Path, call: str, what: str
) -> None:
    done = ran(call, tmp_path)
    assert done.returncode != 0
    assert what in done.stderr
