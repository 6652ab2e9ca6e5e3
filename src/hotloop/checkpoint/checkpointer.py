"""Checkpoints of anybody's training loop, by the commit protocol of `store`: the state of a step is copied, and the copy is
written beside the next steps."""

from __future__ import annotations

import fcntl
import json
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hotloop.checkpoint import store
from hotloop.checkpoint.background import Saver
from hotloop.checkpoint.entries import FILE_NAME
from hotloop.checkpoint.loader import random_states, set_random_states, source_of
from hotloop.checkpoint.nested import Flattened, copied, decode
from hotloop.checkpoint.ranks import gathered, is_own, num_ranks, rank, refuse_unlike_steps
from hotloop.checkpoint.state import FILES, refuse_unlike
from hotloop.core.errors import EnvironmentFailed, UsageError
from hotloop.core.file_locks import LOCK
from hotloop.core.files import storing
from hotloop.core.untrusted import MAX_BYTES

FORMAT = "hotloop.checkpointer/1"


@dataclass(frozen=True, slots=True)
class Resumed:
    """What `load_latest` found."""

    step: int
    """As it was given to `save`: training continues with the step after it."""
    extra: Any
    """As it was given to `save`; its tensors are on the CPU."""
    path: Path
    passed_over: tuple[str, ...]
    """Newer checkpoints that did not verify, each with what is wrong."""


_LOCKS: dict[Path, tuple[int, int, Saver]] = {}
"""By directory, of this process: descriptor, process, and the saver of the Checkpointer that has it now."""


