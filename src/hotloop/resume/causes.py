"""What a process that continued did otherwise than the training that was not interrupted, and why, in words. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from hotloop.resume.result import Difference
from hotloop.resume.trace import Step, Steps, Trace

COMPARED = ("weights", "buffers", "optimizer", "settings", "samples", "random", "loss")
RESTORE = {
    "start": "load the newest checkpoint at the start, or give the command that does with --resume-cmd",
    "weights": "model.load_state_dict(state['model']), saved as they are: not rounded, not of a part",
    "buffers": "save model.state_dict(), not only parameters; register_buffer what the model counts",
    "optimizer": "torch.save({..., 'optimizer': optimizer.state_dict()}); optimizer.load_state_dict(state['optimizer'])",
    "settings": "torch.save({..., 'scheduler': scheduler.state_dict()}); scheduler.load_state_dict(state['scheduler'])",
    "samples": "save with the model where the data is: hotloop.checkpoint.ResumableLoader(loader) continues within the epoch",
    "random": "save torch.get_rng_state(), random.getstate(), numpy.random.get_state(), and set them last; hotloop.checkpoint does",
    "loss": "look for what else the loss is made with: a counter, a moving average, a schedule of its own",
    "saved": "restore from the checkpoint whatever else the script keeps: an average of the weights, a best score, a loss scale",
    "steps": "save the number of the step, and end by it",
    "continuing": "torch.save(state, path + '.tmp'); os.replace(path + '.tmp', path); hotloop.checkpoint also verifies what it loads",
}
"""By what differs: the line that restores it."""
_RANDOM = (
    "the random state of {} was not restored: dropout, and an order that is drawn, depend on it"
)


def seen(step: Step, name: str) -> str:
    """All that was recorded of it in a step, as text."""
    return json.dumps([update.get(name) for update in step])


def unlike(one: Steps, two: Steps, name: str) -> int | None:
    """The first step of both in which it is not the same."""
    both = sorted(one.keys() & two.keys())
    return next((n for n in both if seen(one[n], name) != seen(two[n], name)), None)


def difference(what: str, step: int | None, detail: str) -> Difference:
    """With what restores it."""
    names = {"settings": "learning rate", "random": "random state", "saved": "what it saves"}
    shown = names.get(what, what)
    return Difference(shown, step, detail, RESTORE[what])


def causes(
    trace: Trace, expected: Steps, *, newest: int, unsure: set[str]
) -> tuple[list[Difference], str | None]:
    """What differs from the expected steps, causes before what follows from them; and a note.

    newest: the step that it should have continued with. unsure: what differs without any kill, too.
    """
    first = trace.first or 0
    if trace.matched and first == 0 < newest:
        what = f"it starts from scratch: from the weights of step 0, and step {newest} was saved"
        return [difference("start", 0, what)], None
    unalike = _unlike(trace, first, expected, unsure)
    found = {what: difference(what, step, detail) for what, step, detail in unalike}
    note, loss, drawn = None, found.pop("loss", None), found.pop("random", None)
    later = found.pop("weights", None) if trace.matched else None
    if drawn is not None and loss is not None and (loss.step == first or not found):
        found["random"] = drawn  # other weights would explain the loss, too
    elif drawn is not None:
        note = f"{drawn.detail}; nothing that was compared shows it"
    # An order that is drawn may follow from the random state.
    roots = sorted(found.values(), key=lambda each: (each.step or 0, each.what == "samples"))
    follow = [each for each in (loss, later) if each is not None]
    if not roots:
        roots, follow = follow[:1], follow[1:]
    return [*roots, *(Difference(each.what, each.step, each.detail) for each in follow)], note


def _unlike(
    trace: Trace, first: int, expected: Steps, unsure: set[str]
) -> Iterator[tuple[str, int, str]]:
    steps, start = trace.steps, {first: trace.steps[first]}
    ours, theirs = (dict[str, Any](*each.get(first, [])[-1:]) for each in (steps, expected))
    at = {name: unlike(steps, expected, name) for name in COMPARED}
    at |= {name: unlike(start, expected, name) for name in ("buffers", "optimizer", "random")}
    at |= {name: None for name in unsure if name not in ("optimizer", "settings")}
    if not trace.matched:
        what = "those of no step of the run: rounded on the way, restored in part, or not at all"
        yield "weights", first, what
    elif (step := at["weights"]) is not None:
        yield "weights", step, "not the same to the bit"
    if at["buffers"] is not None:
        yield "buffers", first, "what the model keeps beside weights (batch normalization) is other"
    if at["optimizer"] is not None:
        states, saved = ours["optimizer"], theirs["optimizer"]
        lacking = ", ".join(name for name in saved if name not in states)
        other = ", ".join(name for name in saved if states.get(name) != saved[name])
        lacks = f"it has no {lacking}: the optimizer's state was not restored"
        yield "optimizer", first, lacks if lacking else f"its {other} are not those that were saved"
    if (step := at["settings"]) is not None:
        yield "settings", step, _setting(steps[step], expected[step])
    if (step := at["samples"]) is not None:
        yield "samples", step, _whose(step, steps, expected)
    if at["random"] is not None and (kinds := _drawn_kinds(steps, ours, theirs)):
        yield "random", first, _RANDOM.format(kinds)
    if (step := at["loss"]) is not None:
        one, two = (
            ", ".join(f"{loss:.6g}" for update in each[step] for loss in update.get("loss", ()))
            for each in (steps, expected)
        )
        yield "loss", step, f"{one} instead of {two}"


def _drawn_kinds(steps: Steps, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    """Generators that are in another state, of those that something draws from while it trains."""
    states = [state for step in steps.values() for u in step for state in u.get("random", ())]
    one, two = (each.get("random", [{}])[0] for each in (ours, theirs))
    drawn = (kind for kind in two if len({state.get(kind) for state in states}) > 1)
    return " and ".join(kind for kind in drawn if one.get(kind) != two[kind])


def _setting(ours: Step, theirs: Step) -> str:
    """The first of the optimizer's settings that is another."""
    groups = [(a["settings"], b["settings"]) for a, b in zip(ours, theirs, strict=False)]
    for one, two in (pair for both in groups for pair in zip(*both, strict=False)):
        for name in (each for each in two if one.get(each) != two[each]):
            return f"{name} {one.get(name)} instead of {two[name]}"
    return "other groups of parameters"


def _whose(step: int, steps: Steps, expected: Steps) -> str:
    """Which steps of the uninterrupted run took the samples that this one takes."""
    taken = seen(steps[step], "samples")
    same = [number for number, each in sorted(expected.items()) if seen(each, "samples") == taken]
    if not same:
        return "batches that no step of the uninterrupted run took: their order is drawn anew"
    if same[0] == 0:
        return "those of step 0: the order starts anew"
    apart = same[-1] - step
    return f"those of step {same[-1]}: {abs(apart)} are {'left out' if apart > 0 else 'repeated'}"
