from __future__ import annotations

from statistics import median

import pytest
import torch

from hotloop.core.census import WITH_GRADIENTS
from hotloop.probe.attach.loader_seen import num_bytes

SCRIPT = """
WORKERS, CONTEXT, SLEEP = {workers}, {context!r}, 0.004
class Data(torch.utils.data.Dataset):
    def __len__(self): return 32
    def __getitem__(self, index):
        time.sleep(SLEEP)
        return torch.ones(8) * (torch.rand(()) if WORKERS else 1)
def collate(samples):
    time.sleep(2 * SLEEP)
    return torch.stack(samples)
def main():
    model, optimizer = build()
    train_loader = torch.utils.data.DataLoader(
        Data(), batch_size=4, num_workers=WORKERS, collate_fn=collate, multiprocessing_context=CONTEXT)
    valid_loader = torch.utils.data.DataLoader(Data(), batch_size=8)
    for epoch in range(4):
        for x in train_loader:
            optimizer.zero_grad(); model(x).square().mean().backward(); optimizer.step()
        with torch.no_grad():
            for x in valid_loader: model(x)
    print(train_loader.collate_fn is collate, type(train_loader.dataset).__name__)
if __name__ == "__main__": main()
"""


@pytest.mark.at_once(2)
@pytest.mark.parametrize(("workers", "context"), [(0, None), (2, "fork"), (2, "spawn")])
def test_loader_is_described_and_its_batches_are_timed(run, workers: int, context: str) -> None:  # type: ignore[no-untyped-def]
    source = SCRIPT.replace("{workers}", str(workers)).replace("{context!r}", repr(context))
    ended = run(source)
    assert ended.out.split() == ["True", "Data"]
    assert ended.err == run(source.replace("0.004", "0"), watched=False).err
    train, valid = sorted(ended.census.loaders, key=lambda use: not use.trains)
    assert (train.trains, valid.trains) == (True, False)
    assert (train.dataset, train.num_workers, train.batch_size) == ("Data", workers, 4)
    assert train.site.startswith("train.py:")
    assert train.collate_site is not None
    assert train.collate_site.startswith("train.py:")
    assert valid.collate_site is None
    assert (train.num_epochs, train.per_epoch) == (4, 8)
    assert train.fetch_s is not None
    assert train.collate_s is not None
    assert 0.024 <= train.fetch_s < 0.2  # a busy machine sleeps longer
    assert 0.008 <= train.collate_s < 0.1
    assert train.fetch_cpu_fraction is not None
    assert train.fetch_cpu_fraction < 0.5  # it sleeps
    assert train.batch_bytes == 4 * 8 * 4
    assert train.epoch_start_s is not None
    assert train.epoch_start_s > 0.02
    assert train.wait_s is not None
    if not workers:
        assert train.wait_s >= 0.024  # the same sleeps, without those of the first batches
    assert train.draws_random is bool(workers)
    starts = [record.step for record in ended.steps if "epoch" in record.tags]
    assert starts == [8, 16, 24]
    assert {record.samples for record in ended.steps} == {4}
    names = {path.name.split("-")[0] for path in ended.directory.iterdir()}
    assert names == {"steps", "census", "clock", "claim", "imports.json", "memory"}


def test_what_lies_in_a_batch_once_counts_once() -> None:
    row = torch.zeros(4, 8)
    assert num_bytes({"ids": row, "labels": row}) == 4 * 8 * 4
    assert num_bytes([row.split(1), torch.zeros(1).expand(4, 8)]) == 4 * 8 * 4 + 4
    assert num_bytes([row[1], row[2], torch.zeros(1000, 1000).to_sparse(), "text"]) == 2 * 8 * 4


def test_every_epoch_is_of_the_same_loader_once_the_interpreter_has_specialized(run) -> None:  # type: ignore[no-untyped-def]
    ended = run("""
model, optimizer = build()
data = torch.utils.data.TensorDataset(torch.ones(32, 8))
loader = torch.utils.data.DataLoader(data, batch_size=4)
def epoch():
    for index, (x,) in enumerate(loader):
        optimizer.zero_grad(); model(x).square().mean().backward(); optimizer.step()
for _ in range(12): epoch()
""")
    assert [use.num_epochs for use in ended.census.loaders] == [12]
    starts = [record.step for record in ended.steps if "epoch" in record.tags]
    assert starts == [8 * number for number in range(1, 12)]


