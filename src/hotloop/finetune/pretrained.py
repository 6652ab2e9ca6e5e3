"""Where a model of transformers is loaded from: a directory, or by name the hub or what its cache has."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import safetensors

from hotloop.core.errors import UsageError, first_line, not_installed
from hotloop.core.memory_use import memory_refusal

Warn = Callable[[str], None]
HUB_TIMEOUT_S = 5.0
NAME_ONE = "name a directory that `save_pretrained` wrote"
COPY_AGAIN = f"where its files are damaged or cut off, copy the directory again, or {NAME_ONE}"
OWN_CODE = (
    "this model brings Python code of its own, which is not run unless you ask for it",
    "if you trust it, set `model.trust_remote_code=true`; `hotloop predict` and `hotloop generate` take --trust-remote-code",
)
TOKENIZER_FILES = "tokenizer.json", "vocab*", "*.model"
NO_TOKENIZER = (
    "no tokenizer that knows any words",
    "put the model's own beside its weights: `AutoTokenizer.from_pretrained(NAME).save_pretrained(DIR)`",
)


@contextmanager
def loading(path: str, warn: Warn, *, trusted: bool) -> Iterator[tuple[Any, str, dict[str, Any]]]:
    """transformers, the place to load from, and arguments; trusted: with code of the model's own. What goes wrong within becomes a `UsageError`."""
    try:
        import transformers

        from hotloop.models.export import quiet
    except ModuleNotFoundError as error:
        raise not_installed("export", "fine-tuning needs transformers") from error
    source = str(check_source(path) or _by_name(path, warn))
    common = {"trust_remote_code": trusted, "local_files_only": Path(source).is_dir()}
    try:
        with quiet():
            yield transformers, source, common
    except (OSError, ValueError, KeyError, RuntimeError, TypeError, AttributeError, ImportError, safetensors.SafetensorError) as error:  # fmt: skip
        if isinstance(error, UsageError) or memory_refusal(error) is not None:
            raise
        what, do = f"transformers cannot load this model: {first_line(error)[:200]}", COPY_AGAIN
        if not trusted and "trust_remote_code" in str(error):  # the argument that they ask for
            what, do = OWN_CODE
        files = chain.from_iterable(map(Path(source).glob, TOKENIZER_FILES))
        is_none = "NoneType" in what and common["local_files_only"] and not any(files)
        if is_none or "backend tokenizer" in what:  # transformers 4 and 5
            what, do = NO_TOKENIZER
        raise UsageError(what, where=path, do=do) from error


def check_source(path: str) -> Path | None:
    """The directory, absolute; `None` for what may be a name. Raises `UsageError`. Loads nothing."""
    directory = Path(path).expanduser()
    is_place = directory.exists() or path.startswith(("/", ".", "~")) or path.count("/") > 1
    return check_directory(directory) if is_place else None


def check_model(path: str, *, trusted: bool) -> None:
    """Raises `UsageError` for what no model can be loaded from. Of its files the config alone is read; the hub is asked anew."""
    _hub_says.cache_clear()
    with loading(path, lambda note: None, trusted=trusted) as (transformers, source, common):
        transformers.AutoConfig.from_pretrained(source, **common)


def check_directory(directory: Path) -> Path:
    """The same, absolute. Raises `UsageError` for what cannot be loaded."""
    if not directory.is_dir():
        raise UsageError("no such model directory", where=str(directory), do=_named_instead(str(directory)))  # fmt: skip
    stored = {each.name for each in directory.glob("*.safetensors")}
    weights = {name for name in stored if not _is_pickle(directory / name)}
    if (directory / "adapter_config.json").is_file() and weights <= {"adapter_model.safetensors"}:
        what = "this is an adapter, and no whole model"
        do = (
            "give the model with the adapter in it: `merged/` of a run with `model.lora.merge=true`"
        )
        raise UsageError(what, where=str(directory), do=do)
    if not (directory / "config.json").is_file():
        what = "no model in the format of transformers: it has no config.json"
        raise UsageError(what, where=str(directory), do=NAME_ONE)
    if not weights:
        pickles = [*stored, *(each.name for pattern in ("*.bin", "*.pt", "*.pth") for each in directory.glob(pattern))]  # fmt: skip
        what = "no weights in safetensors"
        if pickles:
            what += f", only {pickles[0]}, a pickle, which could run any code when it is read"
        do = "save them with `model.save_pretrained(directory)` of transformers"
        raise UsageError(what, where=str(directory), do=do)
    return directory.resolve()


