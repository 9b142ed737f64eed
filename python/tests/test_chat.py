"""Chats by a template: prompts, answers, calls of tools."""
import asyncio
import json

import pytest

import sluice
from conftest import STORIES

TEMPLATE = """{% if tools %}Tools: {{ tools | tojson }} Call them as
<tool_call>
{"name": NAME, "arguments": {}}
</tool_call>
{% endif %}{% for m in messages %}<{{ m.role }}>{{ m.content }}
{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"""
HELLO = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"}]
ADD = {"name": "add", "description": "Adds", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer", "maximum": 9, "minimum": 0}}, "required": ["a"],
    "additionalProperties": False}}


@pytest.fixture(scope="module")
def chat_model(opened):
    with opened(chat_template=TEMPLATE) as one:
        yield one


def test_messages_become_the_templates_prompt(chat_model):
    answer = chat_model.chat(HELLO, max_tokens=12)
    expected = "<system>Be kind.\n<user>Hello\n<assistant>"
    assert answer.prompt_token_ids == chat_model.tokenizer.encode(expected, add_special=False)
    said = chat_model.generate(answer.prompt_token_ids, max_tokens=12)
    assert (answer.text, answer.token_ids, answer.finish_reason) == (said.text, said.token_ids, "length")
    assert answer.message == {"role": "assistant", "content": answer.text}
    assert str(answer) == answer.text


def test_pieces_are_the_answer(chat_model):
    pieces = list(chat_model.chat(HELLO, stream=True, max_tokens=30))
    assert "".join(map(str, pieces)) == chat_model.chat(HELLO, max_tokens=30).text
    assert pieces[-1].finish_reason == "length" and len(pieces) > 10

    async def both():
        streamed = "".join([str(piece) async for piece in chat_model.achat_stream(HELLO, max_tokens=30)])
        return streamed, (await chat_model.achat(HELLO, max_tokens=30)).text

    streamed, whole = asyncio.run(both())
    assert streamed == whole == chat_model.chat(HELLO, max_tokens=30).text


def test_an_answer_may_fill_the_context(opened):
    with opened(chat_template=TEMPLATE, context=64) as small:
        answer = small.chat(HELLO, ignore_eos=True)
        assert len(answer.prompt_token_ids) + len(answer.token_ids) == 64


@pytest.mark.parametrize("tool", [ADD, {"type": "function", "function": ADD}])
def test_a_call_that_must_come_is_valid(chat_model, tool):
    forced = {"tools": [tool], "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 200}
    answer = chat_model.chat(HELLO, **forced)
    assert answer.finish_reason == "tool_calls"
    (call,) = answer.tool_calls
    assert call.name == "add" and 0 <= call.parsed()["a"] <= 9 and call.id.startswith("call_")
    message = answer.message
    assert message["content"] is None and message["tool_calls"][0]["function"]["name"] == "add"
    result = {"role": "tool", "tool_call_id": call.id, "content": "5"}
    again = chat_model.chat([*HELLO, message, result], max_tokens=3)
    assert len(again.token_ids) == 3
    pieces = list(chat_model.chat(HELLO, stream=True, **forced))
    assert [piece.text for piece in pieces if piece.kind == "tool_call"] == ["add"]
    assert "a" in json.loads("".join(piece.text for piece in pieces if piece.kind == "arguments"))


def test_tools_that_may_be_left_out_are_shown(chat_model):
    answer = chat_model.chat(HELLO, tools=[ADD], max_tokens=5)
    assert '"add"' in chat_model.tokenizer.decode(answer.prompt_token_ids)
    none = chat_model.chat(HELLO, tools=[ADD], tool_choice="none", max_tokens=5)
    assert none.tool_calls == []


def test_a_chats_answer_is_guided(chat_model):
    assert chat_model.chat(HELLO, choice=["hi"]).text == "hi"
    with pytest.raises(sluice.UserError, match="tools"):
        chat_model.chat(HELLO, tools=[ADD], choice=["hi"])


def test_an_answer_that_goes_on(chat_model):
    begun = [*HELLO, {"role": "assistant", "content": "Once upon"}]
    answer = chat_model.chat(begun, continue_final_message=True, max_tokens=4)
    assert chat_model.tokenizer.decode(answer.prompt_token_ids).endswith("<assistant>Once upon")


@pytest.mark.parametrize("messages, keywords, word", [
    ([], {}, "messages"), ("Hello", {}, "messages"), ([{"content": "x"}], {}, "role"),
    ([{"role": "user"}], {}, "content"),
    ([{"role": "user", "content": 5}], {}, "content"), (HELLO, {"tools": [{"function": {}}]}, "type|name"),
    (HELLO, {"tool_choice": "required"}, "tools"), (HELLO, {"temperature": -1}, "temperature"),
    (HELLO, {"tolls": []}, "tool"), ([{"role": "user", "content": {1}}], {}, "JSON"),
    (HELLO, {"reasoning_effort": "high"}, "reasoning_effort"),
    ([{"role": "user", "content": [{"type": "image_url"}]}], {}, "text parts"),
    ([{"role": "user", "content": "word " * 900}], {}, "context")])
def test_refusals(chat_model, messages, keywords, word):
    with pytest.raises(sluice.UserError, match=word):
        chat_model.chat(messages, **keywords)


def test_a_model_without_a_template_says_so(model, opened, tmp_path):
    assert not model.has_chat_template
    with pytest.raises(sluice.UserError, match="chat_template"):
        model.chat(HELLO)
    file = tmp_path / "template.jinja"
    file.write_text(TEMPLATE)
    with opened(STORIES, chat_template=file) as one:
        assert one.chat(HELLO, max_tokens=2).token_ids
