"""Where the memory of a process that trained went, whether it ended for that, and what makes it smaller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from hotloop.core.census import Census
from hotloop.core.command_run import Killed
from hotloop.core.memory_use import MemoryNote, MemoryProfile, OutOfMemory, ways_left
from hotloop.core.telemetry import TelemetrySample

REST = "activations and the rest"
WORKERS = "loader workers"
HELD = ("weights", "frozen weights", "gradients", "optimizer", "averaged weights", "copy of a save")
FULL = 0.8
"""Of the limit: from here on a kill that nobody counted was probably for memory."""
MOSTLY_HELD = 0.7
"""Of the peak: what a smaller microbatch does not shrink."""
MANY_WORKERS = 0.2
"""Of the peak."""
LAST_SAMPLES = 5
"""Seconds before the end."""
GREW, GREW_STEPS = 1.3, 20
NOT_TOLD = frozenset({"train.compile"})
"""Ways of which a machine may have nothing, as a compiler."""
OF_TEXT = frozenset({"train.loss", "train.activation_checkpointing"})
"""Ways that a fine-tuning does not have."""


def profile_of(note: MemoryNote) -> MemoryProfile | None:
    """`None` where the system tells no memory."""
    if note.peak_bytes is None:
        return None
    parts = {name: size for name, size in note.owners.items() if size}
    before = parts.pop("process", 0) or parts.pop("start", 0)
    left = note.peak_bytes - sum(parts.values())
    if not note.device.startswith("cuda"):
        # Less than then: the system took pages back that nobody used any more.
        name = "process" if "process" in note.owners else "start"
        parts[name] = min(before, max(left, 0))
        left -= parts[name]
    parts[REST] = max(left, 0)
    if note.workers_bytes and not note.device.startswith("cuda"):
        parts[WORKERS] = note.workers_bytes
    return MemoryProfile(
        device=note.device,
        peak_bytes=sum(parts.values()),
        parts=parts,
        phases=dict(note.phases),
        limit_bytes=note.limit_bytes,
        limit_from=note.limit_from,
    )


def killed_for_memory(
    before: Mapping[str, int], now: Mapping[str, int], used_fraction: float | None
) -> Killed | None:
    """Of a process that was killed: for memory, as the kernel's counts of such kills say, before (`memory_kills`) and now.

    used_fraction: of its limit, when it was last seen: decides where these are not known.
    """

    def both(*names: str) -> bool:
        return all(name in before and before[name] == now.get(name) for name in names)

    if both("boot", "group_id") and "group" in before and "group" in now:
        return "yes" if now["group"] > before["group"] else "no"
    if both("boot") and "machine" in before and "machine" in now:
        return "probably" if now["machine"] > before["machine"] else "no"
    return "probably" if (used_fraction or 0.0) >= FULL else None


def used_fraction(note: MemoryNote, samples: Sequence[TelemetrySample] = ()) -> float | None:
    used = used_bytes(note, samples)
    return used / note.limit_bytes if used and note.limit_bytes else None


def used_bytes(note: MemoryNote | None, samples: Sequence[TelemetrySample]) -> int | None:
    """The most of what the limit counts, shortly before the end."""
    last = [each.group_bytes for each in samples[-LAST_SAMPLES:] if each.group_bytes]
    own = note.used_bytes if note is not None else None
    in_group = note is None or "control group" in (note.limit_from or "")
    return max([own or 0, *(last if in_group else [])]) or None


def out_of_memory(
    note: MemoryNote | None,
    *,
    killed: Killed | None,
    samples: Sequence[TelemetrySample] = (),
    ways: tuple[str, ...] = (),
) -> OutOfMemory | None:
    """What is known of a training that failed; `None` where it was not for its memory.

    note: of the process that failed, or took most. killed: whether the kernel ended it for that.
    """
    said = note.failed if note is not None else None
    if said is None and killed not in ("yes", "probably"):
        return None
    limit = samples[-1].memory_limit_bytes if samples else None
    return OutOfMemory(
        certainty="said" if said else "killed" if killed == "yes" else "probably",
        said=said,
        where=_where(note),
        used_bytes=used_bytes(note, samples),
        limit_bytes=note.limit_bytes if note is not None else limit,
        limit_from=note.limit_from if note is not None else None,
        profile=profile_of(note) if note is not None else None,
        ways=ways,
    )


def _where(note: MemoryNote | None) -> str:
    if note is None or note.step is None:
        return "before its first step"
    phase = note.phase or "unattributed"
    phase = "" if phase == "unattributed" else f"{phase.replace('_', ' ')} of "
    line = f", {note.line}" if note.line else ""
    return f"{phase}step {note.step}{line}"


def ways_of_config(flat: Mapping[str, Any], note: MemoryNote | None) -> tuple[str, ...]:
    """Settings of hotloop's own trainer that take less memory, the cheapest first. flat: the settings of the run."""
    size, accumulated = flat["train.microbatch"], flat["train.grad_accum_steps"]
    task, ways = flat.get("task"), []
    if note is not None and note.phase == "export":
        return ("the same command again: it has trained, and only writes the model",)
    if budget := flat.get("train.microbatch_tokens"):
        if budget > 16:
            ways.append(
                f"train.microbatch_tokens={budget // 2}: the same steps in more, smaller products"
            )
    elif size > 1:
        half = max(n for n in range(1, size // 2 + 1) if size % n == 0)
        fewer = ", in which batch norm sees fewer examples" if task == "module" else ""
        ways.append(
            f"train.microbatch={half} train.grad_accum_steps={accumulated * size // half}: the same steps in more, "
            f"smaller products{fewer}"
        )
    on_cpu = note is None or not note.device.startswith("cuda")
    left_out = NOT_TOLD if task is None else NOT_TOLD | OF_TEXT
    for changes, effect in ways_left(flat, on_cpu=on_cpu):
        if left_out.isdisjoint(changes):
            words = " ".join(f"{k}={str(v).lower()}" for k, v in changes.items())
            ways.append(f"{words}: {effect}")
    ways += _ways_of_finetuning(flat)
    if _mostly_held(note):
        smaller = {None: " (model.layers, model.width)", "module": ""}.get(task, " (model.path)")
        ways.append(f"a smaller model{smaller}, or optimizer.name=sgd: another training")
    return tuple(ways)


def _ways_of_finetuning(flat: Mapping[str, Any]) -> list[str]:
    """Those of a model of transformers: each makes it another training."""
    longest, rank = flat.get("model.max_tokens"), flat.get("model.lora.rank")
    ways = []
    if isinstance(longest, int) and longest >= 32:
        become = "become several examples" if flat["task"] == "text" else "are cut"
        ways.append(
            f"model.max_tokens={longest // 2}: longer texts {become}, and where there are none it takes no less"
        )
    if rank == 0:
        ways.append(
            "model.lora.rank=8: an adapter is trained, the weights have neither gradients nor optimizer state"
        )
    elif rank and flat["model.lora.quantize"] == "none" and not flat["model.lora.merge"]:
        ways.append(
            "model.lora.quantize=4bit: the weights that are not trained are rounded to 4 bits"
        )
    return ways


def ways_of_script(
    note: MemoryNote | None, census: Census | None, samples: Sequence[TelemetrySample] = ()
) -> tuple[str, ...]:
    """The same for somebody's own script, in words."""
    said = (note.failed or "") if note is not None else ""
    profile = profile_of(note) if note is not None else None
    ways = []
    if "shared memory" in said:
        ways.append(
            "a larger /dev/shm, through which loader workers hand over batches: `docker run --shm-size=2g`"
        )
    if growth := _growth(note, samples):
        ways.append(
            f"{growth}: what keeps losses or outputs with their graph (`total += loss` needs `.item()`), or a list or "
            "cache without a limit"
        )
    workers = profile.parts.get(WORKERS, 0) if profile is not None else 0
    if "killed by signal" in said or (profile and workers > MANY_WORKERS * profile.peak_bytes):
        ways.append(
            "fewer loader workers (num_workers), fewer batches ahead (prefetch_factor), arrays in place of lists of "
            "Python objects in the dataset"
        )
    loader = census.slowest_loader() if census is not None else None
    size = loader.batch_size if loader is not None else None
    halved = f" (batch_size {size} to {size // 2})" if size and size > 1 else ""
    ways.append(
        f"half the batch{halved}, and an update after two of them, each loss divided by 2: the same global batch"
    )
    if census is None or "bfloat16" not in census.matmul_dtypes:
        ways.append(
            "`torch.autocast` in bfloat16 around the forward: activations are half as large, and rounded"
        )
    ways.append(
        "`torch.utils.checkpoint` around the model's blocks: their activations are computed again in the backward"
    )
    if _mostly_held(note):
        ways.append(
            "weights, gradients and optimizer state are most of it: a smaller model, an optimizer that keeps less "
            "(another training), or FSDP over several devices"
        )
    return tuple(ways)


def _mostly_held(note: MemoryNote | None) -> bool:
    profile = profile_of(note) if note is not None else None
    if profile is None:
        return False
    return sum(profile.parts.get(each, 0) for each in HELD) > MOSTLY_HELD * profile.peak_bytes


def _growth(note: MemoryNote | None, samples: Sequence[TelemetrySample]) -> str | None:
    """`it grew from 400 to 900 MB`, from the second third of the run to its end."""
    if note is None or (note.step or 0) < GREW_STEPS:
        return None
    seen = [each.process_bytes for each in samples if each.process_bytes]
    third = len(seen) // 3
    if third < 2:
        return None
    before, after = median(seen[third : 2 * third]), max(seen[-third:])
    if after < GREW * before:
        return None
    return f"memory grew from {before / 1e6:,.0f} to {after / 1e6:,.0f} MB while steps did the same work"
