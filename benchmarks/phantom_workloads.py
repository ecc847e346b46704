"""The jobs of the referee of traces: what is done with every net."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import nn

from brim import Workload
from phantom_zoo import NETS, Batch, words

# Tokens that are generated, and of their prompt.
NEW_TOKENS = 24
PROMPT = 64
TYPES: dict[str, torch.dtype | None] = {"float32": None, "float16": torch.float16, "bfloat16": torch.bfloat16}


def jobs() -> Iterator[tuple[str, str]]:
    """Yield every net with everything that is done with it."""
    for name, net in NETS.items():
        yield from ((name, job) for job in JOBS if job != "generate" or net.generates)


class Train(Workload):
    """Trains the net of the case in a precision."""

    def build(self) -> None:
        """Make the net, its optimizer and a scaler."""
        self.net = NETS[self.case["net"]]
        self.dtype = TYPES[self.case["precision"]]
        self.model = self.net.make().to(self.device).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.scaler = torch.amp.GradScaler("cuda", enabled=self.dtype is torch.float16)

    def batch(self, size: int) -> Batch:
        """Return what the net reads."""
        return self.net.read(size, self.device)

    def step(self, batch: Batch) -> None:
        """Train on one batch."""
        with torch.autocast("cuda", dtype=self.dtype or torch.bfloat16, enabled=self.dtype is not None):
            loss = _loss(self.model, batch)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()


class Evaluate(Workload):
    """Runs the net of the case without gradients."""

    kind = "eval"

    def build(self) -> None:
        """Make the net."""
        self.net = NETS[self.case["net"]]
        self.model = self.net.make().to(self.device).eval()

    def batch(self, size: int) -> Batch:
        """Return what the net reads."""
        return self.net.read(size, self.device)

    def step(self, batch: Batch) -> None:
        """Evaluate one batch."""
        with torch.no_grad():
            _loss(self.model, batch)


class Generate(Workload):
    """Lets the net of the case write texts."""

    kind = "generate"

    def build(self) -> None:
        """Make the net, in 16 bits as people generate."""
        self.net = NETS[self.case["net"]]
        self.model = self.net.make().to(self.device, torch.float16).eval()

    def batch(self, size: int) -> Batch:
        """Return prompts."""
        return words(size, self.device, PROMPT)

    def step(self, batch: Batch) -> None:
        """Generate to the longest text."""
        self.model.generate(
            batch, max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=0
        )


JOBS: dict[str, tuple[type[Workload], dict[str, str]]] = {
    **{f"train {name}": (Train, {"precision": name}) for name in TYPES},
    "eval": (Evaluate, {}),
    "generate": (Generate, {}),
}


def _loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    if isinstance(batch, dict):
        loss: torch.Tensor = model(**batch).loss
        return loss
    inputs, target = batch
    outputs = model(inputs)
    return F.mse_loss(outputs, target) if target.is_floating_point() else F.cross_entropy(outputs, target)
