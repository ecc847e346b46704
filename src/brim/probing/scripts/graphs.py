"""Steps in CUDA graphs: what runs before a capture is no step of the job, and a replay may be a whole one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

# Steps in a side stream that are taken for the warm-up of a capture. torch asks for 3, with DDP for 11; a loop that
# always runs in a stream of its own is seen after these.
_MOST_WARM_UPS = 16


class ReplayWatch:
    """Tells steps of CUDA graphs from the warm-up before them."""

    def __init__(self, ended: Callable[[], None], *, is_outside: Callable[[], bool]) -> None:
        """Prepare.

        Args:
            ended: Called when a step that is nothing but a replay has ended.
            is_outside: Returns whether no module's call and no backward pass is under way, which replay graphs too.
        """
        self._ended = ended
        self._is_outside = is_outside
        self._num_warm_ups = 0
        self._has_replayed = False

    def attach(self) -> None:
        """See every replay from now on."""
        graph: Any = getattr(torch.cuda, "CUDAGraph", None)
        if graph is None or not torch.cuda.is_available():
            return
        replay = graph.replay

        def replay_and_tell(captured: Any) -> None:
            if self._is_outside():
                # With an optimizer outside of the graph, its step comes in between.
                if self._has_replayed:
                    self._ended()
                self._has_replayed = True
            replay(captured)

        graph.replay = replay_and_tell

    def counts(self, device: torch.device) -> bool:
        """Return whether an optimizer's step that ends now is one of the job."""
        is_aside = device.type == "cuda" and torch.cuda.current_stream(device) != torch.cuda.default_stream(device)
        if is_aside and self._num_warm_ups < _MOST_WARM_UPS:
            self._num_warm_ups += 1
            return False
        self._has_replayed = False
        return True
