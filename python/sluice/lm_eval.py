"""sluice as a model of EleutherAI's lm-evaluation-harness (pip install lm-eval):

    lm_eval --model sluice --model_args path=MODEL,cpu_mem=4GiB --tasks hellaswag

or, from Python, lm_eval.simple_evaluate(model=sluice.lm_eval.SluiceLM("MODEL"), tasks=[...]).
"""
from lm_eval import utils
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model

from . import Model, UserError, _chat


@register_model("sluice")
class SluiceLM(TemplateLM):
    """Log-likelihoods and texts of a sluice.Model. `options`: those of Model."""

    def __init__(self, path, add_bos_token=None, max_gen_toks=256, batch_size=None, max_batch_size=None, device=None,
                 **options):
        super().__init__()
        # The harness gives batch_size to every model; how many run together is Model's `sequences`.
        del batch_size, max_batch_size
        if device is not None:
            options["device"] = device
        self.model = path if isinstance(path, Model) else Model(path, **options)
        if self.model.tokenizer is None:
            raise UserError(f"{self.model.path} has no tokenizer, and the harness gives texts")
        # None: as the tokenizer has it, like the harness's own "hf".
        self.add_bos_token = add_bos_token in (None, True, "True", "true", 1)
        self._max_gen_toks = int(max_gen_toks)

    @property
    def eot_token_id(self):
        return self.model.tokenizer.eos_token_id

    @property
    def prefix_token_id(self):
        begin = self.model.tokenizer.bos_token_id
        return begin if begin is not None else self.eot_token_id

    @property
    def max_length(self):
        """Tokens before the last one that is scored."""
        return self.model.context - 1

    @property
    def max_gen_toks(self):
        return self._max_gen_toks

    @property
    def tokenizer_name(self):
        return self.model.path.replace("/", "__")

    def tok_encode(self, string, add_special_tokens=None, **_):
        tokenizer = self.model.tokenizer
        if add_special_tokens is None:
            begin = self.prefix_token_id
            begun = tokenizer.decode([begin], skip_special=False) if begin is not None else ""
            add_special_tokens = self.add_bos_token and not (begun and string.startswith(begun))
        return tokenizer.encode(string, add_special_tokens)

    def apply_chat_template(self, chat_history, add_generation_prompt=True):
        if self.model._chat is None:
            raise UserError("the model has no chat template", "give chat_template=FILE")
        request = {"messages": chat_history, "add_generation_prompt": add_generation_prompt,
                   "continue_final_message": not add_generation_prompt}
        return self.model._chat.prompt(_chat._dumps(request), False).text

    def _loglikelihood_tokens(self, requests, disable_tqdm=False, **_):
        pairs = []
        for _, context, continuation in requests:
            # As for other models: what is too long loses its beginning.
            whole = (list(context) + list(continuation))[-(self.max_length + 1):]
            first = max(len(whole) - len(continuation), 1)
            pairs.append((whole[:first], whole[first:]))
        return [(score.logprob, score.is_greedy) for score in self.model.loglikelihoods(pairs)]

    def loglikelihood_rolling(self, requests, disable_tqdm=False):
        pairs, counts = [], []
        for request in requests:
            (string,) = request.args
            windows = map(utils.make_disjoint_window,
                          utils.get_rolling_token_windows(self.tok_encode(string), self.prefix_token_id,
                                                          self.max_length, context_len=1))
            before = len(pairs)
            pairs += windows
            counts.append(len(pairs) - before)
        scores = iter(self.model.loglikelihoods(pairs))
        return [sum(next(scores).logprob for _ in range(count)) for count in counts]

    def generate_until(self, requests, disable_tqdm=False):
        prompts, params = [], []
        from . import SamplingParams
        for request in requests:
            context, how = request.args
            how = dict(how)
            until = how.pop("until", [])
            until = [until] if isinstance(until, str) else list(until)
            most = int(how.pop("max_gen_toks", how.pop("max_new_tokens", self.max_gen_toks)))
            is_greedy = not how.pop("do_sample", float(how.get("temperature", 0) or 0) > 0)
            temperature = 0.0 if is_greedy else float(how.pop("temperature", 1.0))
            how.pop("temperature", None)
            room = max(self.model.context - most, 1)
            prompts.append(self.tok_encode(context)[-room:] or [self.prefix_token_id])
            params.append(SamplingParams(max_tokens=most, temperature=temperature,
                                         stop=[one for one in until if one], **how))
        return [answer.text for answer in self.model.generate(prompts, params)]
