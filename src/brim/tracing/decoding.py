"""The tokens of a generation: once each is seen to follow from the one before, the rest need not be traced.

A decoded token makes and lets go the same storages as the token before it, some of them a little larger. Where that has
held for long enough, all the others follow.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from brim.tracing.record import Storage

# Sizes follow from those so many tokens before: kernels round them up, to 16 numbers at most.
# Source: the alignment of masks, in `pad_bias` of torch's aten/src/ATen/native/transformers/attention.cpp.
_PERIODS = (1, 8, 16)
# For how many tokens that must have held, at the least: long enough to meet a rounding; and for how many periods.
_LEAST_TOKENS = 18
_LEAST_PERIODS = 3
# For how many tokens a storage may live: the cache for one, what is asked of it for two.
_MOST_AGO = 4
# How many events are added at most, as each takes time to replay: some tokens in between are left out then, never the
# last.
MOST_EVENTS = 120_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Token:
    """What one token did to memory, with storages named by when they were made.

    Attributes:
        start: The number of its first storage.
        events: Births (0, index) and deaths (tokens ago, index), in order.
        sizes: Of its births, in order.
    """

    start: int
    events: tuple[tuple[int, int, bool], ...]
    sizes: tuple[int, ...]


class Tokens:
    """Looks at what every token of a generation enters into a ledger.

    Args:
        storages: The ledger's, to which those of tokens that are not traced are added.
        events: Likewise, births (number, bytes) and deaths (number, 0).
    """

    def __init__(self, storages: list[Storage], events: list[tuple[int, int]]) -> None:
        self._storages = storages
        self._events = events
        self._starts = [len(storages)]
        self._tokens: list[_Token] = []
        self._first_event = len(events)

    def end_token(self) -> None:
        """Note that a token is decoded."""
        block = [event for run in _runs(self._events[self._first_event :]) for event in run]
        start = self._starts[-1]
        self._tokens.append(
            _Token(
                start=start,
                events=tuple(self._relative(number, num_bytes > 0) for number, num_bytes in block),
                sizes=tuple(num_bytes for _, num_bytes in block if num_bytes),
            )
        )
        self._starts.append(len(self._storages))
        self._first_event = len(self._events)

    def period(self) -> int | None:
        """Return after how many tokens sizes grow evenly; None where the next token does not follow from these."""
        if not self._tokens or not _lets_go(self._tokens[-1]):
            return None
        return next((period for period in _PERIODS if _grow_evenly(self._tokens, period)), None)

    def stride(self, num_tokens: int) -> int:
        """Return of how many tokens that follow one is entered."""
        return max(1, -(-num_tokens * len(self._tokens[-1].events) // MOST_EVENTS))

    def add(self, num_tokens: int) -> dict[int, int]:
        """Enter tokens that follow; return, by the storages that live on, those that live on in their place."""
        last, period = self._tokens[-1], self.period()
        assert period is not None
        # What the last tokens have left, the latest first.
        left = [self._left(ago) for ago in range(_oldest(last))]
        lived_on = [dict(each) for each in left]
        for ahead in reversed(range(num_tokens, 0, -self.stride(num_tokens))):
            sizes = iter(self._sizes(ahead, period))
            left.insert(0, {})
            for ago, index, is_birth in last.events:
                if is_birth:
                    left[0][index] = len(self._storages)
                    size = next(sizes)
                    self._storages.append(replace(self._storages[last.start + index], num_bytes=size))
                    self._events.append((left[0][index], size))
                else:
                    self._events.append((left[ago].pop(index), 0))
        return {
            number: heirs[index] for olds, heirs in zip(lived_on, left, strict=False) for index, number in olds.items()
        }

    def _left(self, ago: int) -> dict[int, int]:
        """Return, by index, the storages of a token so many before the last that outlive the last."""
        token = self._tokens[-1 - ago]
        return {index: token.start + index for index, age in _ages(token).items() if age > ago}

    def _sizes(self, ahead: int, period: int) -> Iterator[int]:
        """Yield the sizes of a token so many after the last."""
        back = -ahead % period  # the last token with the same remainder lies so far back
        same = self._tokens[-1 - back].sizes
        earlier = self._tokens[-1 - back - period].sizes
        num_periods = (ahead + back) // period
        for size, less in zip(same, earlier, strict=True):
            yield size + (size - less) * num_periods

    def _relative(self, number: int, is_birth: bool) -> tuple[int, int, bool]:
        token = bisect_right(self._starts, number) - 1
        if token < 0:
            return -1, number, is_birth  # older than all tokens
        return len(self._tokens) - token, number - self._starts[token], is_birth


def _runs(events: Sequence[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """Yield births and deaths that follow each other, sorted: the order of deaths is an accident of addresses."""
    for _, run in groupby(events, key=lambda event: event[1] > 0):
        yield sorted(run)


def _ages(token: _Token) -> dict[int, int]:
    """Return, by index, how many tokens later storages like those of a token die."""
    return {index: ago for ago, index, is_birth in token.events if not is_birth}


def _oldest(token: _Token) -> int:
    return max(_ages(token).values(), default=0)


def _lets_go(token: _Token) -> bool:
    """Return whether a token lets go just what one like it has made, soon, and nothing older than all tokens."""
    born = {index for _, index, is_birth in token.events if is_birth}
    is_known = all(ago >= 0 for ago, _, _ in token.events)
    return is_known and born == set(_ages(token)) and _oldest(token) <= _MOST_AGO


def _grow_evenly(tokens: Sequence[_Token], period: int) -> bool:
    """Return whether the last tokens are alike, each size as much more than a period before as that than two before.

    None may shrink: it would fall below nothing in the end.
    """
    num_tokens = max(_LEAST_TOKENS, _LEAST_PERIODS * period)
    last = tokens[-num_tokens:]
    if len(last) < num_tokens or any(token.events != last[0].events for token in last):
        return False
    return all(
        now - before == before - earlier >= 0
        for token, middle, first in zip(last[2 * period :], last[period:], last, strict=False)
        for now, before, earlier in zip(token.sizes, middle.sizes, first.sizes, strict=True)
    )
