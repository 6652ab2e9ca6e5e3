"""What a process was seen to use. Standard library only: foreign processes import this."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

ONE_OF = " #"
"""In `LoaderUse.made`, before the number of one of several loaders that the same calls made."""

SEVERAL_UPDATES = "steps were counted by an optimizer that steps several times in one"
"""One of a census's notes."""

NO_OPTIMIZER = "no optimizer of torch steps: a step ends with each pass backward"
"""One of a census's notes."""

WITH_GRADIENTS = "with gradients"
"""What an evaluation is that leaves gradients on, in `evaluations`; of others `without gradients`."""

FILLED = "uninitialized::fill_"
"""Name in `operators` of filling memory just allocated, by which deterministic algorithms show what reads it: `zeros` and
`full` are none."""


PICKED_S = 1e-6
"""Seconds that a sample takes at least where Python picks it."""


@dataclass(frozen=True, slots=True)
class LoaderUse:
    """One DataLoader that was iterated, by its call site. `None` means not observed."""

    site: str
    """`file:line` where it was constructed, in the user's own code where there is any."""
    trains: bool
    """Its batches were followed by a backward; else it evaluates."""
    dataset: str
    """Class of the dataset."""
    dataset_site: str | None
    """`file:line` of its `__getitem__` or `__iter__`."""
    collate_site: str | None
    """`file:line` of the user's own collate function; `None` for torch's."""
    iterable: bool
    in_memory: bool | None
    """The dataset holds its data as tensors or arrays."""
    num_workers: int
    batch_size: int | None
    pin_memory: bool
    persistent_workers: bool
    prefetch_factor: int | None
    num_batches: int
    """Fetched while steps were counted."""
    batch_bytes: int | None
    """Median size of a batch's tensors."""
    wait_s: float | None
    """Median seconds that the training waited for a batch that was not an epoch's first."""
    wait_p99_s: float | None
    fetch_s: float | None
    """Median seconds that making one batch took: in the main process, or in a worker."""
    collate_s: float | None
    """The part of `fetch_s` in the collate function."""
    pin_s: float | None
    """Median seconds that pinning one batch took in the main process; `None` where a thread does it."""
    fetch_cpu_fraction: float | None
    """CPU seconds over wall seconds while fetching: low where it waits for disk or network."""
    num_epochs: int
    epoch_start_s: float | None
    """Median seconds from asking for an iterator to an epoch's first batch, the first epoch left out."""
    per_epoch: int | None
    """Batches of an epoch, where the loader knows."""
    draws_random: bool | None = None
    """Its dataset or collate function drew from the random state of the process that made the batch."""
    changes_between_epochs: bool | None = None
    """Something that its dataset or collate function holds was another when an epoch began than when the one before did, or
    a line of the user's code may make it so."""
    made: tuple[str, ...] = ()
    """The calls that led to its construction, the innermost first: `train.py:8 < train.py:30`. With ` #1` where
    only the second loader that was made so trains. Empty where that was not seen, or it does not train."""

    @property
    def starts_anew(self) -> bool:
        """Each batch is the first of a new iterator: `next(iter(loader))`."""
        is_each = self.wait_s is None and 0 < self.num_batches <= self.num_epochs
        return is_each and self.per_epoch != 1

    @property
    def stacks_tensors(self) -> bool:
        """Its samples are picked from a TensorDataset one by one and stacked by torch: picked at once, none takes as long."""
        if self.dataset != "TensorDataset" or self.collate_site is not None:
            return False
        return self.fetch_s is None or self.fetch_s > PICKED_S * (self.batch_size or 0)


@dataclass(frozen=True, slots=True)
class CallUse:
    """Calls of one kind from one place, over the counted steps."""

    what: str
    """`item`, `torch.save`, `print`, `SummaryWriter.add_scalar`, `Tensor.to`, ..."""
    site: str | None
    num: int
    seconds: float
    """Host seconds inside, on the thread that steps."""
    num_bytes: int | None = None
    pageable: bool | None = None
    """True for copies to a device from memory that is not pinned."""
    inside: str | None = None
    """`module.function` of the innermost Python frame outside torch, e.g.
    `transformers.trainer._inner_training_loop`."""


@dataclass(frozen=True, slots=True)
class LineUse:
    """A place in which the host was seen, sampled: `fraction` of the counted wall time."""

    phase: str
    site: str
    """`file:line` of the innermost frame of the user's own code; of any code where there is none."""
    function: str
    fraction: float
    inside: str | None = None
    """What that line was calling: `module.function` of the innermost frame, from the package on where it is
    installed: `torch.nn.functional.cross_entropy`."""
    feeds: bool = False
    """It is run by an iterator, a generator or a `__getitem__` of the user's that gives the loop its data."""


