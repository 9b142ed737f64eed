"""The model: opened, planned, and answering in threads of its own."""
import atexit
import json
import logging
import os
import weakref

from . import _chat, _core, _params, _results, _wait
from ._errors import ClosedError, FileError, UserError, in_python
from ._plan import ModelPlan

_log = logging.getLogger("sluice")
_open_models = weakref.WeakSet()
_SEQUENCES, _CONTEXT, _MEAN_TOKENS = 16, 4096, 1024  # as `sluice serve`
_MAX = (1 << 31) - 1
_POOLINGS = ("", "last", "mean", "cls")  # sluice.h's Pooling
# What Model takes beside the path; kept in its signature and in __init__.pyi as well.
OPTIONS = ("cpu_mem", "disk_mem", "gpu_mem", "offload_dir", "sequences", "context", "kv_tokens", "predict_lengths",
           "prefix_cache", "threads", "compute", "batch_invariant", "kv_dtype", "device", "gpu", "hardware", "policy",
           "tokenizer", "pretokenizer", "chat_template", "rope_scaling", "rope_factor", "rope_theta", "rope_original")


class Model:
    """A model that answers. Threads and tasks may ask at any time; what runs together shares one block."""

    _session = None

    def __init__(self, path, **options):
        _params.refuse_unknown(options, OPTIONS, "Model")
        take = options.get
        self.path = _params.path(path, "path")
        self._pid = os.getpid()
        self._lines = _core.Log()
        self._bound = _core.Model.open(self.path, self._positions(options))
        for note in self._bound.notes:
            _log.warning("%s: %s", self.path, in_python(note))
        self.tokenizer = self._find_tokenizer(take("tokenizer"), take("pretokenizer"))
        self._chat = self._find_chat(take("chat_template"))
        try:
            plan = _core.Plan.find(self._bound, self._library_options(options), self._lines)
            self.plan = ModelPlan(plan, self._bound)
            self._session = _core.Session(plan, self.tokenizer and self.tokenizer._core)
        finally:
            self._tell()
        _open_models.add(self)

    @staticmethod
    def _positions(options):
        take = options.get
        scaling = take("rope_scaling") or ""
        context = take("context")
        return {
            "rope_scaling": _params.text(scaling if isinstance(scaling, str) else json.dumps(scaling), "rope_scaling"),
            "rope_factor": _params.number(take("rope_factor") or 0, "rope_factor"),
            "rope_theta": _params.number(take("rope_theta") or 0, "rope_theta"),
            "rope_original": _params.integer(take("rope_original") or 0, "rope_original", 0, _MAX),
            "context_tokens": 0 if context is None else _params.integer(context, "context", 1, _MAX),
        }

    def _find_tokenizer(self, path, pretokenizer):
        try:
            return Tokenizer(path or self.path, pretokenizer)
        except FileError:
            if path is not None or any(os.path.exists(os.path.join(self.path, name)) for name in
                                       ("tokenizer.json", "tokenizer.model", "tiktoken.model")):
                raise
            return None  # token ids do without

    def _find_chat(self, template):
        if self.tokenizer is None:
            return None
        if template is None:
            return _core.Chat.find(self.path, self.tokenizer._core, "")
        # A template has braces; a path to one has none.
        if isinstance(template, str) and "{" in template:
            source = template
        else:
            name = _params.path(template, "chat_template")
            try:
                with open(name, encoding="utf-8") as file:
                    source = file.read()
            except (OSError, UnicodeDecodeError) as error:
                raise FileError(f"chat_template: {name} can't be read: {error}") from None
        return _core.Chat.find(self.path, self.tokenizer._core, source)

    def _library_options(self, options):
        take = options.get
        longest = self._bound.longest_context
        context = min(_CONTEXT, longest) if take("context") is None else take("context")
        context = _params.integer(context, "context", 1, _MAX)
        if context > longest:
            raise UserError(f"context is {context}; the model was made for {longest} tokens")
        sequences = _SEQUENCES if take("sequences") is None else take("sequences")
        sequences = _params.integer(sequences, "sequences", 1, _MAX)
        kv_tokens = take("kv_tokens")
        if kv_tokens is None:
            kv_tokens = max(sequences * min(context, _MEAN_TOKENS), context)
        gpu = take("gpu")
        policy = take("policy")
        if policy is not None and not isinstance(policy, str):
            policy = json.dumps(policy)
        hardware = take("hardware")
        return {
            "memory_budget_bytes": _params.size(take("cpu_mem"), "cpu_mem"),
            "disk_budget_bytes": _params.size(take("disk_mem"), "disk_mem"),
            "device_budget_bytes": _params.size(take("gpu_mem"), "gpu_mem"),
            "offload_dir": _params.path(take("offload_dir") or "", "offload_dir"),
            "sequences": sequences,
            "context_tokens": context,
            "kv_tokens": _params.integer(kv_tokens, "kv_tokens", 1),
            "predicts_lengths": _params.truth(options.get("predict_lengths", True), "predict_lengths"),
            "keeps_prefixes": _params.truth(options.get("prefix_cache", True), "prefix_cache"),
            "threads": _params.integer(take("threads") or 0, "threads", 0, _MAX),
            "compute": _params.text(take("compute") or "", "compute"),
            "batch_invariant": _params.truth(options.get("batch_invariant", False), "batch_invariant"),
            "kv_dtype": _params.text(take("kv_dtype") or "", "kv_dtype"),
            "device": _params.text(take("device") or ("cuda" if gpu is not None else ""), "device"),
            "gpu": _params.integer(gpu or 0, "gpu", 0, 1023),
            "hardware": _params.path(hardware or "", "hardware"),
            "policy": policy,
        }

    def _tell(self):
        for line in self._lines.take():
            _log.info("%s", line)

    # What it is.

    family = property(lambda self: self._bound.family, doc='config.json\'s model_type, such as "llama"')
    weights = property(lambda self: self._bound.weights, doc='"bf16", "int4-g64"')
    parameters = property(lambda self: self._bound.parameters)
    vocabulary = property(lambda self: self._bound.vocabulary, doc="token ids are below")
    context = property(lambda self: self.plan.context, doc="tokens of the longest prompt and answer together")
    closed = property(lambda self: self._session is None)

    def __repr__(self):
        state = "closed" if self.closed else f"{self.plan.sequences} sequences of {self.context} tokens"
        return f"<sluice.Model {self.path}: {self.family}, {self.weights}, {state}>"

    # How it ends.

    def close(self):
        """Ends what runs and gives all memory back. May be called again."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        self.close()

    def _need_session(self):
        if self._pid != os.getpid():
            raise UserError("the model was opened before this process was forked",
                            "open it in the process that uses it")
        session = self._session
        if session is None:
            raise ClosedError("the model is closed", "open it again: sluice.Model(...)")
        return session

    # What it is asked.

    def _encode(self, prompt, adds_special=True):
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise UserError("the prompt is a text, and the model has no tokenizer", "give token ids")
            return self.tokenizer.encode(prompt, adds_special)
        if isinstance(prompt, (bytes, dict, set)) or not hasattr(prompt, "__iter__"):
            raise UserError(f"prompt is {prompt!r}; it must be a str or token ids")
        return _params.token_ids(prompt)

    def _prompts(self, prompt):
        """(lists of token ids, whether it is a single one) of a text, ids, or a list of these."""
        if isinstance(prompt, str):
            return [self._encode(prompt)], True
        if hasattr(prompt, "tolist"):
            prompt = prompt.tolist()
        if isinstance(prompt, (bytes, dict, set)) or not hasattr(prompt, "__iter__"):
            raise UserError(f"prompt is {prompt!r}; it must be a str, token ids, or a list of these")
        prompt = list(prompt)
        if prompt and all(_params.is_integer(one) for one in prompt):
            return [_params.token_ids(prompt)], True
        return [self._encode(one) for one in prompt], False

    def _check(self, prompts, generates=True):
        """Refuses what can't run before anything does."""
        for i, ids in enumerate(prompts):
            where = f"prompt {i} " if len(prompts) > 1 else "the prompt "
            if not ids:
                raise UserError(where + "is empty: there is nothing to go on with", "give at least one token")
            if len(ids) + generates > self.context:
                raise UserError(f"{where}has {len(ids)} tokens; with one more the context holds {self.context}"
                                if generates else f"{where}has {len(ids)} tokens; the context holds {self.context}",
                                "shorten it, or open the model with a larger context")

    def _questions(self, prompts, params, extra=None):
        count = params if isinstance(params, list) else [params] * len(prompts)
        if len(count) != len(prompts):
            raise UserError(f"sampling_params has {len(count)} entries for {len(prompts)} prompts")
        out = []
        for ids, one in zip(prompts, count):
            question = {**one.values(), **(extra or {}), "prompt": ids}
            room = self.context - len(ids)
            question["max_tokens"] = max(min(question.get("max_tokens", room), max(room, 1)), 1)
            out.append(question)
        return out

    def _sampling(self, params, keywords):
        if isinstance(params, (list, tuple)):
            return [_params.sampling(one, keywords) for one in params]
        return _params.sampling(params, keywords)

    def _ask(self, prompt, params, keywords):
        """(answers, empty results, whether it is a single prompt)."""
        session = self._need_session()
        prompts, is_single = self._prompts(prompt)
        params = self._sampling(params, keywords)
        self._check(prompts)
        results = [_results.Result(i, ids) for i, ids in enumerate(prompts)]
        return session.ask(self._questions(prompts, params)), results, is_single

    def _wants(self, params, keywords):
        """Whether log-probabilities are, by prompt."""
        params = self._sampling(params, keywords)
        return lambda i: (params[i] if isinstance(params, list) else params).logprobs is not None

    def generate(self, prompt, sampling_params=None, **keywords):
        """The answer to a prompt (a str or token ids) as a Result; to a list of prompts as a list of Results."""
        answers, results, is_single = self._ask(prompt, sampling_params, keywords)
        gather = _Gather(self, results, self._wants(sampling_params, keywords))
        for event in _wait.events(answers, len(results)):
            gather.add(event)
        return gather.whole(is_single)

    def as_completed(self, prompts, sampling_params=None, **keywords):
        """Results as they end; `index` says whose. One that can't run has an `error`."""
        answers, results, _ = self._ask(prompts, sampling_params, keywords)
        gather = _Gather(self, results, self._wants(sampling_params, keywords))
        return (result for event in _wait.events(answers, len(results))
                for result in [gather.add(event)] if result is not None)

    def stream(self, prompt, sampling_params=None, **keywords):
        """Pieces of the answer as they come; of a list of prompts, `index` says whose."""
        answers, results, _ = self._ask(prompt, sampling_params, keywords)
        wants = self._wants(sampling_params, keywords)
        return (piece for event in _wait.events(answers, len(results))
                for piece in [self._piece(event, len(results), wants)] if piece is not None)

    def _piece(self, event, count, wants):
        error = event.error(self, count)
        if error is not None:
            raise error
        if event.kind == _wait.TEXT:
            logprobs = (_results.logprobs_of(event.ids, event.logprobs, event.tops)
                        if wants(event.question) else None)
            return _results.Piece(event.question, event.text, event.ids, logprobs)
        if event.kind == _wait.FINISHED:
            return _results.Piece(event.question, "", [], None, event.finish)
        return None

    async def agenerate(self, prompt, sampling_params=None, **keywords):
        """generate() for an event loop. Cancelling the task gives the prompt up."""
        answers, results, is_single = self._ask(prompt, sampling_params, keywords)
        gather = _Gather(self, results, self._wants(sampling_params, keywords))
        async for event in _wait.events_async(answers, len(results)):
            gather.add(event)
        return gather.whole(is_single)

    async def astream(self, prompt, sampling_params=None, **keywords):
        """stream() for an event loop."""
        answers, results, _ = self._ask(prompt, sampling_params, keywords)
        wants = self._wants(sampling_params, keywords)
        events = _wait.events_async(answers, len(results))
        try:
            async for event in events:
                piece = self._piece(event, len(results), wants)
                if piece is not None:
                    yield piece
        finally:
            await events.aclose()

    # What it thinks of given text.

    def _score(self, prompts, logprobs=0, keeps_logits=False):
        session = self._need_session()
        self._check(prompts, generates=False)
        extra = {"scores_prompt": True, "generates": False, "keeps_logits": keeps_logits, "logprobs": logprobs}
        answers = session.ask(self._questions(prompts, _params.SamplingParams(seed=0), extra))
        out = [None] * len(prompts)
        for event in _wait.events(answers, len(prompts)):
            error = event.error(self, len(prompts))
            if error is not None:
                raise error
            if event.kind == _wait.PROMPT:
                out[event.question] = event
        return answers, out

    def logits(self, prompt):
        """numpy f32 [tokens, vocabulary]: what follows each token of one prompt."""
        import numpy
        prompts, is_single = self._prompts(prompt)
        if not is_single:
            raise UserError("logits takes one prompt, a str or token ids")
        answers, _ = self._score(prompts, keeps_logits=True)
        return numpy.asarray(answers.logits(0))

    def prompt_logprobs(self, prompt):
        """numpy f32 [tokens]: the log-likelihood of each token of a prompt from those before; the first is NaN. Of a
        list of prompts a list of these."""
        import numpy
        prompts, is_single = self._prompts(prompt)
        _, events = self._score(prompts)
        out = [numpy.array(event.logprobs, dtype=numpy.float32) for event in events]
        return out[0] if is_single else out

    def loglikelihood(self, context, continuation):
        """The Score of a continuation after a context (each a str or token ids)."""
        return self.loglikelihoods([(context, continuation)])[0]

    def loglikelihoods(self, pairs):
        """Scores of (context, continuation) pairs, computed together. Texts are tokenised as one, so that the border
        between them is where the tokenizer puts it; an empty context is the model's begin-of-text token."""
        import numpy
        prompts, firsts = [], []
        for pair in pairs:
            context, continuation = pair
            ids, first = self._joined(context, continuation)
            prompts.append(ids)
            firsts.append(first)
        if not prompts:
            return []
        _, events = self._score(prompts, logprobs=1)
        out = []
        for ids, first, event in zip(prompts, firsts, events):
            values = numpy.array(event.logprobs[first:], dtype=numpy.float32)
            tops = [top[0][0] for top in event.tops[first:]]
            out.append(_results.Score(float(values.sum(dtype=numpy.float64)), tops == ids[first:], ids[first:], values))
        return out

    def _joined(self, context, continuation):
        if isinstance(context, str) and isinstance(continuation, str):
            # Spaces at the end of the context belong to the continuation's first word.
            spaces = len(context) - len(context.rstrip())
            if spaces and context.strip():
                context, continuation = context[:-spaces], context[-spaces:] + continuation
            whole = self._encode(context + continuation)
            first = len(self._encode(context))
            ids = whole
        else:
            before, after = self._encode(context), self._encode(continuation, adds_special=False)
            ids, first = before + after, len(before)
        if not ids[first:]:
            raise UserError("the continuation has no token", "give some text")
        if first == 0:
            raise UserError("the context is empty, and the tokenizer begins texts with no token",
                            "give a context of at least one token")
        return ids, first

    # Embeddings.

    def embed(self, texts, pooling=None, normalize=None, dimensions=None):
        """numpy f32 [texts, hidden size]: rows behind the model's final norm, pooled; of one text (a str or token ids)
        one row. pooling is "last", "mean" or "cls"; None, as normalize=None: as the model's folder says, else the last
        token's row, normalised to length 1. dimensions: only the first so many."""
        import numpy
        session = self._need_session()
        prompts, is_single = self._prompts(texts)
        self._check(prompts, generates=False)
        if pooling is not None and pooling not in _POOLINGS[1:]:
            raise UserError(f"pooling is {pooling!r}; it must be one of {', '.join(_POOLINGS[1:])}")
        if pooling is None or normalize is None:
            try:
                form = self._bound.embedding_form()
            except FileError:
                if pooling is None:
                    raise
                form = (0, True)
            pooling = pooling or _POOLINGS[form[0]]
            normalize = form[1] if normalize is None else normalize
        normalize = _params.truth(normalize, "normalize")
        if dimensions is not None:
            dimensions = _params.integer(dimensions, "dimensions", 1, _MAX)
        answers = session.ask(self._questions(prompts, _params.SamplingParams(seed=0),
                                              {"pooling": _POOLINGS.index(pooling), "generates": False}))
        rows = [None] * len(prompts)
        for event in _wait.events(answers, len(prompts)):
            error = event.error(self, len(prompts))
            if error is not None:
                raise error
            if event.kind == _wait.PROMPT:
                rows[event.question] = numpy.frombuffer(event.embedding, dtype=numpy.float32)
        out = numpy.stack(rows) if rows else numpy.zeros((0, 0), dtype=numpy.float32)
        if dimensions is not None:
            if rows and dimensions > out.shape[1]:
                raise UserError(f"dimensions is {dimensions}; the model's embeddings have {out.shape[1]}")
            out = out[:, :dimensions].copy()
        if normalize and rows:
            lengths = numpy.sqrt(numpy.square(out, dtype=numpy.float64).sum(axis=1, keepdims=True))
            out = (out / numpy.where(lengths > 0, lengths, 1)).astype(numpy.float32)
        return out[0] if is_single else out

    # Chats.

    def chat(self, messages, tools=None, *, stream=False, **keywords):
        """The answer to messages ({"role", "content"}) as a ChatResult, or, with stream, its ChatPieces as they come.
        Keywords: tool_choice and others of the chat, and those of SamplingParams."""
        turn = _chat.Turn(self, messages, tools, keywords)
        pieces = turn.pieces(_wait.events(turn.answers, 1))
        return pieces if stream else turn.result(pieces)

    async def achat(self, messages, tools=None, **keywords):
        """chat() for an event loop."""
        turn = _chat.Turn(self, messages, tools, keywords)
        async for event in _wait.events_async(turn.answers, 1):
            turn.take(event)
        return turn.result(())

    async def achat_stream(self, messages, tools=None, **keywords):
        """chat(stream=True) for an event loop."""
        turn = _chat.Turn(self, messages, tools, keywords)
        events = _wait.events_async(turn.answers, 1)
        try:
            async for event in events:
                for piece in turn.take(event):
                    yield piece
        finally:
            await events.aclose()

    has_chat_template = property(lambda self: self._chat is not None)

    @property
    def running(self):
        """Prompts that are being computed."""
        return self._need_session().running

    @property
    def waiting(self):
        """Prompts that wait for room in the block."""
        return self._need_session().waiting


