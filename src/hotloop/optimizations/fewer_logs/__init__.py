"""What-if: every hundredth line of what the script prints and logs in its loop, the others left out.

Shows what writing costs. What goes into a line is computed all the same: the script does that itself.
Not kept: the user asked for those lines.
"""

from __future__ import annotations

from hotloop.optimizations.optimization import Optimization, live_in

EVERY = 100

FEWER_LOGS = Optimization(
    name="fewer_logs",
    summary="What-if: every hundredth of the lines that the script prints and logs in its loop; shows what "
    "writing them costs.",
    parity_class="bitwise",
    settings=(EVERY,),
    values_for=lambda census: (EVERY,) if census.logs or "logs" not in census.seen else (),
    answers=("HL703",),
    source_form="if step % 100 == 0:\n    print(...)",
    leaves="`print` into a file of the script's own",
    live_form=live_in(__name__),
    over="all",
    what_if=True,
    risks="Lines are lost; what goes into them is computed all the same.",
)
