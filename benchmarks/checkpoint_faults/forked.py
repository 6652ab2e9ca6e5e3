"""`hotloop train` in forks of one process that holds torch: stopped at places, traced, killed, run again and judged.

A fork takes milliseconds where a fresh Python takes seconds, so hundreds of kills take minutes. At a stop the fork
names itself and the thread that it is in, and waits: strace is attached to that thread alone, so the calls that it
counts are that thread's from there on.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: a fork has no threads of it

import torch
import torch._dynamo
from strace import Call, Strace, read_calls, strace_works  # noqa: F401 - for the scripts beside

from hotloop.checkpoint import store
from hotloop.cli.main import run as hotloop
from hotloop.cli.output import guard_streams
from hotloop.data.prepare import prepare_text
from hotloop.data.spec import Spec
from hotloop.train import loop, start  # noqa: F401 - start: loaded before the forks

SEED = 1
"""Of Python's own random numbers in a fork."""
STEPS, EVERY, KEEP = 16, 4, 2
BESIDE = ("checkpoint.background=true",)
CONFIG = f"""name: faults
data:
  prepared: PREPARED
model:
  layers: 2
  width: 32
  heads: 2
  context: 16
  dropout: 0.1
train:
  steps: {STEPS}
  microbatch: 4
  compile: false
  precision: fp32
  num_threads: 1
schedule:
  warmup_steps: 4
averaging:
  name: ema
eval:
  every_steps: 6
  windows: 4
checkpoint:
  every_steps: {EVERY}
  background: false
  keep: {KEEP}
logging:
  tensorboard: false
"""


def write_training(directory: Path) -> Path:
    """Text, its tokens and a config that trains on them; returns the config.

    Trains once in this process, so that no fork has to load what that takes.
    """
    texts = directory / "texts"
    texts.mkdir(parents=True)
    generator = random.Random(0)
    words = ["".join(generator.choices("etaoinshrdlu", k=5)) for _ in range(50)]
    for number in range(4):
        lines = (" ".join(generator.choices(words, k=30)) for _ in range(10))
        (texts / f"{number}.txt").write_text("\n".join(lines))
    spec = Spec((str(texts),), "bytes", validation_fraction=0.2)
    prepare_text(spec, directory / "prepared")
    config = directory / "config.yaml"
    config.write_text(CONFIG.replace("PREPARED", str(directory / "prepared")))
    with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing), contextlib.redirect_stderr(nothing):  # fmt: skip
        assert hotloop(hotloop_train(config, directory / "warm", *BESIDE)) == 0
    gc.collect()
    gc.freeze()  # a collection in a fork would copy the pages that all share
    return config


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    """Negative: the signal that killed it."""
    said: str


