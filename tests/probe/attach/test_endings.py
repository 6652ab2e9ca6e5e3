"""Nothing of the probe is heard at a script's end, and no step is lost to it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from hotloop.probe.attach.step_profiler import FIRST_STEP

AT_TEARDOWN = """
import logging, os, sys, builtins
say = print
logging.basicConfig(format="%(message)s", stream=sys.stdout)
class Bar:
    def __init__(self): self.own = {own}
    def __del__(self):
        for does in self.own:
            does()
def kept_alive(frame, event, arg):
    return None
"""
OWN = {
    "watches no collections": "[__import__('gc').callbacks.clear()] and []",
    "prints": "[lambda: say('a'), lambda: print('b'), lambda: builtins.print('c')]",
    "logs": "[lambda: logging.getLogger().warning('a')]",
    "moves a file": "[lambda: os.replace('a', 'b'), lambda: os.rename('b', 'a')]",
    "asks torch": "[lambda grad=torch.is_grad_enabled: grad(), lambda save=torch.save: callable(save)]",
    "computes": "[lambda m=torch.nn.Linear(1, 1), x=torch.ones(1): m(x)]",
    "goes backward": "[lambda x=torch.ones(1, requires_grad=True): (x * 2).sum().backward()]",
    "collects": "[lambda collect=__import__('gc').collect: collect()]",
    "raises": "[lambda: 1 / 0]",
}


@pytest.mark.at_once(5)
@pytest.mark.parametrize("own", OWN)
def test_what_an_object_does_when_the_interpreter_ends_says_what_it_says_alone(
    run, own: str
) -> None:  # type: ignore[no-untyped-def]
    source = AT_TEARDOWN.replace("{own}", OWN[own]) + (
        "open('a', 'w').close()\ntrain(*build(), 15)\nbar = Bar()\n"
        # as tqdm does it: a class that holds its instances, which a module that is left to the end holds
        "Bar.instances = [bar]\nsys.modules['kept'] = Bar\nbuiltins.bar = bar\n"
    )
    ended, plain = run(source), run(source, watched=False)
    assert ended.out == plain.out
    directory = str(ended.directory.parent)

    def same(text: str) -> str:
        """Without what differs from process to process, and entry points that lead to what fails."""
        text = re.sub(r' *File "[^"]*/hotloop/probe/entry.py".*\n', "", text)
        return re.sub(r"0x[0-9a-f]+", "0x", text.replace(directory, "").replace("work-1", "work-0"))

    assert same(ended.err) == same(plain.err)
    assert "hotloop" not in same(ended.err).replace(str(Path(torch.__file__).parents[4]), "")
    assert len(ended.steps) == 15


ENDINGS = {
    "os._exit": ("os._exit(3)", 3, True),
    "os._exit on a thread": ("import threading; threading.Thread(target=lambda: os._exit(3)).start(); time.sleep(99)", 3, True),
    "exec": ("os.execv(sys.executable, [sys.executable, '-c', 'print(1)'])", 0, False),
    "a failed exec": ("try: os.execv('/nothing', ['x'])\nexcept OSError: train(*build(), 5)\nos._exit(0)", 0, True),
    "killed by itself": ("import signal; os.kill(os.getpid(), signal.SIGKILL)", -9, False),
    "ended by itself": ("import signal; os.kill(os.getpid(), signal.SIGTERM)", -15, False),
    "abort": ("import faulthandler; faulthandler.disable(); os.abort()", -6, False),
}  # fmt: skip


@pytest.mark.at_once(4)
@pytest.mark.parametrize("how", ENDINGS)
def test_no_step_is_lost_where_no_exit_handler_runs(run, how: str) -> None:  # type: ignore[no-untyped-def]
    ending, code, finished = ENDINGS[how]
    source = (
        "model, optimizer = build()\nfor _ in range(60):\n    train(model, optimizer, 1); time.sleep(0.02)\n"
        f"print('its end', flush=True)\n{ending}"
    )
    ended = run(source, code=code)
    assert ended.out.startswith("its end\n")
    assert [record.step for record in ended.steps][:60] == list(range(60))
    assert ended.clock["finished"] is finished
    assert "44 steps" not in str(ended.census.notes)


def test_a_script_that_ends_while_it_is_profiled_ends_as_before(run) -> None:  # type: ignore[no-untyped-def]
    source = f"train(*build(), {FIRST_STEP + 1})\nprint('its end')"
    ended, plain = run(source), run(source, watched=False)
    assert (ended.out, ended.err) == (plain.out, plain.err) == ("its end\n", "")
    assert "profiled" in ended.steps[-1].tags


def test_a_child_of_multiprocessing_that_trains_loses_no_step(run) -> None:  # type: ignore[no-untyped-def]
    ended = run("""
import multiprocessing
def work(): train(*build(), 60)
if __name__ == "__main__":
    child = multiprocessing.get_context("fork").Process(target=work)
    child.start(); child.join()
    print(child.exitcode)
""")
    assert ended.out == "0\n"
    assert len(ended.steps) == 60
    assert ended.clock["finished"]


FAILS = {
    "in the pass backward": "model[1].register_full_backward_hook(lambda *_: 1 / 0)\n",
    "in an update": "optimizer.register_step_pre_hook(lambda *_: 1 / 0)\n",
    "from another one": """
def failing(x):
    try: [][0]
    except IndexError as error: raise RuntimeError("second") from error
model[1].forward = failing
""",
    "by Ctrl-C": "def failing(x): raise KeyboardInterrupt\nmodel[1].forward = failing\n",
}


@pytest.mark.usefixtures("without_compiler")
@pytest.mark.parametrize("fails", FAILS)
def test_error_that_ends_the_script_shows_no_frame_of_the_probe(run, fails: str) -> None:  # type: ignore[no-untyped-def]
    source = f"model, optimizer = build()\ntrain(model, optimizer, 15)\n{FAILS[fails]}train(model, optimizer, 1)\n"
    code = -2 if fails == "by Ctrl-C" else 1
    fresh = fails in ("from another one", "by Ctrl-C")  # what Python itself prints
    ended = run(source, code=code, fresh=fresh)
    plain = run(source, watched=False, code=code, fresh=fresh)
    assert "hotloop" not in ended.err

    def own(text: str) -> list[str]:
        lines = text.replace("work-1", "work-0").splitlines()
        return [line for line in lines if not line.startswith(" ") or "train.py" in line]

    directory = str(ended.directory.parent)
    assert own(ended.err.replace(directory, "")) == own(plain.err.replace(directory, ""))
