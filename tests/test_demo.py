"""The demo's workload: what it generates does not depend on the cache, and every case has its own answer."""

import json
import os

import torch

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


def test_more_crops_leave_room_for_fewer_images_where_nothing_is_installed_that_brim_does_not_ask_for(
    brim_cli, tmp_path
):
    # Modules that tests and other frameworks bring along, and a new environment does not have.
    for name in ("numpy", "transformers"):
        (tmp_path / f"{name}.py").write_text(f"raise ModuleNotFoundError('No module named {name}', name='{name}')")
    workload = "brim.demo_workload:MultiCropCaptioning"
    run = brim_cli(
        *("find", workload, "--case", "max_crops=4,13", "--memory", "512MiB", "--cap", "64", "--json"),
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])},
    )
    assert run.returncode == 0, run.stderr
    assert "measured probes alone" not in run.stderr
    few, many = json.loads(run.stdout)["findings"]
    assert few["confirmed"]
    assert many["confirmed"]
    assert few["microbatch"] > 2 * many["microbatch"]
    assert many["predicted"]["largest"] > 0