def test_loader_of_another_thread_is_not_booked_but_the_wait_for_it_is(run) -> None:  # type: ignore[no-untyped-def]
    ended = run("""
import queue, threading
model, optimizer = build()
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(80, 8)), batch_size=4)
batches = queue.Queue(2)
def fill():
    for (x,) in loader: batches.put(x)
threading.Thread(target=fill, daemon=True).start()
for _ in range(20):
    model(batches.get()).square().mean().backward(); optimizer.step()
""")
    assert ended.census.loaders == ()
    assert all(record.host["data_wait"] > 0 for record in ended.steps)


def test_padding_is_seen_in_batches(run) -> None:  # type: ignore[no-untyped-def]
    ended = run("""
model, optimizer = build()
ids = torch.randint(1, 50, (4, 16), generator=torch.Generator().manual_seed(0))
ids[:2, 8:] = 0
class Batches(torch.utils.data.IterableDataset):
    def __iter__(self):
        for _ in range(14): yield {'input_ids': ids, 'attention_mask': (ids != 0).long()}
for batch in torch.utils.data.DataLoader(Batches(), batch_size=None):
    train(model, optimizer, 1)
""")
    padding = ended.census.padding
    assert padding is not None
    assert (padding.source, padding.padded_fraction) == ("attention_mask", 0.25)
    assert padding.site is not None
    assert padding.site.startswith("train.py:")


def test_arguments_of_a_model_are_looked_at_where_no_loader_gives_batches(run) -> None:  # type: ignore[no-untyped-def]
    padding = run("""
embed = torch.nn.Embedding(100, 8)
optimizer = torch.optim.SGD(embed.parameters(), lr=0.1)
for _ in range(14): embed(torch.arange(1, 65).reshape(4, 16)).sum().backward(); optimizer.step()
""").census.padding
    assert padding is not None
    assert padding.padded_fraction == 0
    assert padding.site.startswith("train.py:")


def test_data_in_memory_is_told_from_small_constants(run) -> None:  # type: ignore[no-untyped-def]
    ended = run("""
model, optimizer = build()
class Held(torch.utils.data.Dataset):
    def __init__(self): self.rows = torch.ones(40, 8)
    def __len__(self): return 40
    def __getitem__(self, index): return self.rows[index]
class Made(torch.utils.data.Dataset):
    def __init__(self): self.mean = torch.ones(8)
    def __len__(self): return 40
    def __getitem__(self, index): return self.mean + torch.rand(8)
class Streamed(torch.utils.data.IterableDataset):
    def __len__(self): raise NotImplementedError
    def __iter__(self): return iter(torch.rand(12, 8))
for data in (Held(), Made(), Streamed()):
    for x in torch.utils.data.DataLoader(data, batch_size=4):
        model(x).sum().backward(); optimizer.step()
""")
    seen = {use.dataset: use for use in ended.census.loaders}
    assert seen["Held"].in_memory is True
    assert seen["Made"].in_memory is seen["Streamed"].in_memory is None
    assert (seen["Held"].draws_random, seen["Made"].draws_random) == (False, True)


def test_loader_that_a_teacher_looks_at_first_still_trains(run) -> None:  # type: ignore[no-untyped-def]
    ended = run("""
teacher, (model, optimizer) = torch.nn.Linear(8, 1), build()
class One(torch.utils.data.TensorDataset): pass
class Other(torch.utils.data.TensorDataset): pass
class Valid(torch.utils.data.TensorDataset): pass
one, other, valid = (torch.utils.data.DataLoader(kind(torch.ones(40, 8)), batch_size=4)
                     for kind in (One, Other, Valid))
for _ in range(3):
    for (x,), (y,) in zip(one, other):
        with torch.no_grad(): wanted = teacher(x) + teacher(y)
        (model(x) - wanted).square().mean().backward(); optimizer.step()
    for (x,) in valid:
        with torch.no_grad(): model(x)
for (x,) in one:
    with torch.no_grad(): wanted = teacher(x)
    (model(x) - wanted).square().mean().backward(); optimizer.step()
""")
    trains = {(use.dataset, use.trains) for use in ended.census.loaders}
    assert trains == {("One", True), ("Other", True), ("Valid", False)}
    assert all(record.host["data_wait"] > 0 for record in ended.counted)


