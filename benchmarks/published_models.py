"""The models of `qwen-sft.csv`, `litgpt-a100.csv` and `peft-l40s.jsonl`, trained as their notes say."""

from __future__ import annotations

from typing import Any

import torch

DEVICE = "cuda:0"
Row = dict[str, Any]
# Sizes of the text models by name: hidden and intermediate. Source: their public `config.json`.
QWEN_SIZES = {"0.8B": (1024, 3584), "2B": (2048, 6144)}
ADAPTER_RANK, ADAPTER_ALPHA = 8, 16
# The longest text of the Alpaca data by the name of the model, in tokens. Source: litgpt's resource tables.
ALPACA_TOKENS = {"phi-1.5": 1044, "StableLM Alpha": 1034, "Llama 2": 1304, "Falcon": 1079}
LITGPT_NAMES = {
    ("phi-1.5", "1.3 B"): "phi-1_5",
    ("StableLM Alpha", "3 B"): "stablelm-base-alpha-3b",
    ("Llama 2", "7 B"): "Llama-2-7b-hf",
    ("Llama 2", "13 B"): "Llama-2-13b-hf",
    ("Falcon", "40 B"): "falcon-40b",
}
# How many positions of the logits are made and compared at once.
LITGPT_CHUNK = 128
# How long the longest texts of PEFT's comparison were is not known; at most 768. With so many, LoRA of rank 32 reserves
# what was measured: found by rows of it with other `tokens` (`--rows`).
PEFT_TOKENS = 704


def qwen(row: Row) -> None:
    """Run one optimizer step; peaks are counted from the loaded model on."""
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    hidden, intermediate = QWEN_SIZES[row["model"]]
    config = Qwen3_5TextConfig(
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=24,
        num_attention_heads=8,
        num_key_value_heads=2,
        linear_num_value_heads=16,
        tie_word_embeddings=True,
        use_cache=False,
    )
    model: Any = _in_bfloat16(lambda: Qwen3_5ForCausalLM(config))
    if row["method"].startswith("lora"):
        from peft import LoraConfig, get_peft_model

        adapters = LoraConfig(
            r=ADAPTER_RANK,
            lora_alpha=ADAPTER_ALPHA,
            lora_dropout=0.0,
            bias="none",
            task_type="CAUSAL_LM",
            target_modules="all-linear",
        )
        model = get_peft_model(model, adapters)
    if row["checkpointing"] == "1":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if row["method"].startswith("lora"):
            model.enable_input_require_grads()
    model.train().to(DEVICE)
    _check_trainable(model, row)
    tokens, accumulation = int(row["seq_len"]), int(row["accumulation"])
    batches = [_qwen_batch(config.vocab_size, tokens) for _ in range(accumulation)]
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], foreach=False)
    torch.cuda.reset_peak_memory_stats()
    for index, batch in enumerate(batches, start=1):
        outputs = model(**batch, use_cache=False)
        loss = outputs.loss / accumulation
        loss.backward()
        if index < accumulation:
            del outputs, loss
    optimizer.step()


