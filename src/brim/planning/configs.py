"""A transformers config.json as a shape; the file is read as plain JSON, so transformers need not be there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from brim.errors import InputError
from brim.planning.shapes import ModelShape

# The names that model families have for one thing.
_NAMES = {
    "hidden": ("hidden_size", "n_embd", "d_model", "dim"),
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads"),
    "intermediate": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "hidden_dim"),
    "vocab": ("vocab_size",),
    "positions": ("max_position_embeddings", "n_positions"),
}
# Blocks with two MLP matrices, LayerNorm and biases; all others are taken for relatives of Llama.
_LEARNED_POSITIONS = ("gpt2", "gpt_bigcode", "opt", "bert", "roberta", "distilbert", "xlm-roberta")
_OTHER_POSITIONS = ("gpt_neox", "gptj", "phi", "falcon", "bloom", "mpt", "starcoder2", "persimmon", "codegen")
# Activations that come without a gate whatever the family.
_UNGATED = ("relu", "relu2", "xielu")
# Relatives of Llama whose output layer is the embedding unless their config says otherwise.
_TIED = ("gemma", "cohere")
_QKV_BIAS = ("qwen2",)
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
# What a file with several models calls its language model.
_LANGUAGE_MODELS = ("text_config", "llm_config", "language_config")
_ELSE = "Write it as a workload instead: brim plan --workload file.py:Name traces any model."


def read_config(path: Path) -> ModelShape:
    """Return the shape that a config.json describes."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}. Give the model's config.json.") from error
    except (ValueError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not JSON: {error}. Give the model's config.json.") from error
    if not isinstance(config, dict):
        raise InputError(f"{path} holds no JSON object. Give the model's config.json.")
    return shape_of(config, source=str(path))


def shape_of(config: Mapping[str, Any], *, source: str = "config") -> ModelShape:
    """Return the shape that the fields of a config describe.

    >>> shape_of({"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257,
    ...           "n_positions": 1024}).num_parameters
    124439808
    """
    for key in _LANGUAGE_MODELS:
        if isinstance(config.get(key), Mapping):
            return shape_of(config[key], source=f"{key} of {source}, without the other models in it")
    family = str(config.get("model_type", ""))
    _refuse_other_models(config, family, source)
    hidden, heads = _number(config, "hidden", source), _number(config, "heads", source)
    activation = config.get("hidden_act") or config.get("hidden_activation") or config.get("activation_function")
    gated = family not in (*_LEARNED_POSITIONS, *_OTHER_POSITIONS) and activation not in _UNGATED
    return ModelShape(
        name=str(config.get("_name_or_path") or family or source),
        hidden=hidden,
        layers=_number(config, "layers", source),
        heads=heads,
        kv_heads=1 if config.get("multi_query") else _number(config, "kv_heads", source, default=heads),
        head_dim=int(config.get("head_dim") or hidden // heads),
        intermediate=_number(config, "intermediate", source, default=4 * hidden),
        vocab=_number(config, "vocab", source),
        gated=gated,
        tied=bool(config.get("tie_word_embeddings", not gated or family.startswith(_TIED))),
        positions=_number(config, "positions", source, default=0) if family in _LEARNED_POSITIONS else 0,
        qkv_bias=bool(config.get("attention_bias", family in _QKV_BIAS)),
        source=source,
    )


def _refuse_other_models(config: Mapping[str, Any], family: str, source: str) -> None:
    if config.get("is_encoder_decoder") or "decoder_layers" in config:
        raise InputError(f"{source} is an encoder with a decoder ({family}), not one stack of equal blocks. {_ELSE}")
    if config.get("embedding_size") not in (None, config.get("hidden_size")):
        raise InputError(f"{source} has an embedding of another width than its blocks ({family}). {_ELSE}")
    if any(isinstance(config.get(key), int) and config[key] > 1 for key in _EXPERTS):
        raise InputError(f"{source} is a mixture of experts ({family}), whose blocks are not all used. {_ELSE}")


def _number(config: Mapping[str, Any], field: str, source: str, *, default: int | None = None) -> int:
    value = next((config[name] for name in _NAMES[field] if config.get(name) is not None), default)
    if isinstance(value, int) and not isinstance(value, bool) and value >= (0 if default == 0 else 1):
        return value
    what = f"no {' or '.join(_NAMES[field][:2])}" if value is None else f"{_NAMES[field][0]} {value!r}"
    raise InputError(f"{source} has {what}: it does not describe a transformer that can be counted. {_ELSE}")
