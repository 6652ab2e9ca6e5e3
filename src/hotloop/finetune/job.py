"""Which fine-tuning a task asks for. The model's config is read before the data, its weights after."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from hotloop.core.causal_config import CAUSAL_TASKS, CausalConfig
from hotloop.core.errors import UsageError
from hotloop.core.finetune_config import ALIASES, FinetuneConfig, Task
from hotloop.core.settings import Settings, load_settings
from hotloop.finetune.pretrained import check_model

if TYPE_CHECKING:
    from hotloop.finetune.conduct import Finetuned, Steps


def start(settings: Settings[Any], directory: Path, steps: Steps) -> Finetuned:
    """Train to the end. Raises `UsageError` for data and models that do not fit."""
    config = settings.config
    check_model(config.model.path, trusted=config.model.trust_remote_code)
    if isinstance(config, CausalConfig):
        from hotloop.finetune.chats import read_sources

        sources = read_sources(config)
        from hotloop.finetune.causal_start import finetune_decoder, read_examples

        settings, examples = read_examples(settings, sources, steps.warn)
        return finetune_decoder(settings, examples, directory, steps)
    from hotloop.finetune.examples import read_dataset

    dataset = read_dataset(config.data, task=config.task)
    from hotloop.finetune.start import finetune

    return finetune(settings, dataset, directory, steps)


def prepare_ahead(settings: Settings[Any], warn: Callable[[str], None]) -> None:
    """Read model and examples as a training would at its start, which leaves the tokens in the cache, and say what to expect of
    each layout. Raises what that raises."""
    config = settings.config
    check_model(config.model.path, trusted=config.model.trust_remote_code)
    from hotloop.finetune.microbatches import Laid, laid_out
    from hotloop.finetune.work import layout_in_words, lengths_of_steps

    layout: Laid
    if isinstance(config, CausalConfig):
        from hotloop.finetune.causal_start import read_examples
        from hotloop.finetune.chats import read_sources

        _, found = read_examples(settings, read_sources(config), warn)
        lengths = [each.num_read for each in found.train]
        steps = lengths_of_steps(lengths, config, config.data.seed)
        # whether it can be packed is seen where it is loaded, and said there
        layout = laid_out(config.model.packed, steps, config.train, lambda note: None, "", lambda: None, drops=found.vocabulary.drops)  # fmt: skip
    else:
        from hotloop.finetune.encoder import load_encoder
        from hotloop.finetune.examples import read_dataset
        from hotloop.finetune.heads import head_of
        from hotloop.finetune.start import build_work

        dataset = read_dataset(config.data, task=config.task)
        head = head_of(config, dataset.classes, dataset.kinds, dataset.train.labels)
        encoder = load_encoder(config.model, head, lambda note: None)  # a training says it
        work = build_work(config, dataset, encoder, head, warn)
        lengths, layout = [len(ids) for ids in work.train.tokens], work.model
    for line in layout_in_words(lengths, config, config.data.seed, layout):
        warn(line)


def settings_of(task: str, config: Path | None, overrides: Sequence[str]) -> Settings[Any]:
    """overrides: `key=value`, the task among them where there is no config. Raises `UsageError`."""
    if config is None:
        check_task(task)
    kind = CausalConfig if task in CAUSAL_TASKS else FinetuneConfig
    return load_settings(config, overrides, kind=kind)


def check_task(task: str) -> None:
    """Raises `UsageError` where there is none of that name."""
    known = [*get_args(Task), *ALIASES, *CAUSAL_TASKS]
    if task not in known:
        close = difflib.get_close_matches(task, known, 1)
        do = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
        raise UsageError(f"no task `{task[:80]}`", do=do)
