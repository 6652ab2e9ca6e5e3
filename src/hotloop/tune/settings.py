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
from hotloop.core.ledger import Ledger, TriedFix
from hotloop.core.ranks import Ranks
from hotloop.core.settings import Settings, load_stored
from hotloop.hardware.device import pick_device, read_machine
from hotloop.hardware.limits import Machine
from hotloop.optimizations.catalogue import CONFIGURED, parity_class_of, resolve
from hotloop.optimizations.chunked_loss import known_vocabulary
from hotloop.optimizations.optimization import Optimization
from hotloop.report.ledger import ratio_words
from hotloop.trial.arm import Arm
from hotloop.tune.options import AUTO, CLASSES, Known, Option, Soak
from hotloop.tune.shapes import nearby_shapes

NOT_SENT = ("logging.wandb=false", "logging.mlflow=false", "checkpoint.upload=null")
"""In what is measured: nothing of it reaches a server."""
MICROBATCH, ACCUMULATED, THREADS = "train.microbatch", "train.grad_accum_steps", "train.num_threads"
CHECKPOINTING, SPLIT = "train.activation_checkpointing", "split"
LAYOUT = "model.packed"
OF_SEVERAL = "train.gradient_compression"
"""Acts between processes: one alone has nothing of it."""
LAST = ("thread_binding",)
"""Techniques that seldom bring anything: tried with what the others leave of the budget."""
MOST_SPLITS = 3
TUNED = "-tuned"
"""Ends the name of the training that the written config is."""
SOAK_STEPS = 40
FREE = ("data.prefetch", "eval.", "checkpoint.", "logging.")
"""Settings that change nothing of what is learnt."""


@dataclass(frozen=True, slots=True)
class Words(Option):
    """Settings that change together: each value is one or several `key=value`."""

    as_given: Mapping[str, str] = field(default_factory=dict, compare=False)
    """All settings, as they are on this machine without any of these words."""
    settings: Settings | None = field(default=None, compare=False)
    """What is tuned; `None`: nobody knows what else it could have."""
    larger: tuple[str, ...] = field(default=(), compare=False)
    """Values beyond these that are tried where the largest so far is the fastest, in order."""
    unusable: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Why, by value that this machine cannot use."""

    @property
    def reshapes(self) -> bool:
        """Dropout is drawn in the shape of a microbatch; of a fine-tuning the model's own config has it."""
        shapes = self.name in (LAYOUT, SPLIT) or any(LAYOUT in each for each in self.values)
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

    def batch(self, value: str) -> int | None:
        has = {_key(each): _value(each) for each in value.split()}
        return int(has[MICROBATCH]) if MICROBATCH in has else None

    def saving(self, value: str, command: Sequence[str]) -> tuple[Option, str] | None:
        if self.settings is None:
            return None
        words = [*_words(command), *value.split()]
        for more in self._ways(self.settings.with_words(words).config.flat()):
            keys = {_key(each) for each in more.split()}
            is_given = any(self.settings.origin(each) == "flag" for each in keys)
            if is_given or not _runs(self.settings.with_words([*words, *more.split()])):
                continue
            own = [each for each in value.split() if _key(each) not in keys]
            parity = self.parity_class
            if MICROBATCH in keys:
                parity = max(parity or CLASSES[-1], "reduction_order", key=CLASSES.index)
            return replace(self, parity_class=parity), " ".join([*own, more])
        return None

    def _ways(self, now: Mapping[str, Any]) -> list[str]:
        """What may save memory beside it, the cheapest first: checkpointing beside a microbatch, a smaller one without that."""
        if self.name == CHECKPOINTING:
            size, whole = now[MICROBATCH], now[MICROBATCH] * now[ACCUMULATED]
            smaller = [each for each in range(1, size) if whole % each == 0]
            return [_split(each, whole) for each in smaller[-1:]]
        ways = ["selective", "budget=0.5", "full"] if self.name in (SPLIT, MICROBATCH) else []
        ways = [w for w in ways if self.settings and _takes(self.settings, CHECKPOINTING, w)]
        done = ways.index(now[CHECKPOINTING]) + 1 if now[CHECKPOINTING] in ways else 0
        return [_word(CHECKPOINTING, each) for each in ways[done:]]

    def further(self, value: str) -> str | None:
        left = [each for each in self.larger if (self.batch(each) or 0) > (self.batch(value) or 0)]
        return left[0] if left else None

    def soak(self, value: str) -> Soak | None:
        if self.settings is None:
            return None
        has, config = {_key(each): _value(each) for each in value.split()}, self.settings.config
        given = self.as_given[CHECKPOINTING]
        is_less = given not in ("none", AUTO) and has.get(CHECKPOINTING) not in (
            None,
            given,
            "full",
        )
        if (self.batch(value) or 0) <= config.train.microbatch and not is_less:
            return None
        steps = min(SOAK_STEPS, config.train.steps or SOAK_STEPS)
        words, said = [f"checkpoint.every_steps={max(steps // 4, 1)}"], "a save"
        if not config.train.steps:  # those that the epochs of a fine-tuning need may be fewer
            more = 10 * (steps + config.schedule.warmup_steps)
            words += [f"train.steps={more}", "eval.every_epochs=null"]
        if config.eval.every_steps:
            words.append(f"eval.every_steps={max(steps // 2, 1)}")
            said = f"an evaluation and {said}"
        varies = not isinstance(config, RunConfig) or config.data.layout == "bucket"
        first = ", the longest rows first," * varies
        return Soak(" ".join(words), steps, f"{steps} steps{first} with {said}")

    def accepting(self, value: str) -> str:
        return f"--vary {value.split()[0]} --accept {self.name}"

    def changes(self, value: str, command: Sequence[str]) -> bool:
        has = {**self.as_given, **{_key(each): _value(each) for each in command}}
        return any(has.get(_key(each)) != _value(each) for each in value.split())


