"""The script's own code between the phases of training, by its most frequent lines."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import Literal

from hotloop.core.census import Census, CollectionUse, LineUse
from hotloop.judge.judged_run import JudgedRun
from hotloop.judge.thresholds import ENOUGH_SAMPLES, NOTICEABLE

_DATA_MODULES = frozenset({
    "PIL", "Image", "ImageFile", "JpegImagePlugin", "PngImagePlugin", "cv2", "imageio", "skimage",
    "torchvision", "torchaudio", "librosa", "soundfile", "av", "decord", "h5py", "zarr", "pandas",
    "pyarrow", "datasets", "tokenizers", "tiktoken", "sentencepiece", "albumentations", "webdataset",
    "gzip", "bz2", "lzma", "zlib", "zipfile", "tarfile", "json", "decoder", "csv", "pickle", "base64",
})  # fmt: skip
"""Packages, and files of Python's own (`decoder` is json's), in which data is read or decoded."""
_READING = re.compile(r"(?:^|\.)tokenization_\w+\.|^torch\.(?:utils\.data|serialization)\.")
"""Files of transformers, and of torch."""
_TORCH_MODULES = frozenset({
    "torch", "functional", "loss", "_tensor", "_ops", "_functions", "optimizer", "autocast_mode",
    "clip_grad",
})  # fmt: skip
"""Phases in which a line that computes with torch is seen: a loss that the loop computes is computing, gradients
that `zero_grad` frees and weights that autocast drops are part of every step. Installed code is named from
its package on (`torch.nn.functional.cross_entropy`); recordings of older probes name the file alone."""
_NOT_COMPUTING = re.compile(r"torch\.(?:utils|serialization|hub|cuda|profiler|multiprocessing)\.")
"""Parts of torch that a script asks for beside a step: `torch.load`, `torch.cuda.empty_cache`."""
MODULE_LEVEL = "<module>"
MAINLY = 1 / 3
"""Share of such code that one line must hold to be called the place."""
_COMPUTING = frozenset({"data_wait", "forward", "backward", "optimizer"})
"""Phases that begin and end in the middle of a line."""
STRAY = 1 / 20
"""Share of a line's samples that says nothing: one that waits for its turn on the CPU between two reads has the phase of a moment later."""
MAINLY_COMPUTING = 1 / 2
"""Share of the script's own lines in operations that learning depends on, from which they are the training itself."""
PROBE = "hotloop.probe"
"""What a line was calling where the probe was at work: its cost is told elsewhere, and not the script's."""
WAITING = re.compile(r"threading\.|queue\.|connection\.|selectors\.")
"""What a line was calling that waits for another thread or process."""
_DATA_WORDS = re.compile(
    r"(?:^|_)(?:get_?batch(?:es)?|decode[sdr]?|parse[sdr]?|tokeni[sz]e[sdr]?|encode_text|collate|augment"
    r"|pre_?process|(?:next|make|load|read|fetch|sample|build)_?(?:batch|data|sample|image|example)(?:s|es)?"
    r"|load_\w+|read_\w+)(?:_|$)",
    re.IGNORECASE,
)


Kind = Literal["data", "own", "library"]
"""Preparing data; anything else of the script's own; what a library does by itself, called once for all of a training."""


@dataclass(frozen=True, slots=True)
class OwnCode:
    share: float
    """Exposed; of those lines that do the same kind of thing as the first, by samples."""
    most: float
    """Exposed time outside of every phase, of whatever lines: `share` can not exceed it."""
    kind: Kind
    line: LineUse
    """The most frequent, of the place that holds most."""
    line_share: float
    """The part of `share` in that place, by the samples."""
    site: str | None
    """The place of `line`, where enough samples saw it, and it is the script's own."""
    places: tuple[tuple[str, float], ...]
    """Lines, or functions of a library, that enough samples saw, with their parts of `share`; the largest first."""
    num_places: int
    """Those that few saw included."""

    @property
    def prepares_data(self) -> bool:
        return self.kind == "data"

    def evidence(self, run: JudgedRun) -> dict[str, float | int | str | None]:
        return {
            "unattributed_fraction": run.host("unattributed"),
            "outside_fraction": self.most,
            "own_fraction": self.share,
            "line_fraction": self.line_share,
            "function": self.function,
            "inside": self.line.inside,
        }

    @property
    def is_spread(self) -> bool:
        return self.num_places > 1 and self.line_share < MAINLY * self.share

    @property
    def function(self) -> str | None:
        """Whose the line is; `None` for the level of a module, which is no name to anybody."""
        return None if self.line.function == MODULE_LEVEL else self.line.function


