"""One pattern of allocations under each setting of torch's allocator that is given, in a process of its own."""

import os
import sys

import torch

GIB = 2**30


def take(gibibytes: float) -> torch.Tensor:
    return torch.empty(int(gibibytes * GIB), dtype=torch.uint8, device="cuda")


def follow() -> None:
    torch.cuda.set_per_process_memory_fraction(0.99)
    first, second = take(1), take(1)
    del first, second
    joined = take(2)
    joins = torch.cuda.memory_reserved() / GIB
    del joined
    torch.cuda.empty_cache()

    whole = take(1)
    del whole
    part = take(0.5)
    splits = torch.cuda.memory_reserved() / GIB
    del part
    torch.cuda.empty_cache()

    uneven = take(1.1)
    rounds = torch.cuda.memory_allocated() / GIB
    del uneven
    torch.cuda.empty_cache()

    many = [take(1) for _ in range(16)]
    del many
    large = take(2)
    collects = torch.cuda.memory_reserved() / GIB
    free, total = torch.cuda.mem_get_info()
    del large
    print(f"joins {joins:g} splits {splits:g} rounds {rounds:g} collects {collects:g}", flush=True)
    print(f"{(total - free) / GIB - collects:.3f}", file=sys.stderr)


def main() -> None:
    for setting in sys.argv[1:]:
        if os.fork():
            os.wait()
            continue
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = setting
        print(setting or "default", end=": ")
        follow()
        os._exit(0)


if __name__ == "__main__":
    main()
