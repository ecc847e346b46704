"""A decoder loaded in 4 or 8 bits with bitsandbytes, its adapters trained with an 8-bit optimizer, as QLoRA does it."""

import argparse
import tempfile

import bitsandbytes as bnb
import torch
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM

QUANTIZED = {
    "4": {
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": True,
        "bnb_4bit_compute_dtype": torch.bfloat16,
    },
    "8": {"load_in_8bit": True},
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, required=True)
    parser.add_argument("--bits", choices=["4", "8"], default="4")
    parser.add_argument("--optimizer", default="PagedAdamW8bit", help="of bitsandbytes")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--steps", type=int, default=1000)
    args = parser.parse_args()

    config = LlamaConfig(
        vocab_size=4096, hidden_size=1024, intermediate_size=2816, num_hidden_layers=4, num_attention_heads=8
    )
    before = torch.cuda.memory_allocated()
    with tempfile.TemporaryDirectory() as folder:
        LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
        model = LlamaForCausalLM.from_pretrained(
            folder,
            quantization_config=BitsAndBytesConfig(**QUANTIZED[args.bits]),
            device_map={"": 0},
            dtype=torch.bfloat16,
        )
    model_bytes = torch.cuda.memory_allocated() - before
    model = get_peft_model(
        prepare_model_for_kbit_training(model), LoraConfig(task_type="CAUSAL_LM", r=32, target_modules="all-linear")
    )
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = getattr(bnb.optim, args.optimizer)(trained, lr=1e-4)
    for _ in range(args.steps):
        ids = torch.randint(4096, (args.batch_size, args.tokens), device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(model_bytes, torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
