"""The rungs of the memory ladder: what each costs, who says so, and the lines to add.

What a rung saves is computed or traced for the job at hand. What it costs in time was not measured here: the figures
are those of the papers named.
"""

from __future__ import annotations

from dataclasses import dataclass

# bfloat16 needs Ampere or newer; before, float16 with a loss scaler does the same for memory.
BF16_CAPABILITY = (8, 0)
# In how many parts the chunked cross-entropy runs.
NUM_CHUNKS = 8
# Bytes a trained parameter moves between the GPU and the host each step: a 16-bit gradient down, a 16-bit weight up
# (Ren et al., 2021).
OFFLOAD_BYTES = 4
# PCIe 4.0 with 16 lanes, one way, at best.
PCIE_BYTES_PER_SECOND = 31.5e9


@dataclass(frozen=True, slots=True, kw_only=True)
class RungKind:
    """One step of the memory ladder, whatever the job.

    Attributes:
        key: How it is called in code and JSON.
        title: How it is called in a table.
        slowdown: The factor on the time of a step, at best and at worst; None where it depends on the machine.
        cost: The same in words.
        source: Who says so.
        lines: What to add to a job.
    """

    key: str
    title: str
    slowdown: tuple[float, float] | None
    cost: str
    source: str
    lines: str


FUSED = RungKind(
    key="fused",
    title="fused optimizer, set to none",
    slowdown=(1.0, 1.0),
    cost="none",
    source="torch.optim's documentation",
    lines="""\
optimizer = torch.optim.AdamW(model.parameters(), lr=lr, fused=True)
optimizer.zero_grad(set_to_none=True)  # torch's default since 2.0""",
)
AUTOCAST = RungKind(
    key="autocast",
    title="bfloat16 autocast",
    slowdown=(1.0, 1.0),
    cost="none; faster on tensor cores",
    source="Micikevicius et al., 2018",
    lines="""\
with torch.autocast("cuda", dtype=torch.bfloat16):
    loss = loss_of(model, batch)
loss.backward()  # outside of autocast""",
)
AUTOCAST_FLOAT16 = RungKind(
    key="autocast",
    title="float16 autocast with a loss scaler",
    slowdown=AUTOCAST.slowdown,
    cost=AUTOCAST.cost,
    source=AUTOCAST.source,
    lines="""\
scaler = torch.amp.GradScaler("cuda")
with torch.autocast("cuda", dtype=torch.float16):
    loss = loss_of(model, batch)
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()""",
)
CHUNKED = RungKind(
    key="chunked",
    title=f"cross-entropy in {NUM_CHUNKS} chunks",
    slowdown=(1.0, 1.1),
    cost="up to 10%",
    source="the output layer runs forward twice; none with a fused kernel, Wijmans et al., 2024",
    lines=f"""\
def loss_of_part(hidden, labels):
    return F.cross_entropy(output_layer(hidden).float(), labels, reduction="sum")

parts = zip(hidden.chunk({NUM_CHUNKS}), labels.chunk({NUM_CHUNKS}))  # hidden: tokens × width; labels: tokens, shifted
loss = sum(checkpoint(loss_of_part, *part, use_reentrant=False) for part in parts) / (labels != -100).sum()
# with Transformers' Trainer instead: --use_liger_kernel True""",
)
CHECKPOINTING = RungKind(
    key="checkpointing",
    title="activation checkpointing",
    slowdown=(1.3, 1.4),
    cost="30–40%",
    source="Korthikanti et al., 2022",
    lines="""\
model.gradient_checkpointing_enable()  # Transformers; or, around the repeated blocks of any model:
for block in model.blocks:
    block.forward = functools.partial(torch.utils.checkpoint.checkpoint, block.forward, use_reentrant=False)""",
)
EIGHT_BIT = RungKind(
    key="eight_bit",
    title="8-bit optimizer",
    slowdown=(1.0, 1.0),
    cost="none",
    source="Dettmers et al., 2022",
    lines="optimizer = bitsandbytes.optim.AdamW8bit(model.parameters(), lr=lr)",
)
ZERO_1 = RungKind(
    key="zero_1",
    title="ZeRO-1: optimizer over the ranks",
    slowdown=(1.0, 1.0),
    cost="none; the same communication",
    source="Rajbhandari et al., 2020, section 7",
    lines="optimizer = torch.distributed.optim.ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=lr)",
)
ZERO_2 = RungKind(
    key="zero_2",
    title="ZeRO-2: gradients too",
    slowdown=(1.0, 1.0),
    cost="none; the same communication",
    source="Rajbhandari et al., 2020, section 7",
    lines='"zero_optimization": {"stage": 2}  # in DeepSpeed\'s JSON',
)
ZERO_3 = RungKind(
    key="zero_3",
    title="ZeRO-3 / FSDP: weights too",
    slowdown=(1.0, 1.5),
    cost="1.5 times the communication",
    source="Rajbhandari et al., 2020, section 7",
    lines="""\
for block in model.blocks:
    torch.distributed.fsdp.fully_shard(block)
torch.distributed.fsdp.fully_shard(model)  # before the optimizer is made""",
)
OFFLOAD = RungKind(
    key="offload",
    title="offload gradients and optimizer",
    slowdown=None,
    cost="the transfer of a step",
    source="Ren et al., 2021",
    lines='"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}  # in DeepSpeed\'s JSON',
)
ZERO = {1: ZERO_1, 2: ZERO_2, 3: ZERO_3}


def autocast_for(capability: tuple[int, int]) -> RungKind:
    """Return the autocast that a GPU of this compute capability can do."""
    return AUTOCAST if capability >= BF16_CAPABILITY else AUTOCAST_FLOAT16
