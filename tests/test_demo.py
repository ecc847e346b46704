"""The demo's workload: what it generates does not depend on the cache, and every case has its own answer."""

import torch

import brim
from brim.cases import Case
from brim.demo_workload import NUM_CAPTION_TOKENS, VOCABULARY, MultiCropCaptioning
from brim.workload import prepare


def test_it_generates_a_caption_for_every_image():
    workload = prepare(MultiCropCaptioning, Case({"max_crops": 3}), torch.device("cpu"))
    workload.build()
    batch = workload.batch(5)
    caption = workload.model(batch)
    assert batch.shape[:2] == (5, 3)
    assert caption.shape == (5, NUM_CAPTION_TOKENS)
    assert caption.max() < VOCABULARY


def test_more_crops_leave_room_for_fewer_images():
    findings = brim.find(
        "brim.demo_workload:MultiCropCaptioning",
        cases=[{"max_crops": 4}, {"max_crops": 13}],
        device="cpu",
        memory="512MiB",
        cap=64,
        cache=False,
    )
    few, many = findings
    assert few.confirmed
    assert many.confirmed
    assert few.microbatch > 2 * many.microbatch