@pytest.mark.at_once(2)
@pytest.mark.parametrize(
    ("base", "workers"), [("keeps", 0), ("keeps", 2), ("yields", 0), ("yields", 2)]
)
def test_loader_whose_class_iterates_in_its_own_way_is_known(run, base: str, workers: int) -> None:  # type: ignore[no-untyped-def]
    """As torchdata's StatefulDataLoader and accelerate's DataLoaderShard do."""
    ended = run(f"""
class Keeps(torch.utils.data.DataLoader):
    kept = None
    def __iter__(self):
        if self.kept is None or not self.num_workers: self.kept = self._get_iterator()
        else: self.kept._reset(self)
        return self.kept
class Yields(torch.utils.data.DataLoader):
    def __iter__(self):
        for batch in super().__iter__(): yield batch
data = torch.utils.data.TensorDataset(torch.ones(40, 8))
model, optimizer = build()
loader = {base.title()}(data, batch_size=4, num_workers={workers}, persistent_workers={workers} > 0)
for epoch in range(4):
    for (x,) in loader:
        optimizer.zero_grad(); model(x).square().mean().backward(); optimizer.step()
""")
    (use,) = ended.census.loaders
    assert use.trains
    assert use.site.startswith("train.py:")
    assert (use.num_workers, use.batch_size, use.num_epochs, use.per_epoch) == (workers, 4, 4, 10)
    assert use.fetch_s is not None
    assert use.wait_s is not None
    assert [record.step for record in ended.steps if "epoch" in record.tags] == [10, 20, 30]
    assert {record.samples for record in ended.steps} == {4}


def test_samples_are_counted_where_batches_are_sampled_whole_and_fetched_ahead(run) -> None:  # type: ignore[no-untyped-def]
    """As accelerate does for the Trainer of transformers, which accumulates."""
    ended = run("""
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset
def ahead(loader):
    batches = iter(loader)
    batch = next(batches)
    for following in batches:
        yield batch
        batch = following
    yield batch
data = TensorDataset(torch.ones(80, 8))
loader = DataLoader(data, batch_sampler=BatchSampler(SequentialSampler(data), 4, False))
model, optimizer = build()
for epoch in range(4):
    for number, (x,) in enumerate(ahead(loader)):
        model(x).square().mean().backward()
        if number % 2: optimizer.step(); optimizer.zero_grad()
""")
    assert ended.census.loaders[0].batch_size == 4
    assert [record.samples for record in ended.steps] == [12, *[8] * 8, 4] * 4


def test_samples_are_those_of_the_batch_whatever_the_collate_function_makes_of_it(run) -> None:  # type: ignore[no-untyped-def]
    ended = run("""
loader = torch.utils.data.DataLoader(torch.ones(10, 8), batch_size=4, collate_fn=lambda items: torch.cat(items)[None])
model, optimizer = build()
for epoch in range(5):
    for packed in loader:
        model(packed.reshape(-1, 8)).square().mean().backward()
        optimizer.step(); optimizer.zero_grad()
""")
    assert [record.samples for record in ended.steps] == [4, 4, 2] * 5


def test_a_trainer_of_transformers_that_accumulates_has_samples(run) -> None:  # type: ignore[no-untyped-def]
    pytest.importorskip("accelerate")
    ended = run("""
from transformers import Trainer, TrainingArguments
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(8, 1)
    def forward(self, x, labels=None):
        y = self.inner(x).squeeze(-1)
        return {"loss": (y - labels).square().mean(), "logits": y}
data = [{"x": torch.ones(8), "labels": torch.tensor(1.0)} for _ in range(200)]
arguments = TrainingArguments(output_dir="out", per_device_train_batch_size=4, gradient_accumulation_steps=2,
    max_steps=40, report_to=[], save_strategy="no", disable_tqdm=True, use_cpu=True)
Trainer(Model(), arguments, train_dataset=data).train()
""")
    assert len(ended.steps) == 40
    assert ended.census.microbatches == 2.0
    assert all(record.samples is not None for record in ended.steps)
    assert 7 <= sum(record.samples or 0 for record in ended.steps) / 40 <= 9


VALIDATES = """
from torch.utils.data import DataLoader, TensorDataset
class Valid(TensorDataset):
    def __getitem__(self, index):
        time.sleep(0.002)
        return super().__getitem__(index)
def optimize(x): optimizer.zero_grad(); criterion(model(x), x[:, :1]).backward(); optimizer.step()
data, criterion = torch.ones(40, 8), torch.nn.MSELoss()
train_loader, valid_loader = DataLoader(TensorDataset(data), batch_size=4), DataLoader(Valid(data), batch_size=8)
model, optimizer = build()
for epoch in range(5):
    model.train()
    for x in {batches}: optimize(x[0])
    {mode}
    for (x,) in valid_loader:
        {forward}
"""


