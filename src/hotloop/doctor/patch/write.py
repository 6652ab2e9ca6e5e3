"""Every kept fix into one diff, as far as that is safe; the rest in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from hotloop.core.census import Census
from hotloop.core.command_run import COMMAND_RUN_FILE, CommandRun
from hotloop.core.errors import UsageError
from hotloop.core.files import read_json, write_atomically, write_json
from hotloop.core.ledger import LEDGER_FILE, Ledger, TriedFix
from hotloop.doctor.patch.edit import Change, Edit, edited, unified_diff
from hotloop.doctor.patch.imports import set_up_edit
from hotloop.doctor.patch.keywords import (
    keywords_edit,
    loader_call,
    loader_frame,
    option_of_command,
    wrapped_argument_edit,
)
from hotloop.doctor.patch.model_call_edits import (
    around_call_edit,
    before_loop_edit,
    before_training_edit,
    definition_edit,
    training_call,
)
from hotloop.doctor.patch.scaled_loss_edits import scaled_loss_edits
from hotloop.doctor.patch.source import Frame, Source, Taken, Unsafe, taken_in
from hotloop.doctor.starting_point import edited_since, named_files
from hotloop.optimizations.catalogue import CATALOGUE
from hotloop.optimizations.optimization import Optimization
from hotloop.optimizations.source_edit import (
    AroundCall,
    BeforeLoop,
    BeforeTraining,
    Keywords,
    ScaledLoss,
    SetUp,
    SourceEdit,
    WrappedArgument,
)
from hotloop.trial.arm import digest_of
from hotloop.trial.measure import MEASUREMENT_FILE, load_measurement

UNPATCHED = "unpatched"
"""In the run directory: files as they were before a patch was applied."""
NOT_RUN = "the edited files were not run, and only what was measured is written"

MOST_PLACES = 4
"""Places that one fix may need; a diff of more is no longer read by anybody."""


@dataclass(frozen=True, slots=True)
class Patch:
    """What some fixes come to in the user's source."""

    files: Mapping[str, bytes]
    """Path relative to the working directory -> the whole file, edited."""
    diff: bytes
    fixes: tuple[TriedFix, ...]
    """With `patch` and `patch_text`."""

    @property
    def digest(self) -> str | None:
        """Names the edited files; `None` where none is edited."""
        return digest_of(self.files) if self.files else None


def patch_for(
    fixes: Sequence[TriedFix],
    *,
    workdir: Path,
    started_at: float,
    census: Census | None,
    directory: Path,
    why_not: str | None = None,
) -> Patch:
    """The edits of all `fixes`, which changes nothing yet.

    started_at, census: of the diagnosed run. directory: the doctor's. why_not: nothing may be edited, and why.
    """
    files = _Files(workdir, started_at)
    # In one order whoever asks: what was tried is found again by its digest.
    entries = [
        _patched(fix, files, directory, census, why_not)
        for fix in sorted(fixes, key=lambda fix: fix.name)
    ]
    return Patch(files.contents(), files.diff(), tuple(entries))


def write_patch(ledger: Ledger, directory: Path, *, target: Path) -> tuple[Ledger, Patch]:
    """Write the diff of all kept fixes to `target`, and what became of each into the ledger; returns both.

    directory: the doctor's, whose `ledger.json` is written again. Nothing of the user's is changed; where no kept fix
    can be edited, or the edited files are not those that the confirming processes ran, `target` is not written either.
    """
    _, made = _maker(ledger, directory)
    patch = made()
    if patch.digest is not None and patch.digest != ledger.together_patched:
        tried = ledger.together_patched is not None
        patch = made(why_not="it would not be what was tried" if tried else NOT_RUN)
    if patch.diff:
        write_atomically(target, patch.diff)
    entries = {fix.name: fix for fix in patch.fixes}
    ledger = replace(
        ledger,
        fixes=tuple(entries.get(fix.name, fix) for fix in ledger.fixes),
        diff=str(target) if patch.diff else None,
    )
    write_json(directory / LEDGER_FILE, ledger)
    return ledger, patch


