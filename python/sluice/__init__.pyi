import os
from typing import (Any, AsyncIterator, Callable, Dict, Iterable, Iterator, List, Literal, Mapping, Optional, Sequence,
                    Tuple, Union, overload)

import numpy
import numpy.typing

__version__: str

_Path = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]
_Size = Union[int, str]
_Ids = Union[Sequence[int], "numpy.typing.NDArray[numpy.integer[Any]]"]
_Prompt = Union[str, _Ids]
_Floats = "numpy.typing.NDArray[numpy.float32]"

class Error(Exception):
    text: str
    mend: str
    def __init__(self, text: str, mend: str = "") -> None: ...

class UserError(Error, ValueError): ...
class FileError(Error, OSError): ...
class ResourceError(Error, MemoryError): ...
class DeviceError(Error, RuntimeError): ...
class ClosedError(Error, RuntimeError): ...
class CancelledError(Error, RuntimeError): ...
class InternalError(Error, RuntimeError): ...

class SamplingParams:
    max_tokens: Optional[int]
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    top_n_sigma: float
    xtc_probability: float
    xtc_threshold: float
    mirostat: int
    mirostat_tau: float
    mirostat_eta: float
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: Sequence[Union[str, Sequence[int]]]
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    seed: Optional[int]
    min_tokens: int
    stop: Union[str, Sequence[str]]
    include_stop: bool
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    logprobs: Optional[int]
    logit_bias: Optional[Mapping[int, float]]
    num_beams: int
    length_penalty: float
    json_schema: Union[None, str, Dict[str, Any], bool]
    json_object: bool
    regex: Optional[str]
    grammar: Optional[str]
    choice: Optional[Sequence[str]]
    def __init__(self, max_tokens: Optional[int] = 128, temperature: float = 0.0, top_k: int = 0, top_p: float = 1.0,
                 min_p: float = 0.0, typical_p: float = 1.0, top_n_sigma: float = 0.0, xtc_probability: float = 0.0,
                 xtc_threshold: float = 0.1, mirostat: int = 0, mirostat_tau: float = 5.0, mirostat_eta: float = 0.1,
                 dry_multiplier: float = 0.0, dry_base: float = 1.75, dry_allowed_length: int = 2,
                 dry_penalty_last_n: int = -1,
                 dry_sequence_breakers: Sequence[Union[str, Sequence[int]]] = ..., repetition_penalty: float = 1.0, presence_penalty: float = 0.0,
                 frequency_penalty: float = 0.0, seed: Optional[int] = None, min_tokens: int = 0,
                 stop: Union[str, Sequence[str]] = (), include_stop: bool = False, stop_token_ids: Sequence[int] = (),
                 ignore_eos: bool = False, logprobs: Optional[int] = None,
                 logit_bias: Optional[Mapping[int, float]] = None, num_beams: int = 1, length_penalty: float = 1.0,
                 json_schema: Union[None, str, Dict[str, Any], bool] = None, json_object: bool = False,
                 regex: Optional[str] = None, grammar: Optional[str] = None,
                 choice: Optional[Sequence[str]] = None) -> None: ...
    @property
    def is_guided(self) -> bool: ...
    def values(self) -> Dict[str, Any]: ...

_Params = Union[None, SamplingParams, Sequence[SamplingParams]]

class TokenLogprobs:
    token_id: int
    logprob: float
    top: Dict[int, float]

class Result:
    index: int
    prompt_token_ids: List[int]
    text: str
    token_ids: List[int]
    finish_reason: Optional[str]
    logprobs: Optional[List[TokenLogprobs]]
    cached_tokens: int
    error: Optional[Exception]

class Piece:
    index: int
    text: str
    token_ids: List[int]
    logprobs: Optional[List[TokenLogprobs]]
    finish_reason: Optional[str]

class Score:
    logprob: float
    is_greedy: bool
    token_ids: List[int]
    token_logprobs: _Floats

class ToolCall:
    id: str
    name: str
    arguments: str
    def parsed(self) -> Any: ...

class ChatPiece:
    kind: Literal["text", "reasoning", "tool_call", "arguments"]
    text: str
    call: int
    finish_reason: Optional[str]

class ChatResult:
    text: str
    reasoning: str
    tool_calls: List[ToolCall]
    finish_reason: str
    token_ids: List[int]
    prompt_token_ids: List[int]
    @property
    def message(self) -> Dict[str, Any]: ...

class Tokenizer:
    def __init__(self, path: _Path) -> None: ...
    @property
    def vocabulary(self) -> int: ...
    @property
    def bos_token_id(self) -> Optional[int]: ...
    @property
    def eos_token_id(self) -> Optional[int]: ...
    def encode(self, text: str, add_special: bool = True) -> List[int]: ...
    def decode(self, token_ids: _Ids, skip_special: bool = True) -> str: ...
    def find(self, token: str) -> Optional[int]: ...
    def __len__(self) -> int: ...

class ModelPlan:
    memory_bytes: int
    memory_budget_bytes: int
    device_bytes: int
    disk_bytes: int
    weight_bytes: int
    streamed_bytes: int
    context: int
    sequences: int
    tokens_per_second: Optional[float]
    policy: Dict[str, Any]
    @property
    def resident_bytes(self) -> int: ...

class Plan:
    details: Dict[str, Any]
    tokens_per_second: float
    latency_seconds: float
    bottleneck: str
    model: str
    hardware: str
    bytes: Dict[str, int]
    limits: Dict[str, int]
    policy: Dict[str, Any]
    lifts: Dict[str, float]

class Profile:
    name: str
    description: str
    date: str
    memory_bytes: int
    device_bytes: int
    disk_bytes: int
    memory_read: float
    disk_read: float
    disk_write: float
    processor: str
    device: str
    threads: int
    details: Dict[str, Any]
    def save(self, path: _Path) -> None: ...

