"""Runs somebody's command, and after each kill what continues it, in one sandbox, where all see the same files.

Started inside of it with `-I -S`: standard library only.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

import hotloop
from hotloop.core.child import RESUME_TRACE, SAME_RANDOMNESS, SEED
from hotloop.resume.trace import Trace, known_weights, read_trace, saved
from hotloop.trial import watchdog

LOOK_EVERY_S = 0.05


def main() -> None:
    """argv: as JSON the processes, each with its command and its plan; until one is not killed."""
    directory = Path(os.environ[RESUME_TRACE])
    package, link = Path(hotloop.__file__).resolve().parent, directory / "path" / "hotloop"
    link.parent.mkdir()
    link.symlink_to(package, target_is_directory=True)
    own = (package / "trial" / "bootstrap", link.parent, os.environ.get("PYTHONPATH"))
    path = os.pathsep.join(str(each) for each in own if each)
    before, torn = list[Trace](), None
    for number, (command, plan) in enumerate(json.loads(sys.argv[1])):
        place, newest = directory / str(number), max(saved(before, torn), default=0)
        place.mkdir()
        content = json.dumps({**plan, "known": known_weights(before), "newest": newest})
        (place / "plan.json").write_text(content, encoding="utf-8")
        # A process that is started again draws other numbers, unless the script seeds itself.
        seed = str(SEED + number)
        env = {"PYTHONHASHSEED": seed, **os.environ, "PYTHONPATH": path, RESUME_TRACE: str(place)}
        env[SAME_RANDOMNESS] = f"{place}{os.pathsep}{seed}"
        (place / "code").write_text(str(_run(command, env, place)))
        before.append(read_trace(place))
        torn = plan.get("kill", {}).get("group")
        if before[-1].end != "killed":
            break


def _run(command: list[str], env: dict[str, str], place: Path) -> int:
    """Until it ends, or its trace does: then nothing of it is left, other ranks neither."""
    token, trace = secrets.token_hex(watchdog.TOKEN_BYTES), place / "trace.jsonl"
    env[watchdog.TRIAL] = f"{env[watchdog.TRIAL]}:{token}"
    with (place / "log.txt").open("wb") as log:
        process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)  # fmt: skip
    while process.poll() is None:
        if trace.exists() and b'{"end"' in trace.read_bytes()[-100:]:
            break
        time.sleep(LOOK_EVERY_S)
    while process.poll() is None or watchdog.members(token):
        process.kill()
        watchdog.send(signal.SIGKILL, token, None)
        time.sleep(LOOK_EVERY_S)
    return process.returncode
