#!/usr/bin/env python3
"""What programs' packages get from `sluice serve`: a table of clients and features, as docs/clients.md has it.

    python3 -m venv V && V/bin/pip install openai       # one each: their wishes about other packages differ
    V/bin/python scripts/client_table.py [PACKAGE...]   # the server is $SLUICE, as for the other scripts here

Packages: openai, openai-agents, anthropic, ollama, litellm, langchain-openai, instructor, pydantic-ai-slim[openai],
lm-eval[api]; lm-eval is named lm_eval then.

Each cell is a call through the package against the tests' small model, whose result is looked at. A package that is not
installed is left out, and said. Exit code 1 where a cell fails; its reason is below the table.
"""

import asyncio
import importlib.metadata
import json
import os
import pathlib
import sys
import tempfile
import typing

from served import served

os.environ.update(
    OPENAI_AGENTS_DISABLE_TRACING="1", LITELLM_LOCAL_MODEL_COST_MAP="True", HF_HUB_OFFLINE="1", OPENAI_API_KEY="x"
)
MODEL = pathlib.Path(__file__).parent.parent / "tests/fixtures/models/stories260k"
TEMPLATE = (
    "{% for m in messages %}{{ m.content or '' }}\n{% endfor %}{% if tools %}{{ tools | length }} tools\n{% endif %}"
)
STORY = "Once upon a time"
loop = asyncio.new_event_loop()  # one for all: clients keep their connections in it
TURNS = [{"role": "user", "content": STORY}]
COLUMNS = ["chat", "stream", "tools", "tools stream", "schema", "embeddings", "errors"]
LONG = "a " * 3000


try:
    import pydantic

    class Friend(pydantic.BaseModel):
        """A friend, of few words: every one is short enough for the model's context."""

        name: typing.Literal["Lily", "Tom"]
        animal: typing.Literal["dog", "cat"]

except ImportError:
    pass  # lm-eval does without


PARAMETERS = {
    "type": "object",
    "properties": {"name": {"type": "string", "enum": ["Lily", "Tom"]}},
    "required": ["name"],
    "additionalProperties": False,
}
FUNCTION = {"name": "greet", "description": "Greets one.", "parameters": PARAMETERS}
TOOL = {"type": "function", "function": FUNCTION}


def need(holds, what):
    if not holds:
        raise AssertionError(f"not as wanted: {what!r}"[:300])


def need_name(arguments):
    need(json.loads(arguments)["name"] in ("Lily", "Tom"), arguments)


def need_friend(friend):
    need(isinstance(friend, Friend), friend)


def refused(kind, call):
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


def openai_cells(url):
    import openai

    client = openai.OpenAI(base_url=url + "/v1", api_key="x", max_retries=0)
    ask = dict(model="small", messages=TURNS, max_tokens=300)
    forced = dict(ask, tools=[TOOL], tool_choice="required", parallel_tool_calls=False)

    def stream():
        chunks = list(client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
        need("".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices), "")
        need(chunks[-1].usage.completion_tokens > 0, chunks[-1])

    def tools_stream():
        parts = [
            chunk.choices[0].delta.tool_calls or []
            for chunk in client.chat.completions.create(**forced, stream=True)
            if chunk.choices
        ]
        need_name("".join(call.function.arguments for calls in parts for call in calls))

    def errors():
        refused(openai.NotFoundError, lambda: client.chat.completions.create(**dict(ask, model="nope")))
        long = refused(
            openai.BadRequestError,
            lambda: client.chat.completions.create(**dict(ask, messages=[{"role": "user", "content": LONG}])),
        )
        need(long.code == "context_length_exceeded", long.body)

    return {
        "chat": lambda: need(client.chat.completions.create(**ask).choices[0].message.content, ""),
        "stream": stream,
        "tools": lambda: need_name(
            client.chat.completions.create(**forced).choices[0].message.tool_calls[0].function.arguments
        ),
        "tools stream": tools_stream,
        "schema": lambda: need_friend(
            client.chat.completions.parse(**ask, response_format=Friend).choices[0].message.parsed
        ),
        "embeddings": lambda: need(len(client.embeddings.create(model="small", input=[STORY, "b"]).data) == 2, ""),
        "errors": errors,
    }


