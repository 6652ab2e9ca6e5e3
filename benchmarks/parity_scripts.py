"""Five small trainings, each with twelve mistakes that can be planted and the harmless changes that fixes make.

Each is a loop as people write it, over `STEPS` updates. A mistake is there from the first step on, or from the batch
that is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from hotloop.core.parity_records import WeightUpdates
from hotloop.core.step import StepRecord
from hotloop.probe.weight_digest import WeightDigest
from hotloop.trial.rounding_noise import RoundingNoise

STEPS = 60


@dataclass(frozen=True, slots=True)
class Change:
    """What is unlike the unchanged script."""

    learning_rate: float = 1.0
    clips: bool = True
    decay: float = 1.0
    dropout: bool = True
    drops_batches: bool = False
    other_order: bool = False
    evaluates: bool = False
    gradients: float = 1.0
    shifts_labels: bool = False
    augments: bool = True
    fused: bool = False
    foreach: bool = False
    compiled: bool = False
    threads: int = 1
    channels_last: bool = False
    bf16: bool = False
    draws: int = 0
    """Others than 0 augment with other random numbers."""


AS_IT_IS = Change()
MISTAKES = {
    "learning rate x 0.9": Change(learning_rate=0.9),
    "learning rate x 1.1": Change(learning_rate=1.1),
    "no clipping": Change(clips=False),
    "no decay": Change(decay=0.0),
    "ten times the decay": Change(decay=10.0),
    "dropout off": Change(dropout=False),
    "one batch in twenty dropped": Change(drops_batches=True),
    "order changed": Change(other_order=True),
    "eval mode": Change(evaluates=True),
    "gradients x 0.99": Change(gradients=0.99),
    "labels shifted": Change(shifts_labels=True),
    "augmentation skipped": Change(augments=False),
}
HARMLESS = {
    "fused": Change(fused=True),
    "foreach": Change(foreach=True),
    "compile": Change(compiled=True),
    "threads": Change(threads=2),
    "channels_last": Change(channels_last=True),
}


@dataclass(frozen=True, slots=True)
class Seen:
    """What a run showed."""

    records: tuple[StepRecord, ...]
    weights: WeightUpdates


class Loop:
    """What all five have in common: the optimizer, the clipping, what is watched."""

    def __init__(
        self, change: Change, noise: RoundingNoise | None, model: nn.Module, *, kind: type, lr: float,
        decay: float, clip: float, warmup: int = 0, steps: int = STEPS, **more: Any,
    ) -> None:  # fmt: skip
        self.change, self.clip, self.warmup, self.lr = change, clip, warmup, lr
        self.steps = steps
        self.model = model
        model.train(not change.evaluates)
        for module in model.modules():
            if isinstance(module, nn.Dropout) and not change.dropout:
                module.p = 0.0
        if change.channels_last:
            model.to(memory_format=torch.channels_last)
        self.optimizer = kind(
            model.parameters(), lr=lr * change.learning_rate, weight_decay=decay * change.decay,
            fused=change.fused or None, foreach=change.foreach, **more,
        )  # fmt: skip
        self.noise, self.digest, self.losses = noise, WeightDigest(), []
        if noise is not None:
            noise.start(model.parameters())
        if change.compiled:
            torch._dynamo.reset()
            torch._inductor.config.fallback_random = True
            self.call: Callable[..., Any] = torch.compile(model)
        else:
            self.call = model

    def batch(self, step: int) -> int:
        """Which batch a step sees: the order is the seed's."""
        if self.change.other_order:
            return step ^ 1
        return step + (step + 9) // 19 if self.change.drops_batches else step

    def draws(self, step: int, order: torch.Generator) -> torch.Generator:
        """What augments the batch of a step."""
        number = self.change.draws
        return torch.Generator().manual_seed(10**6 * number + step) if number else order

    def update(self, loss: torch.Tensor) -> None:
        change, optimizer = self.change, self.optimizer
        step = len(self.losses)
        self.losses.append(StepRecord(step, 0.0, loss=loss.item()))
        if self.warmup:
            for group in optimizer.param_groups:
                group["lr"] = self.lr * change.learning_rate * min(1.0, (step + 1) / self.warmup)
        optimizer.zero_grad()
        loss.backward()
        if change.clips:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        if change.gradients != 1:
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(change.gradients)
        if self.noise is not None:
            self.noise.before(optimizer)
        self.digest.before(optimizer)
        optimizer.step()
        self.digest.after(optimizer)

    def seen(self) -> Seen:
        return Seen(tuple(self.losses), self.digest.updates())


