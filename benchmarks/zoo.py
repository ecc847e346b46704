"""Twenty-two small models of four libraries, each trained for a step: the case says which model and optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from brim import Workload
from vision_setup import timm, torchvision  # before transformers, which looks for torchvision too

_NUM_CLASSES = 100
_NUM_TOKENS = 64
_VOCABULARY = 2000
_PIXELS = 96
_NUM_FRAMES = 8
_SMALL = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256}


def _text(name: str, **settings: Any) -> nn.Module:
    import transformers

    config = getattr(transformers, f"{name}Config")(vocab_size=_VOCABULARY, **settings)
    kind = "ForConditionalGeneration" if name == "T5" else "ForCausalLM"
    if name in ("Bert", "DistilBert", "Roberta", "Electra"):
        kind = "ForMaskedLM"
    if name == "GPT2":
        kind = "LMHeadModel"
    return getattr(transformers, f"{name}{kind}")(config)


def _timm(name: str) -> nn.Module:
    return timm.create_model(name, num_classes=_NUM_CLASSES, **({"img_size": _PIXELS} if "vit" in name else {}))


def _video(name: str) -> nn.Module:
    return getattr(torchvision.models.video, name)(weights=None, num_classes=_NUM_CLASSES)


class Lstm(nn.Module):
    """Two layers over embedded tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(_VOCABULARY, 128)
        self.lstm = nn.LSTM(128, 256, num_layers=2, batch_first=True)
        self.head = nn.Linear(256, _VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the next token's logits."""
        return self.head(self.lstm(self.embed(tokens))[0])


class Encoder(nn.Module):
    """torch's own transformer encoder over embedded tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(_VOCABULARY, 128)
        layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(128, _VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return every token's logits."""
        return self.head(self.encoder(self.embed(tokens)))


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * _PIXELS**2, 512), nn.GELU(), nn.Linear(512, _NUM_CLASSES))


def _conv_net() -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in ((3, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, _NUM_CLASSES))


# Each model with what it reads: tokens (and its own loss), images or clips.
MODELS: dict[str, tuple[str, Callable[[], nn.Module]]] = {
    "transformers BERT": ("tokens", lambda: _text("Bert", **_SMALL)),
    "transformers RoBERTa": ("tokens", lambda: _text("Roberta", **_SMALL)),
    "transformers DistilBERT": ("tokens", lambda: _text("DistilBert", dim=128, n_layers=2, n_heads=4, hidden_dim=256)),
    "transformers GPT-2": ("tokens", lambda: _text("GPT2", n_embd=128, n_layer=2, n_head=4)),
    "transformers OPT": (
        "tokens",
        lambda: _text(
            "OPT", hidden_size=128, ffn_dim=256, num_hidden_layers=2, num_attention_heads=4, word_embed_proj_dim=128
        ),
    ),
    "transformers Llama": ("tokens", lambda: _text("Llama", **_SMALL, num_key_value_heads=2)),
    "transformers Qwen2": ("tokens", lambda: _text("Qwen2", **_SMALL, num_key_value_heads=2)),
    "transformers T5": (
        "tokens",
        lambda: _text("T5", d_model=128, d_kv=32, d_ff=256, num_layers=2, num_heads=4, decoder_start_token_id=0),
    ),
    "timm resnet18": ("images", lambda: _timm("resnet18")),
    "timm mobilenetv3_small_100": ("images", lambda: _timm("mobilenetv3_small_100")),
    "timm efficientnet_b0": ("images", lambda: _timm("efficientnet_b0")),
    "timm convnext_atto": ("images", lambda: _timm("convnext_atto")),
    "timm regnetx_002": ("images", lambda: _timm("regnetx_002")),
    "timm vit_tiny_patch16_224": ("images", lambda: _timm("vit_tiny_patch16_224")),
    "timm resnetv2_50": ("images", lambda: _timm("resnetv2_50")),
    "torchvision r3d_18": ("clips", lambda: _video("r3d_18")),
    "torchvision mc3_18": ("clips", lambda: _video("mc3_18")),
    "torchvision r2plus1d_18": ("clips", lambda: _video("r2plus1d_18")),
    "torchvision swin3d_t": ("clips", lambda: _video("swin3d_t")),
    "torch LSTM": ("logits", Lstm),
    "torch TransformerEncoder": ("logits", Encoder),
    "torch MLP": ("images", _mlp),
    "torch ConvNet": ("images", _conv_net),
}
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adamw": torch.optim.AdamW,
}


class Zoo(Workload):
    """Trains one of the models on random data."""

    def build(self) -> None:
        """Make the model and its optimizer."""
        self.reads, make = MODELS[self.case["model"]]
        self.model = make().to(self.device).train()
        self.optimizer = OPTIMIZERS[self.case["optimizer"]](self.model.parameters())

    def batch(self, size: int) -> Any:
        """Return what the model reads, with labels."""
        if self.reads in ("tokens", "logits"):
            return torch.randint(0, _VOCABULARY, (size, _NUM_TOKENS), device=self.device)
        frames = (_NUM_FRAMES,) if self.reads == "clips" else ()
        images = torch.randn(size, 3, *frames, _PIXELS, _PIXELS, device=self.device)
        return images, torch.zeros(size, dtype=torch.long, device=self.device)

    def step(self, batch: Any) -> None:
        """Train on one batch."""
        if self.reads == "tokens":
            loss = self.model(input_ids=batch, labels=batch).loss
        elif self.reads == "logits":
            loss = F.cross_entropy(self.model(batch).flatten(0, 1), batch.flatten())
        else:
            images, labels = batch
            loss = F.cross_entropy(self.model(images), labels)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
