"""What a process was seen to use. Standard library only: foreign processes import this."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field


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
    """Dtypes in which this device multiplies matrices faster than in float32, as `hardware` knows."""
    parameter_dtypes: tuple[str, ...] = ()
    attention: tuple[str, ...] = ()
    """Attention implementations that really ran: `plain`, `sdpa:flash`, `sdpa:math`, ..."""
    optimizer: str | None = None
    """Class and implementation, e.g. `AdamW(fused)`."""
    clipping: str | None = None
    """How gradients are clipped: `builtin` or `fused`; `None` when nothing is."""
    host_memory: str | None = None
    """`keep` where the allocator was told to keep what is freed, and agreed; else `default`."""
    num_ranks: int | None = None
    """Processes that train together."""
    sent_gradient_dtype: str | None = None
    """Dtype in which gradients travel between them; `None` when nothing was sent."""
    compiled: bool | None = None
    num_graphs: int | None = None
    num_graph_breaks: int | None = None
    num_recompiles: int | None = None
    compile_s: float | None = None
    """Seconds that torch.compile took in this process; they fall into the steps tagged `compile`."""
    loader: dict[str, object] = field(default_factory=dict)
    """Loader settings and, for foreign scripts, the call site."""
    host_peak_bytes: int | None = None
    """Highest resident set of the training process."""
    num_skipped: int | None = None
    """Optimizer updates left out: gradients that were no numbers, overflow in fp16, spikes if so configured."""
    num_spikes: int | None = None
    """Steps whose loss or gradient norm stood far above the recent ones."""
    num_rollbacks: int | None = None
    """How often the run went back to a checkpoint because of a spike."""
    clock_read_s: float | None = None
    """Measured cost of one clock read of the probe."""
    notes: tuple[str, ...] = ()
    """Fallbacks and other things a reader should know."""

    def to_mapping(self) -> dict[str, object]:
        return asdict(self)
