"""`hotloop bench`: parts of hotloop against what people use today, side by side in one run."""

from __future__ import annotations

from hotloop.cli.main import LazyGroup

BENCHES: dict[str, tuple[str, str]] = {
    "tokenize": (
        "hotloop.cli.bench_tokenize:tokenize",
        "Text to shards: ours against datasets.map with the reference tokenizer.",
    ),
    "loader": (
        "hotloop.cli.bench_loader:loader",
        "Batches per second: ours against torch's DataLoader.",
    ),
}

bench = LazyGroup(
    "bench",
    targets=BENCHES,
    help="Measure parts of hotloop against what people use today, side by side in one run.",
    epilog="`hotloop bench NAME --help` says what each one takes.",
)