@pytest.mark.parametrize(
    ("mode", "passes"), [("model.eval()", [10, 20, 30, 40]), ("pass", [20, 30, 40])]
)
def test_a_loader_from_which_nothing_goes_backward_evaluates_though_gradients_are_on(  # type: ignore[no-untyped-def]
    run, mode: str, passes: list[int]
) -> None:
    """In training mode that is known at the end of the first time alone."""
    forward = "criterion(model(x), x[:, :1])"
    ended = run(VALIDATES.format(batches="train_loader", mode=mode, forward=forward))
    trains = {use.dataset: use.trains for use in ended.census.loaders}
    assert trains == {"TensorDataset": True, "Valid": False}
    assert {record.samples for record in ended.steps} == {4}
    assert [r.step for r in ended.steps if r.host.get("eval", 0.0) > 0.05] == passes
    assert [r.step for r in ended.steps if "eval" in r.tags] == passes
    # With its loss: one evaluation each.
    (use,) = ended.census.evaluations
    assert (use.num, use.what) == (len(passes), WITH_GRADIENTS)


def test_a_loader_that_evaluates_does_not_train_where_no_loader_does(run) -> None:  # type: ignore[no-untyped-def]
    forward = "\n        ".join(("with torch.no_grad(): y = model(x)", "criterion(y, x[:, :1])"))
    source = VALIDATES.format(batches="data.reshape(10, 1, 4, 8)", mode="pass", forward=forward)
    ended = run(source)
    assert [use.trains for use in ended.census.loaders] == [False]
    assert {record.samples for record in ended.steps} == {None}
    assert [(use.num, use.what) for use in ended.census.evaluations] == [(4, "without gradients")]


def test_a_loader_that_starts_anew_for_each_batch_is_seen_to(run) -> None:  # type: ignore[no-untyped-def]
    starts = {}
    for name, batch in {"anew": "next(iter(loader))", "once": "next(batches)"}.items():
        ended = run(f"""
loader = torch.utils.data.DataLoader(torch.ones(400, 8), batch_size=4, shuffle=True)
batches = iter(loader)
model, optimizer = build()
for _ in range(30):
    optimizer.zero_grad(); model({batch}).square().mean().backward(); optimizer.step()
""")
        (use,) = (each for each in ended.census.loaders if each.trains)
        starts[name] = use.starts_anew
    assert starts == {"anew": True, "once": False}


def test_ending_the_workers_of_an_epoch_that_is_left_early_is_waiting_for_data(run) -> None:  # type: ignore[no-untyped-def]
    ended = run("""
class Slow(torch.utils.data.Dataset):
    def __len__(self): return 40
    def __getitem__(self, index):
        time.sleep(0.04)
        return torch.ones(8)
model, optimizer = build()
loader = torch.utils.data.DataLoader(Slow(), num_workers=1, multiprocessing_context="fork")
for _ in range(16):
    for x in loader:
        optimizer.zero_grad(); model(x).square().mean().backward(); optimizer.step()
        break  # its worker is in the middle of the next batch
""")
    spent = {
        phase: median(record.host.get(phase, 0.0) for record in ended.counted)
        for phase in ("data_wait", "unattributed")
    }
    assert len(ended.counted) == 6
    assert spent["unattributed"] < 0.2 * spent["data_wait"]


@pytest.mark.parametrize(
    ("valid", "expected"),
    [
        ("made(list(torch.ones(80, 8)))", {True: (4, 10), False: (4, 20)}),
        ("train_loader", {True: (8, 10)}),
    ],
)
def test_what_one_line_iterates_trains_and_evaluates_by_its_list_and_by_its_gradients(  # type: ignore[no-untyped-def]
    run, valid: str, expected: dict[bool, tuple[int, int]]
) -> None:
    ended = run(f"""
model, optimizer = build()
def made(items): return torch.utils.data.DataLoader(items, batch_size=4)
def epoch(loader, learns):
    for x in loader:
        loss = model(x).square().mean()
        if learns: optimizer.zero_grad(); loss.backward(); optimizer.step()
train_loader = made(list(torch.ones(40, 8)))
valid_loader = {valid}
for _ in range(4):
    epoch(train_loader, True)
    with torch.no_grad(): epoch(valid_loader, False)
""")
    seen = {use.trains: (use.num_epochs, use.per_epoch) for use in ended.census.loaders}
    assert seen == expected
    assert ended.census.training_batches() == ended.census.counted_steps