class Transformer(nn.Module):
    def __init__(self, vocabulary: int = 64, width: int = 64, length: int = 32) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(torch.zeros(length, width))
        layer = nn.TransformerEncoderLayer(width, 4, 128, dropout=0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.tokens(tokens) + self.places))  # type: ignore[no-any-return]


def _sentences(generator: torch.Generator) -> torch.Tensor:
    tokens = torch.randint(64, (1024, 33), generator=generator)
    for place in range(1, 33):
        wrong = torch.rand(1024, generator=generator) < 0.1
        follows = (tokens[:, place - 1] * 5 + 3) % 64
        tokens[:, place] = torch.where(wrong, tokens[:, place], follows)
    return tokens


def _words(loop: Loop, data: torch.Tensor, seed: int, *, bf16: bool, rows: int = 8) -> Seen:
    change = loop.change
    bf16 = bf16 or change.bf16
    for step in range(loop.steps):
        number = loop.batch(step)
        generator = torch.Generator().manual_seed(1000 * seed + number)
        rows_of = torch.randint(len(data), (rows,), generator=generator)
        given, targets = data[rows_of, :-1].clone(), data[rows_of, 1:]
        if change.shifts_labels:
            targets = targets.roll(1, 1)
        if change.augments:  # one word in ten is another one
            drawn = loop.draws(step, generator)
            other = torch.rand(given.shape, generator=drawn) < 0.1
            given[other] = torch.randint(64, (int(other.sum()),), generator=drawn)
        torch.manual_seed(7000 * seed + step)  # of dropout
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
            logits = loop.call(given)
        loop.update(F.cross_entropy(logits.float().flatten(0, 1), targets.flatten()))
    return loop.seen()


def transformer(change: Change, noise: RoundingNoise | None, seed: int, steps: int) -> Seen:
    """AdamW, a warm-up of 100 steps, clipping, float32."""
    model, data = _made(seed, Transformer, _sentences)
    loop = Loop(
        *(change, noise, model), kind=torch.optim.AdamW, lr=1e-3, decay=0.1, clip=1.0, warmup=100,
        steps=steps,
    )  # fmt: skip
    return _words(loop, data, seed, bf16=False)


def bf16_transformer(change: Change, noise: RoundingNoise | None, seed: int, steps: int) -> Seen:
    """The same under autocast, without a warm-up."""
    model, data = _made(seed, Transformer, _sentences)
    loop = Loop(
        *(change, noise, model), kind=torch.optim.AdamW, lr=1e-3, decay=0.1, clip=1.0, steps=steps
    )
    return _words(loop, data, seed, bf16=True)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(64, 64)
        self.first = nn.LSTM(64, 64, batch_first=True)
        self.drop = nn.Dropout(0.2)
        self.second = nn.LSTM(64, 64, batch_first=True)
        self.head = nn.Linear(64, 64)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.drop(self.first(self.drop(self.tokens(tokens)))[0])
        return self.head(self.drop(self.second(hidden)[0]))  # type: ignore[no-any-return]


def lstm(change: Change, noise: RoundingNoise | None, seed: int, steps: int) -> Seen:
    """Adam with a little decay, clipping."""
    model, data = _made(seed, Recurrent, _sentences)
    loop = Loop(
        *(change, noise, model), kind=torch.optim.AdamW, lr=2e-3, decay=0.01, clip=0.25, steps=steps
    )
    return _words(loop, data, seed, bf16=False)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm_one = nn.BatchNorm2d(width)
        self.two = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm_two = nn.BatchNorm2d(width)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = F.relu(self.norm_one(self.one(images)))
        return F.relu(images + self.norm_two(self.two(hidden)))


def _resnet() -> nn.Module:
    return nn.Sequential(
        *(
            nn.Conv2d(3, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            Block(16),
            nn.MaxPool2d(2),
        ),
        *(Block(16), Block(16), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1)),
        nn.Linear(16, 10),
    )


