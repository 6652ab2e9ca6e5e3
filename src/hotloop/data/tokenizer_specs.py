"""Values of `--tokenizer`: `train:N`, `bytes`, files, `tiktoken:NAME`, names on the hub."""

from __future__ import annotations

import re
from pathlib import Path

from hotloop.core.errors import UsageError
from hotloop.data.sentencepiece_model import MODEL_FILE, sentencepiece_json
from hotloop.data.tiktoken_encoding import PREFIX, tiktoken_json
from hotloop.data.tokenizer import Tokenizer, byte_tokenizer, read_text, read_tokenizer

MIN_TRAINED = 257
MAX_TRAINED = 1_000_000
_KINDS = (
    "train:N, bytes, a tokenizer.json, tiktoken:NAME, a sentencepiece .model, or a name on the "
    "Hugging Face hub"
)


def trained_size(spec: str) -> int | None:
    """N of `train:N`, `None` for other specs. Raises `UsageError` for a bad N."""
    if not spec.startswith("train:"):
        return None
    number = spec.removeprefix("train:")
    if not re.fullmatch(r"[0-9]{1,9}", number) or not MIN_TRAINED <= int(number) <= MAX_TRAINED:
        raise UsageError(
            f"cannot train a tokenizer of {number!r} ids",
            where=f"tokenizer {spec}",
            do=f"give a number from {MIN_TRAINED} (256 bytes and the end of text) to {MAX_TRAINED}",
        )
    return int(number)


def load_tokenizer(spec: str, *, end_of_text: str | None = None) -> Tokenizer:
    """The tokenizer of a spec that needs no training. Raises `UsageError`."""
    if spec == "bytes":
        return byte_tokenizer()
    if spec.startswith(PREFIX):
        content = tiktoken_json(spec.removeprefix(PREFIX))
        return Tokenizer(content, where=f"tokenizer {spec}", end_of_text=end_of_text)
    path = Path(spec).expanduser()
    is_path = path.exists() or spec.endswith((".json", ".model"))
    if is_path or spec.startswith(("/", "./", "../", "~")):
        path = tokenizer_file(path)
        if path.suffix != ".model":
            return Tokenizer.load(path, end_of_text=end_of_text)
        content = sentencepiece_json(read_tokenizer(path), str(path))
        return Tokenizer(content, where=str(path), end_of_text=end_of_text)
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", spec):
        raise UsageError(f"no tokenizer {spec!r}", do=f"give {_KINDS}")
    return Tokenizer(_from_hub(spec), where=f"tokenizer {spec}", end_of_text=end_of_text)


def tokenizer_file(path: Path) -> Path:
    """The file that a path names: of a directory its tokenizer.json, or else its tokenizer.model."""
    if not path.is_dir():
        return path
    own, model = path / "tokenizer.json", path / MODEL_FILE
    return model if model.exists() and not own.exists() else own


def _from_hub(name: str) -> str:
    """The tokenizer.json of a name on the hub: the copy in the hub's own cache if there is one."""
    import socket
    import urllib.parse
    import urllib.request

    import huggingface_hub  # comes with tokenizers
    import tokenizers

    kept = huggingface_hub.try_to_load_from_cache(name, "tokenizer.json")
    if isinstance(kept, str):
        return read_text(Path(kept))
    try:
        if not urllib.request.getproxies():
            # Without this the hub's client retries for half a minute on a machine without network.
            host = urllib.parse.urlsplit(huggingface_hub.constants.ENDPOINT).hostname
            socket.getaddrinfo(host, 443)
        return str(tokenizers.Tokenizer.from_pretrained(name).to_str())
    except Exception as error:  # network, authentication, missing file: one answer for all
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise UsageError(
            f"cannot get the tokenizer from the Hugging Face hub: {reason}",
            where=f"tokenizer {name}",
            do=f"check the name and the network, or give {_KINDS}",
        ) from error
