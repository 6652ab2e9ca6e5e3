"""`--profile test`: the whole job, small. And models that are unlike BERT in what a job needs."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import transformers
from encoders import config, save_encoder, tokenizer, write_conll, write_csv
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from hotloop.finetune import profile

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
    assert (found["steps"], found["examples"], found["evaluated"]) == (8, 64, True)
    assert any((out / "checkpoints").glob("left-*"))  # it was really gone on from step 4
    transformers.AutoModelForSequenceClassification.from_pretrained(out / "model")
    run(words)  # once more, in the same place
    (out / profile.PROFILE_FILE).unlink()
    assert "holds something else than a rehearsal" in run(words, code=2)
    text = ["train", "configs/quickstart-plain.yaml", "--profile", "test"]
    assert "--profile test is of fine-tunings" in run(text, code=2)
    assert "makes its own steps" in run([*words, "--stop-after", "3"], code=2)


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
