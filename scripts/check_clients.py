#!/usr/bin/env python3
"""The official packages (PyPI: openai, anthropic, ollama, jsonschema) against `sluice serve`: each line is a check that holds, or the script ends.

    scripts/check_clients.py [MODEL]     default: the small trained model of the tests
"""
import asyncio
import json
import pathlib
import sys
import tempfile
import time

import anthropic
import jsonschema
import ollama
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


def responses(client, model):
    greedy = dict(model=model, input=STORY, max_output_tokens=30, temperature=0)
    whole = client.responses.create(**greedy)
    chat = client.chat.completions.create(model=model, messages=[{"role": "user", "content": STORY}], max_tokens=30, temperature=0)
    check("responses: a text", whole.output_text == chat.choices[0].message.content and whole.status == "incomplete"
          and whole.incomplete_details.reason == "max_output_tokens" and whole.usage.output_tokens == 30, repr(whole.output_text))
    with client.responses.stream(**greedy) as stream:  # its end is response.incomplete, which the package calls no final response
        events = list(stream)
    kinds, last = [event.type for event in events], events[-1].response
    text = "".join(event.delta for event in client.responses.create(**greedy, stream=True) if event.type == "response.output_text.delta")
    check("responses: a stream", last.output_text == text == whole.output_text, f"{kinds[:4]} ... {kinds[-4:]}")
    later = client.responses.create(**{**greedy, "input": [{"role": "user", "content": STORY}, *whole.output, {"role": "user", "content": "And?"}]},
                                    instructions="Tell a story.")
    check("responses: sent back", later.usage.input_tokens > whole.usage.input_tokens and later.output_text)
    tool = {"type": "function", "name": "add_friend", "description": "Adds one.", "parameters": PERSON, "strict": True}
    ask = dict(model=model, input=[{"role": "user", "content": STORY}], tools=[tool], max_output_tokens=200, temperature=1.1)
    called = 0
    for seed in range(10):
        answer = client.responses.create(**ask, tool_choice="required", parallel_tool_calls=False, extra_body={"seed": seed})
        if answer.status == "completed":
            call = answer.output[0]
            jsonschema.validate(json.loads(call.arguments), PERSON)
            called += 1
            result = {"type": "function_call_output", "call_id": call.call_id, "output": "done"}
            told = client.responses.create(**{**ask, "input": [*ask["input"], *answer.output, result], "temperature": 0})
            check("responses: a call and its output", told.output_text, repr(told.output_text[:40]))
    check("responses: calls", called > 4, f"{called} of 10 ended, all valid")
    form = {"format": {"type": "json_schema", "name": "p", "schema": PERSON, "strict": True}}
    guided = client.responses.create(model=model, input=STORY, text=form, max_output_tokens=300, temperature=1, extra_body={"seed": 1})
    check("responses: a schema", guided.status == "incomplete" or not jsonschema.validate(json.loads(guided.output_text), PERSON), guided.output_text)
    for bad in [dict(store=True), dict(previous_response_id="resp_1"), dict(background=True), dict(tools=[{"type": "web_search"}]),
                dict(include=["reasoning.encrypted_content"]), dict(input="a" * 30000), dict(max_output_tokens=0),
                dict(input=[{"role": "user", "content": [{"type": "input_image", "image_url": "x", "detail": "auto"}]}])]:
        try:
            client.responses.create(**{**greedy, **bad})
            check("responses: refusal", False, str(bad)[:100])
        except openai.BadRequestError as error:
            check("responses: refusal", error.body["param"] in bad, error.body["message"][:100])


def messages(address, model):
    client = anthropic.Anthropic(base_url=address, api_key="x", max_retries=0)
    # The package sends what is extra_body as it is.
    greedy = dict(model=model, max_tokens=30, messages=[{"role": "user", "content": STORY}], extra_body={"temperature": 0})
    whole = client.messages.create(**greedy)
    check("messages: a text", whole.stop_reason == "max_tokens" and whole.usage.output_tokens == 30, repr(whole.content[0].text))
    with client.messages.stream(**greedy) as stream:
        text = "".join(stream.text_stream)
        last = stream.get_final_message()
    check("messages: a stream", text == whole.content[0].text == last.content[0].text and last.usage.output_tokens == 30
          and last.stop_reason == "max_tokens")
    counted = client.messages.count_tokens(model=model, messages=greedy["messages"], system="Tell a story.")
    check("messages: counted", counted.input_tokens > whole.usage.input_tokens + whole.usage.cache_read_input_tokens, counted.input_tokens)
    stopped = client.messages.create(**greedy, stop_sequences=["bird"])
    check("messages: a stop sequence", stopped.stop_reason == "stop_sequence" and stopped.stop_sequence == "bird"
          and text.startswith(stopped.content[0].text) and "bird" not in stopped.content[0].text, repr(stopped.content[0].text))
    tool = {"name": "add_friend", "description": "Adds one.", "input_schema": PERSON}
    ask = dict(model=model, max_tokens=200, messages=greedy["messages"], tools=[tool])
    called = 0
    for seed in range(10):
        choice = {"type": "tool", "name": "add_friend"}
        with client.messages.stream(**ask, tool_choice=choice, extra_body={"seed": seed, "temperature": 1.1}) as stream:
            answer = stream.get_final_message()
        if answer.stop_reason == "tool_use":
            jsonschema.validate(answer.content[0].input, PERSON)
            called += 1
            turns = [*ask["messages"], {"role": "assistant", "content": answer.content},
                     {"role": "user", "content": [{"type": "tool_result", "tool_use_id": answer.content[0].id, "content": "done"}]}]
            told = client.messages.create(**{**ask, "messages": turns, "max_tokens": 10})
            check("messages: a call and its result", told.content[0].text, repr(told.content[0].text))
    check("messages: calls", called > 4, f"{called} of 10 ended, all valid")
    for bad, error in [(dict(model="nope"), anthropic.NotFoundError), (dict(thinking={"type": "enabled", "budget_tokens": 1024}), anthropic.BadRequestError),
                       (dict(tools=[{"type": "bash_20250124", "name": "bash"}]), anthropic.BadRequestError),
                       (dict(messages=[{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "x"}}]}]),
                        anthropic.BadRequestError)]:
        try:
            client.messages.create(**{**greedy, **bad})
            check("messages: refusal", False, str(bad)[:100])
        except error as refused:
            check("messages: refusal", refused.body["type"] == "error", refused.body["error"]["message"][:100])


