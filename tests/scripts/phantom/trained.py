"""Fine-tuning a language model with transformers' Trainer, as its documentation shows it."""

import sys
import tempfile
from dataclasses import dataclass, field

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, HfArgumentParser, Trainer, TrainingArguments


@dataclass
class ModelArguments:
    layers: int = field(default=4)
    tokens: int = field(default=256)


class Texts(Dataset):
    def __init__(self, num_tokens: int) -> None:
        self.num_tokens = num_tokens

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.full((self.num_tokens,), index % 1000)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


def main() -> None:
    parser = HfArgumentParser((ModelArguments, TrainingArguments))
    model_args, training_args = parser.parse_args_into_dataclasses(
        [*sys.argv[1:], "--output_dir", tempfile.mkdtemp(), "--save_strategy", "no", "--report_to", "none"]
    )
    config = GPT2Config(n_layer=model_args.layers, n_embd=256, n_head=4, n_positions=model_args.tokens)
    trainer = Trainer(model=GPT2LMHeadModel(config), args=training_args, train_dataset=Texts(model_args.tokens))
    trainer.train()
    print(torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