class Fork:
    """A `hotloop` command in a fork, which waits at each of its `stops`.

    stops: `start` before the command, `update K` before the update that completes step K, `save K` and `saved K` around
    the save of that step, in the thread that makes it, `end` after the command.
    """

    def __init__(
        self, arguments: Sequence[str], said: Path, *, stops: Sequence[str] = (), seed: int = SEED
    ) -> None:
        self._said = said
        told, tell = os.pipe()
        wait, self._go = os.pipe()
        self._told = os.fdopen(told, "r")
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            code = 70
            try:
                os.setpgid(0, 0)
                random.seed(seed)
                output = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
                os.dup2(output, 1)
                os.dup2(output, 2)
                guard_streams()
                _plant_stops(frozenset(stops), tell, wait)
                _stop_at("start")
                code = int(hotloop(arguments))
                sys.stdout.flush()
                threading._shutdown()  # type: ignore[attr-defined]  # waits for a save, as Python's end does
                _stop_at("end")
            except BaseException:  # noqa: BLE001 - shown as Python does
                sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
            finally:
                sys.stderr.flush()
                os._exit(code)
        os.close(tell)
        os.close(wait)

    def next_stop(self) -> tuple[str, int] | None:
        """The stop that it waits at and the thread that does; `None` once it has ended."""
        line = self._told.readline()
        if not line:
            return None
        name, thread = line.rsplit(maxsplit=1)
        return name, int(thread)

    def go_on(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(self._go, b"x")

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def ended(self) -> Ended:
        while self.next_stop() is not None:
            self.go_on()
        _, status = os.waitpid(self.pid, 0)
        self._told.close()
        os.close(self._go)
        said = self._said.read_text(errors="replace") if self._said.exists() else ""
        return Ended(os.waitstatus_to_exitcode(status), said)


_stop_at: Callable[[str], None] = lambda name: None  # noqa: E731


def _plant_stops(stops: frozenset[str], tell: int, wait: int) -> None:
    global _stop_at

    def stop_at(name: str) -> None:
        if name in stops:
            os.write(tell, f"{name} {threading.get_native_id()}\n".encode())
            os.read(wait, 1)

    _stop_at = stop_at
    if not stops:
        return
    real_save, real_update = store.save, loop.update
    done = None

    def save(root: Path, step: int, **named: Any) -> store.Checkpoint:
        stop_at(f"save {step}")
        made = real_save(root, step, **named)
        stop_at(f"saved {step}")
        return made

    def update(run: Any, *args: Any) -> Any:
        nonlocal done
        done = (run.first_step if done is None else done) + 1
        stop_at(f"update {done}")
        return real_update(run, *args)

    store.save, loop.update = save, update  # type: ignore[assignment]


def hotloop_train(config: Path, out: Path, *settings: str) -> list[str]:
    return ["train", str(config), *settings, "--out", str(out)]


def ran(arguments: Sequence[str], said: Path, *, seed: int = SEED) -> Ended:
    said.unlink(missing_ok=True)
    return Fork(arguments, said, seed=seed).ended()


def verified(directory: Path) -> dict[str, str] | None:
    """The digest of each file, where the directory holds a checkpoint that is whole. Written apart from hotloop's."""
    try:
        manifest = json.loads((directory / "manifest.json").read_bytes())
        files = {name: entry["sha256"] for name, entry in manifest["files"].items()}
        for name, digest in files.items():
            if hashlib.sha256((directory / name).read_bytes()).hexdigest() != digest:
                return None
        whole = manifest["step"] == int(directory.name.split("-")[1])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return files if whole else None


def newest_good(run: Path) -> tuple[int, dict[str, str]]:
    """The step of the newest checkpoint that verifies, 0 for none, and its digests."""
    found = sorted((run / "checkpoints").glob("step-*"), reverse=True)
    for directory in found:
        if (files := verified(directory)) is not None:
            return int(directory.name.split("-")[1]), files
    return 0, {}


def records(run: Path) -> list[dict[str, Any]]:
    path, found = run / "steps.jsonl", []
    for line in path.read_bytes().splitlines() if path.exists() else []:
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return found


def resumed_at(run: Path, said: str) -> int:
    """Where the last process continued: 0 for the start, the end where nothing was left to do."""
    if "already finished" in said:
        return newest_good(run)[0]
    tagged = [record["step"] for record in records(run) if "resumed" in record.get("tags", ())]
    return max(tagged, default=0)


def orphans(run: Path, keep: int = KEEP) -> list[str]:
    """Files that nobody will ever read."""
    kept = sorted(run.glob("checkpoints/*"))
    committed = [d for d in kept if d.name.startswith("step-") and (d / "manifest.json").exists()]
    extra = [d for d in kept if d not in committed and not d.name.startswith(("damaged-", "left-"))]
    hidden = [p for p in run.rglob(".*") if p.name != ".lock"]
    return [str(p.relative_to(run)) for p in [*committed[:-keep], *extra, *hidden]]


@dataclass(frozen=True)
class Verdict:
    """What running the same command again came to."""

    problems: tuple[str, ...]
    lost: int
    """Steps that had been recorded and were made again."""
    continued_from: int
    orphans: tuple[str, ...]


def judged(
    run: Path,
    command: Sequence[str],
    said: Path,
    reference: Path,
    *,
    most_lost: int,
) -> Verdict:
    """Run `command` again in a directory where it was killed, and compare its end with that of `reference`."""
    good, done = newest_good(run)[0], len(records(run))
    # Python's random state is no setting: from a checkpoint on it is that of the first process.
    ended = ran(command, said, seed=0 if good else SEED)
    problems = []
    if ended.code != 0:
        problems.append(f"exit code {ended.code}: {ended.said.strip()[-400:]}")
    elif (continued := resumed_at(run, ended.said)) != good:
        problems.append(f"continued from step {continued}, and {good} verifies")
    if done - good > most_lost:
        problems.append(f"{done - good} steps lost")
    whole, files = newest_good(reference)
    evaluations = [(each / "evals.jsonl").read_bytes() if (each / "evals.jsonl").exists() else b"" for each in (run, reference)]  # fmt: skip
    if not problems and evaluations[0] != evaluations[1]:
        problems.append("other evaluations")
    if not problems and newest_good(run) != (whole, files):
        now = newest_good(run)
        unlike = [name for name in files if now[1].get(name) != files[name]]
        problems.append(f"ends at step {now[0]} with other bytes: {', '.join(unlike)}")
    if not problems and [r["loss"] for r in records(run)] != [r["loss"] for r in records(reference)]:  # fmt: skip
        problems.append("other losses")
    keep = KEEP + (good == whole)  # a run that was finished has no save left that would retire one
    return Verdict(tuple(problems), max(done - good, 0), good, tuple(orphans(run, keep)))


@contextlib.contextmanager
def workplace() -> Iterator[Path]:
    """A directory that goes with the script, in memory where that is possible: what it asks of a disk is the same."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="checkpoint-faults-", dir=memory) as directory:
        yield Path(directory)


def versions() -> dict[str, str]:
    import platform

    import safetensors

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "safetensors": safetensors.__version__,
        "system": platform.platform(),
    }


def store_result(result: dict[str, Any], file: Path | None, started: float) -> None:
    result |= {"seconds": round(time.monotonic() - started, 1), "versions": versions()}
    if file is not None:
        file.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
