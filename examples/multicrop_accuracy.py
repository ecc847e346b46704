r"""How many crops does a vision-language model need? Accuracy for every `max_crops`, each with its own batch size.

    torchrun --nproc-per-node=2 examples/multicrop_accuracy.py \
        --batch_size 64 --start_from_max_crops 12 --auto_adjust_batch_size

The images are synthetic: 13 noisy crops, and in one of them a mark that points somewhere. Asked where, the model looks
at the first `max_crops` crops and answers with a sentence; a mark in a crop that it does not see can only be guessed.
`--batch_size` is the largest batch to try. Each `max_crops` gets the largest that fits on every rank, found on its own
by whole answers. Results are written after each, so that a run that was killed goes on where it was.
"""

import argparse
import json
import logging
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F

import brim
from brim.searching import ScaleTable

NUM_CROPS = 13
CROP_PIXELS = 96
MARK_PIXELS = 12
WORDS = ["<start>", "the", "mark", "points", "up", "left", "down", "right"]
DIRECTIONS = WORDS[4:]
ANSWER_TOKENS = 4


def make_marks():
    """Return the mark in its four directions, of mean zero."""
    mark = torch.ones(MARK_PIXELS, MARK_PIXELS).triu()
    return torch.stack([torch.rot90(mark - mark.mean(), turns) for turns in range(4)])


def make_image(index):
    """Return the crops of one image and the direction of its mark; the same for an index on every rank."""
    generator = torch.Generator().manual_seed(index)
    crops = torch.randn(NUM_CROPS, CROP_PIXELS, CROP_PIXELS, generator=generator)
    crop, direction = torch.randint(NUM_CROPS, (), generator=generator), torch.randint(4, (), generator=generator)
    y, x = torch.randint(CROP_PIXELS - MARK_PIXELS, (2,), generator=generator)
    crops[crop, y : y + MARK_PIXELS, x : x + MARK_PIXELS] += 3 * make_marks()[direction]
    return crops, int(direction)


class Answering(torch.nn.Module):
    """Sees crops and writes where the mark points, a word at a time."""

    def __init__(self):
        super().__init__()
        self.register_buffer("marks", make_marks()[:, None])
        follows = torch.full((len(WORDS), len(WORDS)), -1e9)
        follows[[0, 1, 2], [1, 2, 3]] = 0.0  # the mark points …
        follows[3, 4:] = 0.0  # … where it was seen to
        self.register_buffer("follows", follows)

    def forward(self, crops):
        """Return the words of the answer for images of shape (batch, crops, pixels, pixels)."""
        batch, number = crops.shape[:2]
        seen = F.conv2d(crops.flatten(0, 1)[:, None], self.marks).reshape(batch, number, 4, -1).amax((1, 3))
        answer = [torch.zeros(batch, dtype=torch.long, device=crops.device)]
        for _ in range(ANSWER_TOKENS):
            scores = self.follows[answer[-1]] + F.pad(seen, (len(WORDS) - 4, 0))
            answer.append(scores.argmax(1))
        return torch.stack(answer[1:], 1)


class MultiCrop(brim.Workload):
    """What a batch size is found with: whole answers about images that all have the most crops."""

    kind = "generate"

    def build(self):
        """Make the model."""
        self.model = Answering().to(self.device)

    def batch(self, size):
        """Return images of `max_crops` crops."""
        return torch.randn(size, self.case["max_crops"], CROP_PIXELS, CROP_PIXELS, device=self.device)

    @torch.no_grad()
    def step(self, batch):
        """Answer a batch."""
        self.model(batch)


class Ranks:
    """The ranks that torchrun started, or this process alone."""

    def __init__(self):
        self.number = int(os.environ.get("WORLD_SIZE", 1))
        self.rank = int(os.environ.get("RANK", 0))
        local_rank = int(os.environ.get("LOCAL_RANK", 0))
        self.device = f"cuda:{local_rank}" if torch.cuda.is_available() else "cpu"
        if self.number > 1:
            # Ranks speak of plain numbers only, so gloo will do on GPUs as well.
            dist.init_process_group("gloo")

    def gather(self, value):
        """Return the value of every rank."""
        values = [value]
        if self.number > 1:
            values = [None] * self.number
            dist.all_gather_object(values, value)
        return values

    def close(self):
        """Leave the others."""
        if self.number > 1:
            dist.destroy_process_group()


class Results:
    """What is known so far, in a file that only the first rank writes."""

    def __init__(self, path, ranks, **settings):
        self._path, self._is_writing = path, ranks.rank == 0
        text = path.read_text() if path.exists() else None
        text = ranks.gather(text)[0]  # what the first rank saw, whatever the others did
        self._document = json.loads(text) if text else {"settings": settings, "results": {}}
        if self._document["settings"] != settings:
            raise SystemExit(f"{path} holds results of {self._document['settings']}. Use another --output.")

    def of(self, max_crops):
        """Return what is known of one setting."""
        return self._document["results"].get(str(max_crops), {})

    def add(self, max_crops, **values):
        """Add to what is known of one setting; a kill at any moment leaves the old file or the new one."""
        self._document["results"][str(max_crops)] = {**self.of(max_crops), **values}
        if self._is_writing:
            written = self._path.with_suffix(".part")
            written.write_text(json.dumps(self._document, indent=2))
            written.replace(self._path)