def _is_pickle(file: Path) -> bool:
    """By its first bytes, as `torch.save` writes them; those of safetensors are the length of a header of less than 4 GiB."""
    try:
        with file.open("rb") as opened:
            begins = opened.read(8)
    except OSError:  # said when it is loaded
        return False
    return begins.startswith((b"PK", b"\x80")) and begins[4:] != bytes(4)


def _by_name(path: str, warn: Warn) -> str:
    """The same name, or where the hub does not give it its directory in the cache. Raises `UsageError` where that is none."""
    from huggingface_hub import constants, try_to_load_from_cache

    hub = constants.ENDPOINT
    try:
        cached = try_to_load_from_cache(path, "config.json")
    except ValueError as error:  # no name of a model
        raise UsageError("no such model directory", where=path, do=_named_instead(path)) from error
    said = _hub_says(hub, path)
    if not said:
        warn(f"no directory `{path}` here: transformers looks in its cache and asks {hub}")
        return path
    if isinstance(cached, str):
        warn(f"{said}: `{path}` comes out of the cache of transformers")
        return str(check_directory(Path(cached).parent))
    silent = said.endswith((SILENT, OFFLINE))
    do = _named_instead(path)
    if silent:
        do += (
            ", or unset HF_HUB_OFFLINE"
            if said.endswith(OFFLINE)
            else ", or try again with a network"
        )
    what = f"no such directory, no such model in the cache of transformers, and {said}"
    raise UsageError(what, where=path, do=do)


SILENT, OFFLINE = "does not answer", "is not asked, as HF_HUB_OFFLINE says"


@lru_cache(maxsize=8)
def _hub_says(hub: str, path: str) -> str:
    """Why it does not give a model of this name, in words; empty where it does.

    Asked once: transformers asks again for a minute, also for what it does not find in the cache.
    """
    from huggingface_hub import constants, errors, get_session, get_token

    if constants.HF_HUB_OFFLINE:
        return f"{hub} {OFFLINE}"
    url = f"{hub}/{path}/resolve/main/config.json"
    login = {"Authorization": f"Bearer {token}"} if (token := get_token()) else {}
    try:
        found = get_session().head(url, headers=login, timeout=HUB_TIMEOUT_S)
    except (OSError, ValueError, errors.HTTPError):  # type: ignore[attr-defined]
        return f"{hub} {SILENT}"
    code, status = found.headers.get("X-Error-Code", ""), found.status_code
    if status == 429 or status >= 500:
        return f"{hub} (HTTP {status}) {SILENT}"
    if code == "GatedRepo" or status == 403:
        return f"{hub} gives it only to who has accepted its conditions there and is logged in (`hf auth login`)"
    if code == "EntryNotFound":
        return f"what {hub} has by this name is no model of transformers: it has no config.json"
    if status in (401, 404):
        return f"{hub} has no model of this name, or a private one (`hf auth login`)"
    return ""


def _named_instead(path: str) -> str:
    """What to give in place of a path or name that is none: a model here that is called nearly so, if any."""
    from huggingface_hub import constants

    own = Path(path).expanduser()
    here = [str(each.parent) for each in own.parent.glob("*/config.json")]
    stored = Path(constants.HF_HUB_CACHE).glob("models--*")
    names = [*here, *(each.name.removeprefix("models--").replace("--", "/") for each in stored)]
    ends = {each.rpartition("/")[2]: each for each in reversed(names)}
    close = difflib.get_close_matches(own.name, ends, 1)
    return f"did you mean `{ends[close[0]]}`? Else {NAME_ONE}" if close else NAME_ONE


def check_length(wanted: int, longest: int | None, path: str) -> None:
    """longest: tokens that the model reads; `None` where it does not say. Raises `UsageError`."""
    if longest is not None and wanted > longest:
        raise UsageError(
            f"this model reads at most {longest} tokens, and `model.max_tokens` is {wanted}",
            where=path,
            do=f"set `model.max_tokens={longest}`",
        )


def tokenizer_json(tokenizer: Any, path: str) -> bytes:
    """Raises `UsageError` for one that is not fast, or that transformers made of nothing."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise UsageError("this model has no fast tokenizer", where=path, do="save one with it")
    if not set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens):
        raise UsageError(NO_TOKENIZER[0], where=path, do=NO_TOKENIZER[1])
    written: bytes = backend.to_str().encode()
    return written
