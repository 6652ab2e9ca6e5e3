"""Whether the tokenizer.json made of a tiktoken encoding gives tiktoken's ids on the very corpus."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hotloop.core.errors import UsageError
from hotloop.core.progress import Progress, silent
from hotloop.data.engines.check import difference
from hotloop.data.engines.router import TRICKY
from hotloop.data.sample import engine_sample
from hotloop.data.sources.unit import ReadOptions, Unit
from hotloop.data.tiktoken_encoding import INSTALL, PREFIX, Tiktoken
from hotloop.data.tokenizer import Tokenizer


def refuse_unproven(
    tokenizer: Tokenizer,
    units: Sequence[Unit],
    reading: ReadOptions,
    *,
    progress: Progress = silent,
) -> None:
    """Raises `UsageError` with the first text that differs, of a sample of the units or the tricky ones.

    Other tokenizers are read by the library that defines them: nothing is to prove.
    """
    library = tokenizer.library
    if not isinstance(library, Tiktoken):
        return
    where = f"tokenizer {PREFIX}{library.name}"
    if not library.is_installed:
        raise UsageError(
            "the ids cannot be compared with tiktoken's: it is not installed",
            where=where,
            do=INSTALL,
        )
    progress("comparing the tokenizer with tiktoken", 0, None, library.name)
    for texts in (engine_sample(units, reading), TRICKY, tokenizer.special_tokens):
        for text in texts:
            ids = np.asarray(library.converted(text), dtype=np.uint32)
            found = difference(tokenizer, text, ids, chars=len(text))
            if found is not None:
                raise UsageError(
                    f"the tokenizer.json made of the encoding gives other ids than tiktoken {found}",
                    where=where,
                    do="other programs would read the prepared text wrongly: use a tokenizer.json "
                    "from its makers, or report this text",
                )