def own_code(run: JudgedRun) -> OwnCode | str | None:
    """`None` below 5 %; or why it can not be told of something that looks like it."""
    census, lines = run.census, run.lines("unattributed")
    # Of the probe there is no more in it than it is in any phase: its work is in none.
    collected = run.collection_share() * _outside(census.collections)
    outside = run.exposed(max(run.host("unattributed") - collected, 0.0))
    seen = _fraction(lines)
    if outside < NOTICEABLE:
        return None
    unseen = _unseen(outside, seen, census)
    computes_at = _sites(_COMPUTING, census)
    own = [line for line in lines if not _is_computing(line, computes_at)]
    if not own or seen <= 0:
        return unseen
    if not run.host("forward"):
        return "no module was called, so it is not told from the model"
    trains_at = _sites(_COMPUTING - {"data_wait"}, census)
    kinds: dict[Kind, list[LineUse]] = {"data": [], "own": [], "library": []}
    for line in own:
        kinds[_kind(line, trains_at)].append(line)
    kind = max(kinds, key=lambda which: _fraction(kinds[which]))
    of_kind = _fraction(kinds[kind])
    between = 0.0
    if kind == "own" and census.profiled_between_s is not None and census.profiled_step_s:
        between = census.profiled_between_s / census.profiled_step_s
    if between >= MAINLY_COMPUTING * of_kind:
        return "what is between the phases is mainly operations on tensors that the loss or the weights depend on"
    part = (outside - between) * of_kind / seen
    # Both clocks must say so: the phase is measured, but few samples say little of whose it is.
    if min(part, of_kind) < NOTICEABLE:
        return unseen
    if not _is_enough(of_kind, census):
        return f"seen in fewer than {ENOUGH_SAMPLES} samples"
    groups: dict[str, list[LineUse]] = {}
    for line in kinds[kind]:
        name = line.inside if kind == "library" else line.site
        groups.setdefault(name or line.site, []).append(line)
    largest = sorted(groups, key=lambda name: -_fraction(groups[name]))
    best = groups[largest[0]]
    named = [name for name in largest if _is_enough(_fraction(groups[name]), census)]
    if kind == "library" and not named:
        return f"no function of the library was in {ENOUGH_SAMPLES} samples, so none is named"
    return OwnCode(
        share=part,
        most=outside,
        kind=kind,
        line=best[0],
        line_share=outside * _fraction(best) / seen,
        site=best[0].site if named and best[0].site not in trains_at else None,
        places=tuple((name, _fraction(groups[name]) / of_kind) for name in named),
        num_places=len(groups),
    )


def _unseen(outside: float, seen: float, census: Census) -> str | None:
    """What to say of time outside of the phases that no sample fell in: one waits until Python lets go, which may be in the next phase."""
    num = census.num_samples
    if not num or outside - seen < max(NOTICEABLE, 3 * math.sqrt(outside / num)):
        return None
    share = f"{100 * (outside - seen):.0f} % of the time"
    return f"{share} is in stretches of Python too short to be sampled: their lines are not known"


def _outside(seen: CollectionUse | None) -> float:
    """The part of the time of collections that is outside of every phase; all of it where that was not seen."""
    if seen is None or seen.outside_s is None or seen.seconds <= 0:
        return 1.0
    return seen.outside_s / seen.seconds


def _kind(line: LineUse, trains_at: Set[str]) -> Kind:
    if prepares_data(line):
        return "data"
    # A line that the whole training is called from: what happens there is not the script's choice.
    return "library" if line.inside is not None and line.site in trains_at else "own"


def _is_enough(fraction: float, census: Census) -> bool:
    """Whether enough samples fell there; older recordings do not say how many there were."""
    return census.num_samples is None or round(fraction * census.num_samples) >= ENOUGH_SAMPLES


