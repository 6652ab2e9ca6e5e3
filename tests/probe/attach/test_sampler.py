from __future__ import annotations

import gc
import os
import sys
import threading
import time
from pathlib import Path
from weakref import ref

import pytest

import warm_python
from hotloop.probe.attach.sampler import EVERY_S, FINE_S, MANY, FineSwitching, Sampler
from hotloop.probe.attach.sites import Sites, module_of
from hotloop.probe.attach.watch import Watch


def test_line_in_which_the_probe_was_at_work_is_not_counted(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    sampler = Sampler(watch)
    watch.tried(sampler._sample)
    sampler._sample()
    depth = watch.enter("forward")
    watch.tried(sampler._sample)
    watch.leave(depth)
    sampler.close_step(0, counted=True)
    assert [(line.phase, line.inside) for line in sampler.lines()] == [("unattributed", None)]
    sampler.stop()
    assert sampler.counted == 1
    assert {line.site.rpartition(":")[0] for line in sampler.lines()} == {Sites().short(__file__)}


def test_while_steps_are_left_out_no_thread_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Watch(tmp_path)
    sampler = Sampler(watch)
    looks: list[object] = []
    monkeypatch.setattr(sampler, "_sample", lambda: looks.append(None))
    watch.resting = 2
    waits_s = sampler._turn()
    assert not looks
    watch.resting = 0
    assert (sampler._turn(), looks) == (waits_s, [None])


WALKED = """
import gc, sys, threading, time
from pathlib import Path
from hotloop.probe.attach.sampler import Sampler
from hotloop.probe.attach.watch import Watch

watch = Watch(Path(sys.argv[1]))
sampler = Sampler(watch)
failed = []

def look():
    try:
        for _ in range(400):
            sampler._turn()
            time.sleep(0)
    except BaseException as error:
        failed.append(repr(error))

def deep(depth, *more):
    return deep(depth - 1, *more, depth) if depth else sum(each for each in range(4))

main = threading.get_ident()
gc.callbacks.append(lambda phase, info: threading.get_ident() == main or time.sleep(0.0003))
gc.set_threshold(1)
thread = threading.Thread(target=look)
thread.start()
while thread.is_alive():
    deep(30)
gc.callbacks.clear()
print(failed, gc.isenabled())
"""


def test_no_garbage_is_collected_while_frames_of_another_thread_are_read(tmp_path: Path) -> None:
    """Seen on 3.11 without that: a function instead of a frame, SIGSEGV, or a thread that never goes on."""
    script = tmp_path / "walked.py"
    script.write_text(WALKED)
    done = warm_python.run([str(script), str(tmp_path)], env=dict(os.environ), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "[] True\n"), done.stderr


def test_samples_wait_for_a_tenth_of_the_usual_interval_and_a_fork_for_all_of_it(run) -> None:  # type: ignore[no-untyped-def]
    ended = run("""
model, optimizer = build()
train(model, optimizer, 20)
until = time.monotonic() + 60
while (samples := sys.getswitchinterval()) > 0.004 and time.monotonic() < until: time.sleep(0.01)
child = os.fork()
if not child: os._exit(abs(sys.getswitchinterval() - 0.005) > 1e-4)
print(json.dumps([samples, os.waitpid(child, 0)[1]]))
""")
    assert ended.last == [pytest.approx(FINE_S), 0]


def test_the_switch_interval_is_short_only_while_no_other_thread_computes() -> None:
    usual, over, computes = sys.getswitchinterval(), threading.Event(), threading.Event()
    ended: list[bool] = []

    def compute() -> None:
        computes.set()
        while not ended:
            sum(range(1000))

    def look(thread: threading.Thread) -> float:
        assert thread.ident is not None
        for _ in range(5):
            frames = sys._current_frames()
            switching.look({thread.ident: frames[thread.ident]}, threading.get_ident())
            time.sleep(0.001)
        return sys.getswitchinterval()

    switching = FineSwitching()
    waiting = threading.Thread(target=over.wait)
    computing = threading.Thread(target=compute)
    for each in (waiting, computing):
        each.start()
    assert computes.wait(60)
    try:
        assert look(waiting) == pytest.approx(FINE_S)
        assert look(computing) == usual
        again = FineSwitching()
        again.look({}, threading.get_ident())
        assert sys.getswitchinterval() == pytest.approx(FINE_S)
        again.end()
        again.look({}, threading.get_ident())
        assert sys.getswitchinterval() == usual
    finally:
        over.set()
        ended.append(True)
        for each in (waiting, computing):
            each.join()


@pytest.mark.parametrize(
    ("most_cost", "counted", "times"), [(None, MANY + 1, 1), (0.018, MANY, 1), (0.018, MANY + 1, 2)]
)
def test_only_where_watching_has_a_bound_are_later_samples_fewer(
    tmp_path: Path, most_cost: float | None, counted: int, times: int
) -> None:
    watch = Watch(tmp_path)
    watch.most_cost = most_cost
    sampler = Sampler(watch)
    sampler.counted = counted
    try:
        assert sampler._turn() == times * EVERY_S
    finally:
        sampler.stop()


def test_a_sample_keeps_nothing_of_the_script_alive(tmp_path: Path) -> None:
    class Batch:
        pass

    sampler = Sampler(Watch(tmp_path))

    def step() -> ref[Batch]:
        batch = Batch()
        thread = threading.Thread(target=sampler._sample)
        thread.start()
        thread.join()
        return ref(batch)

    gc.disable()
    try:
        held = step()
        assert held() is None
    finally:
        gc.enable()
        sampler.stop()
    sampler.close_step(0, counted=True)
    assert sampler.counted == 1


def test_code_that_torch_generated_is_nobodys_own() -> None:
    sites = Sites()
    generated = compile("0", "/tmp/torchinductor_me/ab/cab.py", "exec")
    assert not sites.own(generated)
    assert sites.own(compile("0", "/home/me/torch_things/train.py", "exec"))


def test_installed_code_is_named_from_its_package_on() -> None:
    packages = "/v/lib/python3.11/site-packages"
    assert module_of(f"{packages}/torch/nn/utils/clip_grad.py") == "torch.nn.utils.clip_grad"
    assert module_of(f"{packages}/torch/optim/__init__.py") == "torch.optim"
    assert module_of("/usr/lib/python3/dist-packages/yaml/reader.py") == "yaml.reader"
    assert module_of("/usr/lib/python3.11/json/decoder.py") == "decoder"
    assert module_of("/home/me/project/loss.py") == "loss"
    assert module_of("/usr/lib/python3.11/json/__init__.py") == "json"


def test_lines_between_two_passes_that_evaluate_are_of_the_evaluation_as_their_time_is(run) -> None:  # type: ignore[no-untyped-def]
    ended = run("""
model, optimizer = build()
def fetch(): time.sleep(0.01)
for step in range(60):
    train(model, optimizer, 1)
    if step % 10 == 9:
        model.eval()
        for _ in range(20):
            fetch()
            with torch.no_grad(): model(torch.ones(4, 8))
        model.train()
        time.sleep(0.08)
""")
    seen = {"eval": 0.0, "unattributed": 0.0}
    for line in ended.census.lines:
        if line.function == "fetch":
            seen[line.phase] += line.fraction
    assert seen["eval"] > 0.2  # 0.6, and less where other programs make the steps take longer
    assert seen["unattributed"] < seen["eval"] / 3  # before the first pass of each
    after = [line.phase for line in ended.census.lines if line.function == "<module>"]
    assert "unattributed" in after
