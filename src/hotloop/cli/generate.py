"""`hotloop generate RUN --prompt TEXT`"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from hotloop.cli.output import json_option, write_object
from hotloop.core.errors import UsageError


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--prompt", default="def ", show_default=True, help="Text to continue.")
@click.option(
    "--tokens",
    default=100,
    show_default=True,
    type=click.IntRange(min=1),
    help="Most tokens to add.",
)
@click.option(
    "--temperature",
    default=0.8,
    show_default=True,
    type=click.FloatRange(min=0),
    help="0 takes the likeliest token.",
)
@click.option(
    "--top-k",
    default=50,
    show_default=True,
    type=click.IntRange(min=0),
    help="Choose among this many likeliest; 0 for all.",
)
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0, 2**63 - 1))
@click.option(
    "--weights",
    type=click.Choice(["averaged", "last"]),
    help="The mean kept by `averaging`, or those of the last step. Default: averaged where it is kept.",
)
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N.")
@json_option("Write prompt and text here; `-` for stdout.")
def generate(
    run: Path,
    prompt: str,
    tokens: int,
    temperature: float,
    top_k: int,
    seed: int,
    weights: Literal["averaged", "last"] | None,
    device: str,
    json_file: str | None,
) -> None:
    """Continue a prompt with the newest checkpoint of RUN."""
    from hotloop.cli.output import note

    if temperature != 0 and not 0.01 <= temperature <= 100:  # also refuses nan
        raise UsageError(
            f"a temperature of {temperature} makes no text", do="use 0, or 0.01 to 100"
        )
    if not prompt.isascii():
        try:
            prompt.encode()
        except UnicodeEncodeError as error:
            raise UsageError("the prompt is not UTF-8 text") from error
    from hotloop.train.trained import load_trained, write_text

    trained = load_trained(run, device, weights=weights)
    for each in trained.notes:
        note(each)
    if weights is None and trained.weights == "averaged":
        note("with the averaged weights; `--weights last` takes the others")
    text = write_text(
        trained, prompt, num_tokens=tokens, temperature=temperature, top_k=top_k or None, seed=seed
    )
    if json_file is not None:
        found = {
            "schema": "hotloop.generate/1",
            "step": trained.step,
            "weights": trained.weights,
            "prompt": prompt,
            "text": text,
            "notes": list(trained.notes),
        }
        write_object(found, json_file)
    if json_file != "-":
        click.echo(prompt + text)
