"""Text generation with transformers, as its documentation shows it."""

import argparse

import torch
from transformers import GPT2Config, GPT2LMHeadModel


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, required=True)
    args = parser.parse_args()
    model = GPT2LMHeadModel(GPT2Config(vocab_size=100, n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=1))
    model.eval()
    for _ in range(50):
        prompts = torch.randint(2, 100, (args.batch_size, 8))
        texts = model.generate(
            prompts, attention_mask=torch.ones_like(prompts), min_new_tokens=6, max_new_tokens=6, pad_token_id=1
        )
        print(texts.shape)


if __name__ == "__main__":
    main()
