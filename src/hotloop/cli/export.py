"""`hotloop export RUN --out DIR`"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import click

from hotloop.cli.output import json_option, tell_json
from hotloop.core.errors import pip_install


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--out", required=True, type=click.Path(path_type=Path), help="Directory to write; a new one."
)
@click.option("--step", type=click.IntRange(min=0), help="Of this step, and not the newest.")
@click.option(
    "--weights",
    type=click.Choice(["averaged", "last"]),
    help="The mean kept by `averaging`, or those of the last step. Default: averaged where it is kept.",
)
@click.option(
    "--verify/--no-verify",
    default=None,
    help="Load it with transformers and compare the logits. Default: where transformers is installed.",
)
@json_option("Write it as JSON; `-` for stdout.")
def export(
    run: Path,
    out: Path,
    step: int | None,
    weights: Literal["averaged", "last"] | None,
    verify: bool | None,
    json_file: str | None,
) -> None:
    """Write the newest checkpoint of RUN for Hugging Face transformers: GPT-2, Llama or Qwen 3.

    DIR then loads with AutoModelForCausalLM and AutoTokenizer, without network.
    """
    import importlib.util

    from hotloop.cli.output import note
    from hotloop.models.export import export as export_model
    from hotloop.models.export import largest_difference
    from hotloop.models.hf_names import CLASSES, model_type_of
    from hotloop.models.shape import num_weights
    from hotloop.train.trained import load_trained

    if verify is None:
        verify = importlib.util.find_spec("transformers") is not None
        why_not = f"transformers is not installed; {pip_install('export')}"
    else:
        why_not = "--no-verify"
    trained = load_trained(run, "cpu", weights=weights, step=step)
    for each in trained.notes:
        note(each)
    difference: float | None = None

    def check(written: Path) -> None:
        nonlocal difference
        if verify:
            difference = largest_difference(trained.model, written)

    export_model(
        trained.model,
        trained.tokenizer.to_json(),
        out,
        end_of_text=trained.tokenizer.end_of_text,
        check=check,
    )
    found = {
        "schema": "hotloop.export/1",
        "out": str(out),
        "step": trained.step,
        "weights": trained.weights,
        "class": CLASSES[model_type_of(trained.model.shape)],
        "parameters": num_weights(replace(trained.model.shape, pad_vocabulary_to=1)),
        "largest_logit_difference": difference,
        "not_verified": None if verify else why_not,
        "notes": list(trained.notes),
    }
    if tell_json(found, json_file):
        click.echo("\n".join(_answer(found)))


def _answer(found: dict[str, Any]) -> Iterator[str]:
    yield f"exported step {found['step']} as {found['class']}"
    yield f"  at        {found['out']}"
    which = "averaged" if found["weights"] == "averaged" else "of the last step"
    yield f"  weights   {found['parameters']:,}, fp32, {which}"
    if (Path(found["out"]) / "tokenizer.model").exists():
        yield (
            "  tokenizer tokenizer.model, for sentencepiece's own library; whether transformers "
            "reads it alike was not compared"
        )
    if found["largest_logit_difference"] is None:
        yield f"  verified  no: {found['not_verified']}"
    else:
        worst = found["largest_logit_difference"]
        yield f"  verified  logits of transformers differ by at most {worst:.1e}"
