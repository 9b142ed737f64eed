"""What comes back: whole answers, pieces of them, scores."""
import dataclasses
import typing

FINISHES = ("stop", "length", "scored", "cancelled")  # sluice.h's Finish


@dataclasses.dataclass(frozen=True)
class TokenLogprobs:
    """A token with the natural logarithm of its probability, and of the likeliest ones' at its place."""

    token_id: int
    logprob: float
    top: typing.Dict[int, float]


@dataclasses.dataclass
class Result:
    """The answer to one prompt. `str(result)` is its text."""

    index: int  # of its prompt among those that were given together
    prompt_token_ids: typing.List[int]
    text: str = ""
    token_ids: typing.List[int] = dataclasses.field(default_factory=list)
    finish_reason: typing.Optional[str] = None  # "stop", "length"; "cancelled"
    logprobs: typing.Optional[typing.List[TokenLogprobs]] = None
    cached_tokens: int = 0  # of the prompt, known before
    error: typing.Optional[Exception] = None  # why there is no answer

    def __str__(self):
        return self.text


@dataclasses.dataclass(frozen=True)
class Piece:
    """A part of an answer, as it comes. The last one of a prompt has a finish_reason."""

    index: int
    text: str
    token_ids: typing.List[int]
    logprobs: typing.Optional[typing.List[TokenLogprobs]] = None
    finish_reason: typing.Optional[str] = None

    def __str__(self):
        return self.text


@dataclasses.dataclass(frozen=True)
class Score:
    """How likely a continuation is. `token_logprobs`: numpy f32 [tokens], natural logarithms."""

    logprob: float
    is_greedy: bool
    token_ids: typing.List[int]
    token_logprobs: typing.Any


def logprobs_of(ids, logprobs, tops):
    return [TokenLogprobs(i, p, dict(top)) for i, p, top in zip(ids, logprobs, tops)]
