"""HF Trainer: BERT classification, accumulation over 2, evaluation and saving every 10 steps.

Planted: sequences of 8 to 64 tokens padded to 64. 30 updates.
"""

import torch
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainingArguments,
    set_seed,
)  # fmt: skip

LONGEST, BATCH, ACCUMULATION, UPDATES = 64, 8, 2, 30


class Sentences(Dataset):
    def __init__(self, num):
        self.num = num

    def __len__(self):
        return self.num

    def __getitem__(self, index):
        draw = torch.Generator().manual_seed(index)
        length = int(torch.randint(8, LONGEST + 1, (), generator=draw))
        ids = torch.randint(5, 400, (LONGEST,), generator=draw)
        mask = (torch.arange(LONGEST) < length).long()
        return {"input_ids": ids * mask, "attention_mask": mask, "labels": int(ids[0]) % 2}


set_seed(0)
model = BertForSequenceClassification(
    BertConfig(vocab_size=400, hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256)
)  # fmt: skip
arguments = TrainingArguments(
    output_dir="saved", max_steps=UPDATES, per_device_train_batch_size=BATCH,
    gradient_accumulation_steps=ACCUMULATION, eval_strategy="steps", eval_steps=10, save_steps=10,
    logging_steps=5, report_to="none", use_cpu=True, disable_tqdm=True,
)  # fmt: skip
trainer = Trainer(model, arguments, train_dataset=Sentences(480), eval_dataset=Sentences(32))
trainer.train()
print("updates", trainer.state.global_step)
