"""Checkpoints written by a thread, from a copy of the state, into a file that takes its name when it is complete."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hotloop.core.census import Census
from hotloop.optimizations.optimization import Optimization, leaving, live_in
from hotloop.optimizations.source_edit import AroundCall, BeforeTraining, SourceEdit

NAME = "save_in_background"
DEFINITION = f'''def background_saves():
    """Makes `saves(torch.save, obj, f)`, which copies `obj`; a thread writes the copy into a new file that then replaces `f`.

    What opens, lists, moves or removes `f` in this process waits for that, and so does the end of the program.
    """
    import atexit, copy, os, shutil, sys, tempfile, threading, traceback
    from concurrent.futures import ThreadPoolExecutor

    pending, largest, writer = {{}}, 0, None

    def start():
        nonlocal writer
        writer = ThreadPoolExecutor(1, "saves")
        pending.clear()

    def saves(save, obj, f, *args, **kwargs):
        nonlocal largest
        size, path = size_of(obj), path_of(f)
        for done in [each for each, (job, _) in list(pending.items()) if job.done() and not job.exception()]:
            pending.pop(done, None)
        plain = os.path.isfile(path) or os.path.isdir(os.path.dirname(path)) and not os.path.exists(path)
        if plain := plain and size < float("inf"):
            largest = max(largest, size)
            if path in pending or sum(held for _, held in pending.values()) + size > 2 * largest or len(pending) > 3:
                wait()
            try:
                copied = copy.deepcopy(obj)
            except Exception:
                plain = False
        if not plain:
            wait()
            return save(obj, f, *args, **kwargs)
        job = writer.submit(write, save, copied, path, os.path.basename(f), state_of(path), args, kwargs)
        pending[path] = job, size

    def write(save, copied, path, name, state, args, kwargs):
        folder = tempfile.mkdtemp(prefix=".saving-", dir=os.path.dirname(path))
        try:
            new = os.path.join(folder, name)  # torch.save writes the name of the file into it
            save(copied, new, *args, **kwargs)
            with open(new, "rb+") as file:
                os.fsync(file.fileno())
            if state_of(path) == state:  # else something has written a later one
                os.replace(new, path)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def wait():
        for path, (job, _) in list(pending.items()):
            try:
                job.result()
            finally:
                pending.pop(path, None)

    def end():
        try:
            wait()
        except BaseException:
            traceback.print_exc()
            sys.stdout.flush()
            os._exit(1)

    def about_to(event, given):
        if not pending or threading.current_thread().name.startswith("saves"):
            return
        if event in ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn"):
            return wait()
        changing = ("os.rename", "os.remove", "os.link", "os.symlink", "os.truncate", "os.chmod", "os.utime")
        for here in filter(None, map(path_of, given[:2])) if event.startswith(("open", "os.", "shutil.")) else ():
            for path in list(pending):
                reads = event == "open" and here == path
                lists = event in ("os.listdir", "os.scandir") and here == os.path.dirname(path)
                changes = event in changing or event.startswith("shutil.")
                if reads or lists or changes and f"{{path}}/".startswith(f"{{here}}/"):
                    return wait()

    def path_of(f):
        return os.path.realpath(os.fsdecode(f)) if isinstance(f, (str, bytes, os.PathLike)) else ""

    def state_of(path):
        try:
            found = os.stat(path)
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns

    def size_of(obj):
        if isinstance(obj, torch.Tensor):  # the memory of a device is for the training
            return obj.numel() * obj.element_size() if obj.device.type == "cpu" else float("inf")
        obj = obj.state_dict() if isinstance(obj, torch.nn.Module) else obj
        values = obj.values() if isinstance(obj, dict) else obj if isinstance(obj, (list, tuple)) else ()
        return sum(map(size_of, values))

    start()
    saves.pending = pending
    os.register_at_fork(after_in_child=start)
    sys.addaudithook(about_to)
    atexit.register(end)
    return saves


def {NAME}(save, obj, f, *args, **kwargs):
    if not hasattr({NAME}, "saves"):
        {NAME}.saves = background_saves()
    {NAME}.saves(save, obj, f, *args, **kwargs)
'''
"""What the patch writes and the live form runs."""


def _source_edit(value: Any, facts: Mapping[str, Any]) -> SourceEdit | str:
    if facts.get("trainer"):
        line = f"torch.save = functools.partial({NAME}, torch.save)"
        return BeforeTraining(NAME, f"import functools\n\n{DEFINITION}", line)
    words = f"write\n{DEFINITION}\nand `{NAME}(torch.save, obj, f)` for `torch.save(obj, f)`"
    return AroundCall(NAME, DEFINITION, words)


def _period(evidence: Mapping[str, Any]) -> int:
    between = evidence.get("steps_between")
    return math.ceil(between) if isinstance(between, (int, float)) else 0


BACKGROUND_SAVES = Optimization(
    name="background_saves",
    summary="Checkpoints written by a thread, from a copy of the state, into a new file that then takes the place of the old.",
    parity_class="bitwise",
    settings=(True,),
    values_for=lambda census: (True,) if _saves(census) else (),
    needs="a `torch.save` that comes again and again",
    answers=("HL701",),
    source_form=f"{NAME}(torch.save, state, path)",
    source_edit=_source_edit,
    live_form=live_in(__name__),
    # Where no processor is idle, writing and the copy take as long as before, and the copy comes on top.
    expect=leaving("checkpoint_fraction", 0.05, 1.2),
    over="all",
    period_for=_period,
    leaves=(
        "what is saved into anything but a file, lies on a device, cannot be copied, or is saved once; files that the "
        "script looks at with `os.stat` or `os.path.exists` while they are written"
    ),
    risks=(
        "Up to twice the largest checkpoint is held in memory beside the state. A file is there some steps later than before, "
        "for other processes and for what asks only whether it exists, and so is a Trainer's directory complete. One that could not be written is reported by the "
        "next save, or by the end of the program, with exit code 1."
    ),
)


def _saves(census: Census) -> bool:
    return any(save.what == "torch.save" and save.num > 1 for save in census.saves)
