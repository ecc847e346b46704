"""Find a small mark in a large image, of which a model sees at most `max_crops` crops: the trial of `crops.yaml`.

An image has 13 crops and a mark in one of them, in any of four orientations. The model compares every place of every
crop it sees with the four marks; a mark in a crop that it does not see can only be guessed.
"""

import time

import torch
import torch.nn.functional as F

import brim

NUM_CROPS = 13
CROP_PIXELS = 96
MARK_PIXELS = 12


def make_marks():
    """Return the mark in its four orientations, of mean zero."""
    mark = torch.ones(MARK_PIXELS, MARK_PIXELS).triu()
    mark = mark - mark.mean()
    return torch.stack([torch.rot90(mark, turns) for turns in range(4)])


def make_images(number, generator):
    """Return noisy images of 13 crops each, and the orientation of the mark that is in one of them."""
    crops = torch.randn(number, NUM_CROPS, CROP_PIXELS, CROP_PIXELS, generator=generator)
    labels = torch.randint(4, (number,), generator=generator)
    marks = make_marks()
    for image, label in zip(crops, labels, strict=True):
        crop = torch.randint(NUM_CROPS, (), generator=generator)
        y, x = torch.randint(CROP_PIXELS - MARK_PIXELS, (2,), generator=generator)
        image[crop, y : y + MARK_PIXELS, x : x + MARK_PIXELS] += 3 * marks[label]
    return crops, labels


class Finder(torch.nn.Module):
    """Scores the four orientations by their best match in any crop."""

    def __init__(self):
        super().__init__()
        self.register_buffer("marks", make_marks()[:, None])

    def forward(self, crops):
        """Return a score for each orientation, for images of shape (batch, crops, pixels, pixels)."""
        batch, number = crops.shape[:2]
        matches = F.conv2d(crops.flatten(0, 1)[:, None], self.marks)
        return matches.reshape(batch, number, 4, -1).amax((1, 3))


class Search(brim.Workload):
    """What the batch size is found with: the same model on images of the most crops."""

    kind = "eval"

    def build(self):
        """Make the model."""
        self.model = Finder().to(self.device)

    def batch(self, size):
        """Return images that all have the most crops."""
        crops = self.case.get("max_crops", NUM_CROPS)
        return torch.randn(size, crops, CROP_PIXELS, CROP_PIXELS, device=self.device)

    @torch.no_grad()
    def step(self, batch):
        """Score a batch."""
        self.model(batch)


def measure(config):
    """Return accuracy and speed with the batch size that was found."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    crops, labels = make_images(config["num_images"], torch.Generator().manual_seed(config["seed"]))
    model = Finder().to(device)
    seen = crops[:, : config["max_crops"]]
    started = time.perf_counter()
    with torch.no_grad():
        batches = seen.split(config["hp"]["batch_size"])
        found = torch.cat([model(batch.to(device)).argmax(1).cpu() for batch in batches])
    seconds = time.perf_counter() - started
    return {
        "accuracy": (found == labels).float().mean().item(),
        "images_per_second": len(labels) / seconds,
    }
