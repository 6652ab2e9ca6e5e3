"""`hotloop tune CONFIG`: the trainer's own settings as words of `hotloop train`, and the config that holds what was kept."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hotloop.core.child import STEP_CLOCK_SAMPLES
from hotloop.core.config import RunConfig
from hotloop.core.errors import UsageError
from hotloop.core.judgement import ParityClass
from hotloop.core.ledger import Ledger
from hotloop.core.settings import Settings, load_stored
from hotloop.hardware.device import pick_device, read_machine
from hotloop.hardware.limits import Machine
from hotloop.optimizations.catalogue import CONFIGURED, parity_class_of, resolve
from hotloop.optimizations.chunked_loss import known_vocabulary
from hotloop.optimizations.optimization import Optimization
from hotloop.report.ledger import ratio_words
from hotloop.trial.arm import Arm
from hotloop.tune.options import AUTO, Known, Option
from hotloop.tune.shapes import nearby_shapes

NOT_SENT = ("logging.wandb=false", "logging.mlflow=false", "checkpoint.upload=null")
"""In what is measured: nothing of it reaches a server."""
MICROBATCH, ACCUMULATED, THREADS = "train.microbatch", "train.grad_accum_steps", "train.num_threads"
LAYOUT = "model.packed"
OF_SEVERAL = "train.gradient_compression"
"""Acts between processes; one is tuned."""
LAST = ("thread_binding",)
"""Techniques that seldom bring anything: tried with what the others leave of the budget."""
MOST_SPLITS = 3
FREE = ("data.prefetch", "eval.", "checkpoint.", "logging.")
"""Settings that change nothing of what is learnt."""


@dataclass(frozen=True, slots=True)
class Words(Option):
    """Settings that change together: each value is one or several `key=value`."""

    as_given: Mapping[str, str] = field(default_factory=dict, compare=False)
    """All settings, as they are on this machine without any of these words."""

    @property
    def reshapes(self) -> bool:
        """Dropout is drawn in the shape of a microbatch; of a fine-tuning the model's own config has it."""
        shapes = self.name in (LAYOUT, "split") or any(LAYOUT in each for each in self.values)
        return shapes and self.as_given.get("model.dropout") != "0.0"

    def label(self, value: str) -> str:
        return AUTO if self.name == AUTO else value

    def details(self, value: str) -> str:
        return "" if self.name != AUTO else textwrap.fill(value, 100, break_on_hyphens=False)

    def given(self, command: Sequence[str]) -> str | None:
        return None

    def applied(
        self, command: Sequence[str], env: Mapping[str, str], value: str
    ) -> tuple[tuple[str, ...], dict[str, str]]:
        others = [each for each in command if _key(each) not in map(_key, value.split())]
        return (*others, *value.split()), dict(env)

    def accepting(self, value: str) -> str:
        return f"--vary {value} --accept {self.name}"

    def changes(self, value: str, command: Sequence[str]) -> bool:
        has = {**self.as_given, **{_key(each): _value(each) for each in command}}
        return any(has.get(_key(each)) != _value(each) for each in value.split())


def command_of(config: Path, overrides: Sequence[str], out: Path) -> tuple[str, ...]:
    """What is measured, which writes into `out`."""
    unsent = (each for each in NOT_SENT if _key(each) not in map(_key, overrides))
    train = (sys.executable, "-m", "hotloop", "train", str(config), *overrides, *unsent)
    return (*train, "--out", str(out))


def with_tokens(arm: Arm, *, settings: Settings[Any]) -> Arm:
    """With the work of its steps. settings: the config as it was when all began, which trials see whatever it is by now."""
    words = [word for word in arm.command[arm.command.index("train") + 2 :] if _key(word)]
    try:
        config = settings.with_words(words).config
    except ValueError:  # then the trainer says why
        return arm
    if isinstance(config, RunConfig):
        return replace(arm, tokens_per_step=config.global_batch_tokens)
    # The trainer counts them: the last step of an epoch takes what is left.
    env = {**arm.env, STEP_CLOCK_SAMPLES: "1"}
    return replace(arm, samples_per_step=config.sequences_per_step, env=env)


