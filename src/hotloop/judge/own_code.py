"""The script's own code between the phases of training, by its most frequent lines."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from hotloop.core.census import Census, LineUse
from hotloop.core.judgement import Breakdown
from hotloop.core.measurement import Measurement
from hotloop.judge.exposure import exposed, lines_of, share_of_wall
from hotloop.judge.model_lines import called_module
from hotloop.judge.thresholds import NOTICEABLE

_DATA_MODULES = frozenset({
    "PIL", "Image", "ImageFile", "JpegImagePlugin", "PngImagePlugin", "cv2", "imageio", "skimage",
    "torchvision", "torchaudio", "librosa", "soundfile", "av", "decord", "h5py", "zarr", "pandas",
    "pyarrow", "datasets", "tokenizers", "tiktoken", "sentencepiece", "albumentations", "webdataset",
    "gzip", "bz2", "lzma", "zlib", "zipfile", "tarfile", "json", "decoder", "csv", "pickle", "base64",
    "tokenization_utils", "tokenization_utils_base", "tokenization_utils_fast",
})  # fmt: skip
"""Packages, and files of packages, in which data is read or decoded (`decoder` is json's)."""
_TORCH_MODULES = frozenset({
    "torch", "functional", "loss", "_tensor", "_ops", "_functions", "optimizer", "autocast_mode",
})  # fmt: skip
"""Where a line that computes with torch is seen: a loss that the loop computes is computing, gradients
that `zero_grad` frees and weights that autocast drops are part of every step."""
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
    """Exposed; of those lines that do the same kind of thing as the first."""
    line: LineUse
    """The most frequent."""
    line_share: float
    """Of `share`, by the samples."""
    prepares_data: bool


def own_code(measurement: Measurement, breakdown: Breakdown) -> OwnCode | None:
    """`None` below 5 %, where no line was sampled, or where it was garbage collection."""
    census = measurement.census
    lines = lines_of(census, "unattributed")
    if census is None or not lines:
        return None
    share = breakdown.fractions.get("unattributed", 0.0)
    if census.collections is not None:
        share -= share_of_wall(breakdown, census.collections.seconds)
    share = exposed(measurement, breakdown, max(share, 0.0)) or 0.0
    seen = _fraction(lines)
    if share < NOTICEABLE or seen <= 0:
        return None
    own = [line for line in lines if not _is_computing(line, census)]
    if not own:
        return None
    groups = {kind: [line for line in own if prepares_data(line) is kind] for kind in (True, False)}
    kind = max(groups, key=lambda which: _fraction(groups[which]))
    part = share * _fraction(groups[kind]) / seen
    # Both clocks must say so: the phase is measured, but few samples say little of whose it is.
    if min(part, _fraction(groups[kind])) < NOTICEABLE:
        return None
    line = groups[kind][0]
    return OwnCode(part, line, share * line.fraction / seen, kind)


def _is_computing(line: LineUse, census: Census) -> bool:
    """Whether it is torch that was at work there, or the probe, and not the script's own code.

    A line that calls the model, too, computes: `model(images / 255)`.
    """
    if line.inside is None:
        return any(other.site == line.site and other.phase in _COMPUTING for other in census.lines)
    return line.inside == PROBE or called_module(line) in _TORCH_MODULES


def _fraction(lines: Sequence[LineUse]) -> float:
    return math.fsum(line.fraction for line in lines)


def prepares_data(line: LineUse) -> bool:
    """By the name of the function, or of the module that it was calling."""
    named = [part for part in line.function.split(".") if not part.startswith("<")]
    return called_module(line) in _DATA_MODULES or bool(named and _DATA_WORDS.search(named[-1]))
