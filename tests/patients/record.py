"""Record what the doctor measures of every patient, for the tests that replay it.

    python tests/patients/record.py [NAME ...]

Writes tests/golden/patients/NAME-sick.json.gz and NAME-healthy.json.gz: the Measurement, its times
rounded to tenths of a microsecond and without this machine's paths. Run it by hand on a quiet machine,
after a change of the probe or of a script; `test_patients.py` says what came of it.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from cases import CASES, HERE, Case, why_not_here
from live import check_plant, run_examined, what_is_wrong
from pydantic import TypeAdapter

from hotloop.core.files import to_plain, write_atomically
from hotloop.core.measurement import Measurement


def load(path: Path) -> Measurement:
    """A recorded Measurement."""
    plain = json.loads(gzip.decompress(path.read_bytes()))
    return TypeAdapter(Measurement).validate_python(plain)


def store(path: Path, measurement: Measurement, case: Case) -> None:
    """Small, and the same bytes for the same measurement."""
    command = ("python", f"{case.name}.py", *measurement.command[2:])
    plain = _shortened(to_plain(replace(measurement, command=command)))
    text = json.dumps(plain, separators=(",", ":"))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, gzip.compress(text.encode(), 9, mtime=0))


def _shortened(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _shortened(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_shortened(each) for each in value]
    if isinstance(value, float):
        return round(value, 7)
    if isinstance(value, str):
        return value.replace(f"{HERE}/", "").replace(sys.prefix, "...")
    return value


def record(case: Case) -> None:
    print(f"{case.name}: {check_plant(case)[0]}", flush=True)
    for healthy in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            _, measurement, diagnosis = run_examined(case, Path(folder) / "run", healthy=healthy)
        store(case.recorded(healthy), measurement, case)
        wrong = what_is_wrong(diagnosis, case, healthy=healthy)
        size = case.recorded(healthy).stat().st_size
        print(f"  {'healthy' if healthy else 'sick'}: {size} bytes, {wrong or 'right'}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="of cases.py; all where none is given"
    )
    args = parser.parse_args()
    unknown = set(args.names) - {case.name for case in CASES}
    if unknown:
        parser.error(f"no such patient: {', '.join(sorted(unknown))}")
    for case in CASES:
        if args.names and case.name not in args.names:
            continue
        reason = why_not_here(case)
        if reason is None:
            record(case)
        else:
            print(f"{case.name}: not recorded: {reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
