"""Memory of training by formulas: what is held whatever the batch, and what every sample adds."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from brim.errors import InputError
from brim.planning.shapes import ModelShape

METHODS = ("full", "lora", "qlora")
TASKS = ("classification", "qa", "generation")
OPTIMIZERS = ("adamw", "adamw-8bit", "sgd")
LORA_RANK = 16
# Two moments of a byte each; the scales of their blocks add some hundredths (Dettmers et al., 2022).
EIGHT_BIT_BYTES = 2
# 4-bit weights with double quantization: 0.127 bits a weight for the scales (Dettmers et al., 2023).
QLORA_BYTES = (4 + 0.127) / 8
# The loss holds the logits, their log-softmax and its gradient in float32 at the same time.
# Source: traces of transformers' causal language models, benchmarks/results/formulas.json.
LOGITS_BYTES = 3 * 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Bytes of a weight, its gradient, a float32 copy beside it, one of Adam's moments, and of an activation."""

    weight: int
    gradient: int
    moment: int
    element: int
    copy: int = 0

    def optimizer_bytes(self, optimizer: str) -> int:
        """Return the bytes of state per parameter."""
        return self.copy + {"adamw": 2 * self.moment, "adamw-8bit": EIGHT_BIT_BYTES, "sgd": self.moment}[optimizer]

    def update_bytes(self, optimizer: str) -> int:
        """Return what a step holds for a moment: Adam on all parameters at once, the roots of the second moments."""
        return self.moment if optimizer == "adamw" else 0


