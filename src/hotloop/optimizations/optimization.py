"""What every technique says of itself. Standard library only, so that who decides and who reports needs no torch."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hotloop.core.census import Census
from hotloop.core.judgement import JudgedSteps, ParityClass
from hotloop.hardware.limits import Machine
from hotloop.optimizations.source_edit import Keywords, SourceEdit

Expect = Callable[[Mapping[str, Any], Any], "tuple[float, float] | None"]


USUAL_PREFETCH = 2
"""Batches under way per worker: torch's own default."""


@dataclass(frozen=True, slots=True)
class BatchesAhead:
    """What loader workers may have ready, and what that bounds."""

    workers: int
    batches: int
    """The most that are under way at a time: workers times prefetch factor."""
    most_ratio: float | None = None
    """No ratio above this is possible as long as the rest of a step stays as it is."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What `auto` becomes on a machine, and why."""

    value: Any
    why: str


def leaving(evidence: str, least: float, most: float) -> Expect:
    """What to expect of a technique that leaves, of the share of a step which `evidence` names, between
    `least` and `most` of its time.

        ratio = 1 / (1 - share (1 - left))        (Amdahl)
    """

    def expect(found: Mapping[str, Any], value: Any) -> tuple[float, float] | None:
        share = found.get(evidence)
        if not isinstance(share, float) or not 0 < share < 1:
            return None
        return 1 / (1 - share * (1 - most)), 1 / (1 - share * (1 - least))

    return expect


def live_in(package: str) -> Callable[..., Any]:
    """The live form of the technique in that package: `apply` of its module `live`, which needs torch and is loaded
    only in the process that trains."""

    def live_form(value: Any, report: Any) -> None:
        importlib.import_module(f"{package}.live").apply(value, report)

    return live_form


def live_hook(name: str, *given: Any) -> Callable[..., Any]:
    """A live form that needs no module of its own: that function of `hooks`, called with `given`, value and report."""

    def live_form(value: Any, report: Any) -> None:
        hooks = importlib.import_module("hotloop.optimizations.hooks")
        getattr(hooks, name)(*given, value, report)

    return live_form


def seen_as(field: str) -> Callable[[Census, Any], bool | None]:
    """For `observed`: what has the value in a field of the census where it took effect."""

    def observed(census: Census, value: Any) -> bool | None:
        found = getattr(census, field)
        return None if found is None else bool(found == value)

    return observed


def seen_switch(*names: str) -> Callable[[Census, Any], bool | None]:
    """For `observed`: the value is whether one of these settings for debugging is on."""

    def observed(census: Census, value: Any) -> bool | None:
        found = census.has_switch(*names)
        return None if found is None else found == bool(value)

    return observed


def ddp_argument(name: str) -> dict[str, Any]:
    """The fields of a technique that is an argument of DistributedDataParallel."""
    return {
        "argument": name,
        "observed": lambda census, value: census.ddp and getattr(census.ddp, name) == value,
        "source_edit": lambda value, facts: Keywords(
            "torch.nn.parallel", ("DistributedDataParallel",), {name: repr(value)}
        ),
        "live_form": live_hook("set_ddp_argument", name),
    }


Usable = Callable[[Machine, Any, Mapping[str, Any]], "str | None"]


def only_on(device_type: str, why: str) -> Usable:
    """For `why_not`: what acts on this type of device alone, and why."""
    return lambda machine, value, config: None if machine.device_type == device_type else why


