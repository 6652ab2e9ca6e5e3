"""HL107: the training thread prepares the data itself

What it means. Between the steps, outside of any DataLoader, the script's own code reads, decodes or
transforms data. The model waits for it, and no worker can help, since it is part of the loop.

Evidence. `unattributed_fraction`: wall time outside every phase of training. `outside_fraction`: the
exposed part of it, garbage collection left out. `own_fraction`: of that, by samples, in lines
that prepare data; reported from 0.05 and five samples on. `line_fraction`: in one line; `function` and
`inside` say what it was doing: only what an iterator, a generator or a `__getitem__` of the script's does,
functions named for handling data, and code in libraries that do it count (others: HL801). Left out is what
is not the script's own: torch's code, and lines that call the model or the loader as well.

Gain at most. `1 / (1 - outside_fraction)`: nothing is done outside of the phases; how much of it prepares
data only samples tell.

Remedy. Move that code into the dataset's `__getitem__` or the collate function, and let
`loader_workers` run it beside the training. To test it: run the loop on one prepared batch, repeated;
that is the pace without it.

No fix. Which lines make a batch, and of what, only their author knows. Once they are in a dataset,
`loader_workers` is the fix.

What can go wrong. Randomness drawn there moves into the workers: batches and losses change.
"""

from __future__ import annotations

from hotloop.judge.judged_run import Found, JudgedRun
from hotloop.judge.own_code import OwnCode, own_code


def find(run: JudgedRun) -> Found | None:
    found = own_code(run)
    if not isinstance(found, OwnCode) or not found.prepares_data:
        return None
    function = found.function or found.line.inside
    where = f"`{function}`" if function else found.site or "the loop"
    return Found(
        share=found.most,
        site=found.site,
        evidence=found.evidence(run),
        advice=f"Move what {where} does into the Dataset or its collate function, and give the "
        "DataLoader workers.",
    )