@dataclass(frozen=True, slots=True)
class OperatorUse:
    """One kind of operation, seen by torch's profiler over a few steps; seconds per step."""

    name: str
    """`aten::mm`, `aten::_softmax`, ..."""
    dtype: str | None
    """Dtype of its first tensor."""
    num: float
    self_s: float
    """On the host, without what it called. On a CPU that is its computing time."""
    device_s: float = 0.0
    """On an accelerator."""
    site: str | None = None


@dataclass(frozen=True, slots=True)
class CollectionUse:
    """Python's garbage collections during the counted steps."""

    num: int
    seconds: float
    num_full: int
    full_s: float
    site: str | None = None
    """The place of most full ones, in the user's own code."""
    outside_s: float | None = None
    """Of these seconds, outside of every phase. `None`: not observed."""


@dataclass(frozen=True, slots=True)
class PaddingUse:
    """Integer batches with a mask, or with a run of one id at their ends."""

    num_tokens: int
    padded_fraction: float
    source: str
    """`attention_mask`, `labels`, or `trailing id 0`."""
    site: str | None = None
    longest_padded_fraction: float | None = None
    """Padded share if each batch ended with its longest row; known of an attention mask alone."""
    grouped_padded_fraction: float | None = None
    """The same, had their rows been sorted by length and divided into batches of the same sizes."""


@dataclass(frozen=True, slots=True)
class DebugSwitch:
    """A setting for debugging that was on."""

    name: str
    """As it is called in the environment or in torch: `CUDA_LAUNCH_BLOCKING`, `use_deterministic_algorithms`, ..."""
    site: str | None = None
    """`file:line` that turned it on; `None` where that was the environment, or was not seen."""


@dataclass(frozen=True, slots=True)
class DdpUse:
    """How DistributedDataParallel was made; of several, what is true of any of them."""

    find_unused_parameters: bool
    """Each step searches its graph for parameters without gradient."""
    gradient_as_bucket_view: bool
    unused_bytes: int | None
    """The most bytes of parameters without gradient in one of the first steps, as its own log says."""


