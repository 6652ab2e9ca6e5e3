"""`--profile test`: the whole job, small. And models that are unlike BERT in what a job needs."""

import json
import math
import os
from collections.abc import Callable
from pathlib import Path

import peft
import pytest
import transformers
from decoders import asked, save_decoder, write_prompts
from encoders import config, save_encoder, tokenizer, write_conll, write_csv
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import warm_python
from hotloop.core.errors import ExitCode
from hotloop.core.step import read_steps
from hotloop.finetune import profile
from hotloop.report.numbers import rate

Run = Callable[..., str]
QUIET = ["logging.tensorboard=false", "train.microbatch=8"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path / "cache"))


def test_a_rehearsal_trains_evaluates_saves_resumes_and_exports(tmp_path: Path, run: Run) -> None:
    data, model = write_csv(tmp_path / "a.csv", 200), save_encoder("bert", tmp_path / "bert")
    file, out = tmp_path / "job.yaml", tmp_path / "run"
    file.write_text(
        f"task: sentiment\ndata: {{file: {data}}}\nmodel: {{path: {model}}}\n"
        "train:\n  epochs: 4\n  class_weights:\n    good: 2.0\nschedule: {warmup_steps: 50}\n"
    )
    words = ["train", str(file), *QUIET, "--profile", "test", "--out", str(out)]
    said = run([*words, "--json", str(tmp_path / "found.json")])
    assert "resumed from the checkpoint of step 4, to the same bits" in said
    assert "full job 180 examples, 92 steps, about" in said
    found = json.loads((tmp_path / "found.json").read_text())
    speeds = [rate(found[f"{each}_per_s"], each) for each in ("tokens", "examples")]
    assert f"speed {speeds[0]} and {speeds[1]} in the median step" in said
    assert (found["steps"], found["examples"], found["evaluated"]) == (8, 64, True)
    assert any((out / "checkpoints").glob("left-*"))  # it was really gone on from step 4
    transformers.AutoModelForSequenceClassification.from_pretrained(out / "model")
    run(words)  # once more, in the same place
    (out / profile.PROFILE_FILE).unlink()
    assert "holds something else than a rehearsal" in run(words, code=2)
    text = ["train", "configs/quickstart-plain.yaml", "--profile", "test"]
    assert "--profile test is of fine-tunings" in run(text, code=2)
    assert "makes its own steps" in run([*words, "--stop-after", "3"], code=2)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft asks for it
@pytest.mark.parametrize("kind", ["instructions", "adapter", "text"])
def test_a_decoder_is_rehearsed_with_its_perplexity_before_and_after(
    kind: str, tmp_path: Path, run: Run
) -> None:
    data, out = write_prompts(tmp_path / "asked.jsonl", 300), tmp_path / "run"
    if kind == "text":  # one text, of which parts are drawn
        data = tmp_path / "text.txt"
        data.write_text("\n".join("".join(pair) for pair in asked(500)))
    model = save_decoder("llama", tmp_path / "llama")
    words = ["train", "--task", "text" if kind == "text" else "instructions", "--data", str(data)]
    words += ["--model", str(model), *QUIET, "model.max_tokens=40"]
    own = [*words, "optimizer.learning_rate=1e-2"]
    own += ["model.lora.rank=4"] if kind == "adapter" else []
    own += ["--profile", "test", "--out", str(out), "--json"]
    said = run([*own, str(tmp_path / "found.json")])
    found = json.loads((tmp_path / "found.json").read_text())
    assert (found["steps"], found["examples"], found["evaluated"]) == (8, 64, True)
    assert found["resumed_equal"] is True
    assert any((out / "checkpoints").glob("left-*"))  # it was really gone on from step 4
    assert found["tokens_per_s"] > found["examples_per_s"] > 0
    before, after = found["before"], found["after"]
    assert all(each["perplexity"] == math.exp(each["loss"]) for each in (before, after))
    last = json.loads((out / "evals.jsonl").read_text().splitlines()[-1])
    assert (last["step"], last["loss"]) == (8, after["loss"])
    assert after["loss"] < before["loss"] - 0.1
    assert f"perplexity {before['perplexity']:.4f} to {after['perplexity']:.4f}" in said
    base = transformers.AutoModelForCausalLM.from_pretrained(model)
    if kind == "adapter":
        assert "model: an adapter, for peft" in said
        peft.PeftModel.from_pretrained(base, str(out / "model"))
        return
    transformers.AutoModelForCausalLM.from_pretrained(out / "model")
    # The whole job, which leaves the weights as they are: as many examples, and as good as before.
    whole = [*words, "optimizer.learning_rate=1e-12", "train.epochs=1"]
    done = run([*whole, "--out", str(tmp_path / "whole")])
    assert f"{found['full_examples']} examples to train on" in done
    task = json.loads((tmp_path / "whole/task.json").read_text())
    if kind == "instructions":  # of which no more are held out than the sample may have
        assert task["held_out_loss"] == pytest.approx(before["loss"], rel=1e-5)
    assert found["full_steps"] == 3 * task["step"]
    run(own[:-1])  # once more, in the same place


