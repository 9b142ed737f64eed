"""sluice runs language models that are bigger than the memory you have.

    import sluice
    with sluice.Model("MODEL", cpu_mem="4GiB") as model:
        print(model.generate("Once upon a time", max_tokens=50))

docs/python.md has the rest.
"""
from ._chat import ChatPiece, ChatResult, ToolCall
from ._convert import convert
from ._core import version as __version__
from ._errors import (CancelledError, ClosedError, DeviceError, Error, FileError, InternalError, ResourceError,
                      UserError)
from ._model import Model, Tokenizer
from ._params import SamplingParams
from ._plan import ModelPlan, Plan, Profile, plan, profile
from ._results import Piece, Result, Score, TokenLogprobs

__all__ = ["CancelledError", "ChatPiece", "ChatResult", "ClosedError", "DeviceError", "Error", "FileError",
           "InternalError", "Model", "ModelPlan", "Piece", "Plan", "Profile", "ResourceError", "Result",
           "SamplingParams", "Score", "TokenLogprobs", "Tokenizer", "ToolCall", "UserError", "convert", "plan",
           "profile"]
