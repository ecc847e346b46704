"""`brim plan`: microbatch × accumulation × ranks, the memory ladder, the learning rate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from brim.cli import kept_plans
from brim.cli.find import NOTHING_FITS
from brim.cli.groups import DefaultsToFirst, PanelledHelp

_GOAL = "What you want"
_KNOWN = "What fits, if you know it"
_MEASURED = "… from a measurement"
_MODEL = "… from a model's size"
_TRACED = "… from your own workload, traced"
_DEVICE = "The device, for the last three"
_ADVICE = "Advice"

app = typer.Typer(cls=DefaultsToFirst, help="Plan microbatch × accumulation × ranks; keep it in brim.toml.")


@app.command("make", cls=PanelledHelp)
def command(
    ctx: typer.Context,
    effective: Annotated[
        int | None, typer.Option(help="Samples per optimizer step over all ranks.", rich_help_panel=_GOAL)
    ] = None,
    ranks: Annotated[int, typer.Option(help="Data-parallel processes.", rich_help_panel=_GOAL)] = 1,
    profile: Annotated[
        str | None,
        typer.Option(help="How much of what fits to take: conservative, balanced, aggressive.", rich_help_panel=_GOAL),
    ] = None,
    largest: Annotated[
        int | None, typer.Option(help="The largest microbatch that fits, e.g. of brim find.", rich_help_panel=_KNOWN)
    ] = None,
    microbatch: Annotated[
        int | None, typer.Option(help="Keep this one: the even choices near --effective.", rich_help_panel=_KNOWN)
    ] = None,
    accumulation: Annotated[
        int | None, typer.Option(help="With --microbatch: what they amount to.", rich_help_panel=_KNOWN)
    ] = None,
    measured: Annotated[
        list[str] | None,
        typer.Option(help="A batch and its memory, 512:0.1GB; repeat it.", metavar="B:MEM", rich_help_panel=_MEASURED),
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="What the job may use, 35GB. Default: 0.9 of all.", rich_help_panel=_MEASURED)
    ] = None,
    safety: Annotated[
        float | None, typer.Option(help="Instead of a profile: divide by this.", rich_help_panel=_MEASURED)
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="A size or a name: 7b, llama-3.1-8b, qwen2.5-7b.", rich_help_panel=_MODEL)
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="Any other: its config.json.", metavar="FILE", rich_help_panel=_MODEL)
    ] = None,
    seq_len: Annotated[
        int | None, typer.Option(help="Tokens of a sample. Default: 2048.", rich_help_panel=_MODEL)
    ] = None,
    method: Annotated[str | None, typer.Option(help="full (default), lora, qlora.", rich_help_panel=_MODEL)] = None,
    task: Annotated[
        str | None, typer.Option(help="generation (default), classification, qa.", rich_help_panel=_MODEL)
    ] = None,
    precision: Annotated[str | None, typer.Option(help="bf16 (default), mixed, fp32.", rich_help_panel=_MODEL)] = None,
    optimizer: Annotated[
        str | None, typer.Option(help="adamw (default), adamw-8bit, sgd.", rich_help_panel=_MODEL)
    ] = None,
    lora_rank: Annotated[int | None, typer.Option(help="Default: 16.", rich_help_panel=_MODEL)] = None,
    rule: Annotated[
        str | None, typer.Option(help="shapes (default); thumb, the old rule.", rich_help_panel=_MODEL)
    ] = None,
    workload: Annotated[
        str | None, typer.Option(help="file.py:Name, a brim.Workload.", rich_help_panel=_TRACED)
    ] = None,
    case: Annotated[
        str | None, typer.Option(help="Its input shape.", metavar="KEY=VALUE", rich_help_panel=_TRACED)
    ] = None,
    gpu: Annotated[str | None, typer.Option(help="A name of `brim gpus`.", rich_help_panel=_DEVICE)] = None,
    memory: Annotated[str | None, typer.Option(help="Instead: its memory, 24GB.", rich_help_panel=_DEVICE)] = None,
    fill: Annotated[float | None, typer.Option(help="The share to use. Default: 0.9.", rich_help_panel=_DEVICE)] = None,
    ladder: Annotated[
        bool, typer.Option("--ladder", help="What saves memory, even where all fits.", rich_help_panel=_DEVICE)
    ] = False,
    lr: Annotated[
        str | None,
        typer.Option(help="A rate and the effective batch it works at.", metavar="RATE@BATCH", rich_help_panel=_ADVICE),
    ] = None,
    lr_rule: Annotated[str | None, typer.Option(help="adam (default) or sgd.", rich_help_panel=_ADVICE)] = None,
    beta2: Annotated[float | None, typer.Option(help="Adam's β₂. Default: 0.999.", rich_help_panel=_ADVICE)] = None,
    dataset: Annotated[int | None, typer.Option(help="Samples in the dataset.", rich_help_panel=_ADVICE)] = None,
    symptom: Annotated[
        str | None, typer.Option(help="What is wrong: oom, unstable or slow.", rich_help_panel=_ADVICE)
    ] = None,
    timing: Annotated[
        list[str] | None,
        typer.Option(help="A microbatch and its step time, 8:80ms; twice.", metavar="B:TIME", rich_help_panel=_ADVICE),
    ] = None,
    framework: Annotated[
        str, typer.Option(help="To paste: transformers, accelerate, lightning, deepspeed, torch or all.")
    ] = "transformers",
    save: Annotated[
        bool, typer.Option("--save", help="Keep the plan in brim.toml; it is the active one then.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show brim's own traceback on errors.")] = False,
) -> int:
    """Plan microbatch × accumulation × ranks, exact, with what to paste.

    Say what you want, and what fits in one of four ways:

    brim plan --effective 256 --ranks 4 --largest 12

    brim plan --measured 512:0.1GB --target 35GB --memory 80GB

    brim plan --effective 64 --model 7b --gpu a100-80gb --method lora

    brim plan --effective 256 --workload train.py:Finetune --gpu rtx-3090

    `brim plan history` lists the plans that were kept with --save, `brim plan rollback` goes back to one.
    """
    from brim.cli.output import print_json, print_renderable
    from brim.cli.plan_sources import answer_from
    from brim.planning.document import document
    from brim.planning.frameworks import check_frameworks
    from brim.reporting.plan import plan_report

    frameworks = check_frameworks(framework)
    found = answer_from(ctx.params)
    if save and found.plan is not None:
        kept_plans.keep(found, profile)
    if json:
        print_json(document(found))
    else:
        for part in plan_report(found, frameworks):
            print_renderable(part)
    return 0 if found.plan is not None else NOTHING_FITS


app.command("history")(kept_plans.history_command)
app.command("rollback")(kept_plans.rollback_command)