def _sites(phases: Set[str], census: Census) -> Set[str]:
    """Lines that are in one of `phases`, and not by a stray sample alone."""
    of_site: dict[str, list[LineUse]] = {}
    for line in census.lines:
        of_site.setdefault(line.site, []).append(line)
    return {
        site
        for site, lines in of_site.items()
        if _fraction([line for line in lines if line.phase in phases]) > STRAY * _fraction(lines)
    }


def _is_computing(line: LineUse, computes_at: Set[str]) -> bool:
    """Whether it is torch that was at work there, or the probe, and not the script's own code.

    A line that calls the model, too, computes: `model(images / 255)`.
    """
    if line.inside is None:
        return line.site in computes_at
    if line.inside == PROBE:
        return True
    return called_module(line) in _TORCH_MODULES and not _NOT_COMPUTING.match(line.inside)


def _fraction(lines: Sequence[LineUse]) -> float:
    return math.fsum(line.fraction for line in lines)


def prepares_data(line: LineUse) -> bool:
    """By the name of the function, or of the module that it was calling."""
    named = [part for part in line.function.split(".") if not part.startswith("<")]
    if line.feeds:
        return True
    if called_module(line) in _DATA_MODULES or _READING.search(line.inside or ""):
        return True
    return bool(named and _DATA_WORDS.search(named[-1]))


_MULTIPLYING = re.compile(r"(?:torch\.nn\.modules\.)?(?:linear|conv)\.")
"""Files of torch.nn.modules."""
_OF_TENSORS = re.compile(r"(?:torch\.)?_tensor\.")


def products_line(lines: Sequence[LineUse]) -> str | None:
    """The line that most often called a layer that multiplies; else the one most seen."""
    return _most_seen([line for line in lines if _MULTIPLYING.match(line.inside or "")] or lines)


def formula_line(lines: Sequence[LineUse]) -> str | None:
    """The line that most often called single operations itself, of the function that most did."""
    return _of_function(_formulas(lines), at_least=0.0)


def attention_line(lines: Sequence[LineUse]) -> str | None:
    """The line that called softmax; else of the one function whose formulas take most of the time."""
    named = ((line, (line.inside or "").lower()) for line in lines)
    softmax = _most_seen([line for line, name in named if "softmax" in name and "log" not in name])
    return softmax or _of_function(_formulas(lines), at_least=0.5)


def compiled_line(lines: Sequence[LineUse], at_least: float) -> str | None:
    """The line that called what was compiled, where the host was seen in it for such a share."""
    lines = [line for line in lines if line.inside is not None]
    site = _most_seen(lines)
    return site if _sum(lines, lambda line: line.site == site) >= at_least else None


def samples_line(lines: Sequence[LineUse], census: Census) -> str | None:
    """The line that makes samples slow, of those of the wait for data; `None` where none stands out, or too few saw it."""
    # While torch's loader itself is at work, the innermost line of the user's is that of the loop.
    lines = [line for line in lines if not (line.inside or "").startswith("torch.utils.data.")]
    site = _most_seen(lines)
    part = _sum(lines, lambda line: line.site == site)
    return site if part >= MAINLY * _fraction(lines) and _is_enough(part, census) else None


def called_module(line: LineUse) -> str:
    """The package, or file of Python's own, of what the line was calling; empty where it called nothing that
    is written in Python."""
    return (line.inside or "").partition(".")[0]


def _formulas(lines: Sequence[LineUse]) -> list[LineUse]:
    return [line for line in lines if line.inside is None or _OF_TENSORS.match(line.inside)]


def _of_function(lines: Sequence[LineUse], *, at_least: float) -> str | None:
    whole = _sum(lines, lambda _: True)
    names = {line.function for line in lines}
    seen = {name: _sum(lines, lambda line, name=name: line.function == name) for name in names}  # type: ignore[misc]
    best = max(sorted(seen), key=lambda name: seen[name], default=None)
    if best is None or seen[best] < at_least * whole:
        return None
    return _most_seen([line for line in lines if line.function == best])


def _most_seen(lines: Sequence[LineUse]) -> str | None:
    sites = sorted({line.site for line in lines})
    return max(sites, key=lambda site: _sum(lines, lambda line: line.site == site), default=None)


def _sum(lines: Sequence[LineUse], belongs: Callable[[LineUse], bool]) -> float:
    return math.fsum(line.fraction for line in lines if belongs(line))