def apply_patch(patch: Patch, workdir: Path, backup: Path) -> None:
    """Write the edited files in place of the user's, which are kept in `backup`. Raises `EnvironmentFailed`."""
    for name, content in patch.files.items():
        file = (workdir / name).resolve()  # of a link, what it leads to
        mode = file.stat().st_mode
        write_atomically(backup / name, file.read_bytes())
        write_atomically(file, content)
        file.chmod(mode)


def apply_kept(ledger: Ledger | None, directory: Path) -> tuple[Path, ...]:
    """Apply the patch of all kept fixes, as it was confirmed, and return the edited files. As they were they are in
    `UNPATCHED` of `directory`, the doctor's.

    Raises `UsageError` where there is none, or where a file is another by now, and `EnvironmentFailed`.
    """
    if ledger is None or not ledger.kept:
        raise UsageError("no fix was kept, so there is nothing to apply", where=str(directory))
    if ledger.together_patched is None:
        what = "nothing to apply: none of what was kept is safe to edit"
        raise UsageError(what, where=str(directory), do=ledger.run_with or _by_hand(ledger.fixes))
    workdir, made = _maker(ledger, directory)
    patch, backup = made(), directory / UNPATCHED
    if patch.digest != ledger.together_patched:
        before = [each.relative_to(backup) for each in backup.rglob("*") if each.is_file()]
        now = {str(each): (workdir / each).read_bytes() for each in before if (workdir / each).is_file()}  # fmt: skip
        if digest_of(now) == ledger.together_patched:
            raise UsageError("the patch is applied already", where=str(workdir))
        names = edited_since(directory)
        what = f"{named_files(names)} changed after the command was examined" if names else "the patch no longer fits"  # fmt: skip
        raise UsageError(what, where=str(workdir), do=_by_hand(patch.fixes))
    apply_patch(patch, workdir, backup)
    return tuple(workdir / name for name in patch.files)


def _maker(ledger: Ledger, directory: Path) -> tuple[Path, Callable[..., Patch]]:
    """Where the command of the doctor's `directory` ran, and what makes the patch of all kept fixes."""
    run = read_json(directory / COMMAND_RUN_FILE, CommandRun)
    made = partial(
        patch_for,
        [fix for fix in ledger.fixes if fix.name in ledger.kept],
        workdir=Path(run.workdir),
        started_at=run.started_at,
        census=load_measurement(directory / MEASUREMENT_FILE).census,
        directory=directory,
    )
    return Path(run.workdir), made


def _by_hand(fixes: Sequence[TriedFix]) -> str:
    return "\n  ".join(f"{fix.name}: {fix.patch_text}" for fix in fixes if fix.patch == "words")


@dataclass
class _Files:
    """The user's files, each parsed once, with the edits of all fixes."""

    workdir: Path
    started_at: float
    """When the diagnosed run was started."""
    sources: dict[tuple[str, str | None], Source] = field(default_factory=dict)
    edits: dict[Source, list[Edit]] = field(default_factory=dict)

    def of(self, frame: Frame) -> Source:
        key = (frame.file, frame.sha256)
        if key not in self.sources:
            self.sources[key] = Source(self.workdir, frame)
        return self.sources[key]

    def add(self, new: Sequence[tuple[Source, Edit]]) -> None:
        """All of one fix, or none: raises `Unsafe` where they do not go together with those before."""
        edits = {source: list(held) for source, held in self.edits.items()}
        for source, edit in new:
            edits.setdefault(source, []).append(edit)
        for source, held in edits.items():
            edited(source, held)
        self.edits = edits

    def contents(self) -> dict[str, bytes]:
        return {source.file: edited(source, held) for source, held in self.edits.items()}

    def diff(self) -> bytes:
        return b"".join(
            unified_diff(source.file, source.content, edited(source, held))
            for source, held in sorted(self.edits.items(), key=lambda item: item[0].file)
        )


