"""Shapes of transformers: what their parameters and activations follow from."""

from __future__ import annotations

import csv
import difflib
import functools
from dataclasses import dataclass
from importlib import resources

from brim.errors import InputError

_FLOAT32_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The sizes of a decoder or an encoder that is a stack of equal blocks.

    Attributes:
        hidden: Width of the residual stream.
        heads: Query heads of a block.
        kv_heads: Key and value heads; fewer than `heads` with grouped queries.
        head_dim: Width of a head.
        intermediate: Width inside the MLP.
        gated: Whether the MLP has a gate (SwiGLU, GeGLU) and blocks have RMSNorm and no biases, as in Llama; otherwise
            two matrices, LayerNorm and biases, as in GPT-2.
        tied: Whether the output layer shares the embedding's weights.
        positions: Rows of a learned position embedding; 0 for rotary or none.
        qkv_bias: Whether the query, key and value layers of a gated model have biases.
        source: Where the numbers come from.
    """

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    gated: bool = True
    tied: bool = False
    positions: int = 0
    qkv_bias: bool = False
    source: str = ""

    @property
    def linear_shapes(self) -> tuple[tuple[int, int], ...]:
        """(inputs, outputs) of every matrix of a block."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = ((self.hidden, queries), (self.hidden, keys), (self.hidden, keys), (queries, self.hidden))
        up, down = (self.hidden, self.intermediate), (self.intermediate, self.hidden)
        return (*attention, up, up, down) if self.gated else (*attention, up, down)

    @property
    def num_block_parameters(self) -> int:
        """Parameters of one block."""
        matrices = sum(inputs * outputs for inputs, outputs in self.linear_shapes)
        biases = sum(outputs for _, outputs in self.linear_shapes) if not self.gated else 0
        if self.gated and self.qkv_bias:
            biases = (self.heads + 2 * self.kv_heads) * self.head_dim
        return matrices + biases + 2 * self._num_norm_parameters

    @property
    def num_embedding_parameters(self) -> int:
        """Parameters of the embeddings and of an output layer of its own."""
        return (self.vocab * (1 if self.tied else 2) + self.positions) * self.hidden

    @property
    def num_parameters(self) -> int:
        """All parameters."""
        return self.layers * self.num_block_parameters + self._num_norm_parameters + self.num_embedding_parameters

    def block_bytes_per_token(self, *, seq_len: int, element_bytes: int = 2, fused_attention: bool = True) -> int:
        """Return what one block keeps of one token for the backward pass.

        Counted tensor by tensor, as eager PyTorch keeps them. For a GPT-2 block in 16 bit without fused attention it is
        `h × (34 + 5 × a × s / h)` (Korthikanti et al., 2022).
        """
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = queries + 2 * keys + queries  # queries, keys, values, and what the output layer reads
        if self.gated:
            # Two norms that work in float32 and keep their input so, their result before the weight, and after it;
            # the gate, its activation, the other branch, and their product.
            elements = attention + 4 * self.hidden + 4 * self.intermediate
            other_bytes = 2 * _FLOAT32_BYTES * self.hidden
        else:
            # Two norms' inputs and results; the MLP before and after its activation; two dropout masks of a byte.
            elements = attention + 4 * self.hidden + 2 * self.intermediate
            other_bytes = 2 * self.hidden
        # One log-sum-exp; or the softmax over all tokens, its dropout, and the dropout's mask.
        head_bytes = _FLOAT32_BYTES if fused_attention else seq_len * (2 * element_bytes + 1)
        return elements * element_bytes + other_bytes + self.heads * head_bytes

    @property
    def _num_norm_parameters(self) -> int:
        return self.hidden if self.gated else 2 * self.hidden


@functools.cache
def models() -> dict[str, ModelShape]:
    """Return the shapes of `models.csv` by name: the numbers of the config.json that each source publishes."""
    return {row["name"]: _from_row(row) for row in _rows()}


@functools.cache
def sizes() -> dict[str, str]:
    """Return the model that stands for each size, such as `llama-3.1-8b` for `8b`."""
    found: dict[str, str] = {}
    for row in _rows():
        found.setdefault(row["size"], row["name"])
    return dict(sorted(found.items(), key=lambda item: float(item[0].removesuffix("b"))))


def find_model(name: str) -> ModelShape:
    """Return the shape of a model by its name or its size.

    >>> find_model("8B").name, find_model("Qwen2.5-7B").num_parameters
    ('llama-3.1-8b', 7615616512)
    """
    wanted = name.strip().lower().replace(" ", "-").replace("_", "-").rpartition("/")[2]
    wanted = sizes().get(wanted, wanted)
    if wanted in models():
        return models()[wanted]
    near = difflib.get_close_matches(wanted, models(), n=3, cutoff=0.6)
    hint = f" Nearest: {', '.join(near)}." if near else f" Sizes: {', '.join(sizes())}."
    raise InputError(f"There is no model {name!r} here.{hint} Any other: --config with its config.json.")


@functools.cache
def _rows() -> tuple[dict[str, str], ...]:
    with resources.files("brim.planning").joinpath("models.csv").open(encoding="utf-8") as lines:
        return tuple(csv.DictReader(lines))


def _from_row(row: dict[str, str]) -> ModelShape:
    numbers = ("hidden", "layers", "heads", "kv_heads", "head_dim", "intermediate", "vocab")
    return ModelShape(
        name=row["name"],
        **{name: int(row[name]) for name in numbers},  # type: ignore[arg-type]
        tied=row["tied"] == "yes",
        qkv_bias=row["qkv_bias"] == "yes",
        source=f"config.json of {row['source']}",
    )