def _qwen_batch(vocabulary: int, tokens: int) -> Row:
    ids = torch.randint(100, vocabulary, (1, tokens))
    labels = ids.clone()
    labels[:, : tokens // 2] = -100
    positions = torch.arange(tokens).view(1, 1, tokens).expand(3, 1, tokens).clone()
    batch = {"input_ids": ids, "labels": labels, "position_ids": positions}
    return {name: each.to(DEVICE) for name, each in batch.items()}


def litgpt(row: Row) -> None:
    """Train as litgpt's scripts of October 2023 do, on their own model: the longest text, on which the peak depends."""
    import importlib

    kind = row["command"].removeprefix("finetune_")
    module = importlib.import_module(f"lit_gpt.{kind}")
    settings = {"r": ADAPTER_RANK, "alpha": ADAPTER_ALPHA, "dropout": 0.05, "to_query": True, "to_value": True}
    name = LITGPT_NAMES[row["model"], row["size"]]
    config = module.Config.from_name(name=name, **(settings if kind == "lora" else {}))
    model = _in_bfloat16(lambda: module.GPT(config))
    mark = "mark_only_lora_as_trainable" if kind == "lora" else "mark_only_adapter_as_trainable"
    if kind == "adapter_v2":
        from lit_gpt.adapter_v2 import mark_only_adapter_v2_as_trainable

        mark_only_adapter_v2_as_trainable(model)
    else:
        getattr(module, mark)(model)
    _check_trainable(model, row)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-4, weight_decay=0.01)
    size, tokens = int(row["microbatch"]), ALPACA_TOKENS[row["model"]]
    model.max_seq_length = tokens
    torch.cuda.reset_peak_memory_stats()
    ids = torch.randint(0, config.vocab_size, (size, tokens)).pin_memory().to(DEVICE)
    # Fabric hands on what a model returns in float32.
    logits = [each.float() for each in model(ids, lm_head_chunk_size=LITGPT_CHUNK)]
    logits[-1] = logits[-1][..., :-1, :]
    _loss_of_chunks(logits, ids[..., 1:]).backward()
    optimizer.step()
    optimizer.zero_grad()


def _loss_of_chunks(logits: list[torch.Tensor], targets: torch.Tensor) -> torch.Tensor:
    from lit_gpt.utils import chunked_cross_entropy

    loss: torch.Tensor = chunked_cross_entropy(logits, targets)
    return loss


def peft(row: Row) -> None:
    """Train Llama 3.2 with 3 billion parameters by an adapter's method, or whole where the row names none."""
    from peft import get_peft_config, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    settings = row["train_config"]
    # Source: its public `config.json`.
    config = LlamaConfig(
        hidden_size=3072,
        intermediate_size=8192,
        num_hidden_layers=28,
        num_attention_heads=24,
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=128256,
        tie_word_embeddings=True,
        bos_token_id=128000,
        eos_token_id=128001,
    )
    model: Any = _in_bfloat16(lambda: LlamaForCausalLM(config))
    if row["peft_config"]:
        adapters = get_peft_config({**row["peft_config"], "task_type": "CAUSAL_LM"})
        model = get_peft_model(model, adapters, autocast_adapter_dtype=settings["autocast_adapter_dtype"])
    optimizer = _peft_optimizer(model, settings)
    # One of the optimizers freezes parameters.
    _check_trainable(model, row)
    model.train()
    tokens = row.get("tokens", PEFT_TOKENS)
    for length in (tokens // 4, tokens):
        # As they do every tenth step: the longest texts hardly come in the first ten.
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        ids = torch.randint(0, config.vocab_size, (settings["batch_size"], length))
        mask = torch.ones_like(ids)
        # Texts are padded to the longest.
        mask[-1, -1] = 0
        batch = {name: each.to(DEVICE) for name, each in {"input_ids": ids, "attention_mask": mask}.items()}
        labels = batch["input_ids"].clone()
        optimizer.zero_grad()
        loss = model(**batch, labels=labels, num_items_in_batch=batch["attention_mask"].sum().item()).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings["grad_norm_clip"])
        optimizer.step()


def _peft_optimizer(model: Any, settings: Row) -> torch.optim.Optimizer:
    if settings["optimizer_type"] == "lora-fa":
        from peft.optimizers import create_lorafa_optimizer

        return create_lorafa_optimizer(model, **settings["optimizer_kwargs"])
    chosen: Any = getattr(torch.optim, settings["optimizer_type"])
    return chosen(model.parameters(), **settings["optimizer_kwargs"])


def _in_bfloat16(make: Any) -> Any:
    """Return a model that is made on the device in bfloat16."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(DEVICE):
            return make()
    finally:
        torch.set_default_dtype(before)


def _check_trainable(model: torch.nn.Module, row: Row) -> None:
    """Raise where the model is not the one that was measured."""
    count = sum(each.numel() for each in model.parameters() if each.requires_grad)
    if count != int(row["num_trainable_params"]):
        raise ValueError(f"{count} parameters are trained, {row['num_trainable_params']} were")
