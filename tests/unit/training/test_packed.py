from itertools import pairwise

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.data import DataLoader
from transformers import DataCollatorWithFlattening, LlamaConfig, LlamaForCausalLM

import brim
from brim.errors import InputError


def sequences(*lengths):
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(0, 50, (length,), generator=generator) for length in lengths]


def test_the_offsets_are_what_flash_attention_wants():
    batch = brim.collate_packed(sequences(3, 5, 2))
    assert batch["cu_seqlens"].dtype == torch.int32
    assert batch["cu_seqlens"].tolist() == [0, 3, 8, 10]
    assert batch["max_seqlen"] == 5
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0, 1, 2, 3, 4, 0, 1]]


def test_the_row_is_the_one_that_transformers_makes():
    samples = [{"input_ids": tokens, "labels": tokens + 1} for tokens in sequences(3, 5, 2)]
    ours = brim.collate_packed(samples)
    theirs = DataCollatorWithFlattening(return_flash_attn_kwargs=True)(samples)
    for name in ("input_ids", "labels", "position_ids"):
        assert torch.equal(ours[name], theirs[name])
    assert torch.equal(ours["cu_seqlens"], theirs["cu_seq_lens_q"])
    assert ours["cu_seqlens"].dtype == theirs["cu_seq_lens_q"].dtype
    assert ours["max_seqlen"] == theirs["max_length_q"]


def test_attention_within_the_offsets_is_that_of_each_sequence_alone():
    batch = brim.collate_packed(sequences(3, 5, 2))
    offsets = batch["cu_seqlens"].tolist()
    queries = torch.randn(4, offsets[-1], 8, dtype=torch.float64)
    number = torch.bucketize(torch.arange(offsets[-1]), batch["cu_seqlens"][1:], right=True)
    packed = scaled_dot_product_attention(queries, queries, queries, attn_mask=number[:, None] == number)
    for begin, end in pairwise(offsets):
        part = queries[:, begin:end]
        assert torch.allclose(packed[:, begin:end], scaled_dot_product_attention(part, part, part))


def test_a_model_of_transformers_keeps_packed_sequences_apart():
    config = LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, vocab_size=50
    )
    model = LlamaForCausalLM(config).double().eval()
    samples = sequences(3, 5, 2)
    batch = brim.collate_packed(samples)
    with torch.no_grad():
        packed = model(**batch, use_cache=False).logits[0]
        alone = torch.cat([model(input_ids=tokens[None]).logits[0] for tokens in samples])
    assert torch.allclose(packed, alone, atol=1e-12)


def test_a_loader_of_packed_batches_loses_no_token():
    dataset = sequences(*range(1, 40))
    batches = brim.TokenBudgetSampler([len(tokens) for tokens in dataset], max_tokens=64, pack=True)
    loader = DataLoader(dataset, batch_sampler=batches, collate_fn=brim.collate_packed, num_workers=1)
    rows = [batch["input_ids"] for batch in loader]
    assert all(row.shape[1] <= 64 for row in rows)
    assert torch.equal(torch.cat(rows, dim=1).sort().values[0], torch.cat(dataset).sort().values)


def test_lists_of_tokens_will_do_and_masks_are_left_out():
    batch = brim.collate_packed(
        [{"input_ids": [1, 2], "attention_mask": [1, 1]}, {"input_ids": [3], "attention_mask": [1]}]
    )
    assert batch["input_ids"].tolist() == [[1, 2, 3]]
    assert set(batch) == {"input_ids", "position_ids", "cu_seqlens", "max_seqlen"}


def test_the_samples_labels_are_left_as_they_were():
    samples = [{"input_ids": tokens, "labels": tokens} for tokens in sequences(3, 5)]
    before = [sample["labels"].clone() for sample in samples]
    assert brim.collate_packed(samples)["labels"][0, [0, 3]].tolist() == [-100, -100]
    assert all(torch.equal(sample["labels"], labels) for sample, labels in zip(samples, before, strict=True))


@pytest.mark.parametrize(
    "sample",
    [{"tokens": torch.ones(3)}, torch.ones(3, 2), {"input_ids": torch.ones(3), "label": torch.tensor(1)}],
)
def test_what_is_not_one_value_per_token_is_refused_with_its_shapes(sample):
    with pytest.raises(InputError, match="Sample 0 of the batch has the shapes"):
        brim.collate_packed([sample])