def alone(options: Iterable[Words], config: Path, overrides: Sequence[str]) -> list[Words]:
    """The options with the values that are a config with nothing else that `auto` chose: what needs another one is not."""

    def runs(value: str) -> bool:
        settings = load_stored(config, [*overrides, *value.split()])
        try:
            resolve(settings, machine_for(settings))
        except UsageError:
            return False
        return True

    found = [replace(each, values=tuple(filter(runs, each.values))) for each in options]
    return [each for each in found if each.values]


def machine_for(settings: Settings[Any]) -> Machine:
    """The machine, with the device that these settings train on."""
    return read_machine(pick_device(settings.config.train.device))


def options_for(settings: Settings[Any], named: Sequence[str]) -> tuple[list[Words], list[Words]]:
    """All that `auto` chooses here, as one value to try first; and single settings to try on top of what is kept.

    Settings that were given as flags stay what they are, and so do those `named` by the user.
    """
    machine = machine_for(settings)
    resolved, _ = resolve(settings, machine)
    given = resolved.config.flat()
    as_given = {key: _text(value) for key, value in given.items()}
    pinned = {*named, *(key for key in given if settings.origin(key) == "flag")}
    pinned |= {OF_SEVERAL, *(each.key for each in CONFIGURED.values() if each.what_if)}
    pinned |= {each.key for each in CONFIGURED.values() if not _takes(settings, each.key, AUTO)}
    free = [each for each in CONFIGURED.values() if each.key not in pinned]
    chosen_by = {each.key: AUTO for each in free if each.choose is not None}
    automatic, _ = resolve(settings.with_values(chosen_by, origin=AUTO), machine)
    chosen = automatic.config.flat()

    def words(name: str, values: Iterable[str], parity: ParityClass, *asking: str) -> Words:
        return Words(name, tuple(values), Known("", techniques=asking), parity, as_given=as_given)

    first, rest = [], []
    asking = {each.key: each.name for each in free}
    changed = {key: chosen[key] for key in asking if chosen[key] != given[key]}
    parity = parity_class_of(chosen, baseline=given)
    if LAYOUT in given and LAYOUT not in pinned:
        asking[LAYOUT] = "dynamic_padding"
        layouts = [_word(LAYOUT, value) for value in (True, "buckets", False)]
        rest.append(words(LAYOUT, layouts, "reduction_order", asking[LAYOUT]))
        if given[LAYOUT] is not True:  # first: layers of no other layout are compiled
            changed[LAYOUT] = True
            parity = "reduction_order" if parity == "bitwise" else parity
    if len(changed) > 1 or LAYOUT in changed:
        value = " ".join(_word(key, each) for key, each in changed.items())
        first.append(words(AUTO, [value], parity, *(asking[key] for key in changed)))
    for each in sorted(free, key=lambda each: each.name in LAST):
        values = [chosen[each.key], given[each.key], each.off, *each.settings]
        values += [v for v in each.trainer_settings if each.is_worth_trying(machine, v)]
        values = [v for v in values if _takes(settings, each.key, v)]
        usable = (_usable(each, v, chosen, machine, pinned) for v in dict.fromkeys(values))
        rest.append(words(each.key, filter(None, usable), each.parity_class, each.name))
    if THREADS not in pinned:
        most = max(machine.num_threads, int(given[THREADS]))
        counts = [1 << power for power in range(most.bit_length()) if 1 << power <= most]
        threads = [_word(THREADS, count) for count in dict.fromkeys((*counts, most))]
        rest.append(words(THREADS, threads, "reduction_order", "threads"))
    if pinned.isdisjoint((MICROBATCH, ACCUMULATED)):
        splits = _splits(given[MICROBATCH], given[ACCUMULATED])
        rest.append(words("split", splits, "reduction_order"))
    return first, [each for each in rest if each.values]


