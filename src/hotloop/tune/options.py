"""The options of somebody's script that are varied: how they are written, what they mean, the command with other values."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from hotloop.core.errors import UsageError
from hotloop.core.judgement import Diagnosis, ParityClass
from hotloop.optimizations.catalogue import CATALOGUE

MOST_VALUES = 64
"""Of one option: more is a typing error, or days."""
CLASSES: tuple[ParityClass, ...] = (
    *("bitwise", "reduction_order"),
    *("reduced_precision", "changes_training"),
)
"""What can be told with `--parity`."""

Scales = Literal["samples", "tokens", ""]


class Known(NamedTuple):
    """What the name of an option says of it. Its class is a claim that losses are held to."""

    names: str
    """Matches all of the name, in lower case, with `-` for `_`."""
    parity_class: ParityClass
    techniques: tuple[str, ...] = ()
    """In the catalogue: what it does, so that a finding that asks for one of them asks for it."""
    scales: Scales = ""
    """What a step has as many times more of as its value is larger."""


KNOWN = (
    Known(r"(.*-)?(num-?)?n?workers|j", "bitwise", ("loader_workers",)),
    Known(r"(.*-)?(persistent-workers|prefetch(-factor)?)", "bitwise", ("loader_workers",)),
    Known(r"(.*-)?pin-mem(ory)?", "bitwise", ("pinned_copies",)),
    Known(r"((omp|mkl|openblas)-num-|(.*-)?(num-)?n?)threads", "reduction_order", ("threads",)),
    Known(
        r"(use-|no-)?(amp|fp16|bf16|half|tf32|autocast|(mixed-)?precision|dtype|b?float16)",
        "reduced_precision",
        ("precision",),
    ),
    Known(
        r"(use-|no-|torch-)?(compile(-mode)?|fused(-adamw?)?|channels-last|sdpa|flash(-attn|-attention)?"
        r"|attn-implementation|cudnn-benchmark)",
        "reduction_order",
        ("compile", "fused_optimizer", "channels_last", "attention", "cudnn_benchmark"),
    ),
    Known(
        r"(?!.*(eval|val|valid|test))(.*-)?(batch-?size|bs|bsz|batch|b)(-per-.*)?|(.*-)?accum(ulat.*|-.*)?",
        "changes_training",
        ("larger_microbatch", "compile", "fused_optimizer"),
        "samples",
    ),
    Known(
        r"(max-)?(seq(uence)?-?len(gth)?|block-size|bptt|context(-len(gth)?|-size)?|max-len(gth)?)",
        "changes_training",
        scales="tokens",
    ),
    Known(
        r"(.*-)?(lr|learning-rate|epochs?|seed|dropout|optim(izer)?|momentum|weight-decay|(n-)?layers?|width"
        r"|n?hid(den)?|emsize|n?heads?|log-interval)",
        "changes_training",
    ),
)


@dataclass(frozen=True, slots=True)
class Option:
    """One that is varied, with the values to try."""

    name: str
    """As the script has it: `--batch-size`, `lr` of `lr=0.1`, or a variable: `OMP_NUM_THREADS`."""
    values: tuple[str, ...]
    """In the order in which they were given; of a flag `on` or `off`."""
    is_flag: bool = False
    parity_class: ParityClass | None = None
    """`None`: its name does not tell."""
    is_told: bool = False
    """The class was told, not known by the name."""
    is_accepted: bool = False
    """It may be kept though it changes the training."""
    known: Known | None = None

    @property
    def key(self) -> str:
        """Its name in `--parity` and `--accept`."""
        return _key(self.name)

    @property
    def scales(self) -> Scales:
        return "" if self.known is None else self.known.scales

    def label(self, value: str) -> str:
        """One value of it, as in the ledger."""
        if self.is_flag:
            return self.name if value == "on" else f"without {self.name}"
        return f"{self.name}={value}"

    def given(self, command: Sequence[str]) -> str | None:
        """Its value as the command or the environment has it; `None`: the script's own default."""
        if _is_variable(self.name):
            return os.environ.get(self.name)
        place = self._place(command)
        if self.is_flag:
            return "off" if place is None else "on"
        if place is None:
            return None
        _, _, value = command[place].partition("=")
        return value if command[place] != self.name else command[place + 1]

    def applied(
        self, command: Sequence[str], env: Mapping[str, str], value: str
    ) -> tuple[tuple[str, ...], dict[str, str]]:
        """The command and its variables with this value."""
        words, place = list(command), self._place(command)
        if _is_variable(self.name):
            return tuple(words), {**env, self.name: value}
        if self.is_flag:
            words = [*words, self.name] if value == "on" else _without(words, self.name)
        elif place is None:  # `-j=4` would be the value `=4`
            short = re.fullmatch("-[A-Za-z]", self.name)
            words += [self.name, value] if short else [f"{self.name}={value}"]
        elif words[place] == self.name:
            words[place + 1] = value
        else:
            words[place] = f"{self.name}={value}"
        return tuple(words), dict(env)

    def promise(self, diagnosis: Diagnosis) -> float:
        """The largest gain, a ratio, of the findings that ask for it; 1 where none does."""
        techniques = () if self.known is None else self.known.techniques
        codes = {code for name in techniques for code in CATALOGUE[name].answers}
        gains = [f.gain_at_most for f in diagnosis.findings if f.code in codes]
        return max(gains, default=1.0)

    def _place(self, command: Sequence[str]) -> int | None:
        """The word that has it, the last of several: that is what parsers take."""
        for place in reversed(range(1, len(command))):
            word = command[place]
            if word.startswith(f"{self.name}=") and not self.is_flag:
                return place
            if word == self.name and self.name.startswith("-"):
                if self.is_flag:
                    return place
                after = command[place + 1 : place + 2]
                if after and (not after[0].startswith("-") or re.fullmatch(r"-[\d.]+", after[0])):
                    return place
        return None


