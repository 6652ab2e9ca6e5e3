"""HL801: the script's own code takes time between the phases

What it means. The training thread runs Python outside of everything that a training step consists of:
metrics, bookkeeping, sleeping, something that was left in. The model computes nothing meanwhile.

Evidence. `unattributed_fraction`: wall time outside every phase. `outside_fraction`: the exposed part of it,
garbage collection left out. `own_fraction`: of that, by samples, what is the script's own,
from five samples and 0.05 on: not torch's code (losses, `zero_grad`, clipping), nor lines that call the
model as well, nor operations on tensors that the loss or the weights depend on (an inner update, `w - lr * g`),
as torch's profiler saw them; where these are half of it, it is computing, and no finding. `line_fraction`: in one line; `function`, and `inside`: what it was calling. Not where no
module is called: the model is among the script's own lines then. Where one line holds the whole training
(`trainer.train()`, `learn.fit(10)`), what happens in it is the library's: then `inside` names its function,
no line of the script is given, and the bound is loose, since the script cannot leave it out. A library of
which no function is in five samples has nothing to name, and is none.

Gain at most. `1 / (1 - outside_fraction)`: nothing is done outside of the phases; how much of it is the
script's own only samples tell.

Remedy. Look at the line. Do it every hundred steps, on the device, in a thread, or not at all. Of a library:
look for the setting that turns it off, or makes it rarer (callbacks, metrics, averaged weights, clipping). To
test it: the same steps without it.

No fix. What the lines are for only their author knows.

What can go wrong. Where nothing was profiled, a loss that the loop computes itself, in single operations on
tensors, counts here: it is computing, and stays. Code that changes what is learned (schedules,
sampling) has to stay where it is.
"""

from __future__ import annotations

from hotloop.judge.judged_run import Found, JudgedRun
from hotloop.judge.own_code import WAITING, OwnCode, own_code

OF_A_LIBRARY = "A library's own code takes time between the phases"
SHOWN = 3


def find(run: JudgedRun) -> Found | None:
    found = own_code(run)
    if not isinstance(found, OwnCode) or found.prepares_data:
        return None
    of_library = found.kind == "library"
    return Found(
        title=OF_A_LIBRARY if of_library else None,
        share=found.most,
        gain_is_loose=of_library,
        site=found.site,
        evidence=found.evidence(run),
        advice=_of_library(found) if of_library else _of_script(found),
    )


def _of_script(found: OwnCode) -> str:
    if not found.is_spread:
        where = found.site or (f"`{found.function}`" if found.function else "the loop itself")
        if WAITING.match(found.line.inside or ""):
            return f"At {where} the training waits for another thread or process: look at what that one does."
        return f"Look at {where}: do that less often, on the device, or not in the loop."
    if not found.places:
        return f"It is spread over {found.num_places} lines; none stands out."
    return f"It is spread over {found.num_places} lines. The largest: {_shares(found)}."


def _of_library(found: OwnCode) -> str:
    return (
        f"Most of it is in {_shares(found)}. Where that serves metrics, callbacks, averaged weights or logging, "
        "a setting of the library turns it off or makes it rarer; else nothing in the script changes it."
    )


def _shares(found: OwnCode) -> str:
    mark = "`" if found.kind == "library" else ""
    return ", ".join(f"{mark}{name}{mark} ({part:.0%})" for name, part in found.places[:SHOWN])
