"""Where tensors are: on the GPU, whose memory is counted, or on the host, whose memory is not.

In a trace all tensors are fake ones on the CPU. So it is kept by storage which of them would be on the GPU, and decided
as torch does: a new tensor is where its maker was told to make it, else where what it was made from is, else on the
host.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

GPU = torch.device("cuda", 0)
_HOST = torch.device("cpu")
_aten = torch.ops.aten
# Operators that compute with two tensors or more, and which CUDA refuses where one of them is on the host. All others
# are left alone: some take indices or lengths from the host.
_TOGETHER = frozenset(
    (
        _aten.addmm.default,
        _aten.mm.default,
        _aten.bmm.default,
        _aten.baddbmm.default,
        _aten.convolution.default,
        _aten.embedding.default,
        _aten.native_layer_norm.default,
        _aten.native_batch_norm.default,
        _aten.native_group_norm.default,
        _aten.cat.default,
        _aten.add.Tensor,
        _aten.sub.Tensor,
        _aten.mul.Tensor,
        _aten.div.Tensor,
        _aten.nll_loss_forward.default,
        _aten.mse_loss.default,
    )
)


class Places:
    """Knows which storages are on the GPU.

    Attributes:
        held: The storages on the GPU, by their address.
        wanted: Where what is made now has to be, said by name; None where nothing was said.
        caller: The arguments of the function of torch that runs now, which may make tensors like them.
    """

    def __init__(self) -> None:
        self.held: Container[int] = ()
        self.wanted: torch.device | None = None
        self.caller: Any = ()

    def has(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is on the GPU."""
        try:
            return tensor.untyped_storage()._cdata in self.held
        except NotImplementedError:  # sparse ones and some subclasses have no storage
            return False

    def is_made_on_gpu(self, args: Any, kwargs: Mapping[str, Any]) -> bool:
        """Return whether an operator with these arguments makes its results on the GPU."""
        if self.wanted is not None:
            return self.wanted.type == GPU.type
        found = self._any_on_gpu((*args, *kwargs.values()) if kwargs else args)
        if found is not None:
            return found
        # Made of nothing: autograd makes zeros where gradients are, a function of torch where its tensors are.
        return torch._C._current_graph_task_id() != -1 or bool(self._any_on_gpu(self.caller))

    def check(self, func: Any, args: Any) -> None:
        """Refuse to compute with tensors of both places, as CUDA does.

        What a function of torch makes itself it also moves, so only what it was given is looked at.

        Raises:
            RuntimeError: With torch's own words, and what to do.
        """
        if func in _TOGETHER and not self.wanted:
            tensors = [tensor for tensor in tensors_in(args) if tensor.dim()]
            on_host = [_address(tensor) for tensor in tensors if not self.has(tensor)]
            if 0 < len(on_host) < len(tensors) and any(_address(each) in on_host for each in tensors_in(self.caller)):
                raise RuntimeError(
                    "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! "
                    "Put the model and the batch on the GPU with `.to(self.device)`."
                )

    @contextmanager
    def making(self, device: torch.device) -> Iterator[None]:
        """Let what is made in the block be on a device."""
        before, self.wanted = self.wanted, device
        try:
            yield
        finally:
            self.wanted = before

    def move(
        self, tensor: torch.Tensor, device: torch.device, dtype: torch.dtype | None, **kwargs: Any
    ) -> torch.Tensor:
        """Return a tensor on another device: itself where it is there already and of the type."""
        dtype = dtype or tensor.dtype
        if self.has(tensor) == (device.type == GPU.type):
            return tensor.to(dtype, **kwargs)
        if self.has(tensor):
            # What is copied to the host is cast and laid out on the GPU before.
            # Source: `copy_requires_temporaries` in torch's aten/src/ATen/native/cuda/Copy.cu.
            tensor = tensor.to(dtype)
        with self.making(device):
            return tensor.to(dtype, **{**kwargs, "copy": True})

    def device_of(self, tensor: torch.Tensor, told: torch.device) -> torch.device:
        """Return where a tensor is, given where it says it is."""
        return GPU if told == _HOST and self.has(tensor) else told

    def _any_on_gpu(self, values: Any) -> bool | None:
        """Return whether a tensor among values is on the GPU; None where there is no tensor."""
        found = None
        for tensor in tensors_in(values):
            if self.has(tensor):
                return True
            found = False
        return found


class AllOnGpu(Places):
    """Takes all for the GPU's: of a job that puts nothing there by name."""

    def has(self, tensor: torch.Tensor) -> bool:
        """Return True."""
        return True

    def is_made_on_gpu(self, args: Any, kwargs: Mapping[str, Any]) -> bool:
        """Return True."""
        return True

    def check(self, func: Any, args: Any) -> None:
        """Refuse nothing."""

    def move(
        self, tensor: torch.Tensor, device: torch.device, dtype: torch.dtype | None, **kwargs: Any
    ) -> torch.Tensor:
        """Return the tensor where it is."""
        return tensor.to(dtype or tensor.dtype, **kwargs)

    def device_of(self, tensor: torch.Tensor, told: torch.device) -> torch.device:
        """Return what the tensor says: the job never asked for a GPU."""
        return told


def on_cpu(value: Any) -> Any:
    """Return the CPU for a CUDA device, however it is written; everything else as it is."""
    device = named_device(value)
    return _HOST if device is not None and device.type == GPU.type else value


def named_device(value: Any) -> torch.device | None:
    """Return the device that a setting names, if it does."""
    if isinstance(value, (str, torch.device)):
        device = torch.device(value)
    elif isinstance(value, int) and not isinstance(value, bool):
        device = torch.device(GPU.type, value)
    else:
        return None
    if device.type != GPU.type:
        return device
    if device.index:
        raise RuntimeError(f"{device} is another GPU, and one is predicted for: put all on self.device")
    return GPU


def _address(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def tensors_in(values: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in lists, tuples and dictionaries, however deep; nothing of what else there is."""
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, (list, tuple)):
        for value in values:
            if isinstance(value, torch.Tensor):
                yield value
            elif isinstance(value, (list, tuple, dict)):
                yield from tensors_in(value)
    elif isinstance(values, Mapping):
        yield from tensors_in(list(values.values()))
