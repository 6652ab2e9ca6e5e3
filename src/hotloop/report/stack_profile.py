"""A process that was watched from outside, for the terminal: the answer first."""

from __future__ import annotations

from hotloop.core.stack_profile import SampledPhase, StackProfile
from hotloop.report import numbers

BAR_CELLS = 32
TEXT_CELLS = 60


def render_stack_profile(profile: StackProfile) -> str:
    """The largest phase, all of them with lines, what to try next time, and what such samples do not show."""
    largest = profile.phases[0]
    what = f"{largest.phase} {_about(largest)}" if profile.trains else "no training was seen"
    watched = f"{profile.num_samples:,} samples in {numbers.seconds(profile.seconds)}"
    lines = [f"PID {profile.pid}: {what} of {watched}", "", "where its thread that trains was seen"]
    for each in profile.phases:
        lines += _phase_lines(each)
    if profile.workers is not None:
        lines += ["", "what its loader workers did", *_phase_lines(profile.workers)]
    codes = {worth.code: worth for phase in profile.phases for worth in phase.worth_trying}
    if codes:
        lines += ["", "what this looks like, and what to try (nothing was tried here)"]
    for code, worth in codes.items():
        fixes = f"; fixes: {', '.join(worth.fixes)}" if worth.fixes else ""
        lines.append(f"  {code}  {worth.title}: `hotloop explain {code}`{fixes}")
    lines += ["", "next time, to have it measured and fixes tried"]
    lines.append(
        f"  {profile.command or 'hotloop doctor -- COMMAND (how it was started is not known)'}"
    )
    lines += ["", "not examined", *(f"  {note}" for note in profile.notes)]
    lines.append(
        "  steps and losses; evaluation, whose passes count as forward; C code within a line"
    )
    return "\n".join(lines)


def _phase_lines(each: SampledPhase) -> list[str]:
    bar = "█" * round(BAR_CELLS * each.fraction)
    lines = [f"  {each.phase:<14}  {_about(each):<28}  {bar}".rstrip()]
    for line in each.lines:
        text = f"  {line.text[:TEXT_CELLS]}" if line.text else ""
        lines.append(f"    {numbers.share(line.fraction)}  {line.site}  {line.function}{text}")
    return lines


def _about(each: SampledPhase) -> str:
    low, high = (f"{100 * value:.0f}" for value in (each.low, each.high))
    return f"about {100 * each.fraction:.0f} % ({low} to {high} %)"
