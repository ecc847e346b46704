import re
from dataclasses import dataclass

import pytest
from rich.console import Console

from brim.cases import Case
from brim.devices.catalog import Gpu
from brim.reporting.prediction import answer_table, legend, memory_table, modules_table, stacked_bar

GIB = 2**30
HELD = {"parameters": GIB, "gradients": GIB, "optimizer": 2 * GIB, "activations": 3 * GIB, "inputs": 0, "temporary": 0}


@dataclass
class OnePeak:
    allocated_bytes: int
    reserved_bytes: int
    device_bytes: int


class Predicted:
    """Fits up to 2; 3 is fragmented; 4 lacks a GiB."""

    gpu = Gpu(name="card", memory_bytes=10 * GIB)
    case = Case({"seq_len": 8})
    kind = "train"
    largest = 2
    interval = (1, 3)
    stopped_by = "memory"

    def peak(self, microbatch):
        held = {2: 7, 3: 10}.get(microbatch, 11) * GIB
        return OnePeak(held, held, held)

    def breakdown(self, microbatch):
        return HELD

    def modules(self, microbatch):
        return {"0": GIB}

    def fits(self, microbatch):
        return microbatch <= 2

    def missing_bytes(self, microbatch=1):
        return GIB if microbatch > 3 else 0

    def is_fragmented(self, microbatch):
        return microbatch == 3

    def remedy(self, microbatch=1):
        return None


def _shown(renderable):
    console = Console(width=200, color_system=None)
    with console.capture() as captured:
        console.print(renderable)
    return captured.get()


def test_a_size_that_does_not_fit_says_whether_it_is_fragmented():
    lines = _shown(memory_table(Predicted(), [2, 3, 4])).splitlines()
    fits, fragmented, lacks = (next(line for line in lines if line.strip().startswith(size)) for size in "234")
    assert fits.count("7.00 GiB") == 3
    assert fragmented.rstrip().endswith("does not fit: fragmented")
    assert lacks.rstrip().endswith("does not fit")
    assert "110%" in lacks


@pytest.mark.parametrize("width", [60, 80, 100, 120, 130, 200])
def test_the_bars_are_whole_on_every_terminal(width):
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(memory_table(Predicted(), [2, 3, 4], width=width))
    lines = captured.get().splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in captured.get()
    (full,) = (line for line in lines if line.strip().startswith("4 "))
    assert full.count("█") + full.count("░") >= 9
    assert "110%" in full


def test_without_colours_every_kind_has_a_block_of_its_own():
    bar = stacked_bar(HELD, 7 * GIB, 10 * GIB, has_colors=False).plain
    assert bar.startswith("████▓▓▓▓▒▒▒▒▒▒▒▒▞▞▞▞▞▞▞▞▞▞▞▞ ")
    assert set(stacked_bar(HELD, 7 * GIB, 10 * GIB).plain[:28]) == {"█"}
    # Where more is needed than there is, the parts still have their shares.
    too_much = stacked_bar(HELD, 7 * GIB, 2 * GIB, has_colors=False).plain
    assert set(too_much[:40]) == set(bar[:28])
    assert too_much.endswith("350%")
    assert "▞ activations 3.00 GiB" in legend(HELD, "At 2", has_colors=False).plain


def test_the_figures_say_which_microbatch_they_belong_to():
    assert legend(HELD, "At 1,432").plain.startswith("At 1,432: ")
    assert "of 1,432" in _shown(modules_table({"0": GIB}, "holds at the peak of 1,432", total_bytes=GIB))


def test_what_is_in_no_row_of_the_modules_has_one_of_its_own():
    shown = _shown(modules_table({"0": GIB}, "holds", total_bytes=3 * GIB))
    assert re.search(r"\(all others\) +2.00 GiB", shown)
    assert "all others" not in _shown(modules_table({"0": GIB}, "holds", total_bytes=GIB))


def test_of_one_size_the_table_says_whether_it_fits():
    assert "does not fit, 11.0 GiB" in _shown(answer_table([Predicted()], microbatch=4))
    assert "2 (1–3)" in _shown(answer_table([Predicted()]))


def test_a_gpu_that_is_described_by_its_memory_alone_is_not_headed_twice():
    described = Predicted()
    described.gpu = Gpu(name="10GiB", memory_bytes=10 * GIB)
    assert "10GiB" not in _shown(answer_table([described])) + _shown(memory_table(described, [2]))
    assert "10.0 GiB" in _shown(answer_table([described]))
    assert "10.0 GiB" in _shown(memory_table(described, [2]))