class Model:
    path: str
    plan: ModelPlan
    tokenizer: Optional[Tokenizer]
    def __init__(self, path: _Path, *, cpu_mem: Optional[_Size] = None, disk_mem: Optional[_Size] = None,
                 gpu_mem: Optional[_Size] = None, offload_dir: Optional[_Path] = None, sequences: Optional[int] = None,
                 context: Optional[int] = None, kv_tokens: Optional[int] = None, predict_lengths: bool = True,
                 prefix_cache: bool = True, threads: Optional[int] = None, compute: Optional[str] = None,
                 batch_invariant: bool = False, kv_dtype: Optional[str] = None,
                 device: Optional[str] = None, gpu: Optional[int] = None,
                 hardware: Optional[_Path] = None, policy: Union[None, str, Dict[str, Any]] = None,
                 tokenizer: Optional[_Path] = None, pretokenizer: Optional[str] = None,
                 chat_template: Optional[_Path] = None, rope_scaling: Union[None, str, Dict[str, Any]] = None,
                 rope_factor: Optional[float] = None, rope_theta: Optional[float] = None,
                 rope_original: Optional[int] = None) -> None: ...
    @property
    def family(self) -> str: ...
    @property
    def weights(self) -> str: ...
    @property
    def parameters(self) -> int: ...
    @property
    def vocabulary(self) -> int: ...
    @property
    def context(self) -> int: ...
    @property
    def closed(self) -> bool: ...
    @property
    def has_chat_template(self) -> bool: ...
    @property
    def running(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    def close(self) -> None: ...
    def __enter__(self) -> "Model": ...
    def __exit__(self, *_: object) -> None: ...
    # Keywords are those of SamplingParams.
    @overload
    def generate(self, prompt: str, sampling_params: _Params = None, **keywords: Any) -> Result: ...
    @overload
    def generate(self, prompt: Sequence[int], sampling_params: _Params = None, **keywords: Any) -> Result: ...
    @overload
    def generate(self, prompt: Sequence[_Prompt], sampling_params: _Params = None, **keywords: Any) -> List[Result]: ...
    def as_completed(self, prompts: Sequence[_Prompt], sampling_params: _Params = None,
                     **keywords: Any) -> Iterator[Result]: ...
    def stream(self, prompt: Union[_Prompt, Sequence[_Prompt]], sampling_params: _Params = None,
               **keywords: Any) -> Iterator[Piece]: ...
    async def agenerate(self, prompt: Union[_Prompt, Sequence[_Prompt]], sampling_params: _Params = None,
                        **keywords: Any) -> Any: ...
    def astream(self, prompt: Union[_Prompt, Sequence[_Prompt]], sampling_params: _Params = None,
                **keywords: Any) -> AsyncIterator[Piece]: ...
    def logits(self, prompt: _Prompt) -> _Floats: ...
    def prompt_logprobs(self, prompt: Union[_Prompt, Sequence[_Prompt]]) -> Any: ...
    def embed(self, texts: Union[_Prompt, Sequence[_Prompt]], pooling: Optional[Literal["last", "mean", "cls"]] = None,
              normalize: Optional[bool] = None, dimensions: Optional[int] = None) -> _Floats: ...
    def loglikelihood(self, context: _Prompt, continuation: _Prompt) -> Score: ...
    def loglikelihoods(self, pairs: Iterable[Tuple[_Prompt, _Prompt]]) -> List[Score]: ...
    @overload
    def chat(self, messages: Sequence[Mapping[str, Any]], tools: Optional[Sequence[Mapping[str, Any]]] = None, *,
             stream: Literal[False] = False, **keywords: Any) -> ChatResult: ...
    @overload
    def chat(self, messages: Sequence[Mapping[str, Any]], tools: Optional[Sequence[Mapping[str, Any]]] = None, *,
             stream: Literal[True], **keywords: Any) -> Iterator[ChatPiece]: ...
    async def achat(self, messages: Sequence[Mapping[str, Any]], tools: Optional[Sequence[Mapping[str, Any]]] = None,
                    **keywords: Any) -> ChatResult: ...
    def achat_stream(self, messages: Sequence[Mapping[str, Any]], tools: Optional[Sequence[Mapping[str, Any]]] = None,
                     **keywords: Any) -> AsyncIterator[ChatPiece]: ...

class _PlanFunction:
    models: Callable[[], List[str]]
    def __call__(self, model: _Path, *, hardware: Optional[_Path] = None, cpu_mem: Optional[_Size] = None,
                 gpu_mem: Optional[_Size] = None, disk_mem: Optional[_Size] = None,
                 prompt_tokens: Optional[float] = None, new_tokens: Optional[float] = None,
                 sequences: Optional[int] = None,
                 objective: Optional[str] = None,
                 latency_bound: Optional[float] = None, weights: Optional[str] = None, kv_dtype: Optional[str] = None,
                 lifts: bool = True) -> Plan: ...

class _ProfileFunction:
    names: Callable[[], List[str]]
    def __call__(self, name: Optional[_Path] = None, *, offload_dir: Optional[_Path] = None,
                 threads: Optional[int] = None, quick: bool = True, again: bool = False,
                 keep: bool = True) -> Profile: ...

plan: _PlanFunction
profile: _ProfileFunction

def convert(model: _Path, destination: _Path, *, weights: Optional[str] = None, bits: Optional[float] = None,
            calibrate: Optional[_Path] = None, calibrate_tokens: Optional[int] = None, imatrix: Optional[_Path] = None,
            cpu_mem: Optional[_Size] = None, lora: Optional[_Path] = None, allow_requantise: bool = False,
            overwrite: bool = False, threads: Optional[int] = None) -> str: ...
