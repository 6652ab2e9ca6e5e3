"""What the judge says: breakdowns, findings, verdicts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from hotloop.core.sessions import SaveInterval

DIAGNOSIS_SCHEMA = "hotloop.diagnosis/1"
DIAGNOSIS_FILE = "diagnosis.json"
VERDICT_SCHEMA = "hotloop.verdict/1"
MODEL_SCHEMA = "hotloop.model/1"
MODEL_FILE = "model.json"

Bound = Literal[
    "input",
    "copy",
    "host",
    "launch",
    "sync",
    "compute",
    "memory_bandwidth",
    "communication",
    "memory_capacity",
    "checkpoint",
    "evaluation",
    "logging",
    "optimizer",
    "gc",
    "recompile",
    "balanced",
]
ParityClass = Literal[
    "bitwise", "reduction_order", "reduced_precision", "other_draws", "changes_training"
]
"""The mildest first."""
ParityName = Literal["same", "within_noise", "different", "not_checked"]
TargetStatus = Literal["pass", "fail", "not_applicable"]
TargetUnit = Literal["fraction", "s", "ratio", "tokens/s", "samples/s", "relative_difference"]
WorthAnswer = Literal["worth trying", "leave it running", "nothing to gain here", "not known"]
JudgedSteps = Literal["steady", "all"]
"""What of the counted steps decided: the typical one (their median, and what rare slow steps take beyond it, as long in
both arms), or all of them together."""
Outcome = Literal["improved", "regressed", "unchanged", "inconclusive", "incomparable"]
Status = Literal[
    "kept", "rejected", "undecided", "stopped", "does_not_pay", "what_if", "not_applied", "failed", "not_tried",
]  # fmt: skip
"""What became of a fix, as terminal and page have it, too: docs/VERDICTS.md says what each means."""


@dataclass(frozen=True, slots=True)
class Parity:
    """The comparison of what two arms learned, and how that was decided."""

    result: ParityName
    parity_class: ParityClass | None
    """The class the change claims; the band follows from it."""
    num_steps: int = 0
    """Steps whose losses were compared."""
    max_difference: float | None = None
    """Largest relative loss difference over those steps."""
    band: float | None = None
    """`max_difference` may not exceed this."""
    tail_mean: float | None = None
    """Signed mean relative difference over the 20 losses in a row where it comes closest to
    `tail_band` or most exceeds it: a drift shows here first."""
    tail_band: float | None = None
    baseline_envelope: float | None = None
    """Largest relative loss difference between baseline runs of each other."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Interval:
    """Baseline seconds per unit of work over the candidate's: 1.45 is 45 % more work per second."""

    ratio: float
    ratio_low: float
    ratio_high: float


OVERSTATED = 1.25
"""Times the smallest detectable effect: `benchmarks/judge_noises.py --kept` has by how much such gains are overstated."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Two arms compared over interleaved pairs of fresh processes."""

    outcome: Outcome
    ratio: float | None
    """Seconds per unit of work of the steps that `over` says, after the warm-up, mean over pairs."""
    ratio_low: float | None
    ratio_high: float | None
    confidence: float | None
    """Simultaneous over all looks taken."""
    parity: Parity
    baseline: str
    candidate: str
    all_in: Interval | None = None
    """All counted steps, slow ones included: total seconds over total work."""
    num_pairs: int = 0
    num_looks: int = 0
    noise_floor: float | None = None
    """Relative; what the mean over as many A/A pairs scatters by."""
    minimum_detectable_effect: float | None = None
    """Relative; the smallest true gain these pairs would call `improved` in 80 of 100 cases."""
    pair_ratios: tuple[float, ...] = ()
    """One per pair, in order; none is ever left out."""
    baseline_s_per_work: float | None = None
    candidate_s_per_work: float | None = None
    unit: str = "token"
    """What one unit of work is."""
    reasons: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    """Those of the reasons for which nothing is claimed, whatever the interval."""
    over: JudgedSteps = "steady"
    """The steps that decided: all of them also where their total and the typical step disagree."""
    switched: bool = False
    """Each pair is one process, in which the candidate's change went on and off."""
    schema: str = VERDICT_SCHEMA

    @property
    def is_overstated(self) -> bool:
        """A gain this close to the smallest that its pairs could show is larger than the truth, on average."""
        least = self.minimum_detectable_effect
        return self.ratio is not None and least is not None and self.ratio - 1 < OVERSTATED * least

    @property
    def is_proven(self) -> bool:
        """The candidate may be adopted: faster, and seen to learn the same."""
        return self.outcome == "improved" and self.parity.result in ("same", "within_noise")


