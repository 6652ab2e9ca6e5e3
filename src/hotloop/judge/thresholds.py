"""From which share on a cause is reported, and where each number comes from.

Shares are of wall time under way. Where no source is named the number is a choice, to be replaced by
a measured one.
"""

NOTICEABLE, MODERATE, HIGH = 0.05, 0.10, 0.20
"""Waits are reported from the first, those of unknown cause with workers from the second; the bound is named
from the third, so that it is no word for a small part of the step.
The steps 5, 10 and 20 % are those of TraceML and of XProf's input analyzer."""

HEALTHY_BELOW = 1.05
"""A run none of whose findings could gain as much is healthy: identical runs differ by that much."""

MOST = 0.999
"""Shares above this are taken as this: a step that is nothing but its cause has no bound."""

ENOUGH_STEPS, ENOUGH_S = 30, 1.0
"""Counted steps, and seconds of them, below which no gain is promised: one disturbance would decide."""
ENOUGH_SAMPLES = 5
"""Samples that a line needs to be named, and a kind of code to be found at all."""

# Input
IDLE_FETCH = 0.5
"""CPU share of a fetch up to which it mostly waits for disk or network."""
COLLATE_SHARE = 0.5
"""The least share of the time to make a batch."""
WORKERS_BUSY = 0.8
"""Share of their time for which workers must be making batches to be called too few."""
CPUS_FULL = 0.85
"""Busy share of the CPUs; loadtune calls them saturated from here."""
FOREIGN = 0.2
"""Share of the machine's CPUs that other programs use, from which on full CPUs are theirs, too."""
OVERHEAD_MARGIN = 1.5
"""By how much waiting for a batch must exceed making it."""
TRIVIAL_SAMPLE_S = 50e-6
"""Making a sample of data in memory; below this sending it from a worker costs as much."""
SAMPLED_S = 2e-3
"""Making a sample; within less than this, the line that was seen is often the next one that calls C: who looks waits 0.5 ms for Python."""
COPIED_SAMPLE_S = 5e-6
"""Python alone needs as much to pick one sample: faster means that whole batches are copied."""
RESTART_TIMES, RESTART_SHARE = 5.0, 0.03
"""First wait of an epoch over the median wait; share of all time."""
JITTER_TIMES = 3.0
"""99th percentile of the waits over their median."""
PADDED = 0.20

# Copies and syncs
PINNING = 0.01
PAGEABLE_COPIES = 0.02
SYNC_IDLE = 0.03
"""XProf calls kernel launches a moderate cause from 3 % of idle time."""
SYNCS_PER_STEP = 1.0

# Kernels, precision, compiling
PRODUCTS = 0.20
FUSABLE = 0.20
SHORT_OPERATION_S = 20e-6
"""Mean length below which starting an operation is a large part of it; TraceLens flags 10 us."""
LAUNCH = 0.15
"""XProf's and TraceLens's share for a high cause."""
CONVOLUTIONS = 0.30
TUNED_SHAPES = 3
TUNED_GAIN = 0.2
"""The most that choosing the algorithm by trial saves of the convolutions' time."""
LAYOUT_GAIN = 0.3
"""The most that channels-last in half precision saves of the convolutions' time."""
ATTENTION = 0.10
RECOMPILES = 3
GRAPH_BREAK_S = 1e-4
"""What leaving and entering a graph costs: guards, Python between, fusion that is lost."""

# Memory
ROOM = 0.60
"""Share of the device's memory below which a larger batch fits."""
FILLED = 0.80
"""Share of the memory that larger microbatches may fill, where all that is used is taken to grow with them."""
RESERVED_TIMES = 2.0
"""Memory held over memory used at its highest; TraceML's number."""
CREEP_BYTES, CREEP_STEPS = 1 << 30, 50
"""TraceML's: growth, and the steps it must be seen over."""
CREEP_LATE = 0.25
"""Share of the growth that must fall into the second half of the steps: else it has levelled off."""

# Checkpoint, evaluation, logging
SAVING = 0.02
EVALUATING = 0.15
LOGGING = 0.01
EVERY_STEP = 0.9
"""Without-gradient forwards in more of the steps than this are part of the step, no evaluation."""

# Host
COLLECTING = 0.02
OVERSUBSCRIBED = 1.5
"""Threads per CPU."""
THROTTLED, CLOCK_DROP = 0.10, 0.15
"""Share of time; gpuprof's drop of the clock."""
SLOW_START = 0.10
SLOW_START_S = 60.0
"""Importing torch takes seconds: in a run of a minute that is much, and nothing to mend."""
