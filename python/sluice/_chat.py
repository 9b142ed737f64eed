"""Chats: messages to a prompt by the model's template, what comes back to a message."""
import dataclasses
import json
import typing

from . import _params, _wait
from ._errors import UserError

# Of a chat's request, as OpenAI's and vLLM's interfaces name them.
CHAT_NAMES = ("tool_choice", "parallel_tool_calls", "documents", "chat_template_kwargs", "add_generation_prompt",
              "continue_final_message", "reasoning_effort")
_TEXT, _THOUGHT, _CALL, _ARGUMENTS = range(4)  # sluice.h's ChatPart::Kind


@dataclasses.dataclass
class ToolCall:
    """A call that the model asks for. `arguments` is JSON, as it wrote it."""

    id: str
    name: str
    arguments: str = ""

    def parsed(self):
        """The arguments as Python has them."""
        return json.loads(self.arguments)


@dataclasses.dataclass(frozen=True)
class ChatPiece:
    """A part of an answer: `kind` is "text", "reasoning", "tool_call" (text: the function's name) or "arguments". The
    last has a finish_reason."""

    kind: str
    text: str
    call: int = 0
    finish_reason: typing.Optional[str] = None

    def __str__(self):
        return self.text if self.kind == "text" else ""


@dataclasses.dataclass
class ChatResult:
    """An answer. `message` goes into the next call's messages as it is."""

    text: str
    reasoning: str
    tool_calls: typing.List[ToolCall]
    finish_reason: str
    token_ids: typing.List[int]
    prompt_token_ids: typing.List[int]

    @property
    def message(self):
        out = {"role": "assistant", "content": self.text}
        if self.reasoning:
            out["reasoning_content"] = self.reasoning
        if self.tool_calls:
            out["tool_calls"] = [{"id": call.id, "type": "function",
                                  "function": {"name": call.name, "arguments": call.arguments}}
                                 for call in self.tool_calls]
            out["content"] = self.text or None
        return out

    def __str__(self):
        return self.text


class Turn:
    """One question to a chat."""

    def __init__(self, model, messages, tools, keywords):
        self.model = model
        session = model._need_session()
        if model._chat is None:
            raise UserError("the model has no chat template", "give Model(..., chat_template=...) or use generate()")
        request = {name: keywords.pop(name) for name in CHAT_NAMES if name in keywords}
        params = keywords.pop("sampling_params", None)
        _params.refuse_unknown(keywords, ["sampling_params", *CHAT_NAMES, *_params.SAMPLING_NAMES], "chat")
        params = _params.sampling(params, keywords, {"max_tokens": None})
        request["messages"] = list(messages) if isinstance(messages, tuple) else messages
        if tools is not None:
            request["tools"] = [_tool(one) for one in tools]
        prompt = model._chat.prompt(_dumps(request), params.is_guided)
        ids = model.tokenizer.encode(prompt.text, False)
        model._check([ids])
        extra = {"keeps_special": prompt.keeps_special}
        if prompt.calls:
            extra.update(guide_kind=_params.CALLS, guide_text=prompt.calls)
        self._reader = prompt.reader()
        self._result = ChatResult("", "", [], "", [], ids)
        self.answers = session.ask(model._questions([ids], params, extra))

    def take(self, event):
        """The pieces that an event of the library's brings."""
        error = event.error(self.model, 1)
        if error is not None:
            raise error
        if event.kind == _wait.TEXT:
            self._result.token_ids += event.ids
            return [self._keep(part) for part in self._reader.add(event.text)]
        if event.kind == _wait.FINISHED:
            rest = [self._keep(part) for part in self._reader.finish()]
            calls = self._result.tool_calls and event.finish == "stop"
            self._result.finish_reason = "tool_calls" if calls else event.finish
            return [*rest, ChatPiece("text", "", 0, self._result.finish_reason)]
        return []

    def _keep(self, part):
        kind, text, call, call_id = part
        result = self._result
        if kind == _TEXT:
            result.text += text
        elif kind == _THOUGHT:
            result.reasoning += text
        elif kind == _CALL:
            result.tool_calls.append(ToolCall(call_id, text))
        else:
            result.tool_calls[call].arguments += text
        return ChatPiece(("text", "reasoning", "tool_call", "arguments")[kind], text, call)

    def pieces(self, events):
        for event in events:
            yield from self.take(event)

    def result(self, pieces):
        for _ in pieces:
            pass
        return self._result


def _tool(tool):
    """A tool as the interface has it: {"type": "function", "function": ...}, or the function alone."""
    if isinstance(tool, dict) and "function" not in tool and "name" in tool:
        return {"type": "function", "function": tool}
    return tool


def _dumps(request):
    try:
        return json.dumps(request, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise UserError(f"messages or tools hold what is no JSON: {error}") from None
