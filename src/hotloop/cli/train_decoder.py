"""`hotloop train --task instructions` and `--task text`"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click


def train_decoder(
    config: Path | None,
    overrides: tuple[str, ...],
    out: Path | None,
    stop_after: int | None,
    from_step: int | None,
    stretch: bool,
    json_file: str | None,
) -> None:
    from hotloop.cli.output import note, refuse_unwritable, write_object
    from hotloop.cli.progress import progress_bar
    from hotloop.cli.train import _tell
    from hotloop.core.causal_config import CausalConfig
    from hotloop.core.file_locks import refuse_busy
    from hotloop.core.settings import load_settings
    from hotloop.finetune.chats import read_sources

    settings = load_settings(config, overrides, kind=CausalConfig)
    directory = out or Path("runs") / settings.config.name
    refuse_unwritable(json_file, made=directory)
    refuse_busy(directory)
    sources = read_sources(settings.config)
    from hotloop.finetune.causal_start import finetune_decoder

    with progress_bar() as progress:
        outcome = finetune_decoder(
            settings,
            sources,
            directory,
            stop_after=stop_after,
            from_step=from_step,
            stretch=stretch,
            progress=progress,
            warn=note,
        )
    if json_file is not None:
        write_object(asdict(outcome), json_file)
    if json_file == "-":
        return
    _tell(outcome.training, directory)
    if outcome.scores is not None:
        click.echo(
            f"perplexity {outcome.scores.perplexity:.3f} over {outcome.scores.num_targets} held-out tokens"
        )
    if outcome.model is not None:
        lora = settings.config.model.lora
        what = "the adapter, for peft's" if lora.rank else "the model, for transformers'"
        click.echo(f"{outcome.model}: {what} from_pretrained")
        if lora.merge:
            click.echo(f"{directory / 'merged'}: the model with the adapter in its weights")