def embeddings(client, address, model):
    texts = [STORY, "The dog ran to the park", STORY]
    floats = client.embeddings.create(model=model, input=texts, encoding_format="float")
    packed = client.embeddings.create(model=model, input=texts)  # the package asks for base64 where nothing is said
    vectors = [one.embedding for one in floats.data]
    length = sum(x * x for x in vectors[0]) ** 0.5
    apart = [sum((a - b) ** 2 for a, b in zip(one, two)) ** 0.5 for one, two in [*zip([o.embedding for o in packed.data], vectors),
                                                                                 (vectors[0], vectors[2]), (vectors[0], vectors[1])]]
    check("embeddings: floats and base64", max(apart[:4]) < 1e-5 and apart[4] > 0.1 and abs(length - 1) < 1e-4 and floats.usage.prompt_tokens == floats.usage.total_tokens > 0, f"{len(vectors[0])} values, length {length:.5f}")
    short = client.embeddings.create(model=model, input=STORY, dimensions=8).data[0].embedding
    check("embeddings: fewer dimensions", len(short) == 8 and abs(sum(x * x for x in short) - 1) < 1e-4)
    ours = ollama.Client(host=address).embed(model=model, input=texts).embeddings
    check("embeddings: the same through Ollama's", all(abs(a - b) < 1e-5 for one, two in zip(ours, vectors) for a, b in zip(one, two)))
    for bad in [dict(input=[]), dict(input=""), dict(dimensions=0), dict(dimensions=4096), dict(input="a" * 30000), dict(encoding_format="int8")]:
        try:
            client.embeddings.create(**{"model": model, "input": STORY, **bad})
            check("embeddings: refusal", False, str(bad)[:100])
        except openai.BadRequestError as error:
            check("embeddings: refusal", error.body["param"] in bad, error.body["message"][:100])


def ollama_calls(address, model):
    client = ollama.Client(host=address)
    check("ollama: list", client.list().models[0].model == model + ":latest" and client.ps().models[0].context_length == 512, client.list().models[0].details)
    shown = client.show(model)
    check("ollama: show", shown.capabilities == ["completion", "tools"] and shown.modelinfo["llama.context_length"] == 512, shown.modelinfo)
    greedy = dict(model=model, options={"num_predict": 30, "temperature": 0})
    whole = client.chat(**greedy, messages=[{"role": "user", "content": STORY}])
    text = "".join(part.message.content for part in client.chat(**greedy, messages=[{"role": "user", "content": STORY}], stream=True))
    generated = client.generate(**greedy, prompt=STORY)
    pieces = list(client.generate(**greedy, prompt=STORY, raw=True, stream=True))
    check("ollama: chat and generate", whole.message.content == text == generated.response and whole.eval_count == 30
          and whole.done_reason == "length" and pieces[-1].done and len(pieces) > 5, repr(text))
    guided = client.generate(model=model, prompt=STORY, format=PERSON, options={"seed": 1, "num_predict": 300})
    check("ollama: a schema", guided.done_reason == "length" or not jsonschema.validate(json.loads(guided.response), PERSON), guided.response)
    tool = {"type": "function", "function": {"name": "add_friend", "parameters": {"type": "object", "properties": {"name": {"type": "string"}}}}}
    turns = [{"role": "user", "content": STORY}, {"role": "assistant", "tool_calls": [{"function": {"name": "add_friend", "arguments": {"name": "a"}}}]},
             {"role": "tool", "tool_name": "add_friend", "content": "done"}]
    check("ollama: tools offered", client.chat(**greedy, messages=turns, tools=[tool], keep_alive="5m").message.content)
    check("ollama: load", client.generate(model=model).done_reason == "load")
    for bad in [dict(options={"mirostat": 3}), dict(options={"num_ctx": 4096}), dict(keep_alive=0), dict(suffix="a"), dict(model="nope"), dict(think=True)]:
        try:
            client.generate(**{**greedy, "prompt": STORY, **bad})
            check("ollama: refusal", False, str(bad)[:100])
        except ollama.ResponseError as error:
            check("ollama: refusal", error.status_code in (400, 404), error.error[:100])


with tempfile.TemporaryDirectory() as folder:
    template = pathlib.Path(folder) / "chat.jinja"
    template.write_text(TEMPLATE)
    with served(MODEL, "-c", "512", "--strict", "--batch-dir", folder + "/batches", "--served-model-name", "small", "--chat-template",
                str(template), "--tool-call-parser", "hermes") as address:
        with openai.OpenAI(base_url=address + "/v1", api_key="x", max_retries=0) as one:
            told = completions(one, "small")
            asyncio.run(many(address, "small", told))
            guides(one, "small")
            tools(one, "small")
            responses(one, "small")
            messages(address, "small")
            ollama_calls(address, "small")
            embeddings(one, address, "small")
            batches(one, "small")
