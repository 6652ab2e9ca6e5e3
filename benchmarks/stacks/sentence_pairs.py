"""sentence-transformers trainer over pairs of sentences: 40 updates.

Planted: sentences of 5 to 49 words in one batch, padded to the longest.
"""

import random

from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
    losses,
    models,
)  # fmt: skip
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers import models as token_models
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast, set_seed

set_seed(0)
words = {name: place for place, name in enumerate(["[PAD]", "[UNK]"])}
words |= {f"w{i}": i + 2 for i in range(300)}
raw = Tokenizer(token_models.WordLevel(words, unk_token="[UNK]"))
raw.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="[PAD]", unk_token="[UNK]")
tokenizer.model_input_names = ["input_ids", "attention_mask"]
tokenizer.save_pretrained("base")
BertModel(
    BertConfig(vocab_size=len(words), hidden_size=128, num_hidden_layers=2, num_attention_heads=4,
               intermediate_size=256)
).save_pretrained("base")  # fmt: skip
encoder = models.Transformer("base")
model = SentenceTransformer(
    modules=[encoder, models.Pooling(encoder.get_embedding_dimension())], device="cpu"
)
draw = random.Random(0)


def sentence():
    return " ".join(f"w{draw.randrange(300)}" for _ in range(draw.choice((5, 9, 17, 49))))


pairs = Dataset.from_dict(
    {"anchor": [sentence() for _ in range(320)], "positive": [sentence() for _ in range(320)]}
)
trainer = SentenceTransformerTrainer(
    model=model,
    args=SentenceTransformerTrainingArguments(
        output_dir="saved", max_steps=40, per_device_train_batch_size=8, use_cpu=True,
        report_to="none", disable_tqdm=True, save_strategy="no", logging_steps=10,
    ),
    train_dataset=pairs,
    loss=losses.MultipleNegativesRankingLoss(model),
)  # fmt: skip
trainer.train()
print("updates", trainer.state.global_step)
