"""Prompts in, answers out: the same as the command line's, whole, as pieces, in batches, or refused by name."""
import json
import os
import pathlib

import numpy
import pytest

import sluice
from conftest import STORIES

GOLDENS = json.loads((STORIES / "goldens.json").read_text())["cases"]


def test_says_what_the_golden_run_said(model):
    for case in GOLDENS:
        answer = model.generate(case["prompt"], max_tokens=len(case["greedy_ids"]))
        assert answer.token_ids == case["greedy_ids"]
        assert (case["prompt"] + answer.text).lstrip() == case["text"].lstrip()
        assert answer.prompt_token_ids == case["prompt_ids"]
        assert answer.finish_reason == "length"


def test_streams_what_it_generates(model):
    pieces = list(model.stream("Once upon a time", max_tokens=40))
    whole = model.generate("Once upon a time", max_tokens=40)
    assert "".join(piece.text for piece in pieces) == whole.text
    assert [token for piece in pieces for token in piece.token_ids] == whole.token_ids
    assert [piece.finish_reason for piece in pieces] == [None] * (len(pieces) - 1) + ["length"]
    assert len(pieces) > 20  # as they come


def test_a_stream_that_is_left_gives_its_prompt_up(model):
    for piece in model.stream("Once upon a time", max_tokens=400):
        break
    assert piece.text
    assert len(model.generate("One day", max_tokens=3).token_ids) == 3


