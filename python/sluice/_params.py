"""How tokens are chosen, and what people may write for sizes and token ids."""
import dataclasses
import json
import math
import operator
import os
import random
import re
import typing

from ._errors import UserError

_UNITS = {"": 1, "B": 1, "K": 1 << 10, "KIB": 1 << 10, "KB": 1000, "M": 1 << 20, "MIB": 1 << 20, "MB": 10**6,
          "G": 1 << 30, "GIB": 1 << 30, "GB": 10**9, "T": 1 << 40, "TIB": 1 << 40, "TB": 10**12}
_INT32 = range(-(1 << 31), 1 << 31)
# The numbers of sluice.h's Guide::Kind.
_JSON, _SCHEMA, _REGEX, _CHOICE, CALLS, _GRAMMAR = 1, 2, 3, 4, 5, 6


def size(value, name):
    """Bytes of a number or a text such as "4GiB"; None: 0."""
    if value is None:
        return 0
    if isinstance(value, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", value)
        if not found or found[2].upper() not in _UNITS:
            raise UserError(f"{name} is {value!r}", "write a size such as 4GiB, 500MB or a number of bytes")
        value = int(float(found[1]) * _UNITS[found[2].upper()])
    value = integer(value, name)
    if value <= 0:
        raise UserError(f"{name} is {value}", "write a size above 0, or leave it out")
    return value


def integer(value, name, low=None, high=(1 << 63) - 1):
    """An integer, also of numpy's; a truth value is none."""
    if isinstance(value, bool):
        raise UserError(f"{name} is {value!r}; it must be an integer")
    try:
        out = operator.index(value)
    except TypeError:
        raise UserError(f"{name} is {value!r}; it must be an integer") from None
    if (low is not None and out < low) or out > high or out < -(1 << 63):
        raise UserError(f"{name} is {out}; it must be {f'from {low} to {high}' if low is not None else 'smaller'}")
    return out


def number(value, name):
    """A number that is one: no NaN, no infinity."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) and not hasattr(value, "__float__"):
        raise UserError(f"{name} is {value!r}; it must be a number")
    if isinstance(value, str):
        raise UserError(f"{name} is {value!r}; it must be a number")
    out = float(value)
    if not math.isfinite(out):
        raise UserError(f"{name} is {out}; it must be a finite number")
    return out


def truth(value, name):
    if not isinstance(value, bool) and type(value).__name__ not in ("bool", "bool_"):  # numpy's
        raise UserError(f"{name} is {value!r}; it must be True or False")
    return bool(value)


def text(value, name):
    if not isinstance(value, str):
        raise UserError(f"{name} is {value!r}; it must be a str")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"{name} is not UTF-8: character {error.start} is half of a surrogate pair") from None
    return value


def path(value, name):
    """A path as the file system takes it."""
    try:
        out = os.fspath(value)
    except TypeError:
        raise UserError(f"{name} is {value!r}; it must be a path: a str or a pathlib.Path") from None
    return os.fsdecode(out)


def token_ids(value, name="prompt"):
    """A list of ints of any sequence of integers, numpy's arrays too."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    out = []
    for i, one in enumerate(value):
        one = integer(one, f"{name}[{i}]")
        if one not in _INT32:
            raise UserError(f"{name}[{i}] is {one}; it is no token id")
        out.append(one)
    return out


def is_integer(value):
    return not isinstance(value, (bool, str)) and hasattr(value, "__index__")


def refuse_unknown(names, known, what):
    """Raises for a name that is not known, with the nearest one that is."""
    import difflib
    for name in names:
        if name in known:
            continue
        near = difflib.get_close_matches(name, known, 1)
        raise UserError(f"{what} knows no {name!r}",
                        f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(known)}")


@dataclasses.dataclass(frozen=True)
class SamplingParams:
    """How tokens are chosen and when an output ends. Greedy, and 128 tokens at most, if nothing is said."""

    max_tokens: typing.Optional[int] = 128  # None: what the context holds
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    top_n_sigma: float = 0.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: typing.Sequence[typing.Union[str, typing.Sequence[int]]] = ("\n", ":", '"', "*")
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: typing.Optional[int] = None
    min_tokens: int = 0
    stop: typing.Union[str, typing.Sequence[str]] = ()
    include_stop: bool = False
    stop_token_ids: typing.Sequence[int] = ()
    ignore_eos: bool = False
    logprobs: typing.Optional[int] = None
    logit_bias: typing.Optional[typing.Mapping[int, float]] = None
    num_beams: int = 1
    length_penalty: float = 1.0
    json_schema: typing.Union[None, str, dict, bool] = None
    json_object: bool = False
    regex: typing.Optional[str] = None
    grammar: typing.Optional[str] = None
    choice: typing.Optional[typing.Sequence[str]] = None

    def __post_init__(self):
        self.values()  # what can be seen here is told here

    def values(self):
        """As the library takes them."""
        small = (1 << 31) - 1
        out = {name: number(getattr(self, name), name) for name in _NUMBERS}
        if self.max_tokens is not None:
            out["max_tokens"] = integer(self.max_tokens, "max_tokens", 1, small)
        out["mirostat"] = integer(self.mirostat, "mirostat", 0, 2)
        out["dry_allowed_length"] = integer(self.dry_allowed_length, "dry_allowed_length", 0, small)
        out["dry_penalty_last_n"] = integer(self.dry_penalty_last_n, "dry_penalty_last_n", -1, small)
        breakers = self.dry_sequence_breakers or ()
        if isinstance(breakers, (str, bytes)):
            raise UserError(f"dry_sequence_breakers is {breakers!r}; it must be a list of texts or lists of tokens")
        for one in breakers:
            if not isinstance(one, str) and not hasattr(one, "__iter__"):
                raise UserError(f"dry_sequence_breakers has {one!r}; it must be a text or a list of tokens")
        out["dry_sequence_breakers"] = [text(one, "dry_sequence_breakers") for one in breakers if isinstance(one, str)]
        out["dry_breaker_tokens"] = [token_ids(one, "dry_sequence_breakers") for one in breakers
                                     if not isinstance(one, str)]
        out["top_k"] = integer(self.top_k, "top_k", 0, small)
        out["min_tokens"] = integer(self.min_tokens, "min_tokens", 0, small)
        out["num_beams"] = integer(self.num_beams, "num_beams", 1, small)
        out["logprobs"] = -1 if self.logprobs is None else integer(self.logprobs, "logprobs", 0, small)
        out["seed"] = (random.getrandbits(64) if self.seed is None else
                       integer(self.seed, "seed", 0, (1 << 64) - 1))
        out["ignore_eos"] = truth(self.ignore_eos, "ignore_eos")
        out["include_stop"] = truth(self.include_stop, "include_stop")
        out["stop"] = [text(self.stop, "stop")] if isinstance(self.stop, str) else _texts(self.stop or (), "stop")
        out["stop_token_ids"] = token_ids(self.stop_token_ids or (), "stop_token_ids")
        out["logit_bias"] = [(integer(token, "logit_bias"), number(bias, "logit_bias"))
                             for token, bias in dict(self.logit_bias or {}).items()]
        out.update(self._guide())
        return out

    @property
    def is_guided(self):
        return bool(self._guide())

    def _guide(self):
        guides = {}
        if self.json_schema is not None:
            schema = self.json_schema
            if not isinstance(schema, str):
                try:
                    schema = json.dumps(schema, allow_nan=False)
                except (TypeError, ValueError) as error:
                    raise UserError(f"json_schema is no JSON: {error}") from None
            guides["json_schema"] = {"guide_kind": _SCHEMA, "guide_text": text(schema, "json_schema")}
        if truth(self.json_object, "json_object"):
            guides["json_object"] = {"guide_kind": _JSON}
        if self.regex is not None:
            guides["regex"] = {"guide_kind": _REGEX, "guide_text": text(self.regex, "regex")}
        if self.grammar is not None:
            guides["grammar"] = {"guide_kind": _GRAMMAR, "guide_text": text(self.grammar, "grammar")}
        if self.choice is not None:
            guides["choice"] = {"guide_kind": _CHOICE, "guide_choices": _texts(self.choice, "choice")}
        if len(guides) > 1:
            raise UserError(f"{' and '.join(guides)} both say what the output has to be", "give one of them")
        return next(iter(guides.values()), {})


_NUMBERS = ("temperature", "top_p", "min_p", "typical_p", "top_n_sigma", "xtc_probability", "xtc_threshold",
            "mirostat_tau", "mirostat_eta", "dry_multiplier", "dry_base", "repetition_penalty", "presence_penalty",
            "frequency_penalty", "length_penalty")
SAMPLING_NAMES = [field.name for field in dataclasses.fields(SamplingParams)]


def _texts(values, name):
    if isinstance(values, (str, bytes)):
        raise UserError(f"{name} is {values!r}; it must be a list of texts")
    return [text(one, name) for one in values]


def sampling(params, keywords, defaults=None):
    """The parameters of a call: an object, keywords, or both, where keywords win."""
    refuse_unknown(keywords, SAMPLING_NAMES, "SamplingParams")
    if params is None:
        return SamplingParams(**{**(defaults or {}), **keywords})
    if not isinstance(params, SamplingParams):
        raise UserError(f"sampling_params is {params!r}; it must be a SamplingParams")
    return dataclasses.replace(params, **keywords) if keywords else params
