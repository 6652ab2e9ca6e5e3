"""The options of a script that are varied: how `--vary` writes them, what their names say, the command with a value."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from hotloop.core.errors import UsageError
from hotloop.core.judgement import Diagnosis, JudgedSteps, ParityClass
from hotloop.optimizations.catalogue import CATALOGUE
from hotloop.tune.script_options import Declared, script_options

AUTO = "auto"
"""All that it chooses for a config, as one option."""
MOST_VALUES = 64
"""Of one option: more is a typing error, or days."""
CLASSES: tuple[ParityClass, ...] = ("bitwise", "reduction_order", "reduced_precision", "changes_training")  # fmt: skip
"""What can be told with `--parity`."""


class Known(NamedTuple):
    """What the name of an option says of it. The class is a claim that its losses are held to."""

    names: str
    """Matches all of a name behind its last dot, in lower case, with `-` for `_`."""
    parity_class: ParityClass | None = None
    techniques: tuple[str, ...] = ()
    """In the catalogue: a finding that asks for one of them asks for the option."""
    scales: str = ""
    """`samples` or `tokens`: a step has as many times more of them as the value is larger."""


class Soak(NamedTuple):
    """What is run once before a value that takes more memory is believed."""

    words: str
    """Beside all that is kept."""
    steps: int
    said: str


WORKERS = ("loader_workers",)
COMPILED = ("compile", "fused_optimizer", "channels_last", "attention")
# fmt: off
KNOWN = (
    Known(r"(.*-)?(num-?)?n?workers|j", "bitwise", WORKERS),
    Known(r"(.*-)?(persistent-workers|prefetch(-factor)?)", "bitwise", ("loader_workers", "prefetch")),
    Known(r"(.*-)?pin-mem(ory)?", "bitwise", ("pinned_copies",)),
    Known(r"((omp|mkl|openblas)-num-|(.*-)?(num-)?n?)threads", "reduction_order", ("threads",)),
    Known("omp-(proc-bind|places)|(kmp|gomp-cpu)-affinity", "bitwise", ("threads",)),
    Known(r"(pytorch(-cuda)?-alloc-conf|malloc-.*|ld-preload)", "bitwise"),
    Known(r"(use-|no-)?(amp|fp16|bf16|half|tf32|autocast|(mixed-)?precision|(torch-)?dtype|b?float16)", "reduced_precision", ("precision",)),
    Known(r"(use-|no-|torch-)?(compile(-mode)?|fused(-adamw?)?|channels-last|sdpa|flash(-attn|-attention)?|attn-implementation)", "reduction_order", COMPILED),
    Known(r"(use-|no-)?(grad(ient)?|activation)-checkpoint(ing)?", "reduction_order", ("checkpointing",)),
    Known(r"(.*-)?((mini|micro)?batch-?size|(mini|micro)?batch|bs|bsz|b|accum(ulat.*)?|accum-.*)(-per-.*)?"
          r"|(samples|sequences|images|ims|imgs)-per-.*", "changes_training", ("larger_microbatch", *COMPILED), "samples"),
    # Not one with `max`, which texts that are padded to the longest of a batch need not reach.
    Known(r"seq(uence)?-?len(gth)?|block-size|bptt|context-.*", "changes_training", (), "tokens"),
    Known(r"(.*-)?(lr|learning-rate|epochs?|seed|dropout|momentum|weight-decay)", "changes_training"),
    Known(".*"),
)
# fmt: on


@dataclass(frozen=True, slots=True)
class Option:
    """One that is varied, with the values to try."""

    name: str
    """As the script has it: `--batch-size`, `lr` of `lr=0.1`, or a variable: `OMP_NUM_THREADS`."""
    values: tuple[str, ...]
    """In the order given; of a flag `on` or `off`."""
    known: Known
    parity_class: ParityClass | None
    """`None`: nobody has told."""
    is_flag: bool = False
    is_told: bool = False
    """The class was told, not known by the name."""
    is_accepted: bool = False
    """It may be kept though it changes the training."""
    default: str | None = None
    """What it is where the command does not name it, if the script's source says so."""
    names: tuple[str, ...] = ()
    """All that the script takes for it, `-b` and `--batch-size`, if its source says so."""
    accumulation: Option | None = None
    """Goes with it, so that a step has as many samples as in the command:"""
    samples: int = 0
    """its value times that of the accumulation."""

    @property
    def key(self) -> str:
        """Its name in `--parity` and `--accept`."""
        return _key(self.name)

    @property
    def is_batch_size(self) -> bool:
        """Not an accumulation, which changes no batch."""
        return self.known.scales == "samples" and "accum" not in self.key

    @property
    def reshapes(self) -> bool:
        """Whether batches have other shapes with another value, in which dropout draws other numbers."""
        return self.accumulation is not None

    @property
    def over(self) -> JudgedSteps:
        """The steps that its gain shows in: workers deliver in waves, and what they do to slow steps is theirs."""
        over = {CATALOGUE[each].over for each in self.known.techniques}
        return "all" if over == {"all"} else "steady"

    def label(self, value: str) -> str:
        """One value, as in the ledger."""
        if self.accumulation is not None:
            steps = self.accumulation.label(str(self.samples // int(value)))
            return f"{self.name}={value} {steps}"
        return f"{self.name}={value}" if not self.is_flag else f"{self.name} {value}"

    def given(self, command: Sequence[str]) -> str | None:
        """Its value in the command or the environment, or by default; `None`: nobody knows."""
        if self._is_variable:
            return os.environ.get(self.name)
        place = self._place(command)
        if self.is_flag:
            return "off" if place is None else "on"
        if place is None:
            return self.default
        begins = self._begins(command[place])
        return command[place].removeprefix(begins) if begins else command[place + 1]

    def applied(
        self, command: Sequence[str], env: Mapping[str, str], value: str
    ) -> tuple[tuple[str, ...], dict[str, str]]:
        """The command and its variables with this value."""
        if self.accumulation is not None:
            steps = str(self.samples // int(value))
            command, env = self.accumulation.applied(command, env, steps)
        words, place = list(command), self._place(command)
        if self._is_variable:
            return tuple(words), {**env, self.name: value}
        if self.is_flag:
            others = [word for word in words if word not in self._all_names]
            words = [*words, self.name] if value == "on" else others
        elif place is None:  # `-j=4` would be the value `=4`
            is_short = re.fullmatch("-.", self.name)
            words += [self.name, value] if is_short else [f"{self.name}={value}"]
        elif begins := self._begins(words[place]):
            words[place] = begins + value
        else:
            words[place + 1] = value
        return tuple(words), dict(env)

    def details(self, value: str) -> str:
        """What the ledger says below a value, beside its label."""
        return ""

    def batch(self, value: str) -> int | None:
        """Samples that go through the model at once with a value; `None`: it does not say."""
        return int(value) if self.known.scales == "samples" and value.isdigit() else None

    def enlarges(self, value: str, command: Sequence[str]) -> bool:
        """Whether more samples go through the model at once than in the command, for all that it says."""
        given = self.given(command) or ""
        least = int(given) if given.isdigit() else 0
        return self.is_batch_size and (self.batch(value) or 0) > least

    def saving(self, value: str, command: Sequence[str]) -> tuple[Option, str] | None:
        """A value that memory was too small for, with the next technique that saves some beside it; `None`: nobody knows one.

        command: what it is put into.
        """
        return None

    def further(self, value: str) -> str | None:
        """The next larger batch of the same step, to look for the knee; `None`: there is none, or what is tried was named."""
        return None

    def soak(self, value: str) -> Soak | None:
        """For a value with which a command takes more memory than as given; `None`: it is not known to."""
        return None

    def accepting(self, value: str) -> str:
        """What keeps it where it changes the training."""
        return f"--accept {self.key}"

    def changes(self, value: str, command: Sequence[str]) -> bool:
        """Whether this command has another value, as far as it tells."""
        return self.given(command) != value

    def asked_by(self, diagnosis: Diagnosis) -> dict[str, float]:
        """Findings that ask for it: code -> gain at most."""
        codes = {code for name in self.known.techniques for code in CATALOGUE[name].answers}
        return {f.code: f.gain_at_most for f in diagnosis.findings if f.code in codes}

    def _place(self, command: Sequence[str]) -> int | None:
        """The word that has it, the last of several, as parsers take it."""
        for place in reversed(range(1, len(command))):
            after = command[place + 1] if place + 1 < len(command) else "--"
            has_value = not re.match(r"-(?!\.?\d)", after)
            is_whole = command[place] in self._all_names and (self.is_flag or has_value)
            if is_whole or self._begins(command[place]):
                return place
        return None

    def _begins(self, word: str) -> str:
        """`--batch-size=` of `--batch-size=8`, `-b` of `-b8`; empty where the word does not hold its value."""
        name, equals, _ = word.partition("=")
        if equals and {name, name.lstrip("+")} & {*self._all_names}:  # Hydra's `+key=value`
            return f"{name}="
        is_short = word[:1] == "-" and word[:2] in self._all_names and word[2:3].isdigit()
        return word[:2] if is_short else ""

    @property
    def _is_variable(self) -> bool:
        """Of the environment; `-J` and `SOLVER.LR` are words of the command."""
        return re.fullmatch("[A-Z_][A-Z0-9_]*", self.name) is not None

    @property
    def _all_names(self) -> tuple[str, ...]:
        return (self.name, *self.names)


def options_of(
    vary: Sequence[str],
    parity: Sequence[str],
    accept: Sequence[str],
    command: Sequence[str],
    accumulate_with: Sequence[str] = (),
) -> list[Option]:
    """What these options of `hotloop tune` ask for. Raises `UsageError` with one clear line."""
    if not vary:
        do = 'name an option of the script, or a key of the config, and its values: --vary "--num-workers=0..4"'
        raise UsageError("nothing to vary", do=do)
    options: dict[str, Option] = {}
    for text in vary:
        option = _option(text, command)
        if option.key in options:
            do = "give all its values in one --vary"
            raise UsageError(f"{option.name} is varied twice", do=do)
        options[option.key] = option
    for name in accumulate_with[-1:]:
        batch = _accumulated(list(options.values()), name, command)
        options[batch.key] = batch
    for text in (*parity, *(f"{name}=changes_training" for name in accept)):
        name, _, told = text.partition("=")
        if (key := _key(name)) not in options:
            do = f"name one of {', '.join(options)}"
            raise UsageError(f"`{name}` is not varied, so nothing can be said of it", do=do)
        parity_class = next((each for each in CLASSES if each == told), None)
        if parity_class is None:
            do = f"write {name}= and one of {', '.join(CLASSES)}"
            raise UsageError(f"--parity {text}: no such class of changes", do=do)
        is_accepted = name in accept
        if is_accepted and options[key].parity_class not in (None, parity_class):
            do = f"leave it out, or say --parity {name}=changes_training"
            raise UsageError(f"--accept {name} has no effect: its losses are compared", do=do)
        options[key] = replace(
            options[key], parity_class=parity_class, is_told=True, is_accepted=is_accepted
        )
    return list(options.values())


def _accumulated(options: Sequence[Option], name: str, command: Sequence[str]) -> Option:
    """The one batch size among them, with that accumulation. What is claimed of it is what a sum in another order is."""
    ours = f"--accumulate-with {name}"
    batches = [each for each in options if each.known.scales == "samples"]
    if len(batches) != 1 or _key(name) in (each.key for each in options):
        do = 'vary the batch size, and not the accumulation: --vary "--batch-size=8,16,32"'
        raise UsageError(f"{ours} goes with one batch size that is varied", do=do)
    batch = batches[0]
    declared = script_options(command).get(name, Declared())
    steps = Option(name, (), batch.known, None, default=declared.default, names=declared.names)
    numbers = {each.name: each.given(command) or "" for each in (batch, steps)}
    unknown = [
        each for each, number in numbers.items() if not re.fullmatch(r"[1-9]\d{0,8}", number)
    ]
    if unknown:
        do = "write the script's own numbers into the command, too"
        raise UsageError(f"{ours}: the command has no number for {' and '.join(unknown)}", do=do)
    samples = math.prod(map(int, numbers.values()))
    wrong = [each for each in batch.values if not each.isdigit() or samples % max(int(each), 1)]
    if wrong or "0" in batch.values:
        do = f"leave out {', '.join(wrong or '0')}"
        raise UsageError(
            f"{ours}: {samples} samples of a step are no multiple of each {batch.name}", do=do
        )
    return replace(batch, accumulation=steps, samples=samples, parity_class="reduction_order")


def _option(text: str, command: Sequence[str]) -> Option:
    """Raises `UsageError` for a text that is not understood, or holds no value to compare with."""
    name, equals, values = (part.strip() for part in text.partition("="))
    parts = (part.replace("\\,", ",") for part in re.split(r"(?<!\\),", values))
    found = list(dict.fromkeys(each for part in parts for each in _values(part.strip())))
    is_name = re.fullmatch(r"(-{0,2}|\+{0,2})[A-Za-z_][\w.+-]*", name) is not None
    if not is_name or not (all(found) if equals else name.startswith("-")):
        do = 'write "--option=1,2,4", "--option=0..4", "--option=8..64*2", "--flag" or "VARIABLE=a,b"; of a config "train.microbatch=8,16"'
        raise UsageError(f'--vary "{text}" is not understood', do=do)
    known = _known(name)
    names, default = script_options(command).get(name, Declared())
    option = Option(
        name,
        tuple(found),
        known,
        known.parity_class,
        is_flag=not equals,
        default=default,
        names=names,
    )
    if not equals:
        found = ["on", "off"]
    if len(found) > MOST_VALUES:
        raise UsageError(f'--vary "{text}": more than {MOST_VALUES} values')
    wanted = tuple(each for each in found if each != option.given(command))
    if not wanted:
        raise UsageError(f'--vary "{text}": the command has that value, and there is no other')
    return replace(option, values=wanted)


def _known(name: str) -> Known:
    """What the part behind its last dot says; of an evaluation, as `eval.batch_size`, nothing of the work of a step."""
    key = _key(name)
    is_evaluation = re.search(r"\b(eval|val|test)", key) is not None
    last = key.rpartition(".")[2]
    return next(
        each
        for each in KNOWN
        if re.fullmatch(each.names, last) and not (each.scales and is_evaluation)
    )


def _values(part: str) -> list[str]:
    """`4`, `0..4` or `8..64*2`; an empty word of a range that is none."""
    matched = re.fullmatch(r"(\d{1,9})\.\.(\d{1,9})(?:\*([2-9]))?", part)
    if matched is None:
        return [""] if re.match(r"\d+\.\.|\.\.\d", part) else [part]
    each, last, times = int(matched[1]), int(matched[2]), int(matched[3] or 0)
    found: list[str] = []
    while each <= last and len(found) <= MOST_VALUES and (each or not times):
        found.append(str(each))
        each = each * times if times else each + 1
    return found or [""]


def _key(name: str) -> str:
    return name.lstrip("-+").replace("_", "-").lower()