@pytest.mark.parametrize("count", [1, 3, 200])
def test_a_batch_is_what_each_prompt_is_alone(model, count):
    prompts = [f"Once upon a time {i}" for i in range(count)]
    answers = model.generate(prompts, max_tokens=12)
    assert isinstance(answers, list) and [answer.index for answer in answers] == list(range(count))
    for i in {0, count // 2, count - 1}:
        assert answers[i].token_ids == model.generate(prompts[i], max_tokens=12).token_ids


def test_results_come_as_they_end(model):
    params = [sluice.SamplingParams(max_tokens=n) for n in (200, 3, 40)]
    ended = [result.index for result in model.as_completed(["a", "b", "c"], params)]
    assert ended == [1, 2, 0]


def test_nothing_asked_is_nothing_answered(model):
    assert model.generate([]) == []
    assert list(model.as_completed([])) == []


def test_takes_ids_in_every_form(model):
    ids = model.tokenizer.encode("Once upon a time")
    expected = model.generate("Once upon a time", max_tokens=8).token_ids
    for form in (ids, tuple(ids), numpy.array(ids), numpy.array(ids, dtype=numpy.int16), [numpy.int64(i) for i in ids]):
        assert model.generate(form, max_tokens=8).token_ids == expected
    both = model.generate(numpy.array([ids, ids]), max_tokens=numpy.int32(8))
    assert [answer.token_ids for answer in both] == [expected, expected]


@pytest.mark.parametrize("extra", [
    {"temperature": 0.9, "seed": 7}, {"temperature": 1.5, "top_k": 20, "top_p": 0.8, "min_p": 0.01, "seed": 2**63},
    {"temperature": 0.9, "typical_p": 0.5, "top_n_sigma": 2, "xtc_probability": 0.5, "xtc_threshold": 0.2, "seed": 8},
    {"temperature": 0.9, "mirostat": 2, "mirostat_tau": 3, "mirostat_eta": 0.2, "dry_multiplier": 0.8, "seed": 9},
    {"temperature": 0.7, "repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": -0.5, "seed": 1},
    {"num_beams": 3, "length_penalty": 0.5}, {"stop": ["She", "Lily"]}, {"min_tokens": 5}])
def test_says_what_the_command_line_says(model, tool, extra):
    flags = []
    for name, value in extra.items():
        for one in value if isinstance(value, list) else [value]:
            flags += ["--" + name.replace("_", "-"), str(one)]
    said = json.loads(tool("run", STORIES, "-p", "Once upon a time", "-n", 40, "--json", *flags))
    answer = model.generate("Once upon a time", max_tokens=40, **extra)
    assert (answer.text, answer.token_ids, answer.finish_reason) == (said["text"], said["token_ids"], said["finish_reason"])


def test_seeds_decide(model):
    def said(**more):
        return model.generate("Once upon a time", temperature=1, max_tokens=16, **more).token_ids
    assert said(seed=1) == said(seed=1) != said(seed=2)
    assert len({tuple(said()) for _ in range(4)}) > 1  # none given: by chance


def test_stop_strings_end_an_answer(model):
    answer = model.generate("Once upon a time", max_tokens=60, stop="Lily")
    assert answer.finish_reason == "stop" and answer.text == ", there was a little girl named "
    assert model.generate("Once upon a time", max_tokens=60, stop="Lily", include_stop=True).text.endswith("Lily")
    comma = answer.token_ids[0]
    assert model.generate("Once upon a time", stop_token_ids=[comma]).finish_reason == "stop"


def test_logprobs(model):
    answer = model.generate("Once upon a time", max_tokens=5, logprobs=3)
    assert [one.token_id for one in answer.logprobs] == answer.token_ids
    for one in answer.logprobs:
        assert len(one.top) == 3 and one.logprob == max(one.top.values()) == one.top[one.token_id] < 0
    assert model.generate("Once upon a time", max_tokens=5).logprobs is None
    biased = model.generate("Once upon a time", max_tokens=3, logit_bias={7: 100})
    assert biased.token_ids == [7, 7, 7]


@pytest.mark.parametrize("prompt", ["Zoë naïve — 你好 🦊", "\0", " \n", "<s>", "e\u0301"])
def test_any_text_is_a_prompt(model, prompt):
    answer = model.generate(prompt, max_tokens=4)
    assert answer.prompt_token_ids == model.tokenizer.encode(prompt)
    assert len(answer.token_ids) == 4
    assert answer.text.encode()


def test_characters_are_never_cut(model):
    fox = model.tokenizer.encode("🦊", add_special=False)
    assert len(fox) > 2  # bytes
    bias = {token: 100.0 for token in fox[-4:]}
    for piece in model.stream("x", max_tokens=12, logit_bias=bias, temperature=1, seed=3):
        piece.text.encode()


def test_paths(opened, monkeypatch):
    expected = opened().generate("One day", max_tokens=4).text
    monkeypatch.chdir(STORIES.parent)
    for path in (STORIES, pathlib.Path("stories260k"), "stories260k", "./stories260k/", os.fsencode(STORIES)):
        with opened(path) as one:
            assert one.generate("One day", max_tokens=4).text == expected


def refusal(call, kind=sluice.UserError):
    with pytest.raises(kind) as caught:
        call()
    assert "--" not in str(caught.value) and "_bytes" not in str(caught.value)
    return str(caught.value)


def test_missing_and_bad_checkpoints(opened, tmp_path):
    assert "nowhere" in refusal(lambda: opened("/nowhere/at/all"), sluice.FileError)
    assert str(tmp_path) in refusal(lambda: opened(tmp_path), sluice.FileError)
    for name in ("model.safetensors", "tokenizer.json"):
        (tmp_path / name).write_bytes((STORIES / name).read_bytes())
    (tmp_path / "config.json").write_text("{")
    assert "config.json" in refusal(lambda: opened(tmp_path), OSError)
    assert "path" in refusal(lambda: opened(7))


def test_a_model_that_does_not_fit_says_what_is_short(opened):
    text = refusal(lambda: opened(cpu_mem=40000), sluice.ResourceError)
    assert "cpu_mem" in text
    with pytest.raises(MemoryError):
        opened(cpu_mem="1KiB")


def test_positions_are_stretched(opened):
    assert opened().context == 512
    for options in ({"rope_scaling": "yarn", "rope_factor": 4},
                    {"rope_scaling": {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 512}},
                    {"context": 2048}):
        model = opened(**options)
        assert model.context == 2048
        assert len(model.generate([5] * 700, max_tokens=2).token_ids) == 2


@pytest.mark.parametrize("options, word", [
    ({"cpu_mem": "4 Gigs"}, "cpu_mem"), ({"cpu_mem": -1}, "cpu_mem"), ({"cpu_mem": 0}, "cpu_mem"),
    ({"cpu_memory": "1GiB"}, "did you mean 'cpu_mem'?"), ({"context": 0x7FFFFFFF}, "512"), ({"context": -5}, "context"),
    ({"sequences": -1}, "sequences"), ({"context": 0}, "context"), ({"sequences": 0}, "sequences"), ({"sequences": 2.5}, "sequences"), ({"threads": -1}, "threads"),
    ({"compute": "f64"}, "compute"), ({"batch_invariant": "on"}, "batch_invariant"), ({"kv_dtype": "int2"}, "kv_dtype"), ({"device": "abacus"}, "device"),
    ({"rope_scaling": "spiral", "rope_factor": 2}, "rope_scaling"), ({"rope_factor": -1}, "rope_factor"),
    ({"rope_scaling": {"rope_type": "yarn"}, "rope_theta": 0.5}, "rope_theta"),
    ({"policy": "{"}, "policy"), ({"policy": {"weights": 3}}, "policy"), ({"hardware": "/nowhere.json"}, "hardware"),
    ({"prefix_cache": "yes"}, "prefix_cache"), ({"kv_tokens": 0}, "kv_tokens"), ({"tokenizer": "/nowhere"}, "nowhere"),
    ({"chat_template": "/nowhere.jinja"}, "chat_template"), ({"chat_template": "{% if %}"}, "chat_template")])
def test_options_are_refused_by_name(opened, options, word):
    assert word in refusal(lambda: opened(**options), sluice.Error)


@pytest.mark.parametrize("keywords, word", [
    ({"max_tokens": 0}, "max_tokens"), ({"max_tokens": -3}, "max_tokens"), ({"max_tokens": 2**40}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"), ({"max_tokens": True}, "max_tokens"), ({"temperature": -1}, "temperature"),
    ({"temperature": float("nan")}, "temperature"), ({"temperature": float("inf")}, "temperature"),
    ({"temperature": "0.5"}, "temperature"), ({"top_p": 1.5}, "top_p"), ({"top_p": -0.1}, "top_p"),
    ({"mirostat": 3}, "mirostat"), ({"dry_sequence_breakers": "x"}, "dry_sequence_breakers"),
    ({"dry_sequence_breakers": [3]}, "dry_sequence_breakers"), ({"typical_p": 2}, "typical_p"),
    ({"top_k": -1}, "top_k"), ({"min_p": 2}, "min_p"), ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"presence_penalty": 3}, "presence_penalty"), ({"frequency_penalty": -3}, "frequency_penalty"),
    ({"seed": -1}, "seed"), ({"seed": 2**64}, "seed"), ({"min_tokens": 900}, "min_tokens"), ({"logprobs": 21}, "logprobs"),
    ({"logprobs": -1}, "logprobs"), ({"stop": [""]}, "stop"), ({"stop": [3]}, "stop"), ({"stop": b"x"}, "stop"),
    ({"stop_token_ids": [512]}, "stop_token_ids"), ({"stop_token_ids": [-1]}, "stop_token_ids"),
    ({"stop_token_ids": ["x"]}, "stop_token_ids"), ({"logit_bias": {600: 1}}, "logit_bias"),
    ({"logit_bias": {1: float("nan")}}, "logit_bias"), ({"logit_bias": {1: 101}}, "logit_bias"),
    ({"num_beams": 65}, "num_beams"), ({"num_beams": 0}, "num_beams"), ({"length_penalty": 200}, "length_penalty"),
    ({"ignore_eos": "no"}, "ignore_eos"), ({"temprature": 1}, "did you mean 'temperature'?"),
    ({"beam": 1}, "beam"), ({"sampling_params": {"top_k": 1}}, "sampling_params"),
    ({"sampling_params": [sluice.SamplingParams()] * 2}, "sampling_params")])
