"""The referee of traces: what each says a job takes, beside torch's own CUDA build on a phantom of the same card.

    python benchmarks/phantom.py                    # all nets and jobs; goes on where it was stopped
    python benchmarks/phantom.py --nets GPT-2 ViT   # some of them
    python benchmarks/phantom.py --report           # only what the results add up to

Every job runs at two microbatches on cards of three generations: training in three precisions, evaluation, generation.
cuDNN's workspaces are on neither side: they are 0 on a phantom, and left out of the traces here. Both sides run at
the same time, each in one process. `results/phantom.json` has a line for every job: by card and microbatch the
allocated and the reserved peak on the phantom, then those of the trace, in bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

HERE = Path(__file__).resolve().parent
CUDA = Path(sys.prefix) / "cuda"
RESULT = HERE / "results" / "phantom.json"
# What was measured so far, a line for each job, side and card.
KEPT = HERE / "results" / "phantom-rows.jsonl"
CARDS = ("rtx-3090", "t4", "h100-sxm")
SIDES = ("phantom", "trace")
# The goals: which share of rows is to lie within which difference.
GOALS = (("allocated", 0.005, 0.95), ("allocated", 0.03, 1.0), ("reserved", 0.03, 0.90))
Row = dict[str, Any]


def main() -> None:
    """Measure what is missing, write the results and say what they add up to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nets", nargs="+", help="only these; `fixed-on`: those on which traces were fixed")
    parser.add_argument("--jobs", nargs="+", help="only these, such as 'train bfloat16'")
    parser.add_argument("--cards", nargs="+", default=list(CARDS), help="default: %(default)s")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--anew", action="store_true", help="forget what was measured")
    parser.add_argument("--report", action="store_true", help="only say what the results add up to")
    options = parser.parse_args()
    if not options.report:
        measure(_wanted(options.nets, options.jobs), options)
        write()
    report(json.loads(RESULT.read_text()))


def _wanted(nets: Sequence[str] | None, names: Sequence[str] | None) -> list[list[str]]:
    from phantom_workloads import jobs
    from phantom_zoo import FIXED_ON

    chosen = FIXED_ON if nets == ["fixed-on"] else nets
    return [[net, job] for net, job in jobs() if (not chosen or net in chosen) and (not names or job in names)]


def measure(jobs: Sequence[Sequence[str]], options: argparse.Namespace) -> None:
    """Measure what is missing: phantoms of one card after the other, beside the traces for all cards."""
    anew = options.anew
    done = set() if anew else {(row["side"], *row["cards"], *row["what"]) for row in kept()}
    lock = Lock()

    def run(side: str, cards: Sequence[str]) -> None:
        left = [list(job) for job in jobs if (side, *cards, *job) not in done]
        while left:
            began, child = time.monotonic(), _start(side, cards, left)
            assert child.stdout is not None
            for line in child.stdout:
                row = {"side": side, "cards": list(cards), "what": left.pop(0), **json.loads(line)}
                with lock, KEPT.open("a") as out:
                    out.write(json.dumps(row) + "\n")
            if child.wait() and left:  # it fell over this one
                print(f"{side} of {left[0]} on {cards} ended with {child.returncode}", file=sys.stderr)
                left.pop(0)
            print(f"{side} on {', '.join(cards)}: {time.monotonic() - began:.0f} s", file=sys.stderr)

    with ThreadPoolExecutor(len(SIDES)) as pool:
        phantoms = [("phantom", [card]) for card in options.cards] if "phantom" in options.sides else []
        of_phantoms = pool.submit(lambda: [run(*each) for each in phantoms])
        of_traces = pool.submit(lambda: run("trace", options.cards)) if "trace" in options.sides else None
        of_phantoms.result()
        if of_traces is not None:
            of_traces.result()


def _start(side: str, cards: Sequence[str], jobs: Sequence[Sequence[str]]) -> subprocess.Popen[str]:
    words = [sys.executable, __file__, "--child", side, json.dumps(list(cards)), json.dumps(jobs)]
    if side == "trace":
        return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    words[2] = "--launch"
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def launch(cards: str, jobs: str) -> int:
    """Run a child on a phantom."""
    from brim.devices.catalog import find_gpu
    from brim.phantom import Phantoms, read_torch

    with Phantoms([find_gpu(card) for card in json.loads(cards)], torch=read_torch(CUDA / "torch")) as phantoms:
        environment = phantoms.environment()
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(CUDA), environment.get("PYTHONPATH")]))
        return subprocess.run([sys.executable, __file__, "--child", "phantom", cards, jobs], env=environment).returncode


