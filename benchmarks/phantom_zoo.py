"""The nets of the referee of traces, each with what it reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import phantom_nets as nets
from phantom_nets import CLASSES, WORDS

TOKENS = 256
PIXELS = 64
Batch = Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Net:
    """A net, what it reads and how large its batches are.

    Attributes:
        make: Builds it.
        read: Returns so many samples on a device: what the net is called with, and what the loss compares with.
        sizes: The microbatches that are compared.
        generates: Whether it generates texts.
    """

    make: Callable[[], nn.Module]
    read: Callable[[int, Any], Batch]
    sizes: tuple[int, int] = (8, 21)
    generates: bool = False


def words(size: int, device: Any, length: int = TOKENS) -> torch.Tensor:
    """Return texts."""
    return torch.randint(WORDS, (size, length), device=device)


def _labels(size: int, device: Any) -> torch.Tensor:
    return torch.randint(CLASSES, (size,), device=device)


def _images(size: int, device: Any, pixels: int = PIXELS) -> torch.Tensor:
    return torch.randn(size, 3, pixels, pixels, device=device)


def _next_words(size: int, device: Any) -> Batch:
    ids = words(size, device)
    return {"input_ids": ids, "labels": ids}


def _short_words(size: int, device: Any) -> Batch:
    ids = words(size, device, TOKENS // 2)
    return {"input_ids": ids, "labels": ids}


def _pictures(size: int, device: Any) -> Batch:
    return {"pixel_values": _images(size, device), "labels": _labels(size, device)}


def _parted(size: int, device: Any) -> Batch:
    classes = torch.randint(CLASSES, (size, PIXELS, PIXELS), device=device)
    return {"pixel_values": _images(size, device), "labels": classes}


def _captioned(size: int, device: Any) -> Batch:
    return {"pixel_values": _images(size, device), "input_ids": words(size, device, 32), "return_loss": True}


def _sounds(size: int, device: Any) -> Batch:
    return {"input_values": torch.randn(size, 16_000, device=device), "labels": _labels(size, device)}


def _spoken(size: int, device: Any) -> Batch:
    ids = words(size, device, 64)
    return {"input_features": torch.randn(size, 80, 400, device=device), "labels": ids}


def _plain(inputs: Callable[[int, Any], torch.Tensor], target: Callable[[int, Any], torch.Tensor]) -> Any:
    return lambda size, device: (inputs(size, device), target(size, device))


def _flat_words(size: int, device: Any) -> Batch:
    ids = words(size, device)
    return ids, ids.flatten()


_SMALL = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
_GROUPED = {**_SMALL, "num_key_value_heads": 2, "max_position_embeddings": 512}
_BARTS = {
    "d_model": 256,
    "encoder_layers": 3,
    "decoder_layers": 3,
    "encoder_ffn_dim": 1024,
    "decoder_ffn_dim": 1024,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "max_position_embeddings": 512,
}
_T5 = {"d_model": 256, "d_kv": 64, "d_ff": 1024, "num_layers": 3, "num_heads": 4, "decoder_start_token_id": 0}
_PATCHES = {**_SMALL, "image_size": PIXELS, "patch_size": 8}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 512}


def _hf(name: str, head: str, **settings: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import transformers

        config = getattr(transformers, f"{name}Config")(**settings)
        return getattr(transformers, f"{name}{head}")(config)

    return make


def _causal(name: str, head: str = "ForCausalLM", **settings: Any) -> Net:
    return Net(make=_hf(name, head, vocab_size=WORDS, **settings), read=_next_words, generates=True)


def _seq2seq(name: str, **settings: Any) -> Net:
    make = _hf(name, "ForConditionalGeneration", vocab_size=WORDS, **settings)
    return Net(make=make, read=_short_words, generates=True)


def _masked(name: str, **settings: Any) -> Net:
    return Net(make=_hf(name, "ForMaskedLM", vocab_size=WORDS, **settings), read=_next_words)


def _seen(name: str, **settings: Any) -> Net:
    return Net(make=_hf(name, "ForImageClassification", num_labels=CLASSES, **settings), read=_pictures, sizes=(16, 50))


def _torch(make: Callable[[], nn.Module], read: Callable[[int, Any], Batch], sizes: tuple[int, int] = (16, 50)) -> Net:
    return Net(make=make, read=read, sizes=sizes)


_ENCODER_LAYER: Any = {"d_model": 256, "nhead": 4, "dim_feedforward": 1024, "batch_first": True}
_PLAIN_IMAGES = _plain(_images, _labels)
_PLAIN_TEXTS = _plain(words, _labels)


def _same_images(size: int, device: Any) -> Batch:
    images = torch.rand(size, 3, PIXELS, PIXELS, device=device)
    return images, images


def _pixels(size: int, device: Any) -> Batch:
    return _images(size, device), torch.randint(CLASSES, (size, PIXELS, PIXELS), device=device)


def _noise(size: int, device: Any) -> Batch:
    return _images(size, device), _images(size, device)


def _users(size: int, device: Any) -> Batch:
    return torch.randint(20_000, (size, 16), device=device), _labels(size, device)


NETS: dict[str, Net] = {
    # Decoders.
    "GPT-2": _causal("GPT2", "LMHeadModel", n_embd=256, n_layer=4, n_head=4, n_positions=512),
    "Llama": _causal("Llama", **_GROUPED),
    "Mistral": _causal("Mistral", **_GROUPED),
    "Qwen2": _causal("Qwen2", **_GROUPED),
    "Qwen3": _causal("Qwen3", **_GROUPED, head_dim=64),
    "Gemma": _causal("Gemma", **{**_GROUPED, "num_key_value_heads": 1}, head_dim=64),
    "Gemma 2": _causal("Gemma2", **_GROUPED, head_dim=64),
    "OPT": _causal(
        "OPT", hidden_size=256, ffn_dim=1024, num_hidden_layers=4, num_attention_heads=4, word_embed_proj_dim=256
    ),
    "BLOOM": _causal("Bloom", hidden_size=256, n_layer=4, n_head=4),
    "Falcon": _causal("Falcon", hidden_size=256, num_hidden_layers=4, num_attention_heads=4),
    "GPT-NeoX": _causal("GPTNeoX", **_SMALL, max_position_embeddings=512),
    "GPT-Neo": _causal(
        "GPTNeo",
        hidden_size=256,
        num_layers=4,
        num_heads=4,
        max_position_embeddings=512,
        attention_types=[[["global", "local"], 2]],
    ),
    "GPT-J": _causal("GPTJ", n_embd=256, n_layer=4, n_head=4, rotary_dim=32, n_positions=512),
    "Phi": _causal("Phi", **_SMALL, max_position_embeddings=512),
    "Phi-3": _causal("Phi3", **_GROUPED, pad_token_id=0),
    "StableLM": _causal("StableLm", **{**_GROUPED, "num_key_value_heads": 4}),
    "OLMo": _causal("Olmo", **_GROUPED),
    "OLMo 2": _causal("Olmo2", **_GROUPED),
    "Cohere": _causal("Cohere", **_GROUPED),
    "Granite": _causal("Granite", **_GROUPED),
    "StarCoder2": _causal("Starcoder2", **_GROUPED),
    "SmolLM3": _causal("SmolLM3", **_GROUPED, pad_token_id=0),
    "MPT": _causal("Mpt", d_model=256, n_heads=4, n_layers=4, max_seq_len=512),
    "GPT-BigCode": _causal("GPTBigCode", n_embd=256, n_layer=4, n_head=4, n_positions=512),
    "Mixtral": _causal("Mixtral", **{**_GROUPED, "intermediate_size": 512}, num_local_experts=4),
    "Qwen2-MoE": _causal("Qwen2Moe", **_GROUPED, **_EXPERTS, shared_expert_intermediate_size=512),
    "Mamba": _causal("Mamba", hidden_size=256, num_hidden_layers=3),
    "XGLM": _causal("XGLM", d_model=256, ffn_dim=1024, num_layers=4, attention_heads=4, max_position_embeddings=512),
    # From text to text.
    "T5": _seq2seq("T5", **_T5),
    "mT5": _seq2seq("MT5", **_T5, tie_word_embeddings=False),
    "BART": _seq2seq("Bart", **_BARTS),
    "mBART": _seq2seq("MBart", **_BARTS),
    "Pegasus": _seq2seq("Pegasus", **_BARTS),
    "M2M-100": _seq2seq("M2M100", **_BARTS),
    # Encoders.
    "BERT": _masked("Bert", **_SMALL),
    "RoBERTa": _masked("Roberta", **_SMALL),
    "DistilBERT": _masked("DistilBert", dim=256, n_layers=4, n_heads=4, hidden_dim=1024),
    "DeBERTa-v2": _masked("DebertaV2", **_SMALL, relative_attention=True, pos_att_type=["p2c", "c2p"]),
    "ELECTRA": _masked("Electra", **_SMALL, embedding_size=128),
    "ALBERT": _masked("Albert", **_SMALL, embedding_size=128),
    "MPNet": _masked("MPNet", **_SMALL),
    "ConvBERT": _masked("ConvBert", **_SMALL, embedding_size=256),
    "ModernBERT": _masked("ModernBert", **{**_SMALL, "intermediate_size": 512}, pad_token_id=0),
    "XLM-RoBERTa": _masked("XLMRoberta", **_SMALL),
    # Images.
    "ViT": _seen("ViT", **_PATCHES),
    "DeiT": _seen("Deit".replace("it", "iT"), **_PATCHES),
    "BEiT": _seen("Beit", **_PATCHES),
    "DINOv2": _seen("Dinov2", **{k: v for k, v in _PATCHES.items() if k != "intermediate_size"}),
    "Swin": _seen(
        "Swin", image_size=PIXELS, patch_size=2, embed_dim=48, depths=[2, 2], num_heads=[3, 6], window_size=8
    ),
    "ConvNeXt": _seen("ConvNext", hidden_sizes=[48, 96, 192, 384], depths=[2, 2, 2, 2]),
    "ResNet": _seen("ResNet", hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2], embedding_size=32),
    "MobileNetV2": _seen("MobileNetV2", image_size=PIXELS),
    "RegNet": _seen("RegNet", hidden_sizes=[32, 64, 128, 256], depths=[1, 1, 2, 2], groups_width=16),
    "EfficientNet": _seen(
        "EfficientNet", image_size=PIXELS, width_coefficient=0.5, depth_coefficient=0.5, hidden_dim=640
    ),
    "PoolFormer": _seen("PoolFormer", hidden_sizes=[32, 64, 128, 256], depths=[1, 1, 2, 1]),
    "SegFormer": Net(
        make=_hf("Segformer", "ForSemanticSegmentation", num_labels=CLASSES, depths=[1, 1, 1, 1]),
        read=_parted,
        sizes=(8, 21),
    ),
    "CLIP": Net(
        make=_hf(
            "CLIP",
            "Model",
            text_config={**_SMALL, "vocab_size": WORDS},
            vision_config={**_SMALL, "image_size": PIXELS, "patch_size": 8},
        ),
        read=_captioned,
        sizes=(16, 50),
    ),
    # Sound.
    "Whisper": Net(
        make=_hf(
            "Whisper",
            "ForConditionalGeneration",
            vocab_size=WORDS,
            max_source_positions=200,
            pad_token_id=0,
            **{k: v for k, v in _BARTS.items() if k != "max_position_embeddings"},
            bos_token_id=1,
            eos_token_id=2,
            decoder_start_token_id=1,
            begin_suppress_tokens=None,
        ),
        read=_spoken,
    ),
    "Wav2Vec2": Net(make=_hf("Wav2Vec2", "ForSequenceClassification", num_labels=CLASSES, **_SMALL), read=_sounds),
    "HuBERT": Net(make=_hf("Hubert", "ForSequenceClassification", num_labels=CLASSES, **_SMALL), read=_sounds),
    # Plain torch.
    "nanoGPT": _torch(nets.NanoGpt, _flat_words, (8, 21)),
    "TransformerEncoder": _torch(
        lambda: nets.Texts(nn.TransformerEncoder(nn.TransformerEncoderLayer(**_ENCODER_LAYER), 4), 256, 256),
        *(_flat_words, (8, 21)),
    ),
    "TransformerEncoder first": _torch(
        lambda: nets.Texts(
            nn.TransformerEncoder(nn.TransformerEncoderLayer(**_ENCODER_LAYER, norm_first=True, activation="gelu"), 4),
            *(256, 256),
        ),
        *(_flat_words, (8, 21)),
    ),
    "Transformer": _torch(nets.Translator, _flat_words, (8, 21)),
    "LSTM": _torch(lambda: nets.Texts(nn.LSTM(256, 256, 2, batch_first=True), 256, 256), _flat_words, (8, 21)),
    "GRU": _torch(
        lambda: nets.Texts(nn.GRU(256, 256, batch_first=True, bidirectional=True), 256, 512), _flat_words, (8, 21)
    ),
    "TextCNN": _torch(nets.TextCnn, _PLAIN_TEXTS, (64, 200)),
    "MLP": _torch(
        lambda: nn.Sequential(nn.Flatten(), nets.perceptron((3 * PIXELS**2, 1024, 1024, CLASSES))),
        *(_PLAIN_IMAGES, (256, 1000)),
    ),
    "DLRM": _torch(nets.Recommender, _users, (1024, 5000)),
    "VGG": _torch(nets.pyramid, _PLAIN_IMAGES),
    "residual": _torch(nets.residual_net, _PLAIN_IMAGES, (64, 200)),
    "separable": _torch(nets.separable_net, _PLAIN_IMAGES, (64, 200)),
    "MLP-Mixer": _torch(nets.mixer_net, _PLAIN_IMAGES, (64, 200)),
    "U-Net": _torch(lambda: nets.UNet(nets.two_convolutions), _pixels),
    "diffusion U-Net": _torch(lambda: nets.UNet(nets.two_grouped, out=3, attend=True), _noise),
    "autoencoder": _torch(nets.autoencoder, _same_images, (64, 200)),
    "VAE": _torch(nets.Variational, _same_images, (64, 200)),
    "3D convolutions": _torch(
        nets.clips_net, _plain(lambda size, device: torch.randn(size, 3, 16, 32, 32, device=device), _labels)
    ),
    "waves": _torch(nets.waves_net, _plain(lambda size, device: torch.randn(size, 1, 8000, device=device), _labels)),
}
# The nets on which traces were fixed: every second one, and four that showed faults while they were held out.
FIXED_ON = frozenset([*list(NETS)[::2], "Llama", "Falcon", "EfficientNet", "SegFormer"])
