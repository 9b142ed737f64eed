#!/usr/bin/env python3
"""The official openai package (PyPI: openai, jsonschema) against `sluice serve`: each line is a check that holds, or the script ends.

    scripts/check_clients.py [MODEL]     default: the small trained model of the tests
"""
import asyncio
import json
import pathlib
import sys
import tempfile
import time

import jsonschema
import openai

from served import served

MODEL = sys.argv[1] if len(sys.argv) > 1 else str(pathlib.Path(__file__).parent.parent / "tests/fixtures/models/stories260k")
STORY = "Once upon a time"
PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 20},
                                           "age": {"type": "integer", "minimum": 1, "maximum": 12},
                                           "friends": {"type": "array", "items": {"enum": ["dog", "cat", "bird"]}, "minItems": 1,
                                                       "maxItems": 3}},
          "required": ["name", "age", "friends"], "additionalProperties": False}
TEMPLATE = "{% for m in messages %}{{ m.content or '' }}\n{% endfor %}{% if tools %}{{ tools | length }} tools\n{% endif %}"


def check(what, holds, shown=""):
    print(f"{'ok  ' if holds else 'FAIL'} {what} {shown}", flush=True)
    if not holds:
        sys.exit(1)


def completions(client, model):
    check("models", client.models.retrieve(model).id == client.models.list().data[0].id == model)
    greedy = dict(model=model, prompt=STORY, max_tokens=30, temperature=0)
    alone = client.completions.create(**greedy, logprobs=2).choices[0]
    check("completion", alone.text and len(alone.logprobs.tokens) == 30, repr(alone.text))
    stream = client.completions.create(**greedy, stream=True, stream_options={"include_usage": True})
    text, usage = "", None
    for chunk in stream:
        text += chunk.choices[0].text if chunk.choices else ""
        usage = chunk.usage or usage
    check("stream", text == alone.text and usage.completion_tokens == 30)
    drawn = [client.completions.create(model=model, prompt=[STORY, "The dog"], max_tokens=10, temperature=0.8, seed=1, n=3,
                                       stop=["the"]) for _ in range(2)]
    check("seeds", [c.text for c in drawn[0].choices] == [c.text for c in drawn[1].choices], f"{len(drawn[0].choices)} samples")
    beams = client.completions.create(model=model, prompt=STORY, max_tokens=20, n=3, extra_body={"use_beam_search": True})
    check("beams", len({c.text for c in beams.choices}) == 3)
    for bad in [dict(prompt=[]), dict(prompt="a", model="nope"), dict(prompt="a" * 30000), dict(prompt="x", extra_body={"wat": 1}),
                dict(prompt="x", temperature=-1), dict(prompt=[1, 9999999])]:
        try:
            client.completions.create(**{"model": model, **bad})
            check("refusal", False, str(bad)[:100])
        except openai.APIStatusError as error:
            check("refusal", error.status_code in (400, 404), error.body["message"][:100])
    return alone.text


async def many(url, model, alone):
    client = openai.AsyncOpenAI(base_url=url + "/v1", api_key="x", max_retries=0)
    answers = await asyncio.gather(*[client.completions.create(model=model, prompt=STORY, max_tokens=30, temperature=0)
                                     for _ in range(40)])
    check("40 callers get what one gets", all(a.choices[0].text == alone for a in answers))


def guides(client, model):
    valid = 0
    for seed in range(40):
        form = {"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON}}
        answer = client.completions.create(model=model, prompt=STORY, max_tokens=200, temperature=1.3, seed=seed,
                                           extra_body={"response_format": form}).choices[0]
        if answer.finish_reason == "stop":
            jsonschema.validate(json.loads(answer.text), PERSON)
            valid += 1
    check("schemas", valid > 30, f"{valid} of 40 ended, all valid")
    choice = client.completions.create(model=model, prompt=STORY, max_tokens=9, extra_body={"guided_choice": ["yes", "no"]})
    check("choice", choice.choices[0].text in ("yes", "no"))


def tools(client, model):
    tool = {"type": "function", "function": {"name": "add_friend", "description": "Adds one.", "parameters": PERSON, "strict": True}}
    ask = dict(model=model, messages=[{"role": "user", "content": STORY}], tools=[tool], max_tokens=200, temperature=1.1, parallel_tool_calls=False)
    whole = 0
    for seed in range(20):
        choice = client.chat.completions.create(**ask, seed=seed, tool_choice="required").choices[0]
        if choice.finish_reason != "tool_calls":
            continue
        for call in choice.message.tool_calls:
            jsonschema.validate(json.loads(call.function.arguments), PERSON)
        whole += 1
    check("calls of tools", whole > 10, f"{whole} of 20 ended, all valid; {choice.message.tool_calls[0].function}")
    arguments, reason = "", None
    for chunk in client.chat.completions.create(**ask, seed=3, stream=True,
                                                tool_choice={"type": "function", "function": {"name": "add_friend"}}):
        for call in chunk.choices[0].delta.tool_calls or []:
            arguments += call.function.arguments
        reason = chunk.choices[0].finish_reason or reason
    check("a call as a stream", reason == "length" or not jsonschema.validate(json.loads(arguments), PERSON), arguments)
    offered = client.chat.completions.create(**{**ask, "temperature": 0, "max_tokens": 20}).choices[0]
    check("tools offered", offered.message.content and not offered.message.tool_calls, repr(offered.message.content))


def batches(client, model):
    lines = [{"custom_id": f"r{i}", "method": "POST", "url": "/v1/completions",
              "body": {"model": model, "prompt": f"{STORY} {i}", "max_tokens": 50, "temperature": 0}} for i in range(100)]
    file = client.files.create(file=("in.jsonl", "".join(json.dumps(line) + "\n" for line in lines).encode()), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
    until = time.monotonic() + 120
    while batch.status not in ("completed", "failed", "cancelled") and time.monotonic() < until:
        time.sleep(0.2)
        batch = client.batches.retrieve(batch.id)
    ids = {json.loads(line)["custom_id"] for line in client.files.content(batch.output_file_id).text.splitlines()}
    check("a batch", batch.status == "completed" and ids == {line["custom_id"] for line in lines}, batch.request_counts)
    check("files", client.files.delete(file.id).deleted and len(client.batches.list().data) == 1)


with tempfile.TemporaryDirectory() as folder:
    template = pathlib.Path(folder) / "chat.jinja"
    template.write_text(TEMPLATE)
    with served(MODEL, "-c", "512", "--batch-dir", folder + "/batches", "--served-model-name", "small", "--chat-template",
                str(template), "--tool-call-parser", "hermes") as address:
        with openai.OpenAI(base_url=address + "/v1", api_key="x", max_retries=0) as one:
            told = completions(one, "small")
            asyncio.run(many(address, "small", told))
            guides(one, "small")
            tools(one, "small")
            batches(one, "small")
