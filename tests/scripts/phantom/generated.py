"""Text generation with transformers, to its longest text, with the cache that is asked for."""

import argparse

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, required=True)
    parser.add_argument("--prompt", type=int, default=32)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--cache", default=None, help="static, dynamic, …")
    parser.add_argument("--sample", action="store_true")
    parser.add_argument("--steps", type=int, default=1000)
    args = parser.parse_args()

    config = LlamaConfig(
        vocab_size=1000, hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4
    )
    model = LlamaForCausalLM(config).to("cuda", torch.bfloat16).eval()
    for _ in range(args.steps):
        prompts = torch.randint(5, 1000, (args.batch_size, args.prompt), device="cuda")
        texts = model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            min_new_tokens=args.new,
            max_new_tokens=args.new,
            do_sample=args.sample,
            cache_implementation=args.cache,
            pad_token_id=0,
        )
        print(tuple(texts.shape), torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
