"""A GAN: two updates of the discriminator per update of the generator; 150 updates, 50 rounds, which are its steps."""

import torch
from torch import nn

torch.manual_seed(0)
generator = nn.Sequential(nn.Linear(32, 512), nn.ReLU(), nn.Linear(512, 256))
critic = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 1))
of_generator = torch.optim.Adam(generator.parameters(), lr=1e-4)
of_critic = torch.optim.Adam(critic.parameters(), lr=1e-4)
judge = nn.functional.binary_cross_entropy_with_logits
for _ in range(50):
    for _ in range(2):
        of_critic.zero_grad()
        made = generator(torch.randn(64, 32)).detach()
        real = torch.randn(64, 256) + 1
        loss = judge(critic(real), torch.ones(64, 1)) + judge(critic(made), torch.zeros(64, 1))
        loss.backward()
        of_critic.step()
    of_generator.zero_grad()
    loss = judge(critic(generator(torch.randn(64, 32))), torch.ones(64, 1))
    loss.backward()
    of_generator.step()
print("rounds 50", f"loss {loss.item():.5f}")
