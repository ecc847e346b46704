"""`brim demo`: the main job on a built-in workload, on any machine; `--gpu` predicts it for a GPU that is not there."""

from __future__ import annotations

from typing import Annotated

import typer

from brim.cli.find import find_and_print

WORKLOAD = "brim.demo_workload:MultiCropCaptioning"
CASES = "max_crops=2..13"
MEMORY = "512MiB"
CAP = 64
# Of more cases, the first minute would not be enough.
PREDICTED_CASES = "max_crops=2,13"

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
_PREDICTION = """\
A small vision-language model captions images of 2 or 13 crops. Which batch size fits on a GPU that is not here?
[bold]brim predict --gpu {gpu} {workload} --case {cases}[/bold]
"""
_NEXT_PREDICTION = """\

torch's own CUDA build ran every microbatch above on a phantom, which counts memory and computes nothing.

Now your own script, as it is: its largest batch, or one run and what that takes.

  [bold]brim predict --gpu {gpu} -- python train.py --batch_size {{batch}}[/bold]
  [bold]brim phantom --gpu {gpu} -- python train.py --batch_size 16[/bold]
"""


def command(
    gpu: Annotated[
        str | None, typer.Option(help="Predict for this GPU, a name of `brim gpus`, on a phantom.", metavar="NAME")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show brim's own traceback on errors.")] = False,
) -> int:
    """Find the batch sizes of a built-in workload, in about a minute."""
    from brim.cases import parse_cases
    from brim.cli.output import print_text

    if gpu is not None:
        return _predict(gpu, as_json=json)
    if not json:
        print_text(_INTRODUCTION)
    code = find_and_print(
        WORKLOAD, as_json=json, cases=parse_cases([CASES]), device="cpu", memory=MEMORY, cap=CAP, cache=False
    )
    if not json:
        print_text(_NEXT)
    return code


def _predict(gpu: str, *, as_json: bool) -> int:
    """Predict the workload for a GPU by a phantom, and say what comes next."""
    from brim.cases import parse_cases
    from brim.cli.output import print_text
    from brim.cli.phantom_predict import Engine, choose_engine, find_machines, predict_and_print
    from brim.finding.phantom import DEFAULT_STEPS

    machines = find_machines([gpu], [])
    choose_engine(Engine.PHANTOM.value, [WORKLOAD], machines, cuda=None)
    if not as_json:
        print_text(_PREDICTION.format(gpu=gpu, workload=WORKLOAD, cases=PREDICTED_CASES))
    code = predict_and_print(
        [WORKLOAD],
        machines,
        cases=parse_cases([PREDICTED_CASES]),
        microbatch=None,
        fill=1.0,
        cap=None,
        steps=DEFAULT_STEPS,
        timeout=None,
        expandable_segments=None,
        as_json=as_json,
    )
    if not as_json:
        print_text(_NEXT_PREDICTION.format(gpu=gpu))
    return code