class Checkpointer:
    """Saves a training loop into `directory` and continues it. One process saves there at a time.

    `keep`: newest checkpoints that stay. `background`: write while the next steps run; the error of a save that fails
    there is raised by the next call, or ends the process with code 4. `every_rank`: all processes of the default group
    call `save` and `load_latest`; rank 0 writes, and each continues with its own random states and loader's position.
    """

    def __init__(
        self, directory: str | os.PathLike[str], *, keep: int = 2, background: bool = True, every_rank: bool = False
    ) -> None:  # fmt: skip
        if keep < 2:
            raise UsageError(f"keep is {keep}", do="keep at least 2: the newest may be damaged")
        self.directory = Path(directory).absolute()
        self._place = self.directory.resolve()
        self.keep = keep
        self.background = background
        self.every_rank = every_rank
        self._saver = Saver(unattended=True)
        self._buffers: dict[str, dict[str, Tensor]] = {}
        self._lock: tuple[int, int, Saver] | None = None
        self._problems: tuple[str, ...] = ()
        self._step: int | None = None
        """Of the last save, or of what was loaded; -1 where there was nothing to load."""

    def save(self, step: int, *, extra: Any = None, **parts: Any) -> None:
        """Save the state after `step` steps: `model=`, `optimizer=`, `scheduler=`, `loader=` and whatever else (`ema=`) has
        `state_dict` and `load_state_dict`, or a list or dict of such; `extra` is data, as numbers, text and tensors.

        Returns once it is copied; waits for the save before, if that still writes. Raises `UsageError` naming what cannot
        be stored, and `EnvironmentFailed` where the disk refuses.
        """
        self._saver.finish()
        if type(step) is not int or not max(0, self._step or 0) <= step < 10**8:
            what = f"step {step!r} comes after step {self._step or 0}"
            raise UsageError(what, do="count steps over the whole training, below 10**8")
        stateful = _stateful(parts)
        own = {name: part.state_dict() for name, part in stateful.items() if is_own(part)}
        own["random"] = random_states()
        ranks = gathered(own) if self.every_rank else [own]
        if ranks is None:  # rank 0 writes it
            self._step = step
            return
        self._own(step)
        states = {name: part.state_dict() for name, part in stateful.items() if name not in own}
        states |= {"extra": extra, "others": ranks[1:]} | ranks[0]
        tensors, state = snapshot(states, self._buffers)
        state |= {"updated": _updated(stateful), "num_ranks": len(ranks)}
        write = partial(store.save, self.directory, step, tensors=tensors, state=state, keep=self.keep)  # fmt: skip
        self._step = step
        if not self.background:
            write()
            return
        self._buffers = tensors
        self._saver.begin(write)

    def load_latest(self, *, random: bool = True, **parts: Any) -> Resumed | None:
        """Restore the newest checkpoint that verifies into `parts`, and random states; `None` where none was saved yet.

        What the checkpoint has and is not given stays as it is. Raises `UsageError` where none of those that are there
        verifies, or where it is of another model, which is seen before anything is changed.
        """
        self._saver.finish()
        stateful = _stateful(parts)
        found = self.newest()
        if self.every_rank:
            refuse_unlike_steps(None if found is None else found.step)
        if found is None:
            return None
        try:
            state, values = read(found, (*stateful, "extra", "random"))
            _check(stateful, values, state["updated"])
            self._take_own(found, stateful, state.get("num_ranks", 1), values)
            for name, part in stateful.items():
                _restore(part, values[name])
            if random and "random" in values:
                set_random_states(values["random"])
        except UsageError as error:
            where = error.where or str(found.path)
            raise UsageError(error.what, where=where, do=error.do) from error
        except (LookupError, TypeError, ValueError, RuntimeError, AttributeError) as error:
            do = "build the same objects as the run that saved it"
            raise UsageError(f"it does not fit: {error!r}", where=str(found.path), do=do) from error
        return Resumed(found.step, values["extra"], found.path, self._problems)

    def _take_own(
        self, found: store.Checkpoint, stateful: Mapping[str, Any], saved_by: int, values: dict[str, Any]
    ) -> None:  # fmt: skip
        """Put into `values` what is of this process. Random states of another one would make two that draw the same."""
        loaders = [name for name, part in stateful.items() if is_own(part)]
        if self.every_rank and loaders and saved_by != num_ranks():
            what = f"`{loaders[0]}` is at the position of one of {saved_by} processes, and here are {num_ranks()}"
            raise UsageError(what, do=f"start {saved_by}, or load without it")
        if rank() == 0:
            return
        del values["random"]
        if rank() < saved_by:
            own = read(found, ("others",))[1]["others"][rank() - 1]
            values |= {name: own[name] for name in ("random", *loaders)}

    def newest(self) -> store.Checkpoint | None:
        """The newest checkpoint that verifies, from which training then continues. Warns of those passed over."""
        held = _LOCKS.get(self._place)
        if held is not None:
            held[2].wait()  # also another one's, as of a notebook's cell that is run again
        if held is not self._lock:
            self._lock = None
        found, self._problems = store.latest(self.directory)
        for problem in self._problems:
            warnings.warn(f"a checkpoint is passed over: {problem}", RuntimeWarning, stacklevel=3)
        if found is None and self._problems:
            what = f"no checkpoint here verifies; the newest: {self._problems[0]}"
            raise UsageError(what, where=str(self.directory), do="remove them, to start anew")
        self._step = -1 if found is None else found.step
        return found

    def wait(self) -> None:
        """Until what was saved is on the disk. Raises the error of a save that failed."""
        self._saver.finish()

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self._saver.wait()
        held = _LOCKS.get(self._place)
        if held is not None and held is self._lock and held[1] == os.getpid():
            os.close(_LOCKS.pop(self._place)[0])
            self._lock = None
        self._buffers = {}
        if error is None:
            self._saver.check()

    def _own(self, step: int) -> None:
        """Before a save: nobody else saves here, and no later checkpoint is left to be continued from."""
        process, held = os.getpid(), _LOCKS.get(self._place)
        if self._lock is not None and self._lock[1] == process:
            if held is self._lock:
                if (
                    self._problems
                ):  # else what was passed over would count among those that are kept
                    store.set_aside(self.directory, newer_than=self._step or 0)
                    self._problems = ()
                return
            what = "another Checkpointer of this process has saved here since"
            do = "call load_latest() to continue from what that one saved, or use another directory"
            raise UsageError(what, where=str(self.directory), do=do)
        if held is not None:
            held[2].wait()
            if held[1] != process or not os.fstat(held[0]).st_nlink:
                held = None  # it is the parent's, or the directory was removed
        descriptor = _locked(self.directory) if held is None else held[0]
        there = store.steps(self.directory)
        if self._step is None and there and there[-1] >= step:
            if held is None:
                os.close(descriptor)
            what = f"a checkpoint of step {there[-1]} is here, of an earlier run, and this is step {step}"
            do = "call load_latest() before the first save, to continue from it, or use another directory"
            raise UsageError(what, where=str(self.directory), do=do)
        self._lock = _LOCKS[self._place] = descriptor, process, self._saver
        store.remove_uncommitted(self.directory)
        if self._step is not None:
            store.set_aside(self.directory, newer_than=max(0, self._step))