@dataclass(frozen=True, slots=True)
class Finding:
    """One cause of lost time."""

    code: str
    """Permanent, e.g. `HL101`."""
    title: str
    gain_at_most: float
    """Ratio, as in `Interval`; what removing the cause entirely would give."""
    gain_is_loose: bool = False
    """True where `gain_at_most` only says what can not be exceeded, not what is likely."""
    site: str | None = None
    """`file:line` where the cause is, where known."""
    evidence: dict[str, float | int | str | None] = field(default_factory=dict)
    optimization: str | None = None
    """Name in the catalogue; `None` when only a person can change it."""
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Fractions of host wall time over the steady steps; they sum to 1 with `unattributed`."""

    fractions: dict[str, float]
    median_s: float
    num_steps: int
    closure_error_fraction: float
    """|sum of phases - wall time| / wall time, both measured; a check, not a phase."""
    probe_overhead_fraction: float | None
    """Clock reads times the measured cost of one, over wall time."""
    wall_s: float = 0.0
    """Wall seconds of those steps together."""
    counted_steps: int = 0
    """Those that the census counted: also what only their course showed to be start."""
    counted_wall_s: float = 0.0
    device: dict[str, float] | None = None
    """Fractions of device time over the same steps; `None` where the device has no clock."""


@dataclass(frozen=True, slots=True)
class Steps:
    """What the measured steps did."""

    measured: int
    warmup: int
    median_s: float | None
    tokens_per_s: float | None = None
    samples_per_s: float | None = None
    left_out: int = 0
    """Steps at which nobody looked, so that looking costs little."""
    made: int = 0
    """All of them: also those, and those under torch's profiler."""
    enough: int | None = None
    """Steps in all, about, that would do to promise a gain, where these were too few; else, or where that is not known, `None`."""


@dataclass(frozen=True, slots=True)
class TrialOutcome:
    """One line of the ledger: an optimization tried, and what came of it."""

    optimization: str
    setting: dict[str, str | int | float | bool | None]
    outcome: Outcome
    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None
    parity: ParityName
    kept: bool
    reason: str
    status: Status | None = None
    """`None`: written before it was stored here."""


@dataclass(frozen=True, slots=True)
class Final:
    """All that was kept, together, against the run without any of it. No ratio when nothing was kept."""

    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None
    kept: tuple[str, ...]
    parity: ParityName
    outcome: Outcome | None = None


@dataclass(frozen=True, slots=True)
class Worth:
    """An estimate of what finding out about a change costs and saves."""

    answer: WorthAnswer
    reason: str
    gain_at_most: float | None = None
    """The gain of the best finding whose bound means something."""
    remaining_steps: int | None = None
    """Expected; at least that many where only the epoch under way is known."""
    saved_at_most_s: float | None = None
    """On those steps."""
    cost_s: float | None = None
    """Seconds of finding out: steps of all processes that would be compared, one after another."""
    break_even_steps: int | None = None
    """Remaining steps from which the most it could save exceeds that cost."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What takes the time, why, and what was tried."""

    bound: Bound | None
    steps: Steps
    breakdown: dict[str, float] = field(default_factory=dict)
    device: dict[str, float] | None = None
    findings: tuple[Finding, ...] = ()
    trials: tuple[TrialOutcome, ...] = ()
    final: Final | None = None
    probe_overhead_fraction: float | None = None
    not_examined: tuple[str, ...] = ()
    worth: Worth | None = None
    schema: str = DIAGNOSIS_SCHEMA


