"""PEFT LoRA in a loop of its own, gradient checkpointing: 40 updates. Nothing planted: it computes."""

import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel, set_seed

set_seed(0)
config = GPT2Config(vocab_size=300, n_positions=64, n_embd=128, n_layer=3, n_head=4,
                    attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0)  # fmt: skip
base = GPT2LMHeadModel(config)
base.gradient_checkpointing_enable()
base.enable_input_require_grads()
model = get_peft_model(base, LoraConfig(r=4, target_modules=["c_attn"]))
model.train()
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], fused=True)
for _ in range(40):
    ids = torch.randint(0, 300, (8, 64))
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print("updates 40", f"loss {loss.item():.5f}")