def snapshot(states: dict[str, Any], into: dict[str, dict[str, Tensor]]) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:  # fmt: skip
    """Copies of nested states by the name of their file, and the rest of `state.json`. Memory of `into` is used again."""
    flat = {name: Flattened(name) for name in (*FILES, *states)}
    encoded = {name: flat[name].encode(value) for name, value in states.items()}
    if len(json.dumps(encoded)) > MAX_BYTES:
        what = f"more than {MAX_BYTES >> 20} MiB of the state are no tensors"
        raise UsageError(what, do="make long lists tensors")
    tensors = {
        name: copied(each.tensors, into.get(name, {}))
        for name, each in flat.items()
        if each.tensors or name in FILES
    }
    return tensors, {"format": FORMAT, "parts": encoded}


def read(found: store.Checkpoint, names: tuple[str, ...]) -> tuple[dict[str, Any], dict[str, Any]]:
    """`state.json`, and each of the named states as it was."""
    files = tuple(name for name in names if f"{name}.safetensors" in found.files)
    tensors, state = store.load(found, files)
    if state.get("format") != FORMAT:
        do = "`hotloop train` continues its own; use another directory"
        raise UsageError("not a checkpoint of hotloop.checkpoint", do=do)
    encoded = state["parts"]
    if missing := sorted(set(names) - encoded.keys()):
        raise UsageError(f"the checkpoint has no {missing[0]}", do="load it without")
    return state, {name: decode(encoded[name], tensors.get(name, {})) for name in names}


def _stateful(given: Mapping[str, Any]) -> dict[str, Any]:
    """All that has a state, by its name: `optimizer`, or `optimizer.0` of a list. Each is a file."""
    found: dict[str, Any] = {}
    for name, part in given.items():
        if name in ("state", "manifest", "random", "others"):
            raise UsageError(f"`{name}` is a name of hotloop's own", do="use another one")
        _add(found, name, part)
    if not found:
        raise UsageError("nothing is given to save or load", do="give model=... and optimizer=...")
    return found


def _add(found: dict[str, Any], name: str, part: Any) -> None:
    if isinstance(part, list | tuple):
        part = {str(i): each for i, each in enumerate(part)}
    if type(part) is dict:
        for key, each in part.items():
            if not f"_{key}".isidentifier():
                raise UsageError(f"`{name}` has the key {key!r}", do="use letters and digits")
            _add(found, f"{name}.{key}", each)
    elif part is not None:
        if not FILE_NAME.fullmatch(name):
            do = "use the letters a to z, digits and _"
            raise UsageError(f"`{name}` is no name for a file", do=do)
        found[name] = part = _bare(part)
        source = source_of(part)  # Accelerate's loader has a state where this has one
        if not (hasattr(source, "state_dict") and hasattr(source, "load_state_dict")):
            loader = isinstance(part, torch.utils.data.DataLoader)
            do = "wrap it: hotloop.checkpoint.ResumableLoader(loader)" if loader else "give the object itself, or data as extra=..."  # fmt: skip
            what = f"`{name}` is a {type(part).__name__}, without state_dict and load_state_dict"
            raise UsageError(what, do=do)
        modules = part.modules() if isinstance(part, nn.Module) else ()
        kinds = {type(module).__name__ for module in modules}
        for kind in kinds & {"FullyShardedDataParallel", "DeepSpeedEngine"}:
            do = "save it with torch.distributed.checkpoint, or as its framework does"
            raise UsageError(f"`{name}` is sharded by {kind}", do=do)


