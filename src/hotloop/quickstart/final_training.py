"""The quickstart's last part: train in a fresh process with what was proven, then let the model write."""

from __future__ import annotations

import ctypes
import json
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from hotloop.core.errors import CommandFailed, ExitCode, Interrupted
from hotloop.core.settings import Settings, load_settings, store_settings

PROMPT = "def __init__(self"


@dataclass(frozen=True, slots=True)
class Trained:
    """The final training."""

    run: str
    settings: str
    """Which arm's settings it used: the proven ones, or the plain ones when nothing was proven."""
    steps: int
    loss: float | None
    held_out_loss: float | None
    tokens_per_s: float | None
    sample: str


def train_and_sample(directory: Path, settings: Settings, steps: int, *, name: str) -> Trained:
    """Train in a fresh process that shows its own progress, then let the model write."""
    run, outcome = directory / "train", directory / "train.json"
    stored = run / "config.yaml"
    if stored.is_file():  # continue what an interrupted quickstart began, with its number of steps
        steps = load_settings(stored).config.train.steps
    warmup = min(settings.config.schedule.warmup_steps, max(1, steps // 10))
    settings = settings.with_values(
        {"train.steps": steps, "schedule.warmup_steps": warmup}, origin="quickstart --minutes"
    )
    config_file = directory / "train.yaml"
    store_settings(settings, config_file)
    _hotloop("train", str(config_file), "--out", str(run), "--json", str(outcome))
    text = directory / "sample.json"
    _hotloop(
        *("generate", str(run), "--prompt", PROMPT, "--tokens", "120", "--json", str(text)),
        quiet=True,
    )
    found = json.loads(outcome.read_bytes())
    written = json.loads(text.read_bytes())
    return Trained(
        run=str(run),
        settings=name,
        steps=found["steps"],
        loss=found["loss"],
        held_out_loss=found["held_out_loss"],
        tokens_per_s=found["tokens_per_s"],
        sample=written["prompt"] + written["text"],
    )


def _die_with_parent() -> None:
    """Have the kernel send SIGTERM, on which training saves, when the quickstart is killed."""
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM)


def _hotloop(*arguments: str, quiet: bool = False) -> None:
    """Run a hotloop command as a child that writes to our terminal, or to nowhere."""
    command = [sys.executable, "-m", "hotloop", *arguments]
    # A session of its own: it hears of a Ctrl-C from us, once. A second signal would end it unsaved.
    child = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL if quiet else None,
        start_new_session=True,
        preexec_fn=_die_with_parent if sys.platform == "linux" else None,
    )
    try:
        code = child.wait()
    except KeyboardInterrupt:
        child.send_signal(signal.SIGTERM)
        code = child.wait()
    if code == ExitCode.RESUMABLE:
        raise Interrupted("stopped", do="run the same command again to continue")
    if code:
        raise CommandFailed(
            f"`hotloop {arguments[0]}` ended with exit code {code}", returncode=code
        )
