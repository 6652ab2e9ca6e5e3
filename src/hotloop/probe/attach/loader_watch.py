"""Hooks around data loaders: how long the training waited, for which loader, and what that one is."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from types import CodeType
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch.utils.data import DataLoader
from torch.utils.data._utils import pin_memory as torch_pinning
from torch.utils.data.dataloader import _BaseDataLoaderIter, _MultiProcessingDataLoaderIter

from hotloop.core.census import LoaderUse
from hotloop.probe import entry
from hotloop.probe.attach.batch_times import Fetched
from hotloop.probe.attach.evaluation_watch import EvaluationWatch
from hotloop.probe.attach.loader_seen import LoaderSeen
from hotloop.probe.attach.model import Padding
from hotloop.probe.attach.sites import Place, caller, line_of
from hotloop.probe.attach.watch import Watch
from hotloop.probe.batch_queue import num_samples
from hotloop.probe.loader_place import LoaderPlaces, around_construction, names_of


class LoaderWatch:
    """The loaders of this process, by where they are made and iterated."""

    def __init__(self, watch: Watch, evaluations: EvaluationWatch, padding: Padding) -> None:
        self._watch = watch
        self._evaluations = evaluations
        self._padding = padding
        self._places = LoaderPlaces()
        self._made: WeakKeyDictionary[Any, tuple[Place | None, tuple[str, int]]] = (
            WeakKeyDictionary()
        )
        """By loader: where it was made, and its name."""
        self._iterators: WeakKeyDictionary[Any, LoaderSeen] = WeakKeyDictionary()
        self._asked: WeakKeyDictionary[Any, tuple[Any, float]] = WeakKeyDictionary()
        """Iterators of loaders whose class makes them in its own way: the loader, and since when."""
        self._seen: dict[tuple[Any, ...], list[tuple[Callable[[], Any], LoaderSeen]]] = {}
        """By place and settings; one each for the datasets that are alive at the same time."""
        self._seeds: dict[int, LoaderSeen] = {}
        self._current: LoaderSeen | None = None
        self._pinning = False
        self._fetched: list[LoaderSeen] = []
        """With gradients enabled, since the last pass without them, or backward."""
        self._given: dict[LoaderSeen, int] = {}
        """Samples that each gave with gradients enabled since the last pass backward."""
        self._since = -1
        """The step in which the first of these were."""

    def install(self) -> None:
        """Hook torch's loader."""
        self._evaluations.saw_eval = self.went_without_gradients
        around_construction(self._make)
        entry.around_call(DataLoader, "__iter__", self._iterate)
        entry.around_call(_BaseDataLoaderIter, "__init__", self._begin)
        entry.around_call(_BaseDataLoaderIter, "_reset", self._begin)
        entry.around_call(_BaseDataLoaderIter, "__next__", self._advance)
        entry.around_call(_MultiProcessingDataLoaderIter, "_shutdown_workers", self._end)
        entry.around_call(torch_pinning, "pin_memory", self._pin)

    def fetched_here(self, fetched: Fetched) -> None:
        """This process made a batch by itself."""
        if self._current is not None and self._watch.here():
            self._current.fetched(fetched, counting=self._watch.counting)

    def fetched_elsewhere(self, seed: int, fetched: Fetched) -> None:
        """A worker made one."""
        seen = self._seeds.get(seed)
        if seen is not None:
            seen.fetched(fetched, counting=True)

    def went_backward(self) -> None:
        """What was fetched since the last one trains; what seems to evaluate only where nothing else was, as a teacher may have
        looked first."""
        for seen in [each for each in self._given if not each.evaluates] or self._given:
            seen.seemed_to |= seen.evaluates
            if seen.evaluates and self._given[seen]:
                self._watch.now.samples = (self._watch.now.samples or 0) + self._given[seen]
            seen.trains, seen.evaluates = True, False
        self._fetched, self._given = [], {}
        self._evaluations.in_eval_mode = False

    def went_without_gradients(self) -> None:
        """A forward without gradients: one loader that was fetched, and never trained, evaluates.

        Several at once are the two halves of a training batch, of which one is labelled just now.
        """
        if len(self._fetched) == 1 and not self._fetched[0].trains:
            self._seems_to_evaluate(self._fetched[0])
        self._fetched = []

    def _seems_to_evaluate(self, seen: LoaderSeen) -> None:
        if seen.seemed_to or seen.evaluates:
            return
        seen.evaluates, now = True, self._watch.now
        if now.samples is not None:
            left = max(now.samples - self._given.get(seen, 0), 0)
            # Where no loader trains, nobody knows how many samples a step takes.
            now.samples = left if left or any(each.trains for each in self._all()) else None

    def uses(self) -> tuple[LoaderUse, ...]:
        """For the census; may be called from another thread."""
        seen = self._all()
        trained: dict[str, set[int]] = defaultdict(set)
        for each in seen:
            for calls, number in list(each.made) if each.trains else ():
                trained[calls].add(number)
        num_made = {calls: self._places.num_made(calls) for calls in trained}
        found = []
        for each in seen:
            own = {calls: trained[calls] for calls, _ in list(each.made) if each.trains}
            found.append(replace(each.use(), made=names_of(own, num_made)))
        return tuple(found)

    def clear(self) -> None:
        """Forget what was counted."""
        for seen in self._all():
            seen.clear()

    def _all(self) -> list[LoaderSeen]:
        return [seen for kept in list(self._seen.values()) for _, seen in list(kept)]

    def _of_dataset(self, key: tuple[Any, ...], loader: Any, dataset: Any) -> LoaderSeen | None:
        """The same dataset's; or that of one which is gone, and which this one replaces."""
        kept = self._seen.get(key, [])
        for number, (held, seen) in enumerate(kept):
            if held() is dataset:
                return seen
            if held() is None and number == len(kept) - 1:
                kept[number] = (_weakly(loader), seen)
                return seen
        return None

    def _make(self, original: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
        original(loader, *args, **kwargs)
        if self._watch.active:
            self._watch.tried(self._note_made, loader)

    def _note_made(self, loader: Any) -> None:
        self._made[loader] = self._watch.sites.place(caller()), self._places.name()

    def _iterate(self, original: Any, loader: Any) -> Any:
        watch = self._watch
        if not watch.here():
            return original(loader)
        start = time.perf_counter()
        phase = "data_wait" if torch.is_grad_enabled() else "eval"
        iterator = watch.timed(phase, original, (loader,), {})
        watch.tried(self._note_epoch, loader, iterator, time.perf_counter() - start)
        return iterator

    def _begin(self, original: Any, iterator: Any, loader: Any, *args: Any, **kwargs: Any) -> Any:
        if self._watch.here():
            self._asked[iterator] = loader, time.perf_counter()
        return original(iterator, loader, *args, **kwargs)

    def _note_epoch(self, loader: Any, iterator: Any, seconds: float) -> None:
        made, name = self._made.get(loader, (None, None))
        dataset = getattr(loader, "dataset", None)
        workers = loader.num_workers
        place = self._watch.sites.place(caller())
        # By line: the interpreter moves within a line's instructions once it has specialized them.
        key = (_line(made), _line(place), type(dataset), workers, loader.batch_size)
        seen = self._of_dataset(key, loader, dataset)
        if seen is None:
            seen = LoaderSeen(loader, made or place, self._watch.sites)
            self._seen.setdefault(key, []).append((_weakly(loader), seen))
        if not self._watch.resting:
            seen.began_epoch(loader, seconds)
        if name is not None:
            seen.made[name] = None
        if seen.trains:
            seen.evaluates = False
            if seen.num_epochs > 1:
                self._watch.tag("epoch")
        seed = getattr(iterator, "_base_seed", None)
        if workers and isinstance(seed, int):
            self._seeds[seed] = seen
        if seen.evaluates and torch.is_grad_enabled():
            self._watch.clock.move(seconds, "data_wait", "eval")  # starting its workers
        self._iterators[iterator] = seen
        self._asked.pop(iterator, None)

    def _advance(self, original: Any, iterator: Any) -> Any:
        watch = self._watch
        if not watch.here():
            return original(iterator)
        watch.resume()  # its workers may just have been forked
        asked = self._asked.pop(iterator, None) if self._asked else None
        if asked is not None:  # no `DataLoader.__iter__` saw it
            watch.tried(self._note_epoch, asked[0], iterator, time.perf_counter() - asked[1])
        if watch.resting:
            return original(iterator)
        seen, evaluations = self._iterators.get(iterator), self._evaluations
        if evaluations.in_eval_mode and self._learns_nothing(seen):
            watch.tried(self._seems_to_evaluate, seen)  # it is asked again
        evaluations.in_eval_mode = False
        evaluates = _evaluates(seen)
        watch.eval_batch = evaluates and torch.is_grad_enabled()
        before, self._current = self._current, seen
        depth = watch.enter("eval" if evaluates else "data_wait")
        if evaluates:
            evaluations.begin()
            evaluations.follows_batch = True
        start = time.perf_counter()
        try:
            batch = original(iterator)
        except StopIteration:
            if seen is not None:
                watch.tried(self._note_end, seen)
            raise
        finally:
            self._current = before
            watch.leave(depth)
            if evaluates:
                evaluations.end()
        if seen is not None:
            watch.tried(self._note_batch, seen, iterator, batch, time.perf_counter() - start)
        return batch

    def _end(self, original: Any, iterator: Any) -> Any:
        """It ends its workers: where the script leaves an epoch early, as soon as nothing holds the iterator."""
        phase = "eval" if _evaluates(self._iterators.get(iterator)) else "data_wait"
        return self._watch.timed(phase, original, (iterator,), {})

    def _learns_nothing(self, seen: LoaderSeen | None) -> bool:
        """Whether neither a pass backward nor an update (of gradients that were found otherwise) came after its batches."""
        return seen in self._given and self._watch.step == self._since

    def _note_end(self, seen: LoaderSeen) -> None:
        """All batches were given: what nothing went backward from by now evaluates."""
        if seen.evaluates:  # nor will anything, of batches that were fetched ahead
            self._given.pop(seen, None)
        elif self._learns_nothing(seen):
            self._seems_to_evaluate(seen)
        self._watch.eval_batch = False

    def _pin(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        """A batch made in this process is pinned by it, too. Calls itself for what is inside the batch.

        Only with an accelerator.
        """
        seen = self._current
        if seen is None or self._pinning or not self._watch.here():
            return original(*args, **kwargs)
        self._pinning = True
        start = time.perf_counter()
        try:
            return original(*args, **kwargs)
        finally:
            self._pinning = False
            seen.pinned(time.perf_counter() - start, counting=self._watch.counting)

    def _note_batch(self, seen: LoaderSeen, iterator: Any, batch: Any, waited: float) -> None:
        watch, grad = self._watch, torch.is_grad_enabled()
        # Of a loader that trains, what is looked at without gradients, or evaluates, is no batch of a step.
        is_of_step = not seen.trains or (grad and not seen.evaluates)
        seen.gave(batch, waited, counting=watch.counting and is_of_step)
        if grad:
            size = getattr(iterator._index_sampler, "batch_size", None)
            samples = 0
            if isinstance(size, int):  # else nobody says what a batch is
                samples = num_samples(iterator, batch) or size
            if samples and not seen.evaluates:
                watch.now.samples = (watch.now.samples or 0) + samples
            if not self._given:
                self._since = watch.step
            self._given[seen] = self._given.get(seen, 0) + samples
            if seen not in self._fetched:
                self._fetched.append(seen)
        if not seen.evaluates:
            self._padding.from_loader = True
            self._padding.look(batch, seen.site)


def _evaluates(seen: LoaderSeen | None) -> bool:
    return not torch.is_grad_enabled() or (seen is not None and seen.evaluates)


def _weakly(loader: Any) -> Callable[[], Any]:
    """Its dataset, as long as that lives."""
    try:
        return ref(getattr(loader, "dataset", None))
    except TypeError:  # a list, for one: as long as the loader does
        by = ref(loader)
        return lambda: getattr(by(), "dataset", None)


def _line(place: Place | None) -> tuple[CodeType, int] | None:
    return None if place is None else (place[0], line_of(*place))