def _takes(settings: Settings[Any], key: str, value: Any) -> bool:
    """Whether this kind of training has a setting with such a value: a fine-tuning has the attention of its model."""
    try:
        settings.with_values({key: value}, origin=AUTO)
    except ValueError:
        return False
    return True


def shapes_for(settings: Settings[Any], named: Sequence[str]) -> list[Words]:
    """Shapes of the model to show the speed of, each an option of one value; none of a model that has weights already."""
    if not isinstance(settings.config, RunConfig):
        return []
    flat = settings.config.flat()
    return [
        Words(key, (_word(key, value),), Known(""), "changes_training")
        for key, value in nearby_shapes(flat, known_vocabulary(flat)).items()
        if key not in named and settings.origin(key) != "flag"
    ]


def _usable(
    technique: Optimization,
    value: Any,
    chosen: Mapping[str, Any],
    machine: Machine,
    pinned: Collection[str],
) -> str | None:
    """The words for a value beside all that `auto` chose, with what does not go with it turned off; `None` where it cannot be used."""
    beside = {**chosen, technique.key: value}
    off = [
        each
        for each in CONFIGURED.values()
        if each.why_not(machine, beside[each.key], beside)
        and (each is technique or not each.why_not(machine, chosen[each.key], chosen))
    ]
    if technique in off or any(each.key in pinned for each in off):
        return None
    return " ".join([_word(technique.key, value), *(_word(each.key, each.off) for each in off)])


def varied(option: Option, given: Settings[Any]) -> Words:
    """A setting that the user varies, with what it may change, unless that was told."""
    techniques = [each for each in CONFIGURED.values() if each.key == option.name]
    parity: ParityClass = techniques[0].parity_class if techniques else "changes_training"
    if option.name.startswith(FREE):
        parity = "bitwise"
    if option.name in (THREADS, LAYOUT):
        parity = "reduction_order"
    return Words(
        option.name,
        tuple(f"{option.name}={value}" for value in option.values),
        Known("", techniques=tuple(each.name for each in techniques)),
        option.parity_class if option.is_told else parity,
        is_told=option.is_told,
        is_accepted=option.is_accepted,
        as_given={key: _text(value) for key, value in given.config.flat().items()},
    )


def tuned(settings: Settings[Any], ledger: Ledger, evidence: Path) -> Settings[Any]:
    """Every setting, resolved, with what was kept; each kept one says what showed it and where that lies."""
    kept = [each for name in ledger.kept for each in ledger.fixes if each.name == name]
    words = [word for each in kept for word in str(each.value).split()]
    settings = settings.with_words(words)
    resolved, _ = resolve(settings, machine_for(settings))
    if ledger.together is None:
        return resolved
    values = resolved.config.flat()
    origin = f"tuned: {ratio_words(ledger.together)} with all that is, {evidence}/ledger.json"
    return resolved.with_values({_key(word): values[_key(word)] for word in words}, origin=origin)


def _splits(microbatch: int, accumulated: int) -> list[str]:
    """Other ways to make a step of as many sequences, the nearest first."""
    whole = microbatch * accumulated
    sizes = [each for each in range(1, whole + 1) if whole % each == 0 and each != microbatch]
    sizes.sort(key=lambda size: max(size / microbatch, microbatch / size))
    return [f"{MICROBATCH}={n} {ACCUMULATED}={whole // n}" for n in sizes[:MOST_SPLITS]]


def _word(key: str, value: Any) -> str:
    return f"{key}={_text(value)}"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _key(word: str) -> str:
    """Of `key=value`; empty for any other word."""
    return word.partition("=")[0] if "=" in word and not word.startswith("-") else ""


def _value(word: str) -> str:
    return word.partition("=")[2]
