"""diffusers UNet with Accelerate and an average of the weights: 40 updates.

Forward and backward are the bulk of a step; the average is the script's own code.
"""

import torch
from accelerate import Accelerator
from diffusers import DDPMScheduler, UNet2DModel
from diffusers.training_utils import EMAModel

torch.manual_seed(0)
accelerator = Accelerator(cpu=True)
model = UNet2DModel(sample_size=16, in_channels=1, out_channels=1, layers_per_block=1, block_out_channels=(32, 32),
                    down_block_types=("DownBlock2D",) * 2, up_block_types=("UpBlock2D",) * 2)  # fmt: skip
average = EMAModel(model.parameters())
noise_of = DDPMScheduler(num_train_timesteps=100)
model, optimizer = accelerator.prepare(model, torch.optim.Adam(model.parameters()))
for _ in range(40):
    clean, noise = torch.randn(4, 1, 16, 16), torch.randn(4, 1, 16, 16)
    times = torch.randint(0, 100, (4,))
    guess = model(noise_of.add_noise(clean, noise, times), times).sample
    loss = torch.nn.functional.mse_loss(guess, noise)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    average.step(model.parameters())
print("updates 40", f"loss {loss.item():.4f}")