class _Gather:
    """Results as their pieces come."""

    def __init__(self, model, results, wants):
        self.model, self.results = model, results
        for result in results:
            if wants(result.index):
                result.logprobs = []

    def add(self, event):
        """The result that this piece ends, or None."""
        result = self.results[event.question]
        if event.kind == _wait.STARTED:
            result.cached_tokens = event.cached_tokens
        elif event.kind == _wait.TEXT:
            result.text += event.text
            result.token_ids += event.ids
            if result.logprobs is not None:
                result.logprobs += _results.logprobs_of(event.ids, event.logprobs, event.tops)
        if not event.is_last:
            return None
        result.error = event.error(self.model, len(self.results))
        result.finish_reason = event.finish if event.kind == _wait.FINISHED else None
        return result

    def whole(self, is_single):
        for result in self.results:
            if result.error is not None:
                result.error.results = self.results
                raise result.error
        return self.results[0] if is_single else self.results


class Tokenizer:
    """Text to token ids and back, as Hugging Face does it for the same files."""

    def __init__(self, path, pretokenizer=None):
        """Of a model folder, a GGUF file or a tokenizer file. pretokenizer: by which rule a GGUF file's text is cut, where the
        file names one that is not known."""
        self._core = _core.Tokenizer.load(_params.path(path, "tokenizer"), _params.text(pretokenizer or "", "pretokenizer"))

    vocabulary = property(lambda self: self._core.vocabulary)

    def encode(self, text, add_special=True):
        """Token ids; with what the model begins texts with, where add_special."""
        return self._core.encode(_params.text(text, "text"), add_special)

    def decode(self, token_ids, skip_special=True):
        return self._core.decode(_params.token_ids(token_ids, "token_ids"), skip_special)

    def find(self, token):
        """The id of a token, or None."""
        return self._core.find(_params.text(token, "token"))

    bos_token_id = property(lambda self: self._core.begin_token, doc="that begins a text, or None")
    eos_token_id = property(lambda self: self._core.end_token, doc="that ends a text, or None")

    def __len__(self):
        return self.vocabulary


@atexit.register
def _close_all():
    """What generates when the interpreter ends is called off, before its threads would be cut short."""
    for model in list(_open_models):
        model.close()
