"""Keywords of a call: `AdamW(model.parameters(), lr=1e-3)` gets `fused=True`."""

from __future__ import annotations

import ast
import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path

import libcst as cst

from hotloop.core.census import ONE_OF, Census
from hotloop.doctor.patch.edit import Change
from hotloop.doctor.patch.source import Frame, Source, Unsafe, code_of
from hotloop.optimizations.source_edit import Keywords, WrappedArgument

MOST_POSITIONAL = 5
"""Arguments by place: of a loader those before `num_workers`, of an optimizer those before `fused`."""
MOST_FILES = 300
"""In which an option is looked for."""


def keywords_edit(source: Source, call: cst.Call, wanted: Keywords) -> Change:
    """The edit that gives `call` the `wanted` arguments; those in `where_given` only where it has them.

    Raises `Unsafe` where the callee is not certain, the script computes a present value, or `*`, `**` or a position
    may give an argument already.
    """
    _refuse_other_callee(source, call, wanted)
    held = {each.keyword.value for each in call.args if each.keyword is not None}
    values = {
        **wanted.values,
        **{name: value for name, value in wanted.where_given.items() if name in held},
    }
    by_place = [each for each in call.args if each.keyword is None and each.star == ""]
    places = {n: i for n, i in wanted.place.items() if n not in held and i < len(by_place)}
    _refuse_options(call, values, places)
    values = _conditional(call, values, wanted.unless_zero)
    _refuse_given_twice(call, [name for name in values if name not in held | places.keys()])
    if len(by_place) > MOST_POSITIONAL:
        raise Unsafe(f"`{next(iter(values))}` may be given by its place already")
    return _setting(call, values, places)


def wrapped_argument_edit(source: Source, call: cst.Call, wanted: WrappedArgument) -> Change:
    """Raises `Unsafe` where the callee is not certain, or whether it has one of the arguments."""
    _refuse_other_callee(source, call, wanted)
    given = _given(call, wanted.argument)
    by_place = [each for each in call.args if each.keyword is None and each.star == ""]
    if wanted.keywords and len(by_place) > MOST_POSITIONAL:
        raise Unsafe(f"`{next(iter(wanted.keywords))}` may be given by its place already")
    places = {}
    if given is None and wanted.place < len(by_place):
        places, given = {wanted.argument: wanted.place}, by_place[wanted.place].value
    missing = [name for name in wanted.keywords if _given(call, name) is None]
    _refuse_given_twice(call, [*([wanted.argument] if given is None else []), *missing])
    before = code_of(given) if given is not None else ""
    if before == "None":
        before = ""
    made = f"{wanted.name}({', '.join(filter(None, (before, wanted.more)))})"
    return _setting(call, {wanted.argument: made, **wanted.keywords}, places)


def _refuse_given_twice(call: cst.Call, missing: Sequence[str]) -> None:
    """Raises `Unsafe` where stars may hold what the call does not have by name."""
    if any(each.star == "**" for each in call.args) and missing:
        raise Unsafe(f"`{_text(call, '**')}` may hold `{missing[0]}` already")
    if any(each.star == "*" for each in call.args):
        raise Unsafe(f"`{missing[0] if missing else 'it'}` may be given by its place already")


def _setting(call: cst.Call, values: Mapping[str, str], places: Mapping[str, int]) -> Change:
    """values: keyword -> Python source; one that is not there is added. places: keyword -> position, where given by it."""

    def to(updated: cst.Call) -> cst.Call:
        for name, text in values.items():
            value = cst.parse_expression(text)
            if name in places:
                args = list(updated.args)
                args[places[name]] = args[places[name]].with_changes(value=value)
                updated = updated.with_changes(args=args)
            else:
                updated = _with_keyword(updated, name, value)
        return updated

    return Change(call, to, sets=values)


def _refuse_options(call: cst.Call, values: Mapping[str, str], places: Mapping[str, int]) -> None:
    """Raises `Unsafe` where an argument is what the script decides while it runs: an option would have no effect."""
    for name in values:
        given = _given(call, name)
        if name in places:
            given = call.args[places[name]].value
        if given is not None and not _is_literal(given):
            text = code_of(given)
            raise Unsafe(f"`{name}` is `{text}` there, which would have no effect any more")


def _conditional(call: cst.Call, values: Mapping[str, str], unless_zero: str) -> dict[str, str]:
    """With `values` only where keyword `unless_zero` of the call is not 0."""
    given = _given(call, unless_zero)
    if given is None or _is_literal(given):
        return dict(values)
    text = code_of(given)
    if not isinstance(given, (cst.Name, cst.Attribute)):
        raise Unsafe(f"`{unless_zero}` may be 0 there: it is `{text}`")
    return {name: f"{value} if {text} else None" for name, value in values.items()}


def _given(call: cst.Call, name: str) -> cst.BaseExpression | None:
    return next(
        (a.value for a in call.args if a.keyword is not None and a.keyword.value == name), None
    )


def _is_literal(value: cst.BaseExpression) -> bool:
    try:
        ast.literal_eval(code_of(value))
    except (ValueError, SyntaxError):
        return False
    return True


def _refuse_other_callee(
    source: Source, call: cst.Call, wanted: Keywords | WrappedArgument
) -> None:
    written = code_of(call.func)
    name = source.imported_as(call.func)
    if name is None:
        raise Unsafe(f"what `{written}` is there is decided while it runs")
    package, _, last = name.rpartition(".")
    if last not in wanted.names or f"{package}.".find(f"{wanted.package}.") != 0:
        raise Unsafe(f"`{written}` there is {name}, which is not torch's own")


def _text(call: cst.Call, star: str) -> str:
    argument = next(each for each in call.args if each.star == star)
    return star + code_of(argument.value)


