"""Fine-tuning with transformers' Trainer, as its documentation shows it."""

import sys
import tempfile
from dataclasses import dataclass, field

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, HfArgumentParser, Trainer, TrainingArguments


@dataclass
class ModelArguments:
    layers: int = field(default=2)
    tokens: int = field(default=64)


class Texts(Dataset):
    def __init__(self, num_samples: int, num_tokens: int) -> None:
        self.input_ids = torch.randint(5, 1000, (num_samples, num_tokens))

    def __len__(self) -> int:
        return len(self.input_ids)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = self.input_ids[index]
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.tensor(index % 2)}


def main() -> None:
    arguments = sys.argv[1:]
    if "--output_dir" not in arguments:
        arguments += ["--output_dir", tempfile.mkdtemp()]
    model_args, training_args = HfArgumentParser((ModelArguments, TrainingArguments)).parse_args_into_dataclasses(
        arguments
    )
    config = BertConfig(
        vocab_size=1000,
        hidden_size=128,
        num_hidden_layers=model_args.layers,
        num_attention_heads=4,
        intermediate_size=256,
        max_position_embeddings=model_args.tokens,
    )
    trainer = Trainer(
        model=BertForSequenceClassification(config),
        args=training_args,
        train_dataset=Texts(2048, model_args.tokens),
        eval_dataset=Texts(256, model_args.tokens),
    )
    if training_args.do_train or not training_args.do_eval:
        trainer.train()
    else:
        print(trainer.evaluate())


if __name__ == "__main__":
    main()
