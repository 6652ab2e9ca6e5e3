from __future__ import annotations

import os
from pathlib import Path

import warm_python
from hotloop.probe.attach.sampler import Sampler
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
    assert sampler.counted == 1
    assert {line.site.rpartition(":")[0] for line in sampler.lines()} == {Sites().short(__file__)}


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