def test_a_rehearsal_that_resumes_to_other_weights_says_so_and_fails(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = profile.finetune, []

    def other_seed(settings, *arguments, **named):  # type: ignore[no-untyped-def]
        calls.append(1)
        done = real(settings, *arguments, **named)
        if len(calls) == 2:
            (arguments[1] / "model/model.safetensors").write_bytes(b"other")
        return done

    monkeypatch.setattr(profile, "finetune", other_seed)
    data, model = write_csv(tmp_path / "a.csv", 100), save_encoder("bert", tmp_path / "bert")
    words = ["train", "--task", "sentiment", "--data", str(data), "--model", str(model), *QUIET]
    said = run([*words, "--profile", "test", "--out", str(tmp_path / "run")], code=1)
    assert "it does not resume exactly" in said


@pytest.mark.parametrize("schedule", [(0.05, 4), (0.6, 50), (1.0, 0)])
def test_a_schedule_that_falls_at_the_end_is_rehearsed_whatever_part_that_is(
    schedule: tuple[float, int], tmp_path: Path, run: Run
) -> None:
    data, model = write_csv(tmp_path / "a.csv", 100), save_encoder("bert", tmp_path / "bert")
    words = ["train", "--task", "sentiment", "--data", str(data), "--model", str(model), *QUIET]
    words += ["train.epochs=16", "schedule.name=wsd", f"schedule.decay_fraction={schedule[0]}"]
    words += [f"schedule.warmup_steps={schedule[1]}", "--profile", "test"]
    said = run([*words, "--out", str(tmp_path / "run")])
    assert "resumed from the checkpoint of step 4, to the same bits" in said


def test_an_interrupted_rehearsal_begins_again_with_the_same_command(
    tmp_path: Path, run: Run
) -> None:
    data, model = write_csv(tmp_path / "a.csv", 100), save_encoder("bert", tmp_path / "bert")
    words = ["train", "--task", "sentiment", "--data", str(data), "--model", str(model), *QUIET]
    words += ["--profile", "test", "--out", str(tmp_path / "run")]
    stopped = {"arguments": words, "at": "update", "nth": 3, "signals": ["SIGINT"]}
    program = Path(__file__).parents[1] / "train/interrupted_program.py"
    ended = warm_python.run(
        [str(program), json.dumps(stopped)], env=os.environ, cwd=tmp_path, trainer=True
    )
    assert ended.returncode == ExitCode.RESUMABLE, ended.stderr
    assert "run the same command again" in ended.stderr
    assert "resumed from the checkpoint of step 4, to the same bits" in run(words)
    assert len(list(read_steps(tmp_path / "run/steps.jsonl"))) == profile.STEPS


def byte_tokenizer(**special: str) -> transformers.PreTrainedTokenizerFast:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        ["the story"], trainers.BpeTrainer(vocab_size=260, special_tokens=list(special.values()), initial_alphabet=alphabet, show_progress=False)
    )  # fmt: skip
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, **special)


def decoder_in(place: Path, own: transformers.PreTrainedTokenizerFast) -> Path:
    settings = config("gpt2")
    settings.update({"vocab_size": 260, "pad_token_id": None})
    transformers.AutoModel.from_config(settings).save_pretrained(place)
    own.save_pretrained(place)
    return place


def test_a_model_without_a_pad_token_pads_with_its_end_of_text_or_says_what_it_needs(
    tmp_path: Path, run: Run
) -> None:
    data = write_csv(tmp_path / "a.csv", 40)
    words = ["train", "--task", "sentiment", "--data", str(data), *QUIET, "train.epochs=1"]
    place = decoder_in(tmp_path / "with-end", byte_tokenizer(eos_token="<end>"))
    said = run([*words, "--model", str(place), "--out", str(tmp_path / "run")])
    assert "the tokenizer has no pad token: `<end>` takes its place" in said
    predicted = run(["predict", str(tmp_path / "run"), "--text", "a film", "--text", "the story"])
    assert predicted.count('"predicted"') == 2
    place = decoder_in(tmp_path / "without", byte_tokenizer())
    said = run([*words, "--model", str(place), "--out", str(tmp_path / "other")], code=2)
    assert "has to be padded, and its tokenizer has no pad token" in said


def test_entities_of_a_tokenizer_of_bytes_are_of_words_with_a_space_before_them(
    tmp_path: Path, run: Run
) -> None:
    data = write_conll(tmp_path / "a.conll", 40)
    place = decoder_in(tmp_path / "gpt2", byte_tokenizer(eos_token="<end>"))
    words = ["train", "--task", "ner", "--data", str(data), "--model", str(place), *QUIET]
    run([*words, "train.epochs=1", "--out", str(tmp_path / "run")])
    own = transformers.AutoTokenizer.from_pretrained(tmp_path / "run/model")
    ids = own([["great", "oslo"]], is_split_into_words=True)["input_ids"][0]
    assert ids == own(" great oslo", add_special_tokens=False)["input_ids"]
    assert tokenizer().pad_token == "[PAD]"
