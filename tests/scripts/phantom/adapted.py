"""A decoder with PEFT's LoRA adapters, in bfloat16 as it is fine-tuned."""

import argparse

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, required=True)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--steps", type=int, default=1000)
    args = parser.parse_args()

    config = LlamaConfig(
        vocab_size=32_000,
        hidden_size=512,
        intermediate_size=1376,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        use_cache=False,
    )
    model = LlamaForCausalLM(config).to("cuda", torch.bfloat16)
    model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=16, target_modules="all-linear"))
    model.print_trainable_parameters()
    model.gradient_checkpointing_enable()
    model.enable_input_require_grads()
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-4)
    for _ in range(args.steps):
        ids = torch.randint(32_000, (args.batch_size, args.tokens), device="cuda")
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    num_trained = sum(each.numel() for each in model.parameters() if each.requires_grad)
    print(torch.cuda.max_memory_allocated(), num_trained, len(optimizer.state))


if __name__ == "__main__":
    main()
