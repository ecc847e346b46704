"""`brim demo`: the main job on a built-in workload, on any machine."""

from __future__ import annotations

from typing import Annotated

import typer

from brim.cli.find import find_and_print

WORKLOAD = "brim.demo_workload:MultiCropCaptioning"
CASES = "max_crops=2..13"
MEMORY = "512MiB"
CAP = 64

_INTRODUCTION = f"""\
A small vision-language model captions images of up to 13 crops. Which batch size fits into {MEMORY}?
Each number of crops is another case: [bold]brim find {WORKLOAD} --case {CASES} --memory {MEMORY} --cap {CAP}[/bold]
"""
_NEXT = """\
Every microbatch above was run, fitted, and ran once more in a fresh process.

Now your own model. Put this into [bold]train.py[/bold]:

  import brim, torch

  class Finetune(brim.Workload):
      def build(self):                   # once: the model and its optimizer
          self.model = torch.nn.Linear(512, 512).to(self.device)
          self.optimizer = torch.optim.AdamW(self.model.parameters())

      def batch(self, size):             # `size` samples of the worst case
          return torch.randn(size, self.case.get("seq_len", 128), 512, device=self.device)

      def step(self, batch):             # one whole training step
          self.model(batch).square().mean().backward()
          self.optimizer.step()
          self.optimizer.zero_grad()

and type

  [bold]brim find train.py:Finetune --case seq_len=128,512,2048[/bold]
"""


def command(
    json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show brim's own traceback on errors.")] = False,
) -> int:
    """Find the batch sizes of a built-in workload, in about a minute."""
    from brim.cases import parse_cases
    from brim.cli.output import print_text

    if not json:
        print_text(_INTRODUCTION)
    code = find_and_print(
        WORKLOAD, as_json=json, cases=parse_cases([CASES]), device="cpu", memory=MEMORY, cap=CAP, cache=False
    )
    if not json:
        print_text(_NEXT)
    return code