def child(side: str, cards: str, jobs: str) -> None:
    """Print a line for each job, one after the other in this process."""
    import torch
    import transformers

    from phantom_sides import by_trace, on_phantom

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    out, sys.stdout = sys.stdout, sys.stderr
    names = json.loads(cards)
    for net, job in json.loads(jobs):
        began = time.process_time()
        try:
            peaks = by_trace(net, job, names) if side == "trace" else {names[0]: on_phantom(net, job)}
            result: Row = {"peaks": peaks}
        except Exception as error:  # noqa: BLE001 - a row without figures is counted, not hidden
            result = {"peaks": {}, "problem": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps({**result, "seconds": round(time.process_time() - began, 2)}), file=out, flush=True)


def kept() -> list[Row]:
    """Return what was measured so far."""
    return [json.loads(line) for line in KEPT.read_text().splitlines()] if KEPT.exists() else []


def write() -> None:
    """Put both sides together, the last of each job, a line for every job."""
    from phantom_workloads import jobs
    from phantom_zoo import FIXED_ON

    sides: dict[str, dict[tuple[str, ...], dict[str, Any]]] = {side: defaultdict(dict) for side in SIDES}
    problems: dict[tuple[str, ...], dict[str, str]] = defaultdict(dict)
    for row in kept():
        what = tuple(row["what"])
        problems[what].pop(f"{row['side']} {row['cards'][0]}", None)
        if "problem" in row:
            problems[what][f"{row['side']} {row['cards'][0]}"] = row["problem"]
        sides[row["side"]][what].update(row["peaks"])
    lines = []
    for what in jobs():
        phantom, trace = (sides[side][what] for side in SIDES)
        peaks = {
            card: {size: [*phantom[card][size], *trace[card][size]] for size in phantom[card]}
            for card in CARDS
            if card in phantom and card in trace
        }
        line = {"net": what[0], "job": what[1], "fixed_on": what[0] in FIXED_ON, "peaks": peaks}
        if peaks or problems[what]:
            lines.append(json.dumps({**line, **({"problems": problems[what]} if problems[what] else {})}))
    seconds = {side: round(sum(row["seconds"] for row in kept() if row["side"] == side)) for side in SIDES}
    head = {
        "cards": list(CARDS),
        "cpu_seconds": seconds,
        "columns": [f"{s} {w}" for s in SIDES for w in ("allocated", "reserved")],
    }
    RESULT.write_text("{" + json.dumps(head)[1:-1] + ',\n"jobs": [\n' + ",\n".join(lines) + "\n]}\n")


def report(results: Row) -> None:
    """Say which share of the rows lies how near, in both groups, and which lie farthest."""
    rows = [
        (line["net"], line["job"], card, int(size), line["fixed_on"], found)
        for line in results["jobs"]
        for card, sizes in line["peaks"].items()
        for size, found in sizes.items()
    ]
    groups = {"all": rows, "fixed on": [row for row in rows if row[4]], "held out": [row for row in rows if not row[4]]}
    for name, group in groups.items():
        nets = len({row[0] for row in group})
        print(f"{name}: {len(group)} rows of {nets} nets")
        for what, most, share in GOALS if group else ():
            near = sum(abs(_error(row[5], what)) <= most for row in group) / len(group)
            print(f"  {what} within {most:.1%}: {near:.2%} of rows (goal {share:.0%})")
    for what in ("allocated", "reserved"):
        print(f"farthest, {what}:")
        for row in sorted(rows, key=lambda row: -abs(_error(row[5], what)))[:25]:
            print(
                f"  {_error(row[5], what):+7.2%} {_bytes(row[5], what):+15,} {row[0]}, {row[1]}, {row[2]} at {row[3]}"
            )
    for line in results["jobs"]:
        for where, problem in line.get("problems", {}).items():
            print(f"no figures: {line['net']}, {line['job']}, {where}: {problem}")


def _bytes(found: Sequence[int], what: str) -> int:
    position = 0 if what == "allocated" else 1
    return found[position + 2] - found[position]


def _error(found: Sequence[int], what: str) -> float:
    return _bytes(found, what) / found[0 if what == "allocated" else 1]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--launch"]:
        sys.exit(launch(*sys.argv[3:]))
    elif sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:])
    else:
        main()
