from hypothesis import given
from hypothesis import strategies as st

from brim.tracing.bracket import close_in, halve

CAP = 2**20


@given(st.integers(0, 2000), st.integers(1, 1500))
def test_halving_is_exact(truth, cap):
    found = halve(lambda size: size <= truth, cap=cap)
    assert found.largest == min(truth, cap)
    assert found.above == (None if truth >= cap else truth + 1)


@given(
    st.integers(0, 10**9),
    st.integers(1, 10**6),
    st.sampled_from([0.5, 1, 1.5, 2, 3]),
    st.integers(1, 10**12),
    st.one_of(st.none(), st.integers(1, CAP)),
)
def test_both_ends_were_asked_for_and_lie_close(fixed, per_sample, power, capacity, start):
    def needed(size):
        asked.append(size)
        return fixed + int(per_sample * size**power)

    asked = []
    known = {size: needed(size) for size in (4, 6)}
    found = close_in(needed, known=known, capacity_bytes=capacity, cap=lambda: CAP, start=start)
    assert found.largest in (*asked, 0)
    assert found.largest == 0 or needed(found.largest) <= capacity
    if found.above is None:
        assert found.largest == CAP
    else:
        assert found.above in asked
        assert needed(found.above) > capacity
        assert found.above <= max(found.largest + 1, 1.2 * found.largest)


def test_a_good_guess_costs_two_sizes():
    def needed(size):
        asked.append(size)
        return 1000 + 8 * size

    asked = []
    close_in(needed, known={4: 1032, 6: 1048}, capacity_bytes=9000, cap=lambda: CAP, start=1000)
    assert asked == [1000, 1001]


def test_a_jump_is_found_in_few_sizes():
    def needed(size):
        asked.append(size)
        return 10 * size + (10**9 if size > 1000 else 0)

    asked = []
    found = close_in(needed, known={4: 40, 6: 60}, capacity_bytes=10**8, cap=lambda: CAP)
    assert found.largest <= 1000 < found.above
    assert found.largest > 500
    assert len(asked) <= 12


def test_a_cap_that_falls_with_what_is_known_ends_the_search():
    found = close_in(lambda size: size, known={4: 4, 6: 6}, capacity_bytes=10**9, cap=lambda: 50)
    assert (found.largest, found.above) == (50, None)


@given(st.integers(100, 10**6), st.floats(0.8, 1.0))
def test_sizes_that_are_only_fragmented_are_closed_in_on(capacity, share):
    # Bytes grow with the square of the size, and the last sizes do not fit although their tensors would.
    truth = max(7, int(share * capacity**0.5))

    def needed(size):
        return max(size**2, capacity + 1) if size > truth else min(size**2, capacity)

    found = close_in(needed, known={4: 16, 6: 36}, capacity_bytes=capacity, cap=lambda: CAP)
    assert found.largest <= truth < found.above
    assert found.above - found.largest <= max(2, 0.02 * truth)