def find_batch_size(max_crops, ranks, settings):
    """Return the estimate to begin with, and the largest batch that fits on every rank."""
    case = {"max_crops": max_crops}
    estimate = int(settings.batch_size * ScaleTable().scale(brim.Case(case)))
    if ranks.rank == 0:
        print(f"max_crops={max_crops}: estimate {estimate}, cap {settings.batch_size}", flush=True)
    findings = brim.find(
        MultiCrop,
        cases=[case],
        device=ranks.device,
        memory=settings.memory,
        fill=0.9 if settings.memory or ranks.device != "cpu" else 0.9 / ranks.number,  # ranks share what is free
        cap=settings.batch_size,
        strategy="estimate",
        cache=False,
    )
    sizes = ranks.gather(findings[0].microbatch)
    if None in sizes:
        raise SystemExit(f"Not one image of {max_crops} crops fits on rank {sizes.index(None)}. Give it more memory.")
    return estimate, min(sizes)


def measure(max_crops, batch_size, ranks, num_images):
    """Return accuracy and speed on all images, each answered by exactly one rank."""
    model = Answering().to(ranks.device)

    @brim.recover(microbatch=batch_size)
    @torch.no_grad()
    def answer(crops):
        return model(crops.to(ranks.device)).cpu()

    started, is_right = time.perf_counter(), {}
    mine = range(ranks.rank, num_images, ranks.number)
    for first in range(0, len(mine), batch_size):
        indices = mine[first : first + batch_size]
        crops, directions = zip(*map(make_image, indices), strict=True)
        answers = answer(torch.stack([image[:max_crops] for image in crops]))
        for index, words, direction in zip(indices, answers, directions, strict=True):
            is_right[index] = WORDS[words[-1]] == DIRECTIONS[direction]
    seconds = time.perf_counter() - started
    shares = ranks.gather(is_right)
    everyone = {index: right for share in shares for index, right in share.items()}
    assert sum(map(len, shares)) == len(everyone) == num_images, "an image was lost or counted twice"
    return {
        "accuracy": sum(everyone.values()) / num_images,
        "num_images": num_images,
        "images_per_second": round(num_images / max(ranks.gather(seconds)), 1),
    }


def parse():
    """Return the settings of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch_size", type=int, default=64, help="images in a batch, or the most to try")
    parser.add_argument("--start_from_max_crops", type=int, default=2)
    parser.add_argument("--auto_adjust_batch_size", action="store_true", help="find the batch size of each max_crops")
    parser.add_argument("--num_images", type=int, default=200)
    parser.add_argument("--memory", help="what a rank may have, e.g. 1GiB; what is free, unless given")
    parser.add_argument("--output", type=Path, default=Path("multicrop_accuracy.json"))
    settings = parser.parse_args()
    if not 1 <= settings.start_from_max_crops <= NUM_CROPS:
        parser.error(f"--start_from_max_crops is {settings.start_from_max_crops}. Images have 1 to {NUM_CROPS} crops.")
    if settings.batch_size < 1 or settings.num_images < 1:
        parser.error("--batch_size and --num_images are whole numbers of at least 1.")
    return settings


def main():
    """Run what is not known yet, and print the table."""
    settings, ranks = parse(), Ranks()
    logging.basicConfig(level=logging.INFO if ranks.rank == 0 else logging.ERROR, format="%(message)s")
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // ranks.number))
    keys = ("batch_size", "auto_adjust_batch_size", "num_images", "memory")
    results = Results(settings.output, ranks, **{key: getattr(settings, key) for key in keys})
    every = range(settings.start_from_max_crops, NUM_CROPS + 1)
    for max_crops in every:
        if "batch_size" not in results.of(max_crops):
            estimate, size = None, settings.batch_size
            if settings.auto_adjust_batch_size:
                estimate, size = find_batch_size(max_crops, ranks, settings)
            results.add(max_crops, estimate=estimate, batch_size=size)
        if "accuracy" not in results.of(max_crops):
            measured = measure(max_crops, results.of(max_crops)["batch_size"], ranks, settings.num_images)
            results.add(max_crops, **measured)
            if ranks.rank == 0:
                print(f"max_crops={max_crops}: accuracy {measured['accuracy']:.3f}", flush=True)
    if ranks.rank == 0:
        print("max_crops  batch  accuracy  images/s")
        for max_crops in every:
            row = results.of(max_crops)
            print(f"{max_crops:9}{row['batch_size']:7}{row['accuracy']:10.3f}{row['images_per_second']:10.1f}")
    ranks.close()


if __name__ == "__main__":
    main()
