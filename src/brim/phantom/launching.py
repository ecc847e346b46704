"""A folder with all that a job on phantom GPUs needs, and the environment in which it runs on them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType

from brim.devices.catalog import Gpu
from brim.errors import InputError
from brim.folders import TemporaryFolder
from brim.hooking import hooked_environment
from brim.phantom.account import MAX_DEVICES, Account, write_account
from brim.phantom.card import card_of
from brim.phantom.held import Held, read_held
from brim.phantom.stand_ins import make_stand_ins
from brim.phantom.torches import Torch, find_torch, why_unavailable, why_unfit

# Names the folder to the driver (driver/account.c).
VARIABLE = "BRIM_PHANTOM"
# What runs in every process of the job, and how the files begin in which it says what holds the memory.
_COMPUTING, _HOLDING, _HELD = "brim.phantom.attached.computing", "brim.phantom.attached.holding", "held-"
# What would choose among real GPUs, or hide phantoms.
_HIDING = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What the driver noted: of which kind, in which process, and what it says."""

    kind: str
    pid: int
    text: str


class Phantoms:
    """GPUs that are not there, for one job; a context manager, which removes their folder.

    Attributes:
        torch: The torch that runs on them.
        account: What the job's processes take of them.
    """

    def __init__(
        self,
        gpus: Sequence[Gpu],
        *,
        words: Sequence[str] = (),
        context: int | None = None,
        torch: Torch | None = None,
    ) -> None:
        """Make the GPUs.

        Args:
            gpus: In the order of their indices.
            words: The command that will run on them, whose Python says which torch that is.
            context: What the driver keeps for each process, in bytes, where that was measured.
            torch: The torch that will run on them; None to look for it.

        Raises:
            InputError: There is no torch with a CUDA that phantoms know, this is no Linux, or brim has no driver here.
        """
        if not 1 <= len(gpus) <= MAX_DEVICES:
            raise InputError(f"{len(gpus)} GPUs are asked for. A machine of phantoms has 1 to {MAX_DEVICES}.")
        why_not = why_unavailable(words) if torch is None else why_unfit(torch)
        if why_not is not None:
            raise InputError(why_not)
        self.torch = torch or find_torch(words)
        self._temporary = TemporaryFolder("phantom")
        self._folder = self._temporary.path
        try:
            assert self.torch.cuda is not None
            self._cards = [card_of(gpu, cuda=self.torch.cuda, context=context) for gpu in gpus]
            self._preloaded = make_stand_ins(self.torch.folder, self._folder / "lib")
            self.account = self._open_account()
        except BaseException:
            self._temporary.cleanup()
            raise

    def start_anew(self) -> None:
        """Forget the last job; it must have ended."""
        self.account.close()
        for path in (self._folder / "events", *self._folder.glob(f"{_HELD}*")):
            path.unlink(missing_ok=True)
        self.account = self._open_account()

    def _open_account(self) -> Account:
        assert self.torch.cuda is not None
        return write_account(
            self._folder / "account",
            self._cards,
            cuda=self.torch.cuda,
            cudnn=self.torch.cudnn_version(),
            cublas=self.torch.cublas_version(),
            nccl=self.torch.nccl_version(),
        )

    def environment(self, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return an environment, this process's unless another is given, in which programs see these GPUs alone."""
        inherited = dict(os.environ if base is None else base)
        for name in _HIDING:
            inherited.pop(name, None)
        preloaded = [*map(str, self._preloaded), *filter(None, [inherited.get("LD_PRELOAD")])]
        computing = hooked_environment(_COMPUTING, {}, folder=self._folder, base=inherited)
        return {
            **hooked_environment(_HOLDING, {}, folder=self._folder, base=computing),
            VARIABLE: str(self._folder),
            "LD_PRELOAD": ":".join(preloaded),
            # Triton links what it generates with the driver, which it looks for here first.
            "TRITON_LIBCUDA_PATH": str(self._folder / "lib" / "driver"),
        }

    def events(self) -> list[Event]:
        """Return what the driver noted so far."""
        path = self._folder / "events"
        if not path.exists():
            return []
        parts = (line.split("\t", 2) for line in path.read_text(errors="replace").splitlines())
        return [Event(kind=part[0], pid=int(part[1]), text=part[2]) for part in parts if len(part) == 3]

    def held(self) -> list[Held]:
        """Return what held the memory of every device in every process that told."""
        return read_held(self._folder, _HELD)

    def close(self) -> None:
        """Remove the folder; the job must have ended."""
        self.account.close()
        self._temporary.cleanup()

    def __enter__(self) -> Phantoms:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
