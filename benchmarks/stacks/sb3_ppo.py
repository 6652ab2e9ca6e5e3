"""stable-baselines3 PPO on CartPole: 4 rollouts of 256 steps, 4 epochs of 4 batches each, 64 updates.

Acting in the environment takes most of the time: no evaluation, and not the caller's code.
"""

import torch
from stable_baselines3 import PPO

torch.manual_seed(0)
agent = PPO(
    "MlpPolicy", "CartPole-v1", n_steps=256, batch_size=64, n_epochs=4, seed=0, device="cpu"
)
agent.learn(1024)
print("updates", 4 * 4 * 4, f"timesteps {agent.num_timesteps}")
