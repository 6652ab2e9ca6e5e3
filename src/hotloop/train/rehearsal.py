"""A training gone through without computing: the trainer's own steps, whose tensors are allocated and never written.

    python -m hotloop.train.rehearsal CONFIG RESULT

A fresh process builds the run and makes its steps, an evaluation and a save, by the trainer's own functions. Where an
operation would compute, its results are asked of the allocator alone, so that untouched pages cost no memory. What the
allocator then holds is what it holds in a training: with the holes that steps leave, in a compiled model with the buffers
of the compiled code (whose kernels are left out). A sum of live tensors misses the holes, up to half of it.

Of a CPU and glibc. Not seen: what libraries take for themselves once they compute.
"""

from __future__ import annotations

import ctypes
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from hotloop.checkpoint import state
from hotloop.core.errors import EnvironmentFailed, HotloopError
from hotloop.core.files import write_json
from hotloop.core.memory_use import Rehearsed
from hotloop.core.progress import silent
from hotloop.core.settings import load_settings
from hotloop.data.packing import BucketLoader
from hotloop.optimizations.compiling import AUTOTUNE
from hotloop.optimizations.precision.autocast import autocast
from hotloop.probe.memory_watch import statm_bytes
from hotloop.probe.phases import PhaseClock
from hotloop.train.interruption import StopRequest
from hotloop.train.loop import gradients
from hotloop.train.observed import observe
from hotloop.train.opened_text import opened_text
from hotloop.train.rendezvous import Rendezvous
from hotloop.train.run import Run, build_run
from hotloop.train.update import update

MEASURED_STEPS = 3
"""Steps of the real run that a rehearsal is held against."""
STEPS = 12
"""By then the holes have stopped growing."""
MICROBATCHES = 2
"""Of a step: the third takes what the second did."""
TINY = 64
"""Elements up to which everything is computed: counts, norms, factors that Python reads."""
_PR_SET_THP_DISABLE = 41
"""From <linux/prctl.h>."""


class _Info(ctypes.Structure):
    """`struct mallinfo2` of <malloc.h>."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in [
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        ]
    ]


class Heap:
    """What glibc's allocator holds of this process."""

    def __init__(self, *, keeps: bool) -> None:
        """keeps: freed memory stays (`train.host_memory: keep`), and addresses are set aside. Raises `EnvironmentFailed`."""
        self._keeps = keeps
        try:
            libc = ctypes.CDLL(None)
            self._ask = libc.mallinfo2
            libc.prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0)  # else one touched byte is 2 MB
        except (OSError, AttributeError) as error:
            raise EnvironmentFailed(
                "memory can be predicted with glibc 2.33 or newer alone: its allocator is asked"
            ) from error
        self._ask.restype = _Info
        self.clear()

    def clear(self) -> None:
        self.held_bytes = self.live_bytes = 0

    def look(self) -> None:
        """Remember the most that was held, and the most of it that was in use."""
        now = self._ask()
        # What lies above all that was ever used was never touched.
        held = now.arena - now.keepcost if self._keeps else now.arena
        self.held_bytes = max(self.held_bytes, held + now.hblkhd)
        self.live_bytes = max(self.live_bytes, now.uordblks + now.hblkhd)

    def live_now(self) -> int:
        now = self._ask()
        return int(now.uordblks + now.hblkhd)