def command_of(
    config: Path, overrides: Sequence[str], out: Path, ranks: int = 1
) -> tuple[str, ...]:
    """What is measured, which writes into `out`: all ranks read the same words."""
    unsent = (each for each in NOT_SENT if _key(each) not in map(_key, overrides))
    launched = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}")
    python = (sys.executable, *launched) if ranks > 1 else (sys.executable,)
    train = (*python, "-m", "hotloop", "train", str(config), *overrides, *unsent)
    return (*train, "--out", str(out))


def with_tokens(arm: Arm, *, settings: Settings[Any]) -> Arm:
    """With the work of its steps. settings: the config as it was when all began, which trials see whatever it is by now."""
    try:
        config = settings.with_words(_words(arm.command)).config
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
        return _runs(load_stored(config, [*overrides, *value.split()]))

    found = [replace(each, values=tuple(filter(runs, each.values))) for each in options]
    return [each for each in found if each.values]


def _runs(settings: Settings[Any]) -> bool:
    """Whether this machine can do all that they ask for."""
    try:
        resolve(settings, machine_for(settings))
    except UsageError:
        return False
    return True


def machine_for(settings: Settings[Any], ranks: int = 1) -> Machine:
    """The machine, with the device that these settings train on, for each of so many processes. Raises `EnvironmentFailed`
    where it has fewer GPUs."""
    last = Ranks(ranks - 1, ranks, ranks - 1, ranks)
    return read_machine(pick_device(settings.config.train.device, last), last)


def options_for(
    settings: Settings[Any], named: Sequence[str], ranks: int = 1, only: Sequence[str] = ()
) -> tuple[list[Words], list[Words]]:
    """All that `auto` chooses here, as one value to try first; and single settings to try on top of what is kept.

    Settings that were given as flags stay what they are, and so do those `named` by the user, and what is only slower unless
    it is asked for by `only`.
    """
    machine = machine_for(settings, ranks)
    resolved, _ = resolve(settings, machine)
    given = resolved.config.flat()
    as_given = {key: _text(value) for key, value in given.items()}
    pinned = {*named, *(key for key in given if settings.origin(key) == "flag")}
    asked = {each.partition("=")[0].rpartition(".")[2] for each in only}
    pinned |= {
        each.key
        for each in CONFIGURED.values()
        if each.what_if and asked.isdisjoint((each.name, each.key.rpartition(".")[2]))
    }
    pinned |= {OF_SEVERAL} if ranks == 1 else set()
    pinned |= {each.key for each in CONFIGURED.values() if not _takes(settings, each.key, AUTO)}
    free = [each for each in CONFIGURED.values() if each.key not in pinned]
    chosen_by = {each.key: AUTO for each in free if each.choose is not None}
    automatic, _ = resolve(settings.with_values(chosen_by, origin=AUTO), machine)
    chosen = automatic.config.flat()

    def words(name: str, values: Iterable[str], parity: ParityClass, *asking: str) -> Words:
        known = Known("", techniques=asking)
        return Words(name, tuple(values), known, parity, as_given=as_given, settings=settings)

    first, rest = [], []
    asking = {each.key: each.name for each in free}
    changed = {key: chosen[key] for key in asking if chosen[key] != given[key]}
    parity = parity_class_of(chosen, baseline=given)
    if LAYOUT in given and LAYOUT not in pinned:
        asking[LAYOUT] = "dynamic_padding"
        # `auto` packs wherever that can be faster: no value of its own beside it
        layouts = [_word(LAYOUT, value) for value in (True, "buckets", False) if value is not True or given[LAYOUT] != "auto"]  # fmt: skip
        rest.append(words(LAYOUT, layouts, "reduction_order", asking[LAYOUT]))
        if given[LAYOUT] not in (True, "auto"):  # first: layers of no other layout are compiled
            changed[LAYOUT] = True
            parity = "reduction_order" if parity == "bitwise" else parity
    if len(changed) > 1 or LAYOUT in changed:
        value = " ".join(_word(key, each) for key, each in changed.items())
        first.append(words(AUTO, [value], parity, *(asking[key] for key in changed)))
    for each in sorted(free, key=lambda each: each.name in LAST):
        values = [chosen[each.key], given[each.key], each.off, *each.settings]
        values += [v for v in each.trainer_settings if each.is_worth_trying(machine, v)]
        values = [v for v in values if _takes(settings, each.key, v)]
        found = {v: _beside(each, v, chosen, machine, pinned) for v in dict.fromkeys(values)}
        usable = [has for has, _ in found.values() if has]
        unusable = {_word(each.key, v): why for v, (_, why) in found.items() if why}
        option = words(each.key, usable, each.parity_class, each.name)
        rest.append(replace(option, unusable=unusable))
    if THREADS not in pinned:
        most = max(machine.num_threads, int(given[THREADS]))
        counts = [1 << power for power in range(most.bit_length()) if 1 << power <= most]
        threads = [_word(THREADS, count) for count in dict.fromkeys((*counts, most))]
        rest.append(words(THREADS, threads, "reduction_order", "threads"))
    if pinned.isdisjoint((MICROBATCH, ACCUMULATED)):
        splits = _splits(given[MICROBATCH], given[ACCUMULATED], ranks)
        nearest = words(SPLIT, splits[:MOST_SPLITS], "reduction_order")
        rest.append(
            replace(
                nearest, larger=tuple(sorted(splits, key=lambda each: nearest.batch(each) or 0))
            )
        )
    return first, [each for each in rest if each.values or each.unusable]


