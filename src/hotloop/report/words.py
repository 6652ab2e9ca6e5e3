"""Verdicts as sentences, and the words for gains, losses and targets. One wording for the terminal, the page and the README."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hotloop.core.course import Pace
from hotloop.core.judgement import Finding, Parity, Target, Verdict, Worth, WorthAnswer
from hotloop.report import numbers

PHRASES = {
    "hotloop": "hotloop's settings",
    "plain": "the plain loop",
    "compiled": "the compiled loop",
    "baseline": "the baseline",
    "candidate": "the candidate",
}
"""How arms of these names are spoken of."""
TARGET_SIGNS = {"pass": "✓", "fail": "✗", "not_applicable": "–"}
TARGET_WORDS = {"pass": "pass", "fail": "fail", "not_applicable": "n/a"}


def answer(verdict: Verdict) -> str:
    """The answer in one sentence: speed with its interval, then whether learning stayed the same."""
    one = PHRASES.get(verdict.candidate, f"the settings of `{verdict.candidate}`")
    other = PHRASES.get(verdict.baseline, f"those of `{verdict.baseline}`")
    speed = _speed(verdict, one, other)
    if verdict.outcome == "incomparable":
        return f"{speed}."
    sentence = f"{speed}; {losses(verdict.parity)}{_consequence(verdict)}."
    # The first letter stays small where it starts a name (`hotloop's settings`) or code.
    is_name = sentence.startswith(("hotloop", "`"))
    return sentence if is_name else sentence[0].upper() + sentence[1:]


def run_answer(
    *,
    done: int,
    planned: int | None,
    state: str,
    pace: Pace | None,
    loss: float | None,
    held_out: float | None,
    breakdown: Mapping[str, float],
    early: str = "",
) -> str:
    """What a reader asks of a single run: how far, how fast, what it learned, where its time went.

    `state` is that of the run; `early` says why it ended early, where it did.
    """
    if not done:
        return {"running": "Running: no step has been recorded yet."}.get(
            state, "No step was recorded."
        )
    steps = numbers.counted(done, "step")
    of = f"{done:,} of {planned:,} steps" if planned is not None else steps
    start = {
        "running": f"Running: {of} so far",
        "finished": f"Finished: {steps}",
        "ended_early": f"Ended early, after {of}: {early}",
        "stopped": f"Stopped after {of}",
        "recorded": f"Recorded: {steps}",
    }[state]
    parts = [start]
    if pace is not None:
        unit = f"{pace.unit}s"
        parts.append(
            f"{numbers.rate(pace.median, unit)} in the median step (nine in ten: "
            f"{numbers.count(pace.low)} to {numbers.count(pace.high)})"
        )
    learned = [
        f"{name} {numbers.loss(value)}"
        for name, value in (("loss", loss), ("held-out loss", held_out))
        if value is not None
    ]
    if learned:
        parts.append(" and ".join(learned))
    sentence = ", ".join(parts)
    computing = [name for name in ("forward", "backward", "optimizer") if name in breakdown]
    if computing:
        share = sum(breakdown[name] for name in computing)
        sentence += f"; {numbers.listed(computing)} took {numbers.percent(share)} of the time"
    return f"{sentence}."


def headline(verdict: Verdict) -> str:
    """A few words for a title: the outcome, and that a different loss overrules it."""
    word = verdict.outcome
    if word == "improved":
        if verdict.parity.result == "within_noise" and verdict.parity.parity_class == "other_draws":
            return "improved, and it learns the same from other random numbers"
        return {
            "same": "improved, and it learns the same",
            "within_noise": "improved, and it learns the same within noise",
            "different": "faster, but it learns differently: not to be kept",
            "not_checked": "faster, but the losses were not compared: not proven",
        }[verdict.parity.result]
    if word in ("regressed", "unchanged") and verdict.parity.result == "different":
        return f"{word}, and it learns differently"
    return word


def gain(finding: Finding) -> str:
    """How much a finding may be worth. A limit that no measurement tightens would only mislead."""
    if finding.gain_is_loose:
        return "its gain shows only when tried"
    return f"up to {numbers.ratio(finding.gain_at_most)}, all else equal"


ANSWERS: dict[WorthAnswer, str] = {
    "worth trying": "Worth trying",
    "leave it running": "Not worth a test for this run alone",
    "nothing to gain here": "Nothing to gain here",
    "not known": "Not known",
}


def worth_sentence(worth: Worth) -> str:
    """Says if finding out pays, and why."""
    reason = worth.reason.strip().rstrip(".")
    answer = ANSWERS[worth.answer]
    return f"{answer}: {reason}." if reason else f"{answer}."


def _speed(verdict: Verdict, one: str, other: str) -> str:
    measured = _measured(verdict)
    ratio = numbers.ratio(
        verdict.ratio, digits=numbers.ratio_digits(verdict.ratio_low, verdict.ratio_high)
    )
    train = "train" if "settings" in one else "trains"
    faster = f"{one} {train} {ratio} as fast as {other} ({measured})"
    match verdict.outcome:
        case "improved":
            return faster
        case "regressed":
            return f"a regression: {faster}"
        case "unchanged":
            return f"no difference that matters: {faster}"
        case "inconclusive":
            if verdict.ratio is None:
                return f"inconclusive: {_reasons(verdict) or 'too little was measured'}"
            smallest = None if verdict.doubts else verdict.minimum_detectable_effect
            could = (
                f"; a gain of {numbers.percent(smallest)} or more would have shown"
                if smallest is not None
                else ""
            )
            return (
                f"inconclusive: {one} may or may not be faster than {other}, measured {ratio} "
                f"({measured}){could}"
            )
        case "incomparable":
            why = _reasons(verdict) or "the environments differ"
            return f"not compared: {one} and {other} cannot be held against each other: {why}"


def _measured(verdict: Verdict) -> str:
    parts = []
    if verdict.ratio_low is not None and verdict.ratio_high is not None:
        sure = (
            f"{numbers.percent(verdict.confidence)} interval"
            if verdict.confidence is not None
            else "interval"
        )
        parts.append(f"{sure} {numbers.interval(verdict.ratio_low, verdict.ratio_high)}")
    if verdict.switched:
        parts.append(f"{verdict.num_pairs} fresh processes in which it was toggled")
    else:
        parts.append(f"{numbers.counted(verdict.num_pairs, 'pair')} of fresh processes")
    return ", ".join(parts)


def _reasons(verdict: Verdict) -> str:
    return "; ".join(reason.rstrip(".") for reason in verdict.reasons)


def losses(parity: Parity) -> str:
    """What was seen of the losses, as a clause."""
    match parity.result:
        case "same":
            if parity.max_difference == 0:
                return f"the losses are identical over {parity.num_steps} steps"
            return f"the losses agree{_evidence(parity)}"
        case "within_noise" if parity.parity_class == "other_draws":
            return (
                "the samples are the same, augmentation or dropout draws other random numbers, and beside that the "
                f"losses agree{_evidence(parity)}"
            )
        case "within_noise":
            return f"the losses agree{_evidence(parity) or ' within noise'}"
        case "different":
            why = f": {parity.reason.rstrip('.')}" if parity.reason else ""
            return f"the losses differ{_evidence(parity)}{why}"
        case "not_checked":
            why = f" ({parity.reason.rstrip('.')})" if parity.reason else ""
            return f"the losses were not compared{why}"


def _evidence(parity: Parity) -> str:
    if parity.max_difference is None:
        return ""
    band = f", band {numbers.percent(parity.band)}" if parity.band is not None else ""
    return (
        f" (largest difference {numbers.percent(parity.max_difference)} over "
        f"{parity.num_steps} steps{band})"
    )


def _consequence(verdict: Verdict) -> str:
    if verdict.outcome != "improved":
        return ""
    if verdict.parity.result == "different":
        return ", so this speed is not to be kept"
    if verdict.parity.result == "not_checked":
        return ", so nothing is proven about what it learns"
    return ""


def sentence(clause: str) -> str:
    """Its first letter large, a full stop at its end."""
    return f"{clause[0].upper()}{clause[1:]}."


def trouble(*, spikes: int = 0, skipped: int = 0, rollbacks: int = 0) -> str:
    """What a training saw go wrong and did about it, as a clause; empty when it saw nothing."""
    parts = [
        f"{number} {one if number == 1 else many}"
        for number, one, many in (
            (spikes, "spike", "spikes"),
            (skipped, "update left out", "updates left out"),
            (rollbacks, "rollback", "rollbacks"),
        )
        if number
    ]
    return ", ".join(parts)


def count_line(targets: Sequence[Target]) -> str:
    """`5 pass, 1 fails, 7 do not apply or are not known`"""
    num = {status: sum(t.status == status for t in targets) for status in TARGET_WORDS}
    fails = "1 fails" if num["fail"] == 1 else f"{num['fail']} fail"
    passes = "1 passes" if num["pass"] == 1 else f"{num['pass']} pass"
    rest = num["not_applicable"]
    others = "1 does not apply or is" if rest == 1 else f"{rest} do not apply or are"
    return f"{passes}, {fails}, {others} not known"


def target_value(target: Target) -> str:
    """The measured value with its unit; empty where there is none."""
    value = target.value
    if value is None:
        return ""
    match target.unit:
        case "fraction" | "relative_difference":
            return numbers.percent(value)
        case "s":
            return numbers.seconds(value)
        case "ratio":
            return numbers.ratio(value)
        case "tokens/s":
            return numbers.rate(value, "tokens")
        case "samples/s":
            return numbers.rate(value, "samples")
