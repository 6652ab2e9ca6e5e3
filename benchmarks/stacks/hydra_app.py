"""hydra with chdir into its outputs/: 60 updates. Planted: Adam, one tensor after the other."""

import hydra
import torch
from omegaconf import DictConfig
from torch import nn


@hydra.main(version_base=None, config_path=None)
def main(config: DictConfig) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(6)))
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    for _ in range(60):
        x = torch.randn(32, 256)
        optimizer.zero_grad()
        loss = (model(x) - x).square().mean()
        loss.backward()
        optimizer.step()
    torch.save(model.state_dict(), "weights.pt")
    print("updates 60", f"loss {loss.item():.6f}")


main()
