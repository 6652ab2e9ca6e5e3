"""The files that the patch and what is said of it go to, and asking before it is applied."""

from __future__ import annotations

import io
from functools import partial
from pathlib import Path

import pytest

from hotloop.cli.patch_in_hand import ask_and_apply, refuse_target
from hotloop.core.errors import UsageError
from hotloop.doctor.patch.write import Patch, apply_patch
from hotloop.report.kept_patch import BEGINS


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("option", "own"), [("--diff", "--- a/x.py\n"), ("--pr", BEGINS)])
def test_file_that_holds_something_else_is_not_overwritten(
    tmp_path: Path, option: str, own: str
) -> None:
    (tmp_path / "train.py").write_text("import torch\n")
    for name, says in {
        str(tmp_path / "train.py"): f"something that {option} did not write",
        str(tmp_path): "this is a directory",
        str(tmp_path / "nowhere" / "fixes.diff"): "no such directory",
        "/dev/null": "this is none",
        "-": "would mix with",
    }.items():
        with pytest.raises(UsageError, match=says):
            refuse_target(option, name)
    (tmp_path / "own").write_text(own)
    refuse_target(option, str(tmp_path / "own"))
    refuse_target(option, str(tmp_path / "new"))


@pytest.mark.parametrize(
    ("stdin", "applied", "says"),
    [
        (Terminal("y\n"), True, "Undo: `git apply -R 'my fix.patch'`"),
        (Terminal("n\n"), False, "Not applied."),
        (Terminal("\n"), False, "Not applied."),
        (io.StringIO("y\n"), False, "no terminal to ask on"),
    ],
)
def test_it_is_applied_only_where_somebody_says_yes(
    stdin: io.StringIO,
    applied: bool,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "train.py").write_text("slow")
    monkeypatch.setattr("sys.stdin", stdin)
    patch = Patch({"train.py": b"fast"}, b"", ())
    backup = tmp_path / "unpatched"
    apply = partial(apply_patch, patch, tmp_path, backup)
    ask_and_apply(patch, apply, backup=backup, diff=Path("my fix.patch"))
    assert (tmp_path / "train.py").read_text() == ("fast" if applied else "slow")
    assert (tmp_path / "unpatched" / "train.py").exists() == applied
    out, err = capsys.readouterr()
    assert says in err
    assert not out  # the script's own