def responses_cells(url):
    import openai

    client = openai.OpenAI(base_url=url + "/v1", api_key="x", max_retries=0)
    ask = dict(model="small", input=STORY, max_output_tokens=300)
    forced = dict(ask, tools=[{"type": "function", **FUNCTION, "strict": True}], tool_choice="required")

    def tools_stream():
        done = [
            event
            for event in client.responses.create(**forced, stream=True)
            if event.type == "response.function_call_arguments.done"
        ]
        need_name(done[0].arguments)

    def errors():
        refused(openai.NotFoundError, lambda: client.responses.create(**dict(ask, model="nope")))
        refused(openai.BadRequestError, lambda: client.responses.create(**dict(ask, input=LONG)))

    return {
        "chat": lambda: need(client.responses.create(**ask).output_text, ""),
        "stream": lambda: need(
            "".join(
                e.delta for e in client.responses.create(**ask, stream=True) if e.type == "response.output_text.delta"
            ),
            "",
        ),
        "tools": lambda: need_name(client.responses.create(**forced).output[0].arguments),
        "tools stream": tools_stream,
        "schema": lambda: need_friend(client.responses.parse(**ask, text_format=Friend).output_parsed),
        "errors": errors,
    }


def agents_cells(url, is_chat):
    import agents
    import openai

    client = openai.AsyncOpenAI(base_url=url + "/v1", api_key="x", max_retries=0)
    kind = agents.OpenAIChatCompletionsModel if is_chat else agents.OpenAIResponsesModel
    model = kind(model="small", openai_client=client)
    called = []

    @agents.function_tool
    def greet(name: typing.Literal["Lily", "Tom"]) -> str:
        """Greets one."""
        called.append(name)
        return "Hello"

    def agent(**more):
        # An answer that is cut off is an error there: a sentence ends it.
        ends = {} if "output_type" in more else {"extra_body": {"stop": ["."]}}
        one = {"tool_choice": "required", "parallel_tool_calls": False} if "tools" in more else {}
        settings = agents.ModelSettings(max_tokens=300, **one, **ends)
        return agents.Agent(name="a", instructions="Tell.", model=model, model_settings=settings, **more)

    def run(**more):
        return loop.run_until_complete(agents.Runner.run(agent(**more), STORY)).final_output

    async def stream(**more):
        result = agents.Runner.run_streamed(agent(**more), STORY)
        need([event async for event in result.stream_events()] and result.final_output, result.final_output)

    def calling(go):
        called.clear()
        go()
        need(called and called[0] in ("Lily", "Tom"), called)

    async def errors():
        try:
            await agents.Runner.run(agent(), LONG)
        except openai.BadRequestError:
            return
        raise AssertionError("no BadRequestError")

    return {
        "chat": lambda: need(run(), ""),
        "stream": lambda: loop.run_until_complete(stream()),
        "tools": lambda: calling(lambda: run(tools=[greet])),
        "tools stream": lambda: calling(lambda: loop.run_until_complete(stream(tools=[greet]))),
        "schema": lambda: need_friend(run(output_type=Friend)),
        "errors": lambda: loop.run_until_complete(errors()),
    }


def anthropic_cells(url):
    import anthropic

    client = anthropic.Anthropic(base_url=url, api_key="x", max_retries=0)
    ask = dict(model="small", max_tokens=300, messages=TURNS)
    forced = dict(ask, tools=[{"name": "greet", "input_schema": PARAMETERS}], tool_choice={"type": "any"})

    def stream(kind, **more):
        with client.messages.stream(**more) as events:
            need(list(events) and events.get_final_message().content[0].type == kind, kind)

    def errors():
        refused(anthropic.NotFoundError, lambda: client.messages.create(**dict(ask, model="nope")))
        refused(
            anthropic.BadRequestError,
            lambda: client.messages.create(**dict(ask, messages=[{"role": "user", "content": LONG}])),
        )

    return {
        "chat": lambda: need(client.messages.create(**ask).content[0].text, ""),
        "stream": lambda: stream("text", **ask),
        "tools": lambda: need(client.messages.create(**forced).content[0].input["name"] in ("Lily", "Tom"), ""),
        "tools stream": lambda: stream("tool_use", **forced),
        "schema": lambda: need_friend(client.messages.parse(**ask, output_format=Friend).parsed_output),
        "errors": errors,
    }