def _patched(
    fix: TriedFix, files: _Files, directory: Path, census: Census | None, why_not: str | None
) -> TriedFix:
    technique = CATALOGUE[fix.name]
    said = taken_in(directory / (fix.directory or ""), fix.name, files.workdir)
    taken = [each for each in said if each.applied]
    wanted: SourceEdit | None = None
    try:
        wanted = form_of(fix, taken)
        if technique.of_loader:
            edits = _at_loader(technique, fix.value, wanted, files, census)
        else:
            edits = _edits(wanted, taken, said, files)
        if why_not is not None:
            raise Unsafe(why_not)
        files.add(edits)
    except Unsafe as why:
        text = words_for(technique, fix.value, wanted, taken, str(why))
        if technique.of_loader and isinstance(wanted, Keywords):
            option = option_of_command(wanted, census or Census(), files.workdir, files.started_at)
            text = f"give `{option}` to the command. Not edited: {why}." if option else text
        return replace(fix, patch="words", patch_text=text)
    lines = sorted({(source.file, source.start(edit.node)[0]) for source, edit in edits})
    notes = [edit.note for _, edit in edits if isinstance(edit, Change) and edit.note]
    notes += [wanted.note] if isinstance(wanted, (SetUp, BeforeTraining)) and wanted.note else []
    text = "; ".join([", ".join(f"{file}:{line}" for file, line in lines), *notes])
    return replace(fix, patch="edited", patch_text=text)


def _edits(
    wanted: SourceEdit,
    taken: Sequence[Taken],
    said: Sequence[Taken],
    files: _Files,
) -> list[tuple[Source, Edit]]:
    """Raises `Unsafe` where one of the places cannot be edited: half of a fix was not measured."""
    if isinstance(wanted, SetUp):
        frame = _main_frame(taken)
        source = files.of(frame)
        return [(source, set_up_edit(source, wanted, files.workdir))]
    places = [each for each in taken if each.frames]
    if not places:
        raise Unsafe("it took effect outside of the user's own code")
    if isinstance(wanted, ScaledLoss):
        places = [_scaled_place(each) for each in places]
    frames = list(dict.fromkeys(each.frames[0] for each in places))
    if len(frames) > MOST_PLACES:
        raise Unsafe(f"it took effect at {len(frames)} places")
    refused = {each.frames[0] for each in said if not each.applied and each.frames}
    for frame in frames:
        if not frame.direct:
            inside = next(each.inside for each in places if each.frames[0] == frame)
            raise Unsafe(f"the call is made inside a library ({inside})")
        if frame in refused:
            raise Unsafe(f"at {frame.site} it took effect at one time and could not at another")
    if isinstance(wanted, ScaledLoss):
        return _with_scaler(wanted, places, files)
    return _at_calls(wanted, frames, files)


def _scaled_place(place: Taken) -> Taken:
    part, frame = place.facts.get("part"), place.frames[0]
    if part == "read":
        raise Unsafe(f"{frame.site} reads gradients, which have to be unscaled before that")
    # Around every optimizer's step torch has a function of its own.
    direct = frame.direct or (part == "step" and place.inside == "torch")
    return replace(place, frames=(replace(frame, direct=direct),))


def _with_scaler(
    wanted: ScaledLoss, places: Sequence[Taken], files: _Files
) -> list[tuple[Source, Edit]]:
    by_part: dict[str, list[Frame]] = {}
    for each in places:
        by_part.setdefault(each.facts.get("part", "model"), []).append(each.frames[0])
    sources = {files.of(frame) for frames in by_part.values() for frame in frames}
    if len(sources) != 1:
        raise Unsafe(
            "the model is called in another file than its loss goes backward or its optimizer steps"
        )
    (source,) = sources
    calls = {
        part: [source.call_at(frame) for frame in frames]
        for part, frames in by_part.items()
        if part != "model"
    }
    more = scaled_loss_edits(source, calls, wanted.scaler)
    return _at_calls(wanted, by_part.get("model", []), files) + [(source, each) for each in more]


