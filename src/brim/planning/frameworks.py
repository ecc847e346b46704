"""A plan as the flags, fields or lines of the frameworks people train with."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from brim.errors import InputError
from brim.planning.batch_plan import BatchPlan
from brim.planning.choices import EvenChoice, nearest_even


@dataclass(frozen=True, slots=True, kw_only=True)
class Paste:
    """What to paste into a job.

    Attributes:
        framework: Its key, e.g. `transformers`.
        title: Its name and what the text is.
        text: Flags, JSON or Python.
        note: Why the text is not quite the plan, or None where it is.
    """

    framework: str
    title: str
    text: str
    note: str | None = None


def pastes(plan: BatchPlan, *, largest: int | None = None) -> dict[str, Paste]:
    """Return the plan for every framework.

    All but plain torch know one size for all microbatches, so for them an uneven plan becomes the nearest even one, and
    the note says so.

    >>> print(pastes(BatchPlan(effective=80, accumulation=4, ranks=5))["deepspeed"].text)
    {
      "train_batch_size": 80,
      "train_micro_batch_size_per_gpu": 4,
      "gradient_accumulation_steps": 4
    }
    """
    return {name: paste(plan, name, largest=largest) for name in FRAMEWORKS}


def paste(plan: BatchPlan, framework: str, *, largest: int | None = None) -> Paste:
    """Return the plan for one framework; `largest` is the largest microbatch that fits, where it is known."""
    _check(framework)
    title, write, takes_uneven = _WRITERS[framework]
    if plan.is_even or takes_uneven:
        return Paste(framework=framework, title=title, text=write(plan))
    even = nearest_even(plan.effective, largest=largest or plan.microbatch, ranks=plan.ranks)
    return Paste(framework=framework, title=title, text=write(even.plan), note=_why_not(plan, even))


def check_frameworks(name: str) -> tuple[str, ...]:
    """Return the frameworks that a name stands for: itself, or all."""
    if name == "all":
        return FRAMEWORKS
    _check(name)
    return (name,)


def _check(name: str) -> None:
    if name not in FRAMEWORKS:
        raise InputError(f"There is no framework {name!r}. Use one of: {', '.join(FRAMEWORKS)}, all.")


def _why_not(plan: BatchPlan, even: EvenChoice) -> str:
    sizes = f"{even.plan.microbatch:,} × {even.plan.accumulation:,}"
    if even.plan.ranks > 1:
        sizes += f" × {even.plan.ranks:,} ranks"
    if even.difference == 0:
        more = even.plan.accumulation - plan.accumulation
        return (
            "One size for all microbatches is all it knows, so this is "
            f"{sizes}: exact, with {more} microbatch{'es' if more > 1 else ''} more."
        )
    missed = f"{abs(even.difference):,} {'less' if even.difference < 0 else 'more'}"
    return (
        "One size for all microbatches is all it knows, so this is the nearest: "
        f"{sizes} = {even.plan.effective:,}, {missed} than {plan.effective:,}."
    )


def _transformers(plan: BatchPlan) -> str:
    launch = f"torchrun --nproc-per-node {plan.ranks}" if plan.ranks > 1 else "python"
    return (
        f"{launch} train.py \\\n"
        f"  --per_device_train_batch_size {plan.microbatch} \\\n"
        f"  --gradient_accumulation_steps {plan.accumulation} \\\n"
        f"  --per_device_eval_batch_size {plan.microbatch}"
    )


def _accelerate(plan: BatchPlan) -> str:
    return (
        f"# accelerate launch --num_processes {plan.ranks} train.py\n"
        f"accelerator = Accelerator(gradient_accumulation_steps={plan.accumulation})\n"
        f"loader = DataLoader(dataset, batch_size={plan.microbatch}, shuffle=True)  # of each process\n"
        "model, optimizer, loader = accelerator.prepare(model, optimizer, loader)\n"
        "for batch in loader:\n"
        "    with accelerator.accumulate(model):\n"
        "        accelerator.backward(loss_of(model, batch))\n"
        "        optimizer.step()\n"
        "        optimizer.zero_grad()"
    )


def _lightning(plan: BatchPlan) -> str:
    strategy = ', strategy="ddp"' if plan.ranks > 1 else ""
    return (
        f"trainer = Trainer(devices={plan.ranks}{strategy}, accumulate_grad_batches={plan.accumulation})\n"
        f"loader = DataLoader(dataset, batch_size={plan.microbatch}, shuffle=True)  # of each device"
    )


def _deepspeed(plan: BatchPlan) -> str:
    fields = {
        "train_batch_size": plan.effective,
        "train_micro_batch_size_per_gpu": plan.microbatch,
        "gradient_accumulation_steps": plan.accumulation,
    }
    return json.dumps(fields, indent=2)


def _torch(plan: BatchPlan) -> str:
    """Weigh every loss by its samples and, as DDP averages over ranks, by the number of ranks."""
    lines = [*_torch_loader(plan), "for inputs, targets in loader:"]
    lines += ["    parts = list(zip(inputs.split(sizes), targets.split(sizes)))"]
    backward = f"(loss_sum(model(x), y) / {plan.effective}).backward()"
    if plan.ranks == 1:
        lines += ["    for x, y in parts:", f"        {backward}  # the sum over samples, not their mean"]
    else:
        backward = f"(loss_sum(model(x), y) * {plan.ranks} / {plan.effective}).backward()"
        lines += ["    x, y = parts.pop()"]
        if plan.accumulation > 1:
            lines += [
                "    with model.no_sync():  # gradients are averaged over the ranks once, by the last backward",
                "        for each, label in parts:",
                f"            {backward.replace('(x), y', '(each), label')}  # the sum over samples, not their mean",
            ]
        lines += [f"    {backward}"]
    return "\n".join([*lines, "    optimizer.step()", "    optimizer.zero_grad()"])


def _torch_loader(plan: BatchPlan) -> list[str]:
    if plan.ranks == 1:
        return [
            f"sizes = {_as_list(plan.microbatches)}",
            "loader = DataLoader(dataset, batch_size=sum(sizes), shuffle=True, drop_last=True)",
        ]
    if plan.ranks_are_even:
        return [
            f"sizes = {_as_list(plan.microbatches)}  # on each of {plan.ranks} ranks",
            "sampler = DistributedSampler(dataset, drop_last=True)",
            "loader = DataLoader(dataset, batch_size=sum(sizes), sampler=sampler, drop_last=True)",
        ]
    # Ranks of different shares would run out of batches at different times with a DistributedSampler.
    share, more = divmod(plan.effective, plan.ranks)
    larger, smaller = (_as_list(plan.microbatches_of(rank)) for rank in (0, plan.ranks - 1))
    return [
        f"sizes = {larger} if rank < {more} else {smaller}",
        f"first = rank * {share} + min(rank, {more})  # of this rank's samples in each step's {plan.effective}",
        "order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(epoch)).tolist()",
        f"starts = range(first, first + len(order) // {plan.effective} * {plan.effective}, {plan.effective})",
        "loader = DataLoader(dataset, batch_sampler=[order[start : start + sum(sizes)] for start in starts])",
    ]


def _as_list(sizes: tuple[int, ...]) -> str:
    parts = [f"[{size}] * {sizes.count(size)}" for size in dict.fromkeys(sizes)]
    return str(list(sizes)) if len(sizes) <= 8 else " + ".join(parts)


_WRITERS: dict[str, tuple[str, Callable[[BatchPlan], str], bool]] = {
    "transformers": ("Transformers' Trainer, as flags", _transformers, False),
    "accelerate": ("Accelerate", _accelerate, False),
    "lightning": ("Lightning", _lightning, False),
    "deepspeed": ("DeepSpeed, in its JSON", _deepspeed, False),
    "torch": ("plain torch", _torch, True),
}
FRAMEWORKS = tuple(_WRITERS)