def ollama_cells(url):
    import ollama

    client = ollama.Client(host=url)
    ask = dict(model="small", messages=TURNS, options={"num_predict": 300})

    def tools(**more):  # the interface has no way to ask for a call: that tools are taken, and an answer comes
        answer = client.chat(**ask, tools=[TOOL], **more)
        need(list(answer) if more else answer.message, answer)

    def errors():
        need(refused(ollama.ResponseError, lambda: client.chat(**dict(ask, model="nope"))).status_code == 404, "")
        refused(ollama.ResponseError, lambda: client.chat(**dict(ask, messages=[{"role": "user", "content": LONG}])))

    return {
        "chat": lambda: need(client.chat(**ask).message.content, ""),
        "stream": lambda: need("".join(part.message.content for part in client.chat(**ask, stream=True)), ""),
        "tools": tools,
        "tools stream": lambda: tools(stream=True),
        "schema": lambda: need_friend(
            Friend.model_validate_json(client.chat(**ask, format=Friend.model_json_schema()).message.content)
        ),
        "embeddings": lambda: need(len(client.embed(model="small", input=[STORY, "b"]).embeddings) == 2, ""),
        "errors": errors,
    }


def litellm_cells(url):
    import litellm

    litellm.suppress_debug_info = True
    ask = dict(model="openai/small", api_base=url + "/v1", api_key="x", messages=TURNS, max_tokens=300, num_retries=0)
    forced = dict(ask, tools=[TOOL], tool_choice="required")

    def joined(**more):
        return litellm.stream_chunk_builder(list(litellm.completion(**more, stream=True))).choices[0].message

    def errors():
        refused(litellm.NotFoundError, lambda: litellm.completion(**dict(ask, model="openai/nope")))
        refused(
            litellm.ContextWindowExceededError,
            lambda: litellm.completion(**dict(ask, messages=[{"role": "user", "content": LONG}])),
        )

    return {
        "chat": lambda: need(litellm.completion(**ask).choices[0].message.content, ""),
        "stream": lambda: need(joined(**ask).content, ""),
        "tools": lambda: need_name(litellm.completion(**forced).choices[0].message.tool_calls[0].function.arguments),
        "tools stream": lambda: need_name(joined(**forced).tool_calls[0].function.arguments),
        "schema": lambda: need_friend(
            Friend.model_validate_json(litellm.completion(**ask, response_format=Friend).choices[0].message.content)
        ),
        "embeddings": lambda: need(
            len(litellm.embedding(model="openai/small", api_base=url + "/v1", api_key="x", input=[STORY, "b"]).data)
            == 2,
            "",
        ),
        "errors": errors,
    }


def langchain_cells(url):
    import langchain_openai
    import openai

    more = dict(model="small", base_url=url + "/v1", api_key="x", max_retries=0)
    chat = langchain_openai.ChatOpenAI(**more, max_completion_tokens=300)
    forced = chat.bind_tools([TOOL], tool_choice="required")

    def tools_stream():
        whole = None
        for part in forced.stream(STORY):
            whole = part if whole is None else whole + part
        need(whole.tool_calls[0]["args"]["name"] in ("Lily", "Tom"), whole)

    # The package counts tokens by OpenAI's own tokenizers where it is not told that the server cuts texts itself.
    embeddings = langchain_openai.OpenAIEmbeddings(**more, check_embedding_ctx_length=False)
    return {
        "chat": lambda: need(chat.invoke(STORY).content, ""),
        "stream": lambda: need("".join(part.content for part in chat.stream(STORY)), ""),
        "tools": lambda: need(forced.invoke(STORY).tool_calls[0]["args"]["name"] in ("Lily", "Tom"), ""),
        "tools stream": tools_stream,
        "schema": lambda: need_friend(chat.with_structured_output(Friend).invoke(STORY)),
        "embeddings": lambda: need(len(embeddings.embed_documents([STORY, "b"])) == 2, ""),
        "errors": lambda: refused(openai.BadRequestError, lambda: chat.invoke(LONG)),
    }


def instructor_cells(url):
    import instructor
    import openai

    raw = openai.OpenAI(base_url=url + "/v1", api_key="x", max_retries=0)
    by_tools = instructor.from_openai(raw, mode=instructor.Mode.TOOLS)
    by_schema = instructor.from_openai(raw, mode=instructor.Mode.JSON_SCHEMA)
    ask = dict(model="small", messages=TURNS, max_tokens=300, response_model=Friend, max_retries=0)

    def errors():
        refused(
            Exception,
            lambda: by_tools.chat.completions.create(**dict(ask, messages=[{"role": "user", "content": LONG}])),
        )

    return {
        "tools": lambda: need_friend(by_tools.chat.completions.create(**ask)),
        "tools stream": lambda: need(
            list(by_tools.chat.completions.create_partial(**ask))[-1].name in ("Lily", "Tom"), ""
        ),
        "schema": lambda: need_friend(by_schema.chat.completions.create(**ask)),
        "errors": errors,
    }