def _at_loader(
    technique: Optimization, value: Any, wanted: SourceEdit, files: _Files, census: Census | None
) -> list[tuple[Source, Edit]]:
    census = census or Census()
    frame = loader_frame(census, files.workdir, files.started_at)
    source = files.of(frame)
    if isinstance(wanted, BeforeTraining):
        call = training_call(source, frame)
        edit: Edit = before_training_edit(source, call, wanted)
    else:
        assert isinstance(wanted, (Keywords, WrappedArgument))
        call = loader_call(source, frame, wanted)
        given = {each.keyword.value for each in call.args if each.keyword is not None}
        change = (
            keywords_edit(source, call, wanted)
            if isinstance(wanted, Keywords)
            else wrapped_argument_edit(source, call, wanted)
        )
        edit = replace(change, note=technique.patch_note(value, census, given))
    if isinstance(wanted, Keywords):
        return [(source, edit)]
    return [(source, definition_edit(source, call, wanted)), (source, edit)]


def _at_calls(
    wanted: SourceEdit, frames: Sequence[Frame], files: _Files
) -> list[tuple[Source, Edit]]:
    edits: list[tuple[Source, Edit]] = []
    defined: set[Source] = set()
    for frame in sorted(frames, key=lambda frame: (frame.file, frame.line)):
        source = files.of(frame)
        call = source.call_at(frame)
        match wanted:
            case Keywords():
                edits.append((source, keywords_edit(source, call, wanted)))
            case BeforeLoop():
                edits.append((source, before_loop_edit(source, call, wanted)))
            case AroundCall():
                if source not in defined:
                    edits.append((source, definition_edit(source, call, wanted)))
                    defined.add(source)
                edits.append((source, around_call_edit(source, call, wanted)))
    return edits


def _main_frame(taken: Sequence[Taken]) -> Frame:
    """The frame of the program that was started."""
    frames = {each.frames[-1].file: each.frames[-1] for each in taken if each.frames}
    if len(frames) != 1:
        raise Unsafe("it took effect in several programs" if frames else "no script was seen")
    (frame,) = frames.values()
    if frame.function != "<module>":
        raise Unsafe("the script runs inside another program")
    return frame


def form_of(fix: TriedFix, taken: Sequence[Taken]) -> SourceEdit:
    """taken: where it took effect. Raises `Unsafe` where it has no form, or one for each place."""
    form = CATALOGUE[fix.name].source_edit
    if form is None:
        raise Unsafe("where it belongs depends on the script")
    if not taken:
        raise Unsafe("the trials did not say where it took effect")
    found = [form(fix.value, each.facts) for each in taken]
    for each in found:
        if isinstance(each, str):
            raise Unsafe(each)
    if any(each != found[0] for each in found):
        raise Unsafe("it would be written otherwise at each of its places")
    assert not isinstance(found[0], str)
    return found[0]


def words_for(
    technique: Optimization, value: Any, edit: SourceEdit | None, taken: Sequence[Taken], why: str
) -> str:
    """A sentence or two for a reader who edits by hand."""
    sites = list(dict.fromkeys(each.frames[0].site for each in taken if each.frames))
    at = f"at {' and '.join(sites[:3])}: " if sites else ""
    what = _what(technique, value, edit, taken)
    return f"{at}{what}{'' if what.endswith(chr(10)) else '. '}Not edited: {why}."


def _what(
    technique: Optimization, value: Any, edit: SourceEdit | None, taken: Sequence[Taken]
) -> str:
    trainer = any((each.inside or "").startswith("transformers.") for each in taken)
    arguments = technique.trainer_arguments(value, [each.what for each in taken])
    if trainer and edit is not None and arguments is not None:
        return f"the Trainer does it: add `{arguments}` to its TrainingArguments"
    if edit is not None:
        return edit.in_words()
    return (
        f"write\n{technique.source_form.strip()}\n" if technique.source_form else technique.summary
    )
