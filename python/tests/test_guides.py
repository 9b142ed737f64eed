"""Outputs that are held to a schema, a pattern or a list."""
import json
import re

import pytest

import sluice

SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"type": "integer", "maximum": 99}},
          "required": ["name", "age"], "additionalProperties": False}


def test_json_by_a_schema(model):
    for schema in (SCHEMA, json.dumps(SCHEMA)):
        for seed in range(5):
            said = json.loads(model.generate("Tell me", json_schema=schema, temperature=1, seed=seed, max_tokens=200).text)
            assert set(said) == {"name", "age"} and isinstance(said["age"], int) and len(said["name"]) <= 5


def test_a_pattern_and_a_choice(model):
    for seed in range(5):
        answer = model.generate("x", regex="[a-c]{3}-[0-9]+!", temperature=1, seed=seed, max_tokens=60)
        assert re.fullmatch("[a-c]{3}-[0-9]*!?", answer.text)
        assert model.generate("x", choice=["yes", "no", "très"], temperature=1, seed=seed).text in ("yes", "no", "très")
    assert model.generate("x", choice=["one"]).text == "one"


def test_each_prompt_has_its_own(model):
    params = [sluice.SamplingParams(choice=["a"]), sluice.SamplingParams(regex="b{4}"), sluice.SamplingParams(max_tokens=3)]
    answers = model.generate(["x", "x", "x"], params)
    assert [answer.text for answer in answers[:2]] == ["a", "bbbb"]
    assert len(answers[2].token_ids) == 3


@pytest.mark.parametrize("keywords, word", [
    ({"regex": "("}, "regex|regular"), ({"json_schema": "{"}, "schema|JSON"), ({"json_schema": {"a": {1, 2}}}, "json_schema"),
    ({"json_schema": {"type": "nothing"}}, "type"), ({"choice": []}, "choice"), ({"choice": "yes"}, "choice"),
    ({"regex": "a", "choice": ["a"]}, "regex and choice"), ({"regex": 5}, "regex"), ({"json_object": 5}, "json_object")])
def test_refusals(model, keywords, word):
    with pytest.raises(sluice.UserError, match=word):
        model.generate("x", **keywords)
    assert model.generate("x", choice=["still"]).text == "still"