def test_a_loader_that_trains_evaluates_in_epochs_from_which_nothing_goes_backward(run) -> None:  # type: ignore[no-untyped-def]
    ended = run("""
model, optimizer = build()
loader = torch.utils.data.DataLoader(torch.ones(40, 8), batch_size=4)
for number in range(8):
    model.train(number % 2 == 0)
    for x in loader:
        loss = model(x).square().mean()
        if model.training: optimizer.zero_grad(); loss.backward(); optimizer.step()
        else: time.sleep(0.004)
""")
    assert [use.trains for use in ended.census.loaders] == [True]
    assert {record.samples for record in ended.steps} == {4}
    assert [r.step for r in ended.steps if r.host.get("eval", 0.0) > 0.03] == [10, 20, 30]
    assert ended.census.training_batches() < 1.2 * ended.census.counted_steps


@pytest.mark.parametrize("context", ["enable_grad", "no_grad"])
def test_a_loader_whose_batches_go_backward_together_trains_in_every_step(
    run, context: str
) -> None:  # type: ignore[no-untyped-def]
    ended = run(f"""
model, optimizer = build()
features = torch.nn.Linear(8, 8).eval()
loader = torch.utils.data.DataLoader(torch.ones(160, 8), batch_size=4)
for epoch in range(2):
    batches = iter(loader)
    for x, y in zip(batches, batches):
        loss = model(x).square().mean()
        with torch.{context}(): features(x)
        loss = loss + model(y).square().mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
""")
    assert {record.samples for record in ended.steps} == {8}
    assert not any(record.host.get("eval") for record in ended.counted)


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_a_loader_whose_gradients_are_found_without_a_pass_backward_does_not_evaluate(  # type: ignore[no-untyped-def]
    run, mode: str
) -> None:
    ended = run(f"""
loader = torch.utils.data.DataLoader(torch.ones(40, 8), batch_size=4)
model, optimizer = build()
model.{mode}()
weights = list(model.parameters())
for epoch in range(4):
    for x in loader:
        for weight, slope in zip(weights, torch.autograd.grad(model(x).square().mean(), weights)):
            weight.grad = slope
        optimizer.step()
""")
    assert not any(record.host.get("eval") for record in ended.steps)
    assert {record.samples for record in ended.steps} == {4}


def test_an_evaluation_before_the_last_batch_that_was_fetched_ahead_does_not_train(run) -> None:  # type: ignore[no-untyped-def]
    """As the Trainer of transformers may do it: no batch is fetched between it and the last pass backward."""
    ended = run("""
from torch.utils.data import DataLoader, TensorDataset
class Valid(TensorDataset): pass
def ahead(loader):
    batches = iter(loader)
    batch = next(batches)
    for following in batches:
        yield batch
        batch = following
    yield batch
train_loader = DataLoader(TensorDataset(torch.ones(40, 8)), batch_size=4)
valid_loader = DataLoader(Valid(torch.ones(40, 8)), batch_size=4)
model, optimizer = build()
for epoch in range(3):
    for number, (x,) in enumerate(ahead(train_loader)):
        optimizer.zero_grad(); model(x).square().mean().backward(); optimizer.step()
        if number == 8:
            for (x,) in ahead(valid_loader):
                with torch.no_grad(): model(x)
""")
    trains = {use.dataset: use.trains for use in ended.census.loaders}
    assert trains == {"TensorDataset": True, "Valid": False}


def test_an_evaluation_between_a_batch_and_its_step_takes_nothing_from_it(run) -> None:  # type: ignore[no-untyped-def]
    ended = run("""
from torch.utils.data import DataLoader, TensorDataset
class Valid(TensorDataset): pass
train_loader = DataLoader(TensorDataset(torch.ones(40, 8)), batch_size=4)
valid_loader = DataLoader(Valid(torch.ones(40, 8)), batch_size=8)
model, optimizer = build()
for epoch in range(4):
    for number, (x,) in enumerate(train_loader):
        if number % 5 == 0:
            for place, (valid,) in enumerate(valid_loader):
                with torch.no_grad(): model(valid)
                if place == 2: break
        optimizer.zero_grad(); model(x).square().mean().backward(); optimizer.step()
""")
    trains = {use.dataset: use.trains for use in ended.census.loaders}
    assert trains == {"TensorDataset": True, "Valid": False}
    assert {record.samples for record in ended.steps} == {4}
    assert [r.step for r in ended.counted if r.host.get("eval")] == list(range(10, 40, 5))
