import json

import pytest
import torch

from brim.errors import InputError
from brim.planning.configs import read_config, shape_of
from brim.planning.shapes import find_model, models, sizes

# What the publishers say, to the parameter.
PUBLISHED = {
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "llama-2-7b": 6_738_415_616,
    "llama-3.1-8b": 8_030_261_248,
    "llama-2-13b": 13_015_864_320,
    "llama-30b": 32_528_943_616,
    "code-llama-34b": 33_743_970_304,
    "llama-3.1-70b": 70_553_706_496,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "mistral-7b": 7_241_732_096,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "yi-34b": 34_388_917_248,
    "qwen2.5-72b": 72_706_203_648,
}
FAMILIES = ["gpt2", "opt", "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "phi3", "phi", "gpt_neox", "falcon"]
FAMILIES += ["bloom", "starcoder2", "olmo2", "stablelm", "cohere", "smollm3", "bert", "roberta"]


def test_every_model_has_as_many_parameters_as_its_publisher_says():
    assert {name: shape.num_parameters for name, shape in models().items()} == PUBLISHED


def test_the_promised_sizes_are_there():
    assert {"1b", "3b", "7b", "8b", "13b", "30b", "34b", "70b"} <= set(sizes())
    for size in sizes():
        assert find_model(size).num_parameters == pytest.approx(float(size[:-1]) * 1e9, rel=0.25)


def test_a_name_may_be_written_as_on_the_hub():
    assert find_model("meta-llama/Llama-3.1-8B").name == "llama-3.1-8b"


def test_a_model_that_is_not_there_is_answered_with_the_nearest():
    with pytest.raises(InputError, match=r"Nearest: llama-3\.1-8b"):
        find_model("llama-3.1-8")
    with pytest.raises(InputError, match=r"Sizes: 0\.5b, 1b.*--config"):
        find_model("9000b")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_config_counts_what_transformers_builds_from_it(family):
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(family)
    if family in ("bert", "roberta"):
        config.is_decoder = True
    with torch.device("meta"):
        built = sum(parameter.numel() for parameter in AutoModelForCausalLM.from_config(config).parameters())
    counted = shape_of(json.loads(config.to_json_string(use_diff=False))).num_parameters
    assert counted == pytest.approx(built, rel=0.01)


def test_a_config_file_is_read_as_plain_json(tmp_path):
    path = tmp_path / "config.json"
    fields = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    path.write_text(json.dumps({**fields, "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 100}))
    shape = read_config(path)
    assert (shape.kv_heads, shape.head_dim, shape.gated, shape.tied) == (2, 16, True, False)
    path.write_text(json.dumps({"text_config": {**fields, "vocab_size": 100}}))
    assert "without the other models" in read_config(path).source


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_type": "t5", "is_encoder_decoder": True}, "an encoder with a decoder"),
        ({"model_type": "mixtral", "num_local_experts": 8}, "a mixture of experts"),
        ({"model_type": "albert", "embedding_size": 128, "hidden_size": 768}, "another width"),
        ({"model_type": "resnet"}, "no hidden_size or n_embd"),
        ({"hidden_size": 64, "num_attention_heads": 0}, "num_attention_heads 0"),
    ],
)
def test_what_is_no_stack_of_equal_blocks_is_refused_with_another_way(fields, message):
    with pytest.raises(InputError, match=message) as refused:
        shape_of(fields)
    assert "brim plan --workload" in str(refused.value)


@pytest.mark.parametrize("text", [None, "{", "[]", '"text"'])
def test_a_file_that_is_no_config_is_refused(tmp_path, text):
    path = tmp_path / "config.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError, match=r"Give the model's config\.json"):
        read_config(path)
