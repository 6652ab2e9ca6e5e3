"""HL302: the model runs eagerly

What it means. Each operation is started from Python on its own and writes its result to memory before
the next reads it. A compiler fuses chains of small operations and drops the Python in between.

Evidence. `compiled`: False, as seen in the process. `forward_backward_fraction`: share of wall time in
the two phases a compiled model covers.

Gain at most. `1 / (1 - forward_backward_fraction)`. This is loose: no breakdown of a step tells how
much of forward and backward a compiler can remove; that they are not made slower than nothing is all
it says. What is real follows from measuring it.

Remedy. `compile`: `torch.compile` on the model.

What can go wrong. Compiling takes from seconds to minutes before the first step; short trainings never
earn it back. Changing shapes compile again. Models with many graph breaks can become slower. Dropout
draws other random numbers, so losses differ although nothing is wrong. CPUs need a C++ compiler.
"""

from __future__ import annotations

from hotloop.core.judgement import Breakdown, Finding
from hotloop.core.measurement import Measurement

CODE = "HL302"
TITLE = "The model runs eagerly"
THRESHOLD = 0.2
"""Share of forward and backward from which their speed matters."""


def find(measurement: Measurement, breakdown: Breakdown) -> Finding | None:
    census = measurement.census
    if census is None or census.compiled is not False:
        return None
    share = breakdown.fractions.get("forward", 0.0) + breakdown.fractions.get("backward", 0.0)
    if not THRESHOLD <= share < 1:
        return None
    return Finding(
        code=CODE,
        title=TITLE,
        gain_at_most=1 / (1 - share),
        gain_is_loose=True,
        evidence={"compiled": "False", "forward_backward_fraction": share},
        optimization="compile",
        advice="Compile the model with torch.compile.",
    )