@dataclass(frozen=True, slots=True)
class Target:
    """One line of the checklist that every run is held against."""

    name: str
    """Permanent, e.g. `data_wait`."""
    title: str
    bar: str
    """What is asked for, in words."""
    status: TargetStatus
    value: float | None
    """What was measured, also where the bar does not apply; `None`: not known."""
    unit: TargetUnit
    above: float | None
    """The value must be higher than this."""
    below: float | None
    """The value must be lower than this."""
    reason: str
    """What the value is, or why the bar does not apply."""


@dataclass(frozen=True, slots=True)
class ModelFlops:
    """Floating-point operations of training on one token, forward and backward: `model.json`."""

    matmul: float
    """6 per parameter that takes part in a matrix product: blocks and head."""
    attention: float
    """Scores and their use, every key counted: 12 layers width context. A causal mask needs half."""
    schema: str = MODEL_SCHEMA


@dataclass(frozen=True, slots=True)
class RankTime:
    """One of several processes; medians over the same steps."""

    rank: int
    computing_s: float
    """Wall seconds of a step without those in which it waited for the others."""
    waiting_s: float
    """Until the gradients of all were summed, after its own were computed."""


@dataclass(frozen=True, slots=True)
class RankComparison:
    """Processes that train together."""

    ranks: tuple[RankTime, ...]
    num_steps: int
    """That this is about: made by all of them, without a tag, since the last start."""
    slowest: int | None = None
    """The rank that the others wait for; `None` where none stands out."""
    slower_by: float | None = None
    """Relative; its computing over the mean of the others', in the median step."""
    reason: str | None = None
    """Why nothing can be said."""
    hidden: bool = False
    """They wait inside the pass backward: `computing_s` is what lies outside of it, `waiting_s` is not
    known and 0, `slower_by` the share of a step in which they wait for the slowest."""


GOODPUT_CLASSES = (
    "productive", "data_wait", "checkpoint", "evaluation", "startup", "restart", "lost_progress", "idle", "other",
)  # fmt: skip
"""`startup`: from the start of the first process to its first step; `restart`: the same of later ones. `lost_progress`: steps
made again, or undone by going back from a spike. `idle`: no process trained. `other`: the end of a process after its last save."""


@dataclass(frozen=True, slots=True)
class Goodput:
    """Where the time of a whole training went, over all its processes."""

    wall_s: float
    """Since the first process started; the sum of the classes."""
    seconds: dict[str, float]
    """Per class of `GOODPUT_CLASSES`."""
    processes: int
    killed: int
    """Of them without an end of their own."""
    lost_steps: int
    """Made again after a process ended."""
    interval: SaveInterval | None = None
    """The checkpoint interval that was chosen last; `None` where the settings name one."""


@dataclass(frozen=True, slots=True)
class Utilization:
    """How much of what the machine can do went into the model's own arithmetic.

    Two conventions: `palm` counts attention as if nothing were masked (Chowdhery et al. 2022,
    appendix B; most published figures), `causal` only what a causal mask leaves. What is computed
    twice or thrown away counts in neither. `None` has its reason in `reason`.
    """

    tokens_per_s: float | None
    """Over the steady steps: those without any tag."""
    palm_flops_per_s: float | None = None
    causal_flops_per_s: float | None = None
    palm_mfu: float | None = None
    """`palm_flops_per_s` over `peak_flops_per_s`; 0.4 is 40 %."""
    causal_mfu: float | None = None
    dtype: str | None = None
    """Dtype of the run's matrix products, as its census saw."""
    peak_flops_per_s: float | None = None
    peak: str | None = None
    """What the denominator is, in words."""
    reason: str | None = None
    """Why a figure is missing."""
