"""TRL SFTTrainer with LoRA, accumulation over 2: 30 updates.

Planted: texts of 4 to 60 words in one batch, padded to the longest.
"""

import random

from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, set_seed
from trl import SFTConfig, SFTTrainer

set_seed(0)
words = {name: place for place, name in enumerate(["[PAD]", "[UNK]", "[EOS]"])}
words |= {f"w{i}": i + 3 for i in range(300)}
raw = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
raw.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=raw, pad_token="[PAD]", unk_token="[UNK]", eos_token="[EOS]"
)
draw = random.Random(0)
texts = [
    " ".join(f"w{draw.randrange(300)}" for _ in range(draw.choice((4, 8, 16, 60))))
    for _ in range(240)
]
model = GPT2LMHeadModel(
    GPT2Config(vocab_size=len(words), n_positions=64, n_embd=128, n_layer=2, n_head=4,
               bos_token_id=2, eos_token_id=2, pad_token_id=0)
)  # fmt: skip
trainer = SFTTrainer(
    model=model,
    args=SFTConfig(
        output_dir="saved", max_steps=30, per_device_train_batch_size=4, gradient_accumulation_steps=2,
        logging_steps=10, report_to="none", use_cpu=True, disable_tqdm=True, max_length=64,
        bf16=False, save_strategy="no",
    ),
    train_dataset=Dataset.from_dict({"text": texts}),
    processing_class=tokenizer,
    peft_config=LoraConfig(r=4, target_modules=["c_attn"]),
)  # fmt: skip
trainer.train()
print("updates", trainer.state.global_step)