class Uncomputed(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Allocates what operations return, and computes nothing but what is tiny."""

    def __init__(self, heap: Heap) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._heap, self._fake = heap, FakeTensorMode()
        self._known: dict[Any, Any] = {}
        """Shapes of results, so that from the second step on nothing but the results is allocated."""
        with self:  # what an operation loads when it is first asked for its shapes
            torch.empty(TINY, TINY) @ torch.empty(TINY, TINY)

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        flat, spec = tree_flatten((args, kwargs))
        given = [each for each in flat if isinstance(each, Tensor)]
        schema = function._schema
        creates = any(word in schema.name for word in ("empty", "zeros", "ones", "full"))
        if function.is_view or (not creates and all(each.numel() <= TINY for each in given)):
            return function(*args, **kwargs)
        if schema.is_mutable:
            return _written(schema, args, kwargs)
        key: Any = (function, spec, tuple(map(_key, flat)))
        try:
            shapes = self._known.get(key)
        except TypeError:  # an argument that has no hash
            key = shapes = None
        if shapes is None:
            with self._fake:
                like = [
                    torch.empty_strided(each.shape, each.stride(), dtype=each.dtype)
                    if isinstance(each, Tensor)
                    else each
                    for each in flat
                ]
                fake_args, fake_kwargs = tree_unflatten(like, spec)
                shapes = tree_map_only(Tensor, _Shape, function(*fake_args, **fake_kwargs))
            if key is not None:
                self._known[key] = shapes
        result = tree_map_only(_Shape, _Shape.made, shapes)
        self._heap.look()
        return result


class _Shape:
    """A tensor to be allocated."""

    def __init__(self, like: Tensor) -> None:
        self._of = (like.shape, like.stride(), like.dtype)

    def made(self) -> Tensor:
        shape, stride, dtype = self._of
        tensor = torch.empty_strided(tuple(shape), stride, dtype=dtype)
        return tensor.zero_() if tensor.numel() <= TINY else tensor


def _key(value: Any) -> Any:
    if isinstance(value, Tensor):
        return (value.shape, value.stride(), value.dtype)
    return value


def _written(schema: Any, args: Any, kwargs: Any) -> Any:
    """What an operation in place returns: what it would have written to."""
    written = [
        args[position] if position < len(args) else kwargs.get(argument.name)
        for position, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    if not schema.returns:
        return None
    return written[0] if len(schema.returns) == 1 else tuple(written)


@contextmanager
def kernels_left_out(heap: Heap) -> Iterator[None]:
    """What is compiled meanwhile allocates its buffers and computes nothing. Raises `EnvironmentFailed` for another torch.

    Nothing of it may reach the cache: the caller sets TORCHINDUCTOR_FORCE_DISABLE_CACHES.
    """

    def nothing(*_: Any, **__: Any) -> None:
        heap.look()

    try:
        import torch._inductor.kernel.bmm
        import torch._inductor.kernel.mm  # they name what follows
        from torch._inductor.async_compile import AsyncCompile
        from torch._inductor.select_algorithm import extern_kernels

        replaced: list[tuple[object, str, Any]] = [
            (AsyncCompile, "cpp_pybinding", lambda self, types, source: nothing),
            *((extern_kernels, name, nothing) for name in vars(extern_kernels)),
        ]
        before = [(owner, name, getattr(owner, name)) for owner, name, _ in replaced]
    except (ImportError, AttributeError) as error:
        raise EnvironmentFailed(
            f"memory of a compiled model cannot be predicted with torch {torch.__version__}: {error}",
            do="predict it uncompiled with train.compile=false, which takes more",
        ) from error
    for owner, name, value in replaced:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


def rehearse(config_file: Path) -> Rehearsed:
    """Of a resolved config for a CPU. Raises what building a run raises, and `EnvironmentFailed` for what cannot be rehearsed."""
    config = load_settings(config_file).config
    if config.train.compile == AUTOTUNE:
        raise EnvironmentFailed(
            f"memory cannot be predicted with `train.compile: {AUTOTUNE}`: its kernels are chosen by timing them",
            do="predict it with train.compile=true",
        )
    heap = Heap(keeps=config.train.host_memory == "keep")
    with (
        ExitStack() as stack,
        opened_text(config, Rendezvous(), progress=silent) as text,
        tempfile.TemporaryDirectory() as directory,
    ):
        if config.train.compile:
            stack.enter_context(kernels_left_out(heap))
        start_bytes = statm_bytes(1) or 0
        uncomputed = Uncomputed(heap)  # loads what a training does not
        heap.look()
        live_at_start, held_at_start = heap.live_now(), heap.held_bytes
        with uncomputed:
            run = build_run(config, text, Path(directory), torch.device("cpu"))
            weights_bytes = sum(each.nbytes for each in run.model.parameters())
            observe(run, ())
        run.model.train()
        heap.clear()  # building is no part of a step, and is less
        heap.look()
        # Compiled code is not made under a mode: torch would leave it uncompiled.
        stepping = nullcontext() if config.train.compile else uncomputed
        for step in range(MEASURED_STEPS):
            _step(run, step, stepping, uncomputed)
        steps_bytes, live_bytes = heap.held_bytes, heap.live_bytes
        for step in range(MEASURED_STEPS, STEPS):
            _step(run, step, stepping, uncomputed)
        with uncomputed:
            _evaluation(run)
        with uncomputed:
            kept: list[Any] = [state.capture(run.model, run.optimizer, run.scaler)]
            if run.average is not None:
                kept.append(run.average.files())
        heap.look()
        if config.checkpoint.background is not True:  # `auto` does so where memory is left alone
            del kept
        _step(run, STEPS, stepping, uncomputed, data=_longest(run))
        slots = [each for held in run.optimizer.state.values() for each in held.values()]
        optimizer_bytes = sum(each.nbytes for each in slots if isinstance(each, Tensor))
        activations_bytes = _left_by_forward(run, stepping, heap)
    tokens = config.train.microbatch * config.model.context
    assert run.shape is not None
    return Rehearsed(
        weights_bytes=weights_bytes,
        gradients_bytes=weights_bytes,
        optimizer_bytes=optimizer_bytes,
        averaged_bytes=weights_bytes if config.averaging.name != "none" else 0,
        activations_bytes=activations_bytes,
        logits_bytes=min(4 * tokens * run.shape.vocabulary, activations_bytes),
        live_bytes=live_bytes - live_at_start,
        start_bytes=start_bytes,
        steps_bytes=start_bytes + steps_bytes - held_at_start,
        whole_bytes=start_bytes + heap.held_bytes - held_at_start,
    )


def _data(run: Run, step: int, first: int = 0) -> Any:
    accumulated = min(run.config.train.grad_accum_steps, MICROBATCHES)
    first = min(first, run.config.train.grad_accum_steps - accumulated)
    return run.work.read(step, own=range(first, first + accumulated), pinned=False)


def _longest(run: Run) -> Any:
    """Of the step with the longest rows, among which attention may keep the most. Those of buckets alone differ."""
    batches = getattr(run.work, "batches", None)
    number = batches.widest() if isinstance(batches, BucketLoader) else 0
    return _data(run, *divmod(number, run.config.train.grad_accum_steps))


def _step(run: Run, step: int, stepping: Any, uncomputed: Uncomputed, *, data: Any = None) -> None:
    with stepping:
        whole = gradients(
            run, _data(run, step) if data is None else data, PhaseClock(), StopRequest(run)
        )
    with uncomputed:
        update(run, 1e-4, whole["loss"])
        if run.average is not None:
            run.average.update(step + 1)


@torch.no_grad()
def _evaluation(run: Run) -> None:
    run.model.eval()
    run.uncompiled(*_data(run, 0).microbatches[0])
    run.model.train()


def _left_by_forward(run: Run, stepping: Any, heap: Heap) -> int:
    """Bytes that the forward of one microbatch keeps for its backward, the logits among them."""
    inputs = max(_longest(run).microbatches, key=lambda each: each[0].shape[-1])
    before = heap.live_now()
    with stepping, autocast("cpu", run.config.train.precision):
        loss = run.replica(*inputs)
    after = heap.live_now()
    del loss
    return max(after - before, 0)


def main(config_file: str, result: str) -> int:
    try:
        write_json(Path(result), asdict(rehearse(Path(config_file))))
    except HotloopError as error:
        print(json.dumps(str(error)))  # noqa: T201
        return int(error.exit_code)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