@dataclass(frozen=True, slots=True)
class Census:
    """What was observed, as opposed to asked for. `None` means not observed."""

    device: str | None = None
    """`cpu`, `cuda:0`, ..."""
    device_uuid: str | None = None
    """A GPU's name to NVML, which counts GPUs otherwise than CUDA does."""
    num_threads: int | None = None
    matmul_dtypes: tuple[str, ...] = ()
    """Dtypes in which matrix products were computed, e.g. `("bfloat16",)`."""
    fast_dtypes: tuple[str, ...] = ()
    """Dtypes in which this device multiplies matrices in hardware, as `hardware` knows them; the fastest first."""
    parameter_dtypes: tuple[str, ...] = ()
    attention: tuple[str, ...] = ()
    """Attention implementations that really ran: `plain`, `sdpa:flash`, `sdpa:math`, ..."""
    optimizer: str | None = None
    """Class and implementation, e.g. `AdamW(fused)`; of classes that are not torch's with their module."""
    optimizer_site: str | None = None
    """`file:line` where it was constructed."""
    clipping: str | None = None
    """How gradients are clipped: `builtin` or `fused`; `None` when nothing is."""
    host_memory: str | None = None
    """`keep` where the allocator was told to keep what is freed, and agreed; else `default`."""
    bound_threads: int | None = None
    """Threads held to a CPU of their own."""
    num_ranks: int | None = None
    """Processes that train together."""
    num_local_ranks: int | None = None
    """The processes on this machine, where that was told (`LOCAL_WORLD_SIZE`)."""
    sent_gradient_dtype: str | None = None
    """Dtype in which gradients travel between them; `None` when nothing was sent."""
    compiled: bool | None = None
    num_graphs: int | None = None
    num_graph_breaks: int | None = None
    num_recompiles: int | None = None
    compile_s: float | None = None
    """Seconds that torch.compile took in this process; they fall into the steps tagged `compile`."""
    loader: dict[str, object] = field(default_factory=dict)
    """How hotloop's own trainer loads; what a foreign script does is in `loaders`."""
    host_peak_bytes: int | None = None
    """Highest resident set of the training process."""
    tree_bytes: int | None = None
    """Memory of the training process and all that it started, loader workers too, after its last counted step."""
    num_background_saves: int | None = None
    """Files that `hotloop.checkpoint.save_in_background` wrote beside the steps."""
    num_skipped: int | None = None
    """Optimizer updates left out: gradients that were no numbers, overflow in fp16, spikes if so configured."""
    num_spikes: int | None = None
    """Steps whose loss or gradient norm stood far above the recent ones."""
    num_rollbacks: int | None = None
    """How often the run went back to a checkpoint because of a spike."""
    clock_read_s: float | None = None
    """Measured cost of one clock read of the probe."""
    cpus: float | None = None
    """CPUs that the process may use."""
    cpu_busy: float | None = None
    """CPUs that the process kept busy over the counted steps, all threads and children."""
    machine_busy: float | None = None
    """Busy share of all CPUs of the machine meanwhile, all programs."""
    foreign_busy: float | None = None
    """The part of it that is not this process and its children."""
    microbatches: float | None = None
    """Backward passes per step."""
    counted_steps: int | None = None
    """Steps over which batches and backward passes were counted."""
    steps_made: int | None = None
    """Steps that ended, with those at which nobody looked, of which the last have no record."""
    profiled_step_s: float | None = None
    """Wall seconds of a step while `operators` were seen."""
    profiled_wait_s: float | None = None
    """Seconds of such a step in which it waited for data: a step may take another time later in the run."""
    profiled_busy_s: float | None = None
    """Seconds of such a step in which the GPU was at work; its kernels take as long as ever then."""
    profiled_communication_s: float | None = None
    """Seconds of such a step in communication that no computing hid. `None`: none was seen."""
    profiled_between_s: float | None = None
    """Seconds of such a step in operations on tensors that the loss or the weights depend on, and no phase holds:
    `weight - rate * slope`."""
    profile_kept: bool = False
    """Until the end: the profiler left no memory free that could make later steps faster."""
    start_s: float | None = None
    """Seconds from the start of the process to its first step: importing, building, loading."""
    planned_steps: int | None = None
    """Steps that the training says it will make, e.g. a Trainer's `max_steps`."""
    how_often: dict[str, str] = field(default_factory=dict)
    """Phase -> the argument of a Trainer that sets how often it comes, as it is: `eval` -> `eval_steps=20`."""
    other_trainings: tuple[int, ...] = ()
    """Steps of each process that trained beside this one without a rank of its own: not watched."""
    parallel: str | None = None
    """How the ranks train together: `DistributedDataParallel`, `DataParallel`, ..."""
    ddp: DdpUse | None = None
    input_shapes: int | None = None
    """Distinct shapes of the first tensor that the model was called with."""
    channels_last: bool | None = None
    """The model's convolution weights are stored with the channels last."""
    cudnn_benchmark: bool | None = None
    debug_switches: tuple[DebugSwitch, ...] | None = None
    alloc_retries: int | None = None
    """How often, over the counted steps, the device's allocator had to free its cache and ask again."""
    device_allocated_bytes: int | None = None
    """Highest memory of tensors on the device."""
    device_reserved_bytes: int | None = None
    """Highest memory that the allocator held for them."""
    device_memory_bytes: int | None = None
    """Memory that the device has."""
    throttled_fraction: float | None = None
    """Share of the telemetry of the steps in which the device's clock was held down by heat or power."""
    throttled_by: tuple[str, ...] = ()
    clock_drop_fraction: float | None = None
    """How much lower the clock was then than while not held down."""
    loaders: tuple[LoaderUse, ...] = ()
    copies: tuple[CallUse, ...] = ()
    syncs: tuple[CallUse, ...] = ()
    saves: tuple[CallUse, ...] = ()
    logs: tuple[CallUse, ...] = ()
    evaluations: tuple[CallUse, ...] = ()
    lines: tuple[LineUse, ...] = ()
    num_samples: int | None = None
    """That `lines` were counted from."""
    operators: tuple[OperatorUse, ...] = ()
    collections: CollectionUse | None = None
    padding: PaddingUse | None = None
    recompile_reasons: tuple[str, ...] = ()
    seen: tuple[str, ...] = ()
    """The fields above that were looked at, of those that are empty when nothing was there: `loaders`,
    `copies`, `syncs`, `saves`, `logs`, `evaluations`, `lines`, `operators`."""
    notes: tuple[str, ...] = ()
    """Fallbacks and other things a reader should know."""

    def slowest_loader(self) -> LoaderUse | None:
        """The loader that trains; of several the one whose batches took longest in all."""
        return max(
            (loader for loader in self.loaders if loader.trains),
            key=lambda loader: (loader.wait_s or loader.fetch_s or 0.0) * loader.num_batches,
            default=None,
        )

    def training_batches(self) -> int:
        """Batches of the loader that trains; each epoch may have made an iterator of its own from the same place."""
        loader = self.slowest_loader()
        place = None if loader is None else (loader.site, loader.per_epoch)
        same = (
            each for each in self.loaders if each.trains and (each.site, each.per_epoch) == place
        )
        return sum(each.num_batches for each in same)

    def batches_per_step(self) -> int:
        """Of the loader that trains; where these were not counted, backward passes, of which a GAN's step has more."""
        batches = self.training_batches()
        if not batches or not self.counted_steps:
            return max(round(self.microbatches or 1.0), 1)
        return max(round(batches / self.counted_steps), 1)

    def has_switch(self, *names: str) -> bool | None:
        """Whether one of these settings for debugging was on; `None` where nobody looked."""
        if self.debug_switches is None:
            return None
        return any(each.name in names for each in self.debug_switches)

    def to_mapping(self) -> dict[str, object]:
        return asdict(self)
