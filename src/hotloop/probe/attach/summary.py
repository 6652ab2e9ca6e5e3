"""The census of a process under watch, put together from what each part saw."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from hotloop.core.census import Census
from hotloop.probe.attach.boundary import Boundary
from hotloop.probe.attach.cost import Cost
from hotloop.probe.attach.debug_switches import DebugSwitches
from hotloop.probe.attach.device_clock import DeviceSeen
from hotloop.probe.attach.garbage_watch import GarbageWatch
from hotloop.probe.attach.loader_watch import LoaderWatch
from hotloop.probe.attach.model import ModelSeen, Padding
from hotloop.probe.attach.operators import Seen
from hotloop.probe.attach.sampler import Sampler
from hotloop.probe.attach.step_profiler import StepProfiler
from hotloop.probe.attach.watch import Watch
from hotloop.probe.compile_watch import compile_seconds, compiler_counts, recompiles
from hotloop.probe.machine import Busy, host_peak_bytes, usable_cpus


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything that watches one process."""

    watch: Watch
    boundary: Boundary
    loaders: LoaderWatch
    sampler: Sampler
    garbage: GarbageWatch
    padding: Padding
    profiler: StepProfiler
    busy: Busy
    cost: Cost
    model: ModelSeen
    device: DeviceSeen
    switches: DebugSwitches

    def clear(self) -> None:
        """What was taken for steps was none."""
        self.sampler.clear()
        self.garbage.clear()
        self.loaders.clear()
        self.busy.clear()
        self.switches.clear()
        self.watch.calls.clear()


def census_of(parts: Parts) -> Census:
    """What was seen so far. From the writer's thread, or at the end."""
    watch, boundary, profiler = parts.watch, parts.boundary, parts.profiler
    calls, sites = watch.calls, watch.sites
    compiled, num_graphs, num_breaks = compiler_counts()
    num_recompiles, reasons = recompiles()
    seen = profiler.seen or Seen()
    on_device = boundary.device.type != "cpu"
    counted = watch.counted_steps
    looked = ["loaders", "saves", "logs", "evaluations", "lines"]
    looked += ["copies", "syncs"] if on_device else []
    looked += ["operators"] if profiler.seen is not None else []
    notes = [*watch.notes, *([] if profiler.seen is not None else [profiler.why_not])]
    return Census(
        device=str(boundary.device),
        num_threads=torch.get_num_threads(),
        matmul_dtypes=seen.matmul_dtypes,
        parameter_dtypes=boundary.dtypes,
        attention=seen.attention,
        optimizer=boundary.described,
        optimizer_site=sites.name(boundary.constructed),
        num_ranks=num_ranks(),
        compiled=compiled,
        num_graphs=num_graphs,
        num_graph_breaks=num_breaks,
        num_recompiles=num_recompiles,
        compile_s=compile_seconds(),
        host_peak_bytes=host_peak_bytes(),
        clock_read_s=parts.cost.read_s,
        cpus=usable_cpus(),
        cpu_busy=parts.busy.cpus(),
        microbatches=watch.counted_backwards / counted if counted else None,
        counted_steps=counted,
        profiled_step_s=profiler.step_s,
        profiled_wait_s=profiler.wait_s,
        profiled_busy_s=seen.busy_s,
        profiled_communication_s=seen.communication_s,
        profiled_between_s=seen.computing_between_s,
        **parts.model.used(),
        **parts.device.used(),
        cudnn_benchmark=torch.backends.cudnn.benchmark if on_device else None,
        debug_switches=parts.switches.used(),
        loaders=parts.loaders.uses(),
        copies=calls.uses("copies", sites),
        syncs=calls.uses("syncs", sites),
        saves=calls.uses("saves", sites),
        logs=calls.uses("logs", sites),
        evaluations=calls.uses("evaluations", sites),
        lines=parts.sampler.lines(),
        num_samples=parts.sampler.counted,
        operators=seen.operators,
        collections=parts.garbage.use(),
        padding=parts.padding.use(sites),
        recompile_reasons=reasons,
        seen=tuple(looked),
        notes=tuple(notes),
    )


def num_ranks() -> int:
    """Processes that train together, as their group says, else their launcher."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_world_size()
    given = os.environ.get("WORLD_SIZE", "1")
    return int(given) if given.isascii() and given.isdigit() else 1
