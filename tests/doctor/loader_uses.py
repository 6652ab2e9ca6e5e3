"""Loaders as a diagnosed run saw them."""

from __future__ import annotations

import json

import pytest

from hotloop.core.census import LoaderUse
from hotloop.core.child import LOADER


def loader_use(
    site: str, *, epochs: int = 1, trains: bool = True, draws: bool = False
) -> LoaderUse:
    values: dict[str, object] = dict.fromkeys(LoaderUse.__dataclass_fields__) | {"num_batches": 48}
    return LoaderUse(
        **(
            values
            | {
                "site": site,
                "trains": trains,
                "num_epochs": epochs,
                "made": (),
                "draws_random": draws,
            }
        ),
    )  # type: ignore[arg-type]


def seen_at(monkeypatch: pytest.MonkeyPatch, made: str) -> None:
    """Trials are told that the loader that trains is made so."""
    told = {"site": made.partition(" ")[0], "made": [made], "workdir": ""}
    monkeypatch.setenv(LOADER, json.dumps(told))