@dataclass(frozen=True, slots=True)
class Optimization:
    """One technique that makes training faster or smaller."""

    name: str
    summary: str
    """What it changes, in a sentence or two."""
    parity_class: ParityClass
    """The most that it may change in what the model learns, where products are fp32."""
    settings: tuple[Any, ...]
    """Values worth trying, the likeliest first."""
    observed: Callable[[Census, Any], bool | None] = lambda census, value: None
    """Whether the census shows that the value took effect; `None` where it does not tell."""
    unobserved: str = "the run shows nothing of it"
    """Where it shows that it did not, in words that may follow a place and a colon."""
    argument: str = ""
    """What a value is given to in a script, such as `num_workers`; empty: nothing has a name for it."""
    setting: Callable[[Any], dict[str, Any]] | None = None
    """All that a value sets, by the names of arguments; `None`: `argument` alone."""
    key: str = ""
    """The config key that it governs; empty for a technique that only foreign scripts need."""
    trainer_settings: tuple[Any, ...] = ()
    """Values of `key` worth trying beside `settings`, which scripts have as well."""
    is_worth_trying: Callable[[Machine, Any], bool] = lambda machine, value: True
    """Whether one of `trainer_settings` may be faster there: `hotloop tune` tries no others."""
    off: Any = None
    """The value of `key` that leaves the technique out."""
    after: tuple[str, ...] = ()
    """Names of the techniques whose `auto` is resolved before this one's, which looks at what became of them."""
    choose: Callable[[Machine, Mapping[str, Any]], Choice] | None = None
    """What `auto` becomes, given the machine and the flat config (other keys as already resolved)."""
    why_not: Usable = lambda machine, value, config: None
    """`None` where the value of `key` can be used, given the machine and the flat config as far as it
    is resolved; else the reason it cannot."""
    is_only_slow: Callable[[Any], bool] = lambda value: False
    """Whether a value that `why_not` speaks against works all the same, slowly."""
    falls_back: Callable[[Machine], bool] = lambda machine: False
    """Whether a training on a machine that cannot have it goes on without it, since the result is the same; others are refused."""
    answers: tuple[str, ...] = ()
    """Codes of the findings that it is a remedy for."""
    source_form: str = ""
    """How a user would write it into their own source."""
    source_edit: Callable[[Any, Mapping[str, Any]], SourceEdit | str] | None = None
    """For the doctor's patch: called with the value and what the live form said of the place where it took
    effect; a string says why it cannot be edited there. `None`: only `source_form` can be shown."""
    trainer_arguments: Callable[[Any, Sequence[str]], str | None] = lambda value, applied_to: None
    """How `TrainingArguments` of transformers say it, given the value and what the live form named as the place of
    its effect; `None`: not at all."""
    patch_note: Callable[[Any, Census, Collection[str]], str] = lambda value, census, given: ""
    """What the patched script does otherwise than before; given the keywords that the edited call had already."""
    live_form: Callable[..., Any] | None = None
    """Applied to a live foreign process: called with the value and a `live_report.Report`. In the catalogue, `apply` of the
    folder's `live.py` where nothing else is given, unless `no_live_form` says why there is none."""
    no_live_form: str = ""
    """Why there is no live form."""
    leaves: str = ""
    """What the live form leaves alone: scripts that chose for themselves, and those in which it cannot act."""
    of_loader: bool = False
    """Its live form is told where the loader that trains is made, and its source edit is made there."""
    values_for: Callable[[Census], tuple[Any, ...]] | None = None
    """Values worth trying on a foreign script that was seen so, none where it cannot help; `None`: `settings`."""
    needs: str = ""
    """What a foreign script must have for `values_for` to know any, in words that follow "it needs"."""
    expect: Expect | None = None
    """The least and the most ratio to expect of a value, given the evidence of a finding that asks for
    it: what is compared with what was verified. `None` where the evidence does not tell."""
    warmup_for: Callable[[Census], int] | None = None
    """Steps of a run before its effect can show, such as those of an epoch; `None`: it shows at once."""
    acts_every: str = ""
    """Name in the evidence of its findings: steps from one time that it acts to the next, so that trials count several; empty:
    it acts in every step."""
    other_draws_in: Callable[[Census], bool] | None = None
    """Whether batches of a foreign script that was seen so draw other random numbers with it, which makes its class
    `other_draws` there; `None`: they never do."""
    reshapes: bool = False
    """Batches of a foreign script have other shapes with it. Dropout draws other numbers in these, which makes its class
    `other_draws`: the losses compared are those without dropout."""
    over: JudgedSteps = "steady"
    """The steps that its gain shows in: typical ones, or rare slow ones and with them all together."""
    batches_ahead: Callable[[Census, Any], BatchesAhead | None] | None = None
    """The queue of the loader that trains, with the value; `None`: the technique leaves that as the script has it."""
    smaller: Callable[[Any], tuple[Any, ...]] | None = None
    """Values to fall back to, the best first, where a run is too short to show what a value keeps up."""
    start_s: float = 0.0
    """Seconds that it usually adds to the start of a process, by which trials are planned before it was tried."""
    what_if: bool = False
    """Its live form shows what something costs, and must not be kept: it leaves out what the user asked for."""
    conflicts: tuple[str, ...] = ()
    risks: str = ""
    """What can go wrong."""

    def parity_class_on(self, config: Mapping[str, Any]) -> ParityClass:
        """Its class in a run of this resolved flat config.

        Sums in another order round otherwise. What they feed is rounded to the digits of the products:
        a difference in the last digit of fp32 becomes one in the last digit of bf16, fp16 or tf32.
        """
        if self.parity_class == "reduction_order" and config["train.precision"] != "fp32":
            return "reduced_precision"
        return self.parity_class
