"""Logits and log-likelihoods as numpy arrays: the command line's, and one another's."""
import numpy
import pytest

import sluice
from conftest import STORIES


def softmax_logs(logits):
    logits = logits.astype(numpy.float64)
    top = logits.max(axis=1, keepdims=True)
    return logits - top - numpy.log(numpy.exp(logits - top).sum(axis=1, keepdims=True))


def test_logits_are_the_command_lines(model, tool, tmp_path):
    ids = model.tokenizer.encode("Once upon a time there was")
    ours = model.logits(ids)
    assert ours.shape == (len(ids), 512) and ours.dtype == numpy.float32
    tool("logits", STORIES, "--prompt-ids", ",".join(map(str, ids)), "-o", tmp_path / "out.npy")
    assert numpy.array_equal(ours, numpy.load(tmp_path / "out.npy"))
    again = model.logits("Once upon a time there was")
    assert numpy.array_equal(again, ours)  # whatever the prefix cache knows by now
    assert model.logits([1]).shape == (1, 512)
    assert model.logits([5] * 512).shape == (512, 512)


def test_logits_say_what_is_generated(model):
    ids = model.tokenizer.encode("Once upon a time")
    assert int(model.logits(ids)[-1].argmax()) == model.generate(ids, max_tokens=1).token_ids[0]


def test_prompt_logprobs_are_the_logits(model):
    ids = model.tokenizer.encode("Once upon a time there was a dog")
    ours = model.prompt_logprobs(ids)
    expected = softmax_logs(model.logits(ids))[numpy.arange(len(ids) - 1), ids[1:]]
    assert numpy.isnan(ours[0]) and ours.dtype == numpy.float32
    assert numpy.allclose(ours[1:], expected, atol=1e-4)
    three = model.prompt_logprobs(["Once", "Once upon", "Once upon a time there was a dog"])
    assert [len(one) for one in three[:2]] == [len(model.tokenizer.encode(text)) for text in ("Once", "Once upon")]
    assert numpy.allclose(three[2][1:], ours[1:], atol=1e-4)


def test_loglikelihoods_of_pairs(model):
    pairs = [("Once upon a", " time"), ("Once upon a", " zebra"), ("Once upon a ", "time"), ("", "Once")]
    scores = model.loglikelihoods(pairs)
    assert scores[0].is_greedy and not scores[1].is_greedy
    assert scores[0].logprob > scores[1].logprob
    assert scores[2].logprob == scores[0].logprob  # the space belongs to the word
    for (context, continuation), score in zip(pairs, scores):
        whole = model.tokenizer.encode(context + continuation)
        assert whole[-len(score.token_ids):] == score.token_ids
        assert score.logprob == pytest.approx(float(score.token_logprobs.sum()), rel=1e-6)
        assert score.token_logprobs == pytest.approx(model.prompt_logprobs(whole)[-len(score.token_ids):], abs=1e-4)
    assert model.loglikelihood([1, 5, 7], [9, 3]).token_ids == [9, 3]
    assert model.loglikelihoods([]) == []


def test_many_pairs_at_once(model):
    pairs = [(f"Once upon a time {i}", f" there was {i}") for i in range(100)]
    scores = model.loglikelihoods(pairs)
    assert scores[57].logprob == pytest.approx(model.loglikelihood(*pairs[57]).logprob, abs=1e-3)


@pytest.mark.parametrize("call, word", [
    (lambda m: m.logits(["a", "b"]), "one prompt"), (lambda m: m.loglikelihood("a", ""), "continuation"),
    (lambda m: m.logits([]), "one prompt"), (lambda m: m.logits([5] * 513), "context"), (lambda m: m.logits([512]), "512"),
    (lambda m: m.loglikelihood([], [1]), "context"), (lambda m: m.prompt_logprobs([[]]), "empty")])
def test_refusals(model, call, word):
    with pytest.raises(sluice.UserError, match=word):
        call(model)
