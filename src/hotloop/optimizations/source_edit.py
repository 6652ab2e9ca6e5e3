"""How a technique is written into somebody's own source, so that it does there what its live form did.

A technique names one of these; the doctor's patch knows how to make them. Standard library only: live
forms run in other interpreters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Keywords:
    """Arguments of the call in which the live form took effect: they are set, or added."""

    package: str
    """That the called class is imported from, e.g. `torch.optim`, or from anywhere below."""
    names: tuple[str, ...]
    """Names of the class; any other callee at that place is not edited."""
    values: Mapping[str, str]
    """By keyword, as Python source."""
    place: Mapping[str, int] = field(default_factory=dict)
    """By keyword, which of the arguments without a name it may be, counted from 0."""
    where_given: Mapping[str, str] = field(default_factory=dict)
    """More of them, set only where the call has them already."""
    unless_zero: str = ""
    """Another keyword, which must not be 0 for these: where the script decides it while it runs, they depend on it."""

    def in_words(self) -> str:
        return (
            f"{'set' if self.place else 'add'} `"
            + ", ".join(f"{name}={value}" for name, value in self.values.items())
            + "`"
        )


@dataclass(frozen=True, slots=True)
class SetUp:
    """Lines for the main script, right after torch was imported."""

    lines: tuple[str, ...]
    clashes: tuple[str, ...] = ()
    """Words of a script that sets the same itself: it is not edited."""
    note: str = ""
    """For who reads the patch."""
    needs_torch: bool = True
    """They use the name `torch`; else the first imports will do where none is torch's."""

    def in_words(self) -> str:
        place = "right after torch is imported" if self.needs_torch else "after the first imports"
        return "write `" + "; ".join(self.lines) + f"` {place}"


@dataclass(frozen=True, slots=True)
class AroundCall:
    """The model's call `model(x)` becomes `name(model, x)`, with `definition` at the top of that file."""

    name: str
    definition: str
    """Python source of the function `name`. It may use the name `torch`."""
    words: str

    def in_words(self) -> str:
        return self.words


@dataclass(frozen=True, slots=True)
class ScaledLoss(AroundCall):
    """`AroundCall` at the model's call, and a gradient scaler, which `definition` makes, where the loss goes backward,
    gradients are clipped or read, and the optimizer steps: the fact `part` names which of these a place is."""

    scaler: str


@dataclass(frozen=True, slots=True)
class BeforeLoop:
    """A line before the loop that calls the model; `{model}` in it is how the script names the model there."""

    line: str

    def in_words(self) -> str:
        return f"write `{self.line.format(model='model')}` before the first step"


@dataclass(frozen=True, slots=True)
class WrappedArgument:
    """An argument of the call in which the live form took effect becomes `name(argument)`, with `definition` at the top."""

    package: str
    """As of `Keywords`."""
    names: tuple[str, ...]
    argument: str
    """Where the call does not have it, it gets `name()`."""
    place: int
    """Which of the arguments without a name it may be, counted from 0."""
    name: str
    definition: str
    """Python source of `name`. It may use the name `torch`."""
    more: str = ""
    """Another argument for `name`, as Python source."""
    keywords: Mapping[str, str] = field(default_factory=dict)
    """Others of the call that are set with it, as Python source."""

    def in_words(self) -> str:
        given = ", ".join(filter(None, (self.argument, self.more)))
        others = "".join(f", {name}={value}" for name, value in self.keywords.items())
        return f"write\n{self.definition}\nand give `{self.argument}={self.name}({given}){others}`"


@dataclass(frozen=True, slots=True)
class BeforeTraining:
    """A line before `trainer.train()`; `{owner}` in it is how the script names the trainer."""

    name: str
    definition: str
    """Python source of `name`, for the top of that file. It may use the name `torch`."""
    line: str
    note: str = ""
    """For who reads the patch."""

    def in_words(self) -> str:
        line = self.line.format(owner="trainer")
        return f"write\n{self.definition}\nand `{line}` before `trainer.train()`"


SourceEdit = Keywords | SetUp | AroundCall | BeforeLoop | WrappedArgument | BeforeTraining