def options_of(
    vary: Sequence[str], parity: Sequence[str], accept: Sequence[str], command: Sequence[str]
) -> list[Option]:
    """What `--vary`, `--parity` and `--accept` ask for. Raises `UsageError` with one clear line."""
    options: dict[str, Option] = {}
    for text in vary:
        option = _option(text, command)
        if option.key in options:
            raise UsageError(
                f"{option.name} is varied twice", do="give all its values in one --vary"
            )
        options[option.key] = option
    if not options:
        raise UsageError(
            "nothing to vary",
            do='name an option of the script and its values: --vary "--num-workers=0..4"',
        )
    for text in parity:
        name, _, told = text.partition("=")
        option = _named(options, "--parity", name)
        parity_class = next((each for each in CLASSES if each == told), None)
        if parity_class is None:
            raise UsageError(
                f"--parity {text}: no such class of changes",
                do=f"write {name}= and one of {', '.join(CLASSES)}",
            )
        options[option.key] = replace(option, parity_class=parity_class, is_told=True)
    for name in accept:
        option = _named(options, "--accept", name)
        if option.parity_class not in (None, "changes_training"):
            raise UsageError(
                f"--accept {name} has no effect: {option.name} is held to the losses of the command as given",
                do=f"leave it out, or say --parity {name}=changes_training",
            )
        options[option.key] = replace(option, parity_class="changes_training", is_accepted=True)
    return list(options.values())


def _named(options: Mapping[str, Option], by: str, name: str) -> Option:
    if _key(name) not in options:
        raise UsageError(
            f"{by} {name}: no such option is varied", do=f"name one of {', '.join(options)}"
        )
    return options[_key(name)]


def _option(text: str, command: Sequence[str]) -> Option:
    """Raises `UsageError` for a text that is not understood."""
    name, equals, values = (part.strip() for part in text.partition("="))
    if not re.fullmatch(r"-{0,2}[A-Za-z_][\w.+-]*", name) or not (equals or name.startswith("-")):
        raise UsageError(
            f'--vary "{text}" is not understood',
            do='write "--option=1,2,4", "--option=0..4", "--option=8..64*2", "--flag" or "VARIABLE=a,b"',
        )
    known = next((each for each in KNOWN if re.fullmatch(each.names, _key(name))), None)
    option = Option(name, (), parity_class=known and known.parity_class, known=known)
    if not equals:
        option = replace(option, is_flag=True)
        return replace(option, values=("off" if option.given(command) == "on" else "on",))
    found = list(dict.fromkeys(each for part in values.split(",") for each in _values(text, part)))
    if len(found) > MOST_VALUES:
        raise UsageError(f'--vary "{text}": {len(found)} values, {MOST_VALUES} at most')
    wanted = tuple(each for each in found if each != option.given(command))
    if not wanted:
        raise UsageError(
            f'--vary "{text}": the command has no other value of it to be compared with'
        )
    return replace(option, values=wanted)


def _values(text: str, part: str) -> list[str]:
    """`4`, `0..4` or `8..64*2`."""
    part = part.strip()
    matched = re.fullmatch(r"(\d{1,9})\.\.(\d{1,9})(?:\*(\d{1,2}))?", part)
    if not part or (matched is None and re.fullmatch(r"[\d*-]*\.\.[\d.*-]*", part)):
        raise UsageError(
            f'--vary "{text}": `{part}` is no value',
            do="write values with commas between them, and ranges of whole numbers as 0..4 or 8..64*2",
        )
    if matched is None:
        return [part]
    first, last, times = int(matched[1]), int(matched[2]), int(matched[3] or 0)
    if first > last or (matched[3] and (times < 2 or not first)):
        raise UsageError(f'--vary "{text}": `{part}` holds no values', do="write 0..4 or 8..64*2")
    found = [first]
    while (after := found[-1] * times if times else found[-1] + 1) <= last:
        found.append(after)
        if len(found) > MOST_VALUES:
            break
    return [str(each) for each in found]


def _key(name: str) -> str:
    return name.lstrip("-").replace("_", "-").lower()


def _is_variable(name: str) -> bool:
    return re.fullmatch("[A-Z_][A-Z0-9_]*", name) is not None


def _without(words: Sequence[str], name: str) -> list[str]:
    return [word for place, word in enumerate(words) if word != name or not place]
