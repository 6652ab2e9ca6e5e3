"""stable-baselines3 DQN on CartPole: one update every 4 steps from step 100 on, 150 updates.

Acting (epsilon-greedily) takes much of the time: no evaluation.
"""

from stable_baselines3 import DQN

agent = DQN("MlpPolicy", "CartPole-v1", learning_starts=100, train_freq=4, gradient_steps=1, batch_size=32,
            exploration_fraction=0.1, seed=0, device="cpu")  # fmt: skip
agent.learn(700)
print("updates", agent._n_updates)
