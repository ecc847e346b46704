"""`brim.TokenBudgetSampler`: batches of samples of similar length that fit into memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import torch.distributed
from torch.utils.data import Sampler

from brim.errors import InputError
from brim.planning.batching import Epoch, lay_out, lay_out_packed
from brim.planning.length_budget import make_budget
from brim.planning.lengths import as_lengths, check_count, check_longest, padding_efficiency

if TYPE_CHECKING:
    from brim.findings import Finding
    from brim.tracing import Prediction

# How many batches' worth of samples of neighbouring lengths are shuffled together. With 2, any two of them share a
# batch in every other epoch. What more of it costs: `mixing` in benchmarks/results/batching.json.
BATCHES_PER_BUCKET = 2


class TokenBudgetSampler(Sampler[list[int]]):
    """Batch samples by length under a budget, for the `batch_sampler` of a `DataLoader`.

    An epoch shows every sample exactly once. All epochs have the same number of steps, `len(sampler)`, on all ranks,
    and batches never hold more samples than the budget allows for the longest of them. Samples of similar length
    share a bucket that is shuffled in every epoch; then the steps are shuffled, but the one with the longest samples
    comes first. When the last step lacks batches for some ranks, the largest of the last batches are split.

    An epoch that was handed out to its end is followed by the next; `set_epoch` chooses one. To go on in the middle of
    an epoch, save `state_dict` and load it into a sampler that was made alike.

    Args:
        lengths: The length of every sample: a list, an array or a tensor of whole numbers.
        largest: The largest microbatch of some lengths: a mapping, what `brim.find` returned for cases of one name, or
            a list of what `brim.predict` returned, whose lower bounds are taken. A sample counts as one of the next
            longer length of these.
        max_tokens: Instead of `largest`: the tokens in a batch, padding included.
        max_samples: The most samples in a batch, whatever their length.
        interpolate: Whether to interpolate between the lengths of `largest`. That is safe if memory is a fixed part
            and a part for each sample that is convex over its length, as a transformer's is: linear, or with a
            quadratic part.
        margin: The share of `largest` that is left unused, 0.1 unless given: torch's allocator serves some lengths
            worse than the measured ones. 0 will do where every batch is padded to a measured length.
        pack: Whether a batch is one row of at most `max_tokens`, without padding: see `brim.collate_packed`.
        shuffle: Whether to shuffle; if not, samples come strictly by length, the longest first.
        seed: Where the shuffling begins; equal on all ranks.
        batches_per_bucket: How many batches' worth of samples are shuffled together at least: more mix better, fewer
            pad less.
        num_replicas: The number of ranks; of `torch.distributed` where that is initialised, else 1.
        rank: This rank; of `torch.distributed` where that is initialised, else 0.
        allow_repeats: Whether to repeat some batches where the steps of the ranks cannot be made equal by splitting,
            because nearly all batches hold one sample. Without it, that is an error.

    Raises:
        LengthError: A sample is longer than what fits; the error has its index.
        InputError: A value cannot be used.

    >>> sampler = TokenBudgetSampler([3, 9, 4, 8, 2, 3], largest={4: 3, 10: 2}, margin=0, shuffle=False)
    >>> list(sampler)
    [[1, 3], [2, 0, 5], [4]]
    >>> round(sampler.padding_efficiency, 3)
    0.906
    """

    def __init__(
        self,
        lengths: Iterable[int],
        *,
        largest: Mapping[int, int] | Iterable[Finding] | Iterable[Prediction] | None = None,
        max_tokens: int | None = None,
        max_samples: int | None = None,
        interpolate: bool = False,
        margin: float | None = None,
        pack: bool = False,
        shuffle: bool = True,
        seed: int = 0,
        batches_per_bucket: int = BATCHES_PER_BUCKET,
        num_replicas: int | None = None,
        rank: int | None = None,
        allow_repeats: bool = False,
    ) -> None:
        self.num_replicas, self.rank = _ranks(num_replicas, rank)
        self.shuffle = shuffle
        self.seed = check_count("seed", seed, least=0)
        self._lengths = as_lengths(lengths)
        self._capacity = max_tokens if pack else None
        check_count("batches_per_bucket", batches_per_bucket)
        budget = make_budget(
            largest=largest, max_tokens=max_tokens, max_samples=max_samples, interpolate=interpolate, margin=margin
        )
        check_longest(
            self._lengths, budget.longest, remedy="raise `max_tokens`" if max_tokens else "measure its length"
        )
        if not pack:
            self._layout = lay_out(
                self._lengths,
                budget,
                batches_per_bucket=batches_per_bucket if shuffle else 0,
                num_ranks=self.num_replicas,
                allow_repeats=allow_repeats,
            )
        elif max_tokens is None or max_samples is not None:
            raise InputError("pack=True packs into rows of `max_tokens`. Pass that alone, e.g. max_tokens=8192.")
        else:
            self._layout = lay_out_packed(
                self._lengths, max_tokens, num_ranks=self.num_replicas, allow_repeats=allow_repeats
            )
        self.epoch = 0
        self._start = 0  # where the epoch goes on after `load_state_dict`
        self._num_taken = 0  # how many batches the last iterator has handed out, with those before its start

    def __len__(self) -> int:
        """The batches of an epoch for each rank, the same in every epoch."""
        return self._layout.num_steps

    def __iter__(self) -> Iterator[list[int]]:
        if self._num_taken == len(self):
            self.set_epoch(self.epoch + 1)
        self._num_taken = self._start
        return self._hand_out(self._plan(), self._start)

    def __repr__(self) -> str:
        return (
            f"<TokenBudgetSampler: {len(self._lengths):,} samples, {len(self):,} steps, "
            f"rank {self.rank} of {self.num_replicas}>"
        )

    @property
    def padding_efficiency(self) -> float:
        """The share of the epoch's tokens over all ranks that is no padding; of packed rows, the share filled."""
        plan = self._plan()
        if self._capacity is None:
            return padding_efficiency(self._lengths, plan.batches())
        return sum(map(self._lengths.__getitem__, plan.samples)) / (len(plan.ends) * self._capacity)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iterator hands out; a loaded position in that epoch is kept."""
        check_count("epoch", epoch, least=0)
        if epoch != self.epoch:
            self._start = 0
        self.epoch = epoch
        self._num_taken = self._start

    def state_dict(self, num_taken: int | None = None) -> dict[str, int]:
        """Return what `load_state_dict` needs to go on after the batches that were taken.

        Args:
            num_taken: How many batches of this epoch the loop has worked on. None for as many as were handed out,
                which is right without workers. A `DataLoader` with workers takes batches ahead of the loop, and only
                the loop knows how many it has worked on.
        """
        taken = self._num_taken if num_taken is None else check_count("num_taken", num_taken, least=0)
        if taken > len(self):
            raise InputError(f"num_taken is {taken}, but an epoch has {len(self)} steps. Count from its beginning.")
        return {"epoch": self.epoch, "num_taken": taken, **self._identity()}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on where `state_dict` was taken: the next iterator begins after the batches that were taken."""
        if not isinstance(state, Mapping):
            raise InputError("This is no state of a TokenBudgetSampler. Pass what its state_dict() returned.")
        for name, value in self._identity().items():
            if state.get(name) != value:
                raise InputError(
                    f"This state is of another sampler: its {name} is {state.get(name)}, here it is {value}. Use the "
                    "lengths, the budget, the seed and the number of ranks that it was saved with."
                )
        ended = state["num_taken"] == len(self)
        self.epoch = state["epoch"] + 1 if ended else state["epoch"]
        self._start = self._num_taken = 0 if ended else state["num_taken"]

    def _identity(self) -> dict[str, int]:
        """What must be equal for an epoch to be the same."""
        return {
            "num_replicas": self.num_replicas,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "fingerprint": self._layout.fingerprint,
        }

    def _plan(self) -> Epoch:
        return self._layout.epoch(self.epoch, seed=self.seed, shuffle=self.shuffle)

    def _hand_out(self, plan: Epoch, start: int) -> Iterator[list[int]]:
        for position in range(start, len(self)):
            self._num_taken = position + 1
            yield plan.batch(position, self.rank)


def _ranks(num_replicas: int | None, rank: int | None) -> tuple[int, int]:
    """Return the number of ranks and this one, from torch.distributed where they are not given."""
    if (num_replicas is None) != (rank is None):
        raise InputError("Pass both num_replicas and rank, or none of them to take those of torch.distributed.")
    if num_replicas is None or rank is None:
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return 1, 0
        return torch.distributed.get_world_size(), torch.distributed.get_rank()
    check_count("num_replicas", num_replicas)
    if check_count("rank", rank, least=0) >= num_replicas:
        raise InputError(f"rank is {rank}, but ranks count from 0 to {num_replicas - 1}.")
    return num_replicas, rank
