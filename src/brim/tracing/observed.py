"""What traces show of a job beside its memory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What to know when reading an answer: how it was counted, and what the workload may not be meant to do.

    Attributes:
        selects_all: Whether the step selects by values, which a trace does not have: all is counted, the most that it
            can be.
        records_graph: Whether the step records a graph, and so holds activations, for a backward pass that never comes.
        has_recurrence: Whether a recurrent layer runs: what cuDNN keeps for it is estimated.
        token_stride: Of how many tokens of a long generation one is replayed.
        keeps_batch: Whether every step keeps its batch: with a new one each time, every step would hold more.
        is_random: Whether random numbers of the host decide what runs: the draw that takes most is answered for.
        branches: Lines that go either way by a tensor's value: the way that takes most is answered for.
        is_waiting: Whether an optimizer of the workload was not seen to step twice: what it keeps may be missing.
        is_unplaced: Whether the workload puts nothing on the GPU: all is counted then, as if it had.
        other_kind: What the workload does although it says otherwise: `eval` without a backward pass, `train` with one.
        unread: The names of the case that the workload never asks for: they change nothing.
        missed: The names that the workload asks for and that the case does not have.
        single_failure: Why a microbatch of 1 does not run, as with batch normalization; None where it does or was not
            looked at.
        kept_bytes: The little that every step keeps more than the one before, such as a loss in a list.
    """

    selects_all: bool = False
    records_graph: bool = False
    has_recurrence: bool = False
    token_stride: int = 1
    keeps_batch: bool = False
    is_random: bool = False
    branches: tuple[str, ...] = ()
    is_waiting: bool = False
    is_unplaced: bool = False
    other_kind: str | None = None
    unread: tuple[str, ...] = ()
    missed: tuple[str, ...] = ()
    single_failure: str | None = None
    kept_bytes: int = 0