def pydantic_ai_cells(url):
    import pydantic_ai
    from pydantic_ai.exceptions import ModelHTTPError
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIChatModel("small", provider=OpenAIProvider(base_url=url + "/v1", api_key="x"))

    def agent(output=str):
        return pydantic_ai.Agent(model, output_type=output, model_settings={"max_tokens": 300}, retries=0)

    async def stream(output):
        async with agent(output).run_stream(STORY) as result:
            return await result.get_output()

    return {
        "chat": lambda: need(agent().run_sync(STORY).output, ""),
        "stream": lambda: need(loop.run_until_complete(stream(str)), ""),
        "tools": lambda: need_friend(agent(Friend).run_sync(STORY).output),
        "tools stream": lambda: need_friend(loop.run_until_complete(stream(Friend))),
        "schema": lambda: need_friend(agent(pydantic_ai.NativeOutput(Friend)).run_sync(STORY).output),
        "errors": lambda: refused(ModelHTTPError, lambda: agent().run_sync(LONG)),
    }


def lm_eval_cells(url):
    from lm_eval.api.instance import Instance
    from lm_eval.models.openai_completions import LocalChatCompletion, LocalCompletionsAPI

    common = dict(model="small", max_retries=1, tokenizer_backend=None)
    chat = LocalChatCompletion(base_url=url + "/v1/chat/completions", **common)
    texts = LocalCompletionsAPI(base_url=url + "/v1/completions", **common)

    def generated(model, prompt):
        request = Instance("generate_until", {}, (prompt, {"until": ["\n"], "max_gen_toks": 20}), 0)
        return model.generate_until([request], disable_tqdm=True)[0]

    def both():
        need(generated(chat, chat.apply_chat_template(TURNS)), "chat")
        need(generated(texts, STORY), "completions")

    return {"chat": both}


CLIENTS = {
    "openai": ("openai", openai_cells),
    "openai, Responses": ("openai", responses_cells),
    "openai-agents, chat": ("openai-agents", lambda url: agents_cells(url, True)),
    "openai-agents, Responses": ("openai-agents", lambda url: agents_cells(url, False)),
    "anthropic": ("anthropic", anthropic_cells),
    "ollama": ("ollama", ollama_cells),
    "litellm": ("litellm", litellm_cells),
    "langchain-openai": ("langchain-openai", langchain_cells),
    "instructor": ("instructor", instructor_cells),
    "pydantic-ai": ("pydantic-ai-slim", pydantic_ai_cells),
    "lm-eval": ("lm_eval", lm_eval_cells),
}


def main():
    failures, rows = [], []
    with tempfile.TemporaryDirectory() as folder:
        template = pathlib.Path(folder) / "chat.jinja"
        template.write_text(TEMPLATE)
        greedy = pathlib.Path(folder) / "generation_config.json"
        greedy.write_text(json.dumps({"temperature": 0}))
        with served(
            str(MODEL),
            "-c",
            "512",
            "--served-model-name",
            "small",
            "--chat-template",
            str(template),
            "--tool-call-parser",
            "hermes",
            "--generation-config",
            str(greedy),
        ) as url:
            for name, (package, cells) in CLIENTS.items():
                if sys.argv[1:] and package not in sys.argv[1:]:
                    continue
                try:
                    version = importlib.metadata.version(package)
                except importlib.metadata.PackageNotFoundError:
                    print(f"{package} is not installed", file=sys.stderr)
                    continue
                ways, row = cells(url), [f"{name} {version}"]
                for column in COLUMNS:
                    try:
                        row.append("yes" if column in ways and (ways[column](), True) else "–")
                    except Exception as error:  # whatever a package raises is this cell's result
                        row.append("no")
                        failures.append(f"{name}, {column}: {type(error).__name__}: {str(error)[:400]}")
                rows.append(row)
    print(f"| | {' | '.join(COLUMNS)} |\n|{' --- |' * (len(COLUMNS) + 1)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")
    for failure in failures:
        print(f"\n{failure}")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
