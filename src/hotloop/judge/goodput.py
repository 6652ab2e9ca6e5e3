"""Where the time of a whole training went, over all its processes and what lay between them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from hotloop.core.judgement import GOODPUT_CLASSES, Goodput
from hotloop.core.sessions import Session
from hotloop.core.step import StepRecord

_OF_PHASE = {"data_wait": "data_wait", "checkpoint": "checkpoint", "eval": "evaluation"}
"""Everything else of a step is productive."""


def goodput(sessions: Sequence[Session], records: Sequence[StepRecord]) -> Goodput | None:
    """Classes sum to the time since the first process started; `None` where no process is known.

    A process that was killed ended with its last recorded step: what it did after that counts as idle.
    """
    if not sessions:
        return None
    spent = dict.fromkeys(GOODPUT_CLASSES, 0.0)
    for record in records:
        _add(spent, record.host, record.wall_s, rest="productive")
    newest = math.fsum(r.wall_s for r in records if r.step >= sessions[-1].from_step)
    end = sessions[0].process_at
    lost_steps = 0
    for number, each in enumerate(sessions):
        starting = "restart" if number else "startup"
        begin = max(each.process_at, end)  # a process may train again, or the clock was set back
        spent["idle"] += begin - end
        if each.first_step_at is None:  # it came to no step
            end = max(begin, each.ended_at or each.at)
            spent[starting] += end - begin
            continue
        spent[starting] += max(0.0, each.first_step_at - begin)
        # The next ones tell of it, until one came to a step and dropped what it made again.
        later = sessions[number + 1 :]
        trained = next((i for i, s in enumerate(later) if s.first_step_at is not None), len(later))
        told = later[: trained + 1]
        made = max((s.made_s for s in told), default=newest) + each.rolled_back_s
        spent["lost_progress"] += max((s.lost_s for s in told), default=0.0) + each.rolled_back_s
        lost_steps += max((s.lost_steps for s in told), default=0)
        end = max(begin, each.first_step_at) + made
        if each.ended_at is not None:
            _add(spent, each.host, max(0.0, each.ended_at - end), rest="other")
            end = max(end, each.ended_at)
    return Goodput(
        wall_s=math.fsum(spent.values()),
        seconds=spent,
        processes=len(sessions),
        killed=sum(each.ended_at is None for each in sessions[:-1]),
        lost_steps=lost_steps,
        interval=next((s.interval for s in reversed(sessions) if s.interval is not None), None),
    )


def _add(spent: dict[str, float], host: Mapping[str, float], wall_s: float, *, rest: str) -> None:
    for phase, name in _OF_PHASE.items():
        seconds = min(host.get(phase, 0.0), wall_s)
        spent[name] += seconds
        wall_s -= seconds
    spent[rest] += wall_s
