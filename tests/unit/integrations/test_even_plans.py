import pytest

from brim.errors import InputError
from brim.integrations.even_plans import even_share


def test_an_effective_batch_that_ranks_cannot_share_alike_is_refused_and_never_changed():
    assert even_share(512, ranks=2) == 256
    with pytest.raises(InputError, match=r"513 does not divide over 2 ranks.* Use 512 or 514"):
        even_share(513, ranks=2)
    with pytest.raises(InputError, match="below 4 ranks"):
        even_share(3, ranks=4)
