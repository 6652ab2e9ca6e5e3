"""An agent that plays does not evaluate, however rarely it learns; what evaluates beside it does."""

from __future__ import annotations

import pytest

ENVIRONMENT = """
class Cart:
    def __init__(self): self.state = torch.zeros(8)
    def reset(self): self.state = torch.zeros(8); return self.state
    def step(self, action):
        time.sleep(0.0002)
        self.state = self.state * 0.9 + action
        return self.state, float(self.state.sum()), False, {}
"""
PPO = """
class Agent:
    def __init__(self, env):
        self.policy, self.optimizer = build()
        self.env = env
    def act(self, state):
        with torch.no_grad(): return self.policy(state[None]).item()
    def rollout(self, length):
        self.policy.eval()
        states, state = [], self.env.reset()
        for _ in range(length):
            states.append(state)
            state, reward, done, info = self.env.step(self.act(state))
        return torch.stack(states)
    def learn(self, states):
        self.policy.train()
        for part in states.split(max(1, len(states) // 4)):
            self.optimizer.zero_grad(); self.policy(part).square().mean().backward(); self.optimizer.step()
agent = Agent(Cart())
for _ in range({rounds}): agent.learn(agent.rollout({length}))
"""
DQN = """
policy, optimizer = build()
target = build()[0].eval()
env, memory = Cart(), []
state = env.reset()
for number in range({steps}):
    policy.eval()
    with torch.no_grad(): action = policy(state[None]).item()
    state, reward, done, info = env.step(action)
    memory.append(state)
    if number % {every} == 0:
        policy.train()
        batch = torch.stack(memory[-32:])
        with torch.no_grad(): wanted = target(batch)
        optimizer.zero_grad(); (policy(batch) - wanted).square().mean().backward(); optimizer.step()
"""


@pytest.mark.at_once(2)
@pytest.mark.parametrize(
    "source",
    [
        PPO.format(rounds=30, length=16),
        PPO.format(rounds=4, length=2048),
        DQN.format(steps=160, every=4),
        DQN.format(steps=60, every=1),
    ],
    ids=["PPO, 16 steps", "PPO, 2048 steps", "DQN, every 4th", "DQN, each"],
)
def test_a_rollout_is_no_evaluation(run, source: str) -> None:  # type: ignore[no-untyped-def]
    ended = run(ENVIRONMENT + source)
    assert ended.census.evaluations == ()
    assert not any(record.host.get("eval") for record in ended.steps)
    assert not any("eval" in record.tags for record in ended.steps)
    assert sum(record.host["forward"] for record in ended.counted) > 0


EVALUATES = """
def evaluate(model, env):
    model.eval()
    state = env.reset()
    with torch.no_grad():
        for _ in range(50): state, *_ = env.step(model(state[None]).item())
    model.train()
model, optimizer = build()
env = Cart()
for epoch in range(6):
    train(model, optimizer, 8)
    evaluate(model, env)
"""
WHOLE = """
class Study:
    def reset(self): pass
model, optimizer = build()
x, study = torch.ones(500, 8), Study()
for epoch in range(6):
    train(model, optimizer, 8)
    model.eval()
    with torch.no_grad():
        for part in x.split(10): model(part)
    model.train()
"""


BY_LOADER = """
class Stopping:
    def reset(self): pass
    def step(self, value): return False
model, optimizer = build()
stopping = Stopping()
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(200, 8)), batch_size=10)
for epoch in range(6):
    train(model, optimizer, 8)
    model.eval()
    with torch.no_grad():
        for (part,) in loader: model(part)
    model.train()
"""


@pytest.mark.parametrize(
    "source", [EVALUATES, WHOLE, BY_LOADER], ids=["plays for a score", "a data set", "a loader"]
)
def test_what_evaluates_still_does(run, source: str) -> None:  # type: ignore[no-untyped-def]
    ended = run(ENVIRONMENT + source)
    assert sum("eval" in record.tags for record in ended.steps) == 5
    assert ended.census.evaluations