def test_sampling_is_refused_by_name(model, keywords, word):
    assert word in refusal(lambda: model.generate("Once", **keywords))
    assert len(model.generate("Once", max_tokens=2).token_ids) == 2


@pytest.mark.parametrize("prompt, word", [
    (7, "prompt"), (None, "prompt"), (b"x", "prompt"), ({"a": 1}, "prompt"), ([1, "x"], "prompt"), ([[]], "empty"),
    ([1, 1.5], "prompt"), ([[1, 2**40]], "token id"), ([1, 512], "512"), ([-1, 5], "-1"), ([[True]], "prompt"),
    ("\ud800", "UTF-8"), (["x", []], "prompt 1"), ([5] * 512, "context"), ("word " * 600, "context")])
def test_prompts_are_refused(model, prompt, word):
    assert word in refusal(lambda: model.generate(prompt))


def test_an_empty_text_is_what_begins_a_text(model):
    assert model.generate("", max_tokens=4).prompt_token_ids == [1]


def test_the_longest_prompt_leaves_room_for_one_token(model):
    answer = model.generate([5] * 511, max_tokens=50)
    assert len(answer.token_ids) == 1 and answer.finish_reason == "length"


def test_a_smaller_context_counts(opened):
    with opened(context=32) as small:
        assert small.context == 32
        assert len(small.generate("Once", max_tokens=400).token_ids) == 32 - len(small.tokenizer.encode("Once"))
        assert "32" in refusal(lambda: small.generate([5] * 40))


def test_a_model_without_a_tokenizer_takes_ids(opened):
    with opened(STORIES.parent / "llama-tiny-gqa") as bare:
        assert bare.tokenizer is None
        answer = bare.generate([2, 5, 7], max_tokens=5)
        assert len(answer.token_ids) == 5 and answer.text == ""
        assert "tokenizer" in refusal(lambda: bare.generate("text"))
        assert "stop" in refusal(lambda: bare.generate([2, 5], stop="x"))
        assert "tokenizer" in refusal(lambda: bare.generate([2, 5], regex="x"))
        assert "tokenizer" in refusal(lambda: bare.generate([2, 5], grammar="root ::= [a]"))


def test_any_policy_gives_the_same_tokens(opened, model):
    expected = model.generate("Once upon a time", max_tokens=20).token_ids
    for policy in ({"weights": {"device": 0, "host": 0, "disk": 1}}, {"kv": {"device": 0, "host": 0, "disk": 1}}):
        with opened(policy=policy) as other:
            assert other.generate("Once upon a time", max_tokens=20).token_ids == expected
    with opened(device="emulated:mem=64MiB", prefix_cache=False, predict_lengths=False, sequences=1) as other:
        assert other.generate("Once upon a time", max_tokens=20).token_ids == expected
