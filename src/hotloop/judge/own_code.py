"""The script's own code between the phases of training, by its most frequent lines."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from hotloop.core.census import Census, LineUse
from hotloop.core.judgement import Breakdown
from hotloop.core.measurement import Measurement
from hotloop.judge.collecting import collecting_share
from hotloop.judge.exposure import exposed, lines_of
from hotloop.judge.model_lines import called_module
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
"""Where a line that computes with torch is seen: a loss that the loop computes is computing, gradients
that `zero_grad` frees and weights that autocast drops are part of every step. Installed code is named from
its package on (`torch.nn.functional.cross_entropy`); recordings of older probes name the file alone."""
_NOT_COMPUTING = re.compile(r"torch\.(?:utils|serialization|hub|cuda|profiler|multiprocessing)\.")
"""Of torch, what a script asks for beside a step: `torch.load`, `torch.cuda.empty_cache`."""
MAINLY = 1 / 3
"""Share of such code that one line must hold to be called the place."""
_COMPUTING = frozenset({"data_wait", "forward", "backward", "optimizer"})
"""Phases that begin and end in the middle of a line."""
PROBE = "hotloop.probe"
"""What a line was calling where the probe was at work: its cost is told elsewhere, and not the script's."""
_DATA_WORDS = re.compile(
    r"(?:^|_)(?:get_?batch(?:es)?|decode[sdr]?|parse[sdr]?|tokeni[sz]e[sdr]?|encode_text|collate|augment"
    r"|pre_?process|(?:next|make|load|read|fetch|sample|build)_?(?:batch|data|sample|image|example)(?:s|es)?"
    r"|load_\w+|read_\w+)(?:_|$)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class OwnCode:
    share: float
    """Exposed; of those lines that do the same kind of thing as the first, by samples."""
    most: float
    """Exposed time outside of every phase, of whatever lines: `share` can not exceed it."""
    line: LineUse
    """The most frequent."""
    line_share: float
    """Of `share`, by the samples."""
    prepares_data: bool
    site: str | None
    """Of `line`, where enough samples saw it."""
    num_lines: int
    """Over which it is spread."""

    @property
    def is_spread(self) -> bool:
        return self.line_share < MAINLY * self.share


def own_code(measurement: Measurement, breakdown: Breakdown) -> OwnCode | None:
    """`None` below 5 %, and where it can not be told: see `why_no_own_code`."""
    found = _own_code(measurement, breakdown)
    return found if isinstance(found, OwnCode) else None


def why_no_own_code(measurement: Measurement, breakdown: Breakdown) -> str | None:
    """Why something that looks like it is no finding."""
    found = _own_code(measurement, breakdown)
    return found if isinstance(found, str) else None


def _own_code(measurement: Measurement, breakdown: Breakdown) -> OwnCode | str | None:
    census = measurement.census
    lines = lines_of(census, "unattributed")
    if census is None or not lines:
        return None
    outside = breakdown.fractions.get("unattributed", 0.0)
    outside -= collecting_share(measurement, breakdown) + (breakdown.probe_overhead_fraction or 0.0)
    outside = exposed(measurement, breakdown, max(outside, 0.0)) or 0.0
    seen = _fraction(lines)
    if outside < NOTICEABLE or seen <= 0:
        return None
    own = [line for line in lines if not _is_computing(line, census)]
    if not own:
        return None
    if not breakdown.fractions.get("forward"):
        return "no module was called, so it is not told from the model"
    groups = {kind: [line for line in own if prepares_data(line) is kind] for kind in (True, False)}
    kind = max(groups, key=lambda which: _fraction(groups[which]))
    of_kind = _fraction(groups[kind])
    part = outside * of_kind / seen
    # Both clocks must say so: the phase is measured, but few samples say little of whose it is.
    if min(part, of_kind) < NOTICEABLE:
        return None
    if not _is_enough(of_kind, census):
        return f"seen in fewer than {ENOUGH_SAMPLES} samples"
    line = groups[kind][0]
    return OwnCode(
        share=part,
        most=outside,
        line=line,
        line_share=outside * line.fraction / seen,
        prepares_data=kind,
        site=line.site if _is_enough(line.fraction, census) else None,
        num_lines=len({line.site for line in groups[kind]}),
    )


def _is_enough(fraction: float, census: Census) -> bool:
    """Whether enough samples fell there; older recordings do not say how many there were."""
    return census.num_samples is None or round(fraction * census.num_samples) >= ENOUGH_SAMPLES


def _is_computing(line: LineUse, census: Census) -> bool:
    """Whether it is torch that was at work there, or the probe, and not the script's own code.

    A line that calls the model, too, computes: `model(images / 255)`.
    """
    if line.inside is None:
        return any(other.site == line.site and other.phase in _COMPUTING for other in census.lines)
    if line.inside == PROBE:
        return True
    return called_module(line) in _TORCH_MODULES and not _NOT_COMPUTING.match(line.inside)


def _fraction(lines: Sequence[LineUse]) -> float:
    return math.fsum(line.fraction for line in lines)


def prepares_data(line: LineUse) -> bool:
    """By the name of the function, or of the module that it was calling."""
    named = [part for part in line.function.split(".") if not part.startswith("<")]
    if called_module(line) in _DATA_MODULES or _READING.search(line.inside or ""):
        return True
    return bool(named and _DATA_WORDS.search(named[-1]))
