"""lm-eval's own model with a batch for each group of lengths, against the same model one request at a time."""

import pytest
import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from brim.integrations.lm_eval import LengthGroupedHFLM

pytestmark = pytest.mark.filterwarnings("ignore")  # the libraries' own
MOST_TOKENS = 120


class Limited(GPT2LMHeadModel):
    """Runs out of memory above a number of tokens in a batch, while it is limited."""

    is_limited = False

    def forward(self, input_ids=None, **inputs):
        if self.is_limited and input_ids.numel() > MOST_TOKENS:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return super().forward(input_ids=input_ids, **inputs)


@pytest.fixture(scope="module")
def parts():
    words = {word: number for number, word in enumerate(["<eos>", *(f"w{number}" for number in range(30))])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<eos>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    torch.manual_seed(0)
    config = GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=31, n_positions=128, bos_token_id=0, eos_token_id=0)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<eos>")
    return Limited(config).eval(), wrapped


def text(length, first):
    return " ".join(f"w{(first + step) % 30}" for step in range(length))


def scoring(lengths):
    return [
        Instance(request_type="loglikelihood", doc={}, arguments=(text(length, index), " w1 w2"), idx=index)
        for index, length in enumerate(lengths)
    ]


def test_scores_are_the_same_and_shorter_requests_get_larger_batches(parts):
    model, tokenizer = parts
    requests = scoring([40, 4, 38, 5, 6, 36, 5, 4, 35, 7, 39, 6])
    model.is_limited = False
    expected = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=1, device="cpu").loglikelihood(requests)
    lm = LengthGroupedHFLM(pretrained=model, tokenizer=tokenizer, device="cpu")
    lm.brim_memory = "4GiB"
    model.is_limited = True
    found = lm.loglikelihood(requests)
    assert [score for score, _ in found] == pytest.approx([score for score, _ in expected], abs=1e-4)
    assert [is_greedy for _, is_greedy in found] == [is_greedy for _, is_greedy in expected]
    (long_batch, short_batch) = lm.batch_sizes.values()
    assert long_batch == 2  # two of 41 tokens fit into 120, three do not
    assert short_batch == 7  # all there are


def test_generation_is_probed_by_generating_and_gives_the_same_texts(parts):
    model, tokenizer = parts
    settings = {"until": ["w0"], "max_gen_toks": 4, "do_sample": False}
    requests = [
        Instance(request_type="generate_until", doc={}, arguments=(text(length, index), dict(settings)), idx=index)
        for index, length in enumerate([6, 30, 6, 30])
    ]
    model.is_limited = False
    expected = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=1, device="cpu").generate_until(requests)
    lm = LengthGroupedHFLM(pretrained=model, tokenizer=tokenizer, device="cpu")
    lm.brim_memory = "4GiB"
    model.is_limited = True
    assert lm.generate_until(requests) == expected
    assert [name for name, _ in lm.batch_sizes] == ["generate_until", "generate_until"]