def _bare(part: Any) -> Any:
    """The module that `torch.compile` or data parallelism wraps: its names are the same with and without them."""
    if isinstance(part, nn.parallel.DistributedDataParallel | nn.DataParallel):
        return _bare(part.module)
    if isinstance(part, nn.Module) and "_orig_mod" in part._modules:
        return _bare(part._orig_mod)
    return part


def _restore(part: Any, value: Any) -> None:
    groups = [dict(group) for group in getattr(part, "param_groups", ())]
    part.load_state_dict(value)
    # A learning rate that is a tensor stays on its device.
    for before, group in zip(groups, getattr(part, "param_groups", ())):
        for key, old in before.items():
            if isinstance(old, Tensor) and isinstance(group.get(key), Tensor):
                group[key] = group[key].to(old.device)


def _updated(stateful: Mapping[str, Any]) -> dict[str, list[str]]:
    """Of each optimizer, name and shape of the parameters it updates, in its order: its state knows them by number."""
    modules = [(name, part) for name, part in stateful.items() if isinstance(part, nn.Module)]
    names = {id(p): f"{name}.{key}" for name, part in modules for key, p in part.named_parameters()}
    found: dict[str, list[str]] = {}
    for name, part in stateful.items():
        if isinstance(getattr(part, "param_groups", None), list):
            updated = [p for group in part.param_groups for p in group["params"]]
            found[name] = [f"{names.get(id(p), '?')} {tuple(p.shape)}" for p in updated]
    return found


def _check(stateful: Mapping[str, Any], values: Mapping[str, Any], updated: Any) -> None:
    """Raises `UsageError` where weights or an optimizer's parameters are others, before anything is touched."""
    for name, part in stateful.items():
        if isinstance(part, nn.Module):
            states = (values[name], part.state_dict())
            there, here = ({k: v for k, v in s.items() if isinstance(v, Tensor)} for s in states)
            refuse_unlike("weight", there, here)
    for name, now in _updated(stateful).items():
        for mine, old in zip_longest(now, updated[name], fillvalue="none"):
            unnamed = "?" in mine + old  # the model was not given then, or is not now
            if (mine.partition(" ")[2] != old.partition(" ")[2]) if unnamed else mine != old:
                do = "give it the parameters in the same order as the run that saved it"
                raise UsageError(f"`{name}` updates `{mine}` where it updated `{old}`", do=do)


def _locked(directory: Path) -> int:
    """A descriptor; its lock goes with this process. Not `flock`: a loader's worker that outlives it would hold that on."""
    with storing(directory, "save a checkpoint"):
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError) as error:
        os.close(descriptor)
        do = "give each training a directory of its own; of several ranks, let rank 0 save"
        what = "another process saves its checkpoints here"
        raise EnvironmentFailed(what, where=str(directory), do=do) from error
    except OSError:  # a file system without locks
        pass
    return descriptor


_OPEN: dict[Path, Checkpointer] = {}


def save(directory: str | os.PathLike[str], step: int, **parts: Any) -> None:
    """`Checkpointer(directory).save(step, ...)`, for a loop that keeps no object for it."""
    _OPEN.setdefault(Path(directory).absolute(), Checkpointer(directory)).save(step, **parts)


def load_latest(directory: str | os.PathLike[str], **parts: Any) -> Resumed | None:
    """`Checkpointer(directory).load_latest(...)`."""
    at = Path(directory).absolute()
    return _OPEN.setdefault(at, Checkpointer(directory)).load_latest(**parts)


def wait() -> None:
    """Until all that was saved by `save` is on the disk. Raises the error of a save that failed."""
    for checkpointer in _OPEN.values():
        checkpointer.wait()
