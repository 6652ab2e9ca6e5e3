"""Merges from the ranks of what they give: how byte-pair encoders write the same thing in other ways."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

Token = TypeVar("Token", str, bytes)


def merges_of(ranks: Mapping[Token, int]) -> Iterator[tuple[Token, Token]]:
    """The pair that each token is made of, by rank; tokens that merging never gives have none.

    A token's pair is the same in every text: what is merged inside it, while it is not yet whole, does
    not depend on what stands beside it.
    """
    for token in sorted(ranks, key=ranks.__getitem__):
        if len(token) > 1:
            pair = _last_pair(token, ranks)
            if pair is not None:
                yield pair


def _last_pair(token: Token, ranks: Mapping[Token, int]) -> tuple[Token, Token] | None:
    """What is merged last when the token alone is encoded by merging."""
    parts = [token[index : index + 1] for index in range(len(token))]
    while len(parts) > 2:
        best, at = None, 0
        for index in range(len(parts) - 1):
            rank = ranks.get(parts[index] + parts[index + 1])
            if rank is not None and (best is None or rank < best):
                best, at = rank, index
        if best is None:
            return None
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts[0], parts[1]