def _with_keyword(call: cst.Call, name: str, value: cst.BaseExpression) -> cst.Call:
    args = list(call.args)
    for place, each in enumerate(args):
        if each.keyword is not None and each.keyword.value == name:
            args[place] = each.with_changes(value=value)
            return call.with_changes(args=args)
    added = cst.Arg(
        value,
        cst.Name(name),
        equal=cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace("")),
    )
    if not args:
        return call.with_changes(args=[added])
    last = args[-1]
    if isinstance(last.value, cst.GeneratorExp) and not last.value.lpar:
        # alone it may share the brackets of the call, with another one it may not
        last = last.with_changes(
            value=last.value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        )
    args[-1] = last.with_changes(comma=_comma(call), whitespace_after_arg=cst.SimpleWhitespace(""))
    if isinstance(last.comma, cst.Comma):  # a comma at the end stays one
        ended = _without_comment(last.comma.whitespace_after)
        added = added.with_changes(comma=last.comma.with_changes(whitespace_after=ended))
    else:
        added = added.with_changes(whitespace_after_arg=_without_comment(last.whitespace_after_arg))
    return call.with_changes(args=[*args, added])


def _comma(call: cst.Call) -> cst.Comma:
    """Between the last argument and a new one: on a line of its own where the last has one."""
    last = call.args[-1]
    before = call.args[-2].comma if len(call.args) > 1 else None
    between = (
        before.whitespace_after if isinstance(before, cst.Comma) else call.whitespace_before_args
    )
    if not isinstance(between, cst.ParenthesizedWhitespace):
        return cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    newline = between.with_changes(
        first_line=between.first_line.with_changes(comment=None, whitespace=_NONE), empty_lines=[]
    )
    ended = last.comma.whitespace_after if isinstance(last.comma, cst.Comma) else None
    ended = ended or last.whitespace_after_arg
    if isinstance(ended, cst.ParenthesizedWhitespace):  # its comment stays with the last
        newline = newline.with_changes(first_line=ended.first_line)
    return cst.Comma(whitespace_after=newline)


def _without_comment(
    space: cst.BaseParenthesizableWhitespace,
) -> cst.BaseParenthesizableWhitespace:
    if not isinstance(space, cst.ParenthesizedWhitespace):
        return space
    line = space.first_line.with_changes(comment=None, whitespace=_NONE)
    return space.with_changes(first_line=line)


_NONE = cst.SimpleWhitespace("")


def loader_frame(census: Census, workdir: Path, started_at: float) -> Frame:
    """The one place, at which only loaders that train are made. Raises `Unsafe`.

    started_at: of the diagnosed run; the file must be older.
    """
    site = _site_of_loader(census)
    others = any(each.site == site and not each.trains for each in census.loaders)
    if others or any(
        ONE_OF in name for each in census.loaders if each.trains for name in each.made
    ):
        raise Unsafe(
            f"at {site} loaders are made that do not train, too: they would change as well"
        )
    return _frame_at(site, workdir, started_at)


def _site_of_loader(census: Census) -> str:
    sites = list(dict.fromkeys(each.site for each in census.loaders if each.trains))
    if len(sites) != 1:
        raise Unsafe(
            f"loaders that train are made at {', '.join(sites)}"
            if sites
            else "no loader that trains was seen in the first run"
        )
    return sites[0]


def _frame_at(site: str, workdir: Path, started_at: float) -> Frame:
    file, _, line = site.rpartition(":")
    if not line.isdigit():
        raise Unsafe("where the loader is made was not seen")
    path = workdir / file
    digest = None
    if path.is_file() and path.stat().st_mtime < started_at:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return Frame(file, int(line), "?", None, digest, direct=True)


def option_of_command(
    wanted: Keywords, census: Census, workdir: Path, started_at: float
) -> str | None:
    """`--num_workers=0`: what the command can be given instead of an edit, where the script hands an option of its own on
    to the loader; `None` where that is not seen."""
    try:
        frame = _frame_at(_site_of_loader(census), workdir, started_at)
        call = loader_call(Source(workdir, frame), frame, wanted)
    except Unsafe:
        return None
    if any(_given(call, name) is not None for name in wanted.where_given):
        return None  # they would have to change with it
    given = {name: _given(call, name) for name in wanted.values}
    names = [each.attr.value for each in given.values() if isinstance(each, cst.Attribute)]
    options = [_option(name, workdir) for name in names]
    if len(options) != len(wanted.values) or None in options:
        return None
    return " ".join(f"{option}={value}" for option, value in zip(options, wanted.values.values()))


def _option(name: str, workdir: Path) -> str | None:
    """The option that a parser in the working directory adds under this name, where there is exactly one."""
    spelled = re.compile(rf"""add_argument\([^)]*?["'](--{name.replace("_", "[-_]")})["']([^)]*)""")
    own = (each for each in workdir.rglob("*.py") if "site-packages" not in each.parts)
    files = [
        each for each in islice(own, MOST_FILES) if each.is_file() and os.access(each, os.R_OK)
    ]
    found = {each for file in files for each in spelled.findall(file.read_text(errors="replace"))}
    if len(found) != 1:
        return None
    ((option, more),) = found
    return None if "action" in more else option  # a switch takes no value


def loader_call(source: Source, frame: Frame, wanted: Keywords | WrappedArgument) -> cst.Call:
    """The call on that line by the name of the class. Raises `Unsafe` where there is not one."""
    found = [
        each
        for each in source.calls()
        if source.start(each)[0] <= frame.line <= source.end(each)[0]
        and (source.imported_as(each.func) or "").rpartition(".")[2] in wanted.names
    ]
    if len(found) != 1:
        raise Unsafe(
            "several loaders are made on this line"
            if found
            else "no DataLoader is called there by name"
        )
    return found[0]