def not_usable(options: Iterable[Words]) -> list[TriedFix]:
    """Of the ledger: values that this machine cannot use."""
    return [
        TriedFix(value, value, "not_tried", f"cannot be used here: {why}")
        for each in options
        for value, why in each.unusable.items()
    ]


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


def _beside(
    technique: Optimization,
    value: Any,
    chosen: Mapping[str, Any],
    machine: Machine,
    pinned: Collection[str],
) -> tuple[str, str]:
    """The words for a value beside all that `auto` chose, with what does not go with it turned off; and why it cannot be used."""
    beside = {**chosen, technique.key: value}
    off = []
    for each in CONFIGURED.values():
        why = each.why_not(machine, beside[each.key], beside)
        if not why or (each is not technique and each.why_not(machine, chosen[each.key], chosen)):
            continue
        if each is technique:
            return "", why
        if each.key in pinned:
            return "", f"{_word(each.key, beside[each.key])} stays, and {why}"
        off.append(each)
    return " ".join([_word(technique.key, value), *(_word(o.key, o.off) for o in off)]), ""


def varied(option: Option, given: Settings[Any]) -> Words:
    """A setting that the user varies, with what it may change, unless that was told. Raises `UsageError` for one of which trials do
    not see how much work a step is."""
    if option.name == "data.layout" and isinstance(given.config, RunConfig):
        raise UsageError(
            "rows of another `data.layout` hold another number of tokens, which trials do not count",
            do="train some steps of each with `hotloop train`, and compare the tokens per second that it prints",
        )
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
        settings=given,
    )


def tuned(settings: Settings[Any], ledger: Ledger, evidence: Path, ranks: int = 1) -> Settings[Any]:
    """Every setting, resolved, with what was kept; each kept one says what showed it and where that lies."""
    kept = [each for name in ledger.kept for each in ledger.fixes if each.name == name]
    words = [word for each in kept for word in str(each.value).split()]
    settings = settings.with_words(words)
    resolved, _ = resolve(settings, machine_for(settings, ranks))
    if ledger.together is None:
        return resolved
    values = resolved.config.flat()
    soaked = "" if ledger.soaked is None else f", soaked ({ledger.soaked})"
    whole = (
        f"{ratio_words(ledger.together)} with all tuned settings{soaked}, {evidence}/ledger.json"
    )
    # A run of its own: `runs/NAME` may be there, and has other settings.
    name = f"{values['name'].removesuffix(TUNED)}{TUNED}"
    resolved = resolved.with_values({"name": name}, origin=f"tuned: {whole}")
    for each in kept:
        own = each.added or each.verdict
        shown = "" if own in (None, ledger.together) else f"{ratio_words(own)} by {each.name}, "
        found = {_key(word): values[_key(word)] for word in str(each.value).split()}
        resolved = resolved.with_values(found, origin=f"tuned: {shown}{whole}")
    return resolved


def _splits(microbatch: int, accumulated: int, ranks: int) -> list[str]:
    """Other ways to make a step of as many sequences, the nearest first, in microbatches that the ranks share evenly."""
    whole = microbatch * accumulated
    sizes = [n for n in range(1, whole + 1) if whole % (n * ranks) == 0 and n != microbatch]
    sizes.sort(key=lambda size: max(size / microbatch, microbatch / size))
    return [_split(each, whole) for each in sizes]


def _split(size: int, whole: int) -> str:
    return f"{MICROBATCH}={size} {ACCUMULATED}={whole // size}"


def _words(command: Sequence[str]) -> list[str]:
    """Settings of a `hotloop train`."""
    return [word for word in command[command.index("train") + 2 :] if _key(word)]


def _word(key: str, value: Any) -> str:
    return f"{key}={_text(value)}"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _key(word: str) -> str:
    """Of `key=value`; empty for any other word."""
    return word.partition("=")[0] if "=" in word and not word.startswith("-") else ""


def _value(word: str) -> str:
    return word.partition("=")[2]