def _pictures(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    kinds = torch.randint(10, (2048,), generator=generator)
    middle = torch.randn(10, 3, 16, 16, generator=generator)[kinds]
    return torch.randn(2048, 3, 16, 16, generator=generator) + 0.5 * middle, kinds


def resnet(change: Change, noise: RoundingNoise | None, seed: int, steps: int) -> Seen:
    """Batch norm, SGD 0.1 with momentum, decay 5e-4, pictures that are turned and moved; clipping."""
    model, (pictures, kinds) = _made(seed, _resnet, _pictures)
    loop = Loop(
        *(change, noise, model), kind=torch.optim.SGD, lr=0.1, decay=5e-4, clip=1.0, momentum=0.9,
        steps=steps,
    )  # fmt: skip
    for step in range(loop.steps):
        generator = torch.Generator().manual_seed(1000 * seed + loop.batch(step))
        rows = torch.randint(len(pictures), (32,), generator=generator)
        given, targets = pictures[rows], kinds[rows]
        if change.shifts_labels:
            targets = targets.roll(1)
        if change.augments:
            drawn = loop.draws(step, generator)
            turned = torch.rand(32, generator=drawn) < 0.5
            given = torch.where(turned[:, None, None, None], given.flip(3), given)
            given = given.roll(int(torch.randint(-2, 3, (), generator=drawn)), 2)
        if change.channels_last:
            given = given.to(memory_format=torch.channels_last)
        torch.manual_seed(7000 * seed + step)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=change.bf16):
            logits = loop.call(given)
        loop.update(F.cross_entropy(logits.float(), targets))
    return loop.seen()


def _policy() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Dropout(0.1), nn.Linear(64, 2))


def policy_gradient(change: Change, noise: RoundingNoise | None, seed: int, steps: int) -> Seen:
    """Sixteen carts with a pole each, twenty moves, what a move brings against the mean; Adam."""
    model, _ = _made(seed, _policy, lambda generator: None)
    loop = Loop(
        *(change, noise, model), kind=torch.optim.AdamW, lr=5e-3, decay=0.01, clip=0.5, steps=steps
    )
    for step in range(loop.steps):
        generator = torch.Generator().manual_seed(1000 * seed + loop.batch(step))
        state = 0.1 * torch.randn(16, 4, generator=generator)
        drawn = loop.draws(step, generator)
        torch.manual_seed(7000 * seed + step)
        chosen, rewards = [], []
        for _ in range(20):
            given = state
            if change.augments:
                given = state + 0.02 * torch.randn(state.shape, generator=drawn)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=change.bf16):
                logits = loop.call(given).float()
            draws = torch.rand(16, generator=generator)
            right = draws < logits.softmax(1)[:, 1].detach()
            chosen.append(F.log_softmax(logits, 1).gather(1, right.long()[:, None])[:, 0])
            state = _moved(state, right)
            rewards.append(1.0 - state[:, 2].abs() - 0.1 * state[:, 0].abs())
        reward = torch.stack(rewards)
        if change.shifts_labels:
            reward = reward.roll(1, 0)
        returns = reward.flip(0).cumsum(0).flip(0)
        better = (returns - returns.mean(1, keepdim=True)) / (returns.std() + 1e-6)
        loop.update(-(torch.stack(chosen) * better).sum(0).mean())
    return loop.seen()


def _moved(state: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    place, speed, angle, turning = state.unbind(1)
    push = torch.where(right, 1.0, -1.0)
    turned = 15.0 * angle.sin() - 12.0 * push * angle.cos()
    return torch.stack(
        [
            place + 0.02 * speed,
            speed + 0.2 * push,
            angle + 0.02 * turning,
            turning + 0.02 * turned,
        ],
        1,
    )


def _made(seed: int, model: Callable[[], Any], data: Callable[[torch.Generator], Any]) -> Any:
    torch.manual_seed(seed)
    return model(), data(torch.Generator().manual_seed(seed))


SCRIPTS = {
    "transformer": transformer,
    "bf16 transformer": bf16_transformer,
    "resnet": resnet,
    "lstm": lstm,
    "policy gradient": policy_gradient,
}


def run(
    name: str, change: Change = AS_IT_IS, *, seed: int = 0, size: float = 0.0, noise_seed: int = 1,
    steps: int = STEPS,
) -> Seen:  # fmt: skip
    """One training; `size`: of the noise that it carries."""
    noise = RoundingNoise(size, noise_seed) if size else None
    before = torch.get_num_threads()
    torch.set_num_threads(change.threads)
    try:
        return SCRIPTS[name](change, noise, seed, steps)
    finally:
        torch.set_num_threads(before)