# `bf16` keeps everything in 16 bits. `mixed` is that of Rajbhandari et al., 2020, section 3.1: 16-bit weights and
# gradients beside float32 weights and moments, 16 bytes a parameter in all.
PRECISIONS = {
    "bf16": Precision(weight=2, gradient=2, moment=2, element=2),
    "mixed": Precision(weight=2, gradient=2, moment=4, element=2, copy=4),
    "fp32": Precision(weight=4, gradient=4, moment=4, element=4),
}
# peft keeps adapters in float32 whatever the model's precision.
_ADAPTERS = PRECISIONS["fp32"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """What a job holds on one rank.

    Attributes:
        parameters_bytes: Weights.
        gradients_bytes: Gradients of what is trained.
        optimizer_bytes: The optimizer's state.
        activations_sample_bytes: What one sample keeps of the forward pass for the backward pass.
        recomputed_sample_bytes: What one sample needs while a block is recomputed; 0 where nothing is.
        logits_sample_bytes: One sample's logits with all that the loss makes of them.
        update_bytes: What the optimizer's step takes for a moment.
    """

    parameters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_sample_bytes: int = 0
    recomputed_sample_bytes: int = 0
    logits_sample_bytes: int = 0
    update_bytes: int = 0

    @property
    def state_bytes(self) -> int:
        """What is held whatever the batch: weights, gradients and the optimizer's state."""
        return self.parameters_bytes + self.gradients_bytes + self.optimizer_bytes

    @property
    def sample_bytes(self) -> int:
        """What every sample of a microbatch adds; logits are gone when the first block is recomputed."""
        return self.activations_sample_bytes + max(self.recomputed_sample_bytes, self.logits_sample_bytes)

    def peak_bytes(self, microbatch: int) -> int:
        """Return the most that a microbatch holds: at the loss, or while the optimizer steps."""
        return self.state_bytes + max(microbatch * self.sample_bytes, self.update_bytes)

    def largest(self, limit_bytes: int) -> int:
        """Return the largest microbatch whose peak is within the limit; 0 where there is none."""
        left = limit_bytes - self.state_bytes
        return max(0, left // self.sample_bytes) if left >= self.update_bytes else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """How a model is trained, as far as memory is concerned.

    Attributes:
        method: `full`, or adapters beside frozen weights (`lora`) or frozen 4-bit weights (`qlora`).
        task: `generation` makes logits over the vocabulary for every token; the others a few numbers.
        precision: `bf16` (all of it in 16 bits), `mixed` or `fp32`.
        optimizer: `adamw`, `adamw-8bit` or `sgd` (with momentum).
        lora_rank: Width of the adapters, which are on all matrices of the blocks.
    """

    seq_len: int
    method: str = "full"
    task: str = "generation"
    precision: str = "bf16"
    optimizer: str = "adamw"
    lora_rank: int = LORA_RANK

    def __post_init__(self) -> None:
        for name, known in (
            ("method", METHODS),
            ("task", TASKS),
            ("precision", tuple(PRECISIONS)),
            ("optimizer", OPTIMIZERS),
        ):
            if getattr(self, name) not in known:
                raise InputError(f"There is no {name} {getattr(self, name)!r}. Use one of: {', '.join(known)}.")
        for name in ("seq_len", "lora_rank"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}. Use a whole number of at least 1.")


def footprint(shape: ModelShape, training: Training) -> Footprint:
    """Return what training a model holds on one rank.

    >>> from brim.planning.shapes import find_model
    >>> held = footprint(find_model("8b"), Training(seq_len=2048))
    >>> [round(each / 1e9) for each in (held.parameters_bytes, held.gradients_bytes, held.optimizer_bytes)]
    [16, 16, 32]
    """
    element_bytes = PRECISIONS[training.precision].element
    is_generation = training.task == "generation"
    parameters, gradients, optimizer, update = _state(shape, training)
    return Footprint(
        parameters_bytes=parameters,
        gradients_bytes=gradients,
        optimizer_bytes=optimizer,
        activations_sample_bytes=activations_bytes(shape, seq_len=training.seq_len, element_bytes=element_bytes),
        logits_sample_bytes=training.seq_len * shape.vocab * LOGITS_BYTES if is_generation else 0,
        update_bytes=update,
    )


def activations_bytes(shape: ModelShape, *, seq_len: int, element_bytes: int) -> int:
    """Return what all blocks keep of one sample."""
    return shape.layers * seq_len * shape.block_bytes_per_token(seq_len=seq_len, element_bytes=element_bytes)


def num_trained(shape: ModelShape, training: Training) -> int:
    """Return how many parameters get gradients."""
    if training.method == "full":
        return shape.num_parameters
    return shape.layers * training.lora_rank * sum(map(sum, shape.linear_shapes))


def checkpointed(held: Footprint, *, num_blocks: int, block_input_bytes: int) -> Footprint:
    """Return the footprint with nothing kept but every block's input, from which one block at a time is recomputed."""
    return replace(
        held,
        activations_sample_bytes=num_blocks * block_input_bytes,
        recomputed_sample_bytes=held.activations_sample_bytes // num_blocks,
    )


def sharded(held: Footprint, *, stage: int, ranks: int) -> Footprint:
    """Return the footprint with what a stage of ZeRO adds to the one before it: 1 optimizer, 2 gradients, 3 weights.

    The weights of a block that are gathered for its pass are not counted.
    """
    if stage == 1:
        optimizer_bytes, update_bytes = math.ceil(held.optimizer_bytes / ranks), math.ceil(held.update_bytes / ranks)
        return replace(held, optimizer_bytes=optimizer_bytes, update_bytes=update_bytes)
    if stage == 2:
        return replace(held, gradients_bytes=math.ceil(held.gradients_bytes / ranks))
    return replace(held, parameters_bytes=math.ceil(held.parameters_bytes / ranks))


def zero_bytes(num_parameters: int, *, stage: int, ranks: int) -> float:
    """Return the state of mixed-precision Adam on one rank: 16 bytes a parameter, divided as the stage says.

    >>> [round(zero_bytes(7_500_000_000, stage=stage, ranks=64) / 1e9, 2) for stage in range(4)]
    [120.0, 31.41, 16.64, 1.88]
    """
    mixed = PRECISIONS["mixed"]
    weights, gradients = num_parameters * mixed.weight, num_parameters * mixed.gradient
    optimizer = num_parameters * mixed.optimizer_bytes("adamw")
    return (
        weights / (ranks if stage >= 3 else 1)
        + gradients / (ranks if stage >= 2 else 1)
        + optimizer / (ranks if stage >= 1 else 1)
    )


def _state(shape: ModelShape, training: Training) -> tuple[int, int, int, int]:
    """Return the bytes of weights, gradients, optimizer and of its step."""
    precision = PRECISIONS[training.precision]
    frozen = 0
    if training.method != "full":
        frozen = precision.weight * shape.num_parameters
        if training.method == "qlora":
            in_blocks = shape.layers * sum(inputs * outputs for inputs, outputs in shape.linear_shapes)
            frozen = round(in_blocks * QLORA_BYTES + precision.weight * (shape.num_parameters - in_blocks))
        precision = _ADAPTERS
    trained = num_trained(shape, training)
    return (
        frozen + trained * precision.weight,
        trained * precision.gradient,
        trained * precision.optimizer_bytes(training.optimizer),
        trained * precision.update_bytes(training.optimizer),
    )
