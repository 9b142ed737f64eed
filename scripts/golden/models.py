#!/usr/bin/env python3
"""Writes the tiny Hugging Face checkpoints of tests/fixtures/models and their golden outputs.

    python scripts/golden/models.py --out tests/fixtures/models [--only NAME ...]

Needs torch, transformers, safetensors and numpy; the versions used are written to VERSIONS.txt.
Every fixture is a folder that transformers itself loads: config.json in the spelling of the hub,
weights in one of the hub's layouts (the FIXTURES table at the end says which), and goldens.json:

    cases[].prompt_ids      the prompt
    cases[].positions       positions of the prompt whose logits are kept: kept_positions()
    cases[].logits          .npy beside it, f32 [positions, vocab]: what transformers computes in
                            float32 (eager attention) from the stored weights upcast
    cases[].greedy_ids      24 or 64 argmax tokens after the prompt; end-of-sequence does not stop them
    cases[].greedy_margins  top logit minus second logit of each of those steps
    float32_error           max|f32 - f64| / max|f64| over all cases: how far float32 itself is off
    half                    f16/bf16 folders: how far the same logits are off that are computed in
                            that dtype throughout

Weights are random. Matrices of f32 folders hold values of bf16, which packs keep in half the room;
of those that are `fine`, all bits count, as they do in vectors and in the trained stories260k. The
seed of a fixture is the first one whose every greedy step has a margin of at least min_margin times
the largest logit of that step, so that rounding in float32 never decides a golden token. When
folders have been written, scripts/fixtures.py packs them.
"""

import argparse
import copy
import dataclasses
import io
import json
import pathlib
import platform
import re
import zlib

import numpy as np
import safetensors
import safetensors.torch
import tokenizers
import torch
import transformers

GREEDY_TOKENS = 24
PROMPT_LENGTHS = (1, 7, 33, 100)
MIN_MARGIN = 0.003  # of max|logit|: some hundred times the float32 error of these models
MIN_DISTINCT = 8  # different tokens in each continuation: a golden is not one token repeated
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
TORCH_NAMES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}


@dataclasses.dataclass(frozen=True)
class Fixture:
    """One folder. `layout` is how the weights lie on disk, `weights_of` names the fixture whose
    weights and goldens this one shares (then only the layout differs)."""

    name: str
    config: dict
    dtype: str = "f32"
    layout: str = "safetensors"  # safetensors, bin
    shards: int = 1
    prefix: str = "model."  # in front of OPT's "decoder."; the hub has both spellings
    weights_of: str | None = None
    fused_qkv_views: bool = False  # bin: k, v, q of a layer are views of one stored tensor
    store_lm_head: bool = False  # bin: lm_head.weight beside the embedding it is tied to
    tokenizer: bool = False
    prompt_lengths: tuple = PROMPT_LENGTHS
    greedy_tokens: int = GREEDY_TOKENS
    min_margin: float = MIN_MARGIN
    # Matrices have all the bits of their dtype: some of each kind, and those where bf16's values bring
    # near ties into prompts that tests draw.
    fine: bool = False


# --- random weights -------------------------------------------------------------------------------


class Weights:
    """Collects named float32 tensors drawn from one generator, in the order of the calls."""

    def __init__(self, seed):
        self.generator = np.random.default_rng(seed)
        self.tensors = {}

    def normal(self, name, shape, std, mean=0.0):
        values = mean + std * self.generator.standard_normal(shape)
        self.tensors[name] = torch.from_numpy(values.astype(np.float32))

    def linear(self, name, outputs, inputs, bias, gain=1.6):
        self.normal(f"{name}.weight", (outputs, inputs), gain / np.sqrt(inputs))
        if bias:
            self.normal(f"{name}.bias", (outputs,), 0.3)

    def norm(self, name, size, bias):
        self.normal(f"{name}.weight", (size,), 0.2, mean=1.0)
        if bias:
            self.normal(f"{name}.bias", (size,), 0.2)


def opt_weights(config, seed):
    """Names as transformers writes them ("model.decoder...."); tied, so without lm_head."""
    w = Weights(seed)
    hidden, embed = config["hidden_size"], config["word_embed_proj_dim"]
    w.normal("model.decoder.embed_tokens.weight", (config["vocab_size"], embed), 0.4)
    w.normal("model.decoder.embed_positions.weight",
             (config["max_position_embeddings"] + 2, hidden), 0.8)
    if embed != hidden:
        w.linear("model.decoder.project_in", hidden, embed, bias=False)
        w.linear("model.decoder.project_out", embed, hidden, bias=False)
    for layer in range(config["num_hidden_layers"]):
        p = f"model.decoder.layers.{layer}"
        for name in ("k_proj", "v_proj", "q_proj", "out_proj"):
            w.linear(f"{p}.self_attn.{name}", hidden, hidden, bias=True)
        w.norm(f"{p}.self_attn_layer_norm", hidden, bias=True)
        w.linear(f"{p}.fc1", config["ffn_dim"], hidden, bias=True)
        w.linear(f"{p}.fc2", hidden, config["ffn_dim"], bias=True)
        w.norm(f"{p}.final_layer_norm", hidden, bias=True)
    if config["do_layer_norm_before"]:
        w.norm("model.decoder.final_layer_norm", hidden, bias=True)
    return w.tensors


def llama_weights(config, seed):
    return gated_weights(config, seed, qkv_bias=config["attention_bias"],
                         o_bias=config["attention_bias"], mlp_bias=config["mlp_bias"])


def gated_weights(config, seed, *, qkv_bias=False, o_bias=False, mlp_bias=False, head_norms=False):
    w = Weights(seed)
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    head_dim = config.get("head_dim", hidden // config["num_attention_heads"])
    queries = config["num_attention_heads"] * head_dim
    keys = config["num_key_value_heads"] * head_dim
    w.normal("model.embed_tokens.weight", (vocab, hidden), 0.4)
    for layer in range(config["num_hidden_layers"]):
        p = f"model.layers.{layer}"
        w.norm(f"{p}.input_layernorm", hidden, bias=False)
        w.linear(f"{p}.self_attn.q_proj", queries, hidden, qkv_bias)
        w.linear(f"{p}.self_attn.k_proj", keys, hidden, qkv_bias)
        w.linear(f"{p}.self_attn.v_proj", keys, hidden, qkv_bias)
        w.linear(f"{p}.self_attn.o_proj", hidden, queries, o_bias)
        if head_norms:
            w.norm(f"{p}.self_attn.q_norm", head_dim, bias=False)
            w.norm(f"{p}.self_attn.k_norm", head_dim, bias=False)
        w.norm(f"{p}.post_attention_layernorm", hidden, bias=False)
        w.linear(f"{p}.mlp.gate_proj", config["intermediate_size"], hidden, mlp_bias)
        w.linear(f"{p}.mlp.up_proj", config["intermediate_size"], hidden, mlp_bias)
        w.linear(f"{p}.mlp.down_proj", hidden, config["intermediate_size"], mlp_bias)
    w.norm("model.norm", hidden, bias=False)
    if not config["tie_word_embeddings"]:
        w.linear("lm_head", vocab, hidden, bias=False)
    return w.tensors


@dataclasses.dataclass(frozen=True)
class Family:
    """What transformers calls a model_type, and how its random weights are drawn."""

    architecture: str
    weights: object
    on_disk: object = None  # from transformers' names to those of files; None: they are the same
    describe: object = None  # (model, prompt): what goldens say beside logits and tokens
    quantise: object = None  # (config, tensors of files): as the config's quantization_config has them


FAMILIES = {"opt": Family("OPTForCausalLM", opt_weights),
            "llama": Family("LlamaForCausalLM", llama_weights)}


def draw_weights(fixture, seed):
    """The weights of `fixture` in their stored dtype."""
    draw = FAMILIES[fixture.config["model_type"]].weights
    is_coarse = fixture.dtype == "f32" and not fixture.fine
    weights = draw(fixture.config, seed)
    if is_coarse:
        weights = {name: tensor.bfloat16() if tensor.ndim > 1 else tensor for name, tensor in weights.items()}
    return {name: tensor.to(DTYPES[fixture.dtype]) for name, tensor in weights.items()}


# --- running transformers -------------------------------------------------------------------------


def hf_config(fixture):
    return transformers.AutoConfig.for_model(**copy.deepcopy(fixture.config))


def attention_of(config):
    """Falcon's eager attention adds ALiBi once to the scores and once more with the mask (transformers 5.24); what runs
    where nothing is asked adds it once."""
    return "sdpa" if config.get("alibi") else "eager"


def model_in_memory(fixture, weights):
    model = transformers.AutoModelForCausalLM.from_config(
        hf_config(fixture), attn_implementation=attention_of(fixture.config),
        experts_implementation="eager").float().eval()
    missing, unexpected = model.load_state_dict(
        {name: tensor.float() for name, tensor in weights.items()}, strict=False)
    if unexpected or set(missing) - {"lm_head.weight"}:
        raise SystemExit(f"{fixture.name}: missing {missing}, unexpected {unexpected}")
    model.tie_weights()
    return model


def load_folder(folder, dtype):
    """Loads with transformers and refuses any tensor that it could not place."""
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, experts_implementation="eager",
        attn_implementation=attention_of(json.loads((folder / "config.json").read_text())),
        output_loading_info=True)
    problems = {key: value for key, value in report.items() if value}
    if problems:
        raise SystemExit(f"{folder.name}: transformers reports {problems}")
    return model.eval()


@torch.no_grad()
def logits_of(model, ids):
    """[tokens, vocab], in the dtype of the model."""
    return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]


def greedy(model, prompt, steps, min_margin=0.0):
    """Argmax continuation with its margins, each step recomputed from the first token on; None as
    soon as a margin is below min_margin * max|logit|."""
    ids, margins = list(prompt), []
    for _ in range(steps):
        last = logits_of(model, ids)[-1]
        top = torch.topk(last, 2)
        margin = float(top.values[0] - top.values[1])
        if margin < min_margin * float(last.abs().max()):
            return None
        margins.append(margin)
        ids.append(int(top.indices[0]))
    return ids[len(prompt):], margins


@torch.no_grad()
def has_clear_continuation(model, prompt, fixture):
    """Whether every greedy step has its margin and the tokens vary: with a cache, so that many seeds
    can be tried; the goldens are computed without."""
    ids, seen, cache = prompt, set(), None
    for _ in range(fixture.greedy_tokens):
        out = model(input_ids=torch.tensor([ids]), past_key_values=cache, use_cache=True)
        cache, last = out.past_key_values, out.logits[0, -1]
        top = torch.topk(last, 2)
        if float(top.values[0] - top.values[1]) < fixture.min_margin * float(last.abs().max()):
            return False
        ids = [int(top.indices[0])]
        seen.add(ids[0])
    return len(seen) >= MIN_DISTINCT


def relative_error(values, reference):
    difference = values.double() - reference.double()
    return float(difference.abs().max() / reference.double().abs().max())


def prompts_of(fixture):
    """Fixed by vocabulary and length; each starts with bos, as a tokenizer would have it."""
    prompts = []
    for length in fixture.prompt_lengths:
        generator = np.random.default_rng([fixture.config["vocab_size"], length])
        ids = generator.integers(0, fixture.config["vocab_size"], length - 1).tolist()
        prompts.append([fixture.config["bos_token_id"]] + ids)
    return prompts


def kept_positions(length):
    """Of a prompt: both ends, both sides of borders of pages and chunks, and every 22nd; of a short
    one all."""
    borders = {0, 1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, length - 1}
    return [at for at in range(length) if length < 10 or at in borders or at % 22 == 0]


def find_seed(fixture):
    """First seed with clear margins and varied continuations; returns (seed, weights)."""
    first = zlib.crc32(fixture.name.encode())
    for seed in range(first, first + 4000):
        weights = draw_weights(fixture, seed)
        model = model_in_memory(fixture, weights)
        for prompt in prompts_of(fixture):
            if not has_clear_continuation(model, prompt, fixture):
                break
        else:
            return seed, weights
    raise SystemExit(f"{fixture.name}: no seed with margins above {fixture.min_margin}")


# --- writing --------------------------------------------------------------------------------------


def write_json(path, value):
    """Indented, but every list of plain numbers or of words on one line."""
    text = json.dumps(value, indent=1, ensure_ascii=False)
    text = re.sub(r"\[[^\[\]{}]*\]", lambda m: re.sub(r"\s*\n\s*", " ", m.group()), text)
    path.write_text(text.replace("[ ", "[").replace(" ]", "]") + "\n", encoding="utf-8")


def write_npy(path, tensor, bits=15):
    """Of `bits` bits behind the leading one (23: all), which packs keep in less room: far more than tests look at."""
    values = np.ascontiguousarray(tensor.detach().float().numpy())
    dropped = 23 - bits
    kept = (values.view(np.uint32).astype(np.uint64) + (1 << dropped >> 1)) >> dropped << dropped
    np.save(path, kept.astype(np.uint32).view(np.float32))


def split_shards(weights, count):
    """Runs of about equal bytes in the order of the model, so that a layer may span two files."""
    total = sum(tensor.nbytes for tensor in weights.values())
    shards, seen = [{} for _ in range(count)], 0
    for name, tensor in weights.items():
        shards[min(count - 1, seen * count // total)][name] = tensor
        seen += tensor.nbytes
    return shards


def fuse_qkv(weights):
    """Replaces k, v, q of each layer by views of one tensor, as a split of a fused matrix leaves
    them: torch.save then writes one storage with three offsets."""
    fused = dict(weights)
    for name in [n for n in weights if ".k_proj." in n]:
        names = [name.replace("k_proj", part) for part in ("k_proj", "v_proj", "q_proj")]
        whole = torch.cat([weights[n] for n in names])
        fused.update(zip(names, torch.split(whole, weights[name].shape[0])))
    return fused


def hub_names(fixture, weights):
    """Renames "model.decoder.*" when the fixture uses another prefix; llama has one spelling."""
    family = FAMILIES[fixture.config["model_type"]]
    if family.on_disk:
        weights = family.on_disk(weights)
        return family.quantise(fixture.config, weights) if family.quantise else weights
    if fixture.config["model_type"] != "opt":
        return weights
    return {name.replace("model.", fixture.prefix, 1): tensor for name, tensor in weights.items()}


def write_weights(folder, fixture, weights):
    weights = hub_names(fixture, weights)
    if fixture.fused_qkv_views:
        weights = fuse_qkv(weights)
    if fixture.store_lm_head:
        weights["lm_head.weight"] = weights[f"{fixture.prefix}decoder.embed_tokens.weight"]
    stem, ending = {"safetensors": ("model", "safetensors"), "bin": ("pytorch_model", "bin")}[
        fixture.layout]
    weight_map = {}
    shards = split_shards(weights, fixture.shards)
    for number, shard in enumerate(shards, 1):
        name = f"{stem}.{ending}"
        if fixture.shards > 1:
            name = f"{stem}-{number:05}-of-{fixture.shards:05}.{ending}"
        if fixture.layout == "safetensors":
            safetensors.torch.save_file(shard, folder / name, metadata={"format": "pt"})
        else:
            archive = io.BytesIO()  # a stream, so that the folder inside the zip is "archive"
            torch.save(shard, archive)
            (folder / name).write_bytes(archive.getvalue())
        (folder / name).chmod(0o644)
        weight_map.update(dict.fromkeys(shard, name))
    if fixture.shards > 1:
        total = sum(tensor.nbytes for tensor in weights.values())
        write_json(folder / f"{stem}.{ending}.index.json",
                   {"metadata": {"total_size": total}, "weight_map": weight_map})


def write_config(folder, fixture):
    """config.json as written by hand on the hub: dtype key and RoPE keys of the given config."""
    new_spelling = "rope_parameters" in fixture.config
    architecture = FAMILIES[fixture.config["model_type"]].architecture
    config = {"architectures": [architecture], **fixture.config,
              "dtype" if new_spelling else "torch_dtype": TORCH_NAMES[fixture.dtype]}
    write_json(folder / "config.json", config)
    if isinstance(fixture.config["eos_token_id"], list):
        write_json(folder / "generation_config.json",
                   {"bos_token_id": fixture.config["bos_token_id"],
                    "eos_token_id": fixture.config["eos_token_id"]})


def write_byte_tokenizer(folder):
    """A GPT-2 style byte-level vocabulary without merges: OPT's four special tokens, then one token
    for each byte. Ids are checked against transformers."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in printable]
    letter = {byte: chr(byte) for byte in printable}
    letter.update({byte: chr(256 + index) for index, byte in enumerate(rest)})
    vocabulary = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}
    for byte in range(256):
        vocabulary[letter[byte]] = 4 + byte
    (folder / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=True) + "\n")
    (folder / "merges.txt").write_text("#version: 0.2\n")
    special = {"bos_token": "</s>", "eos_token": "</s>", "unk_token": "</s>", "pad_token": "<pad>"}
    write_json(folder / "special_tokens_map.json", special)
    write_json(folder / "tokenizer_config.json",
               {"tokenizer_class": "GPT2Tokenizer", "add_bos_token": True,
                "add_prefix_space": False, "errors": "replace", **special})
    text = "Paris, 2 é\n"
    expected = [2] + [4 + byte for byte in text.encode()]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(text)["input_ids"]
    if ids not in (expected, expected[1:]):  # the class decides whether it prepends bos
        raise SystemExit(f"byte tokenizer: {ids} instead of {expected}")
    return {"text": text, "ids_with_bos": expected, "bos_token_id": 2}


def half_goldens(folder, fixture, prompts, references):
    """How far transformers itself lands from float32 when it computes in the stored dtype."""
    model = load_folder(folder, DTYPES[fixture.dtype])
    errors, agreements = {}, []
    for prompt, reference in zip(prompts, references):
        logits = logits_of(model, prompt)
        errors[str(len(prompt))] = relative_error(logits, reference)
        agreements.append((logits.float().argmax(-1) == reference.argmax(-1)).float())
    return {"compute_dtype": TORCH_NAMES[fixture.dtype],
            "formula": "max|half - f32| / max|f32| by prompt length",
            "relative_error": errors,
            "argmax_agreement": float(torch.cat(agreements).mean())}


def write_goldens(folder, fixture, seed, tokenizer_golden):
    """Reads the folder back with transformers and writes what it computes."""
    model, prompts = load_folder(folder, torch.float32), prompts_of(fixture)
    references = [logits_of(model, prompt) for prompt in prompts]
    cases = []
    for prompt, logits in zip(prompts, references):
        ids, margins = greedy(model, prompt, fixture.greedy_tokens)
        name = f"logits_{len(prompt)}.npy"
        positions = kept_positions(len(prompt))
        write_npy(folder / name, logits[positions])
        cases.append({"name": f"length_{len(prompt)}", "prompt_ids": prompt, "positions": positions,
                      "logits": name, "max_abs_logit": float(logits.abs().max()), "greedy_ids": ids,
                      "greedy_margins": [float(f"{margin:.6g}") for margin in margins]})
        describe = FAMILIES[fixture.config["model_type"]].describe
        if describe:
            cases[-1]["experts"] = describe(model, prompt)
    wide = model.double()
    error = max(relative_error(reference, logits_of(wide, prompt))
                for prompt, reference in zip(prompts, references))
    goldens = {"model": fixture.name, "made_by": "scripts/golden/models.py", "seed": seed,
               "stored_dtype": fixture.dtype, "cases": cases, "float32_error": error}
    if fixture.dtype != "f32":
        goldens["half"] = half_goldens(folder, fixture, prompts, references)
    if tokenizer_golden:
        goldens["tokenizer"] = tokenizer_golden
    write_json(folder / "goldens.json", goldens)
    return goldens


def write_shared_goldens(folder, fixture):
    """For a second layout of the same weights: checks that transformers reads the same model, and
    points at the other folder's logits."""
    other = folder.parent / fixture.weights_of
    goldens = json.loads((other / "goldens.json").read_text(encoding="utf-8"))
    model = load_folder(folder, torch.float32)
    for case in goldens["cases"]:
        if not np.array_equal(logits_of(model, case["prompt_ids"]).numpy()[case["positions"]],
                              np.load(other / case["logits"])):
            raise SystemExit(f"{fixture.name}: other logits than {fixture.weights_of}")
        case["logits"] = f"../{fixture.weights_of}/{case['logits']}"
    goldens.update(model=fixture.name, weights_of=fixture.weights_of)
    for key in ("half", "tokenizer"):
        goldens.pop(key, None)
    write_json(folder / "goldens.json", goldens)
    return goldens


def write_fixture(out, fixture):
    folder = out / fixture.name
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    write_config(folder, fixture)
    if fixture.weights_of:
        seed = json.loads((out / fixture.weights_of / "goldens.json").read_text())["seed"]
        weights = draw_weights(fixture, seed)
    else:
        seed, weights = find_seed(fixture)
    write_weights(folder, fixture, weights)
    tokenizer_golden = write_byte_tokenizer(folder) if fixture.tokenizer else None
    if fixture.weights_of:
        goldens = write_shared_goldens(folder, fixture)
    else:
        goldens = write_goldens(folder, fixture, seed, tokenizer_golden)
    margin = min(min(c["greedy_margins"]) / c["max_abs_logit"] for c in goldens["cases"])
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{fixture.name:26} seed {seed}  {size / 1000:6.0f} kB  float32 error "
          f"{goldens['float32_error']:.1e}  smallest margin {margin:.4f}", flush=True)


def write_versions(out):
    lines = {"python": platform.python_version(), "numpy": np.__version__,
             "torch": torch.__version__, "transformers": transformers.__version__,
             "safetensors": safetensors.__version__, "tokenizers": tokenizers.__version__}
    (out / "VERSIONS.txt").write_text(
        "Versions with which scripts/golden/ wrote these folders (CPU, one thread):\n"
        + "".join(f"{name} {version}\n" for name, version in lines.items()))


# --- the fixtures ---------------------------------------------------------------------------------


def opt(**changes):
    config = {"model_type": "opt", "hidden_size": 32, "word_embed_proj_dim": 32, "ffn_dim": 128,
              "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 260,
              "max_position_embeddings": 128, "do_layer_norm_before": True,
              "_remove_final_layer_norm": False, "activation_function": "relu", "dropout": 0.1,
              "attention_dropout": 0.0, "layerdrop": 0.0, "init_std": 0.02, "use_cache": True,
              "bos_token_id": 2, "eos_token_id": 2, "pad_token_id": 1, "prefix": "</s>"}
    return {**config, **changes}


def llama(**changes):
    """RoPE keys come from `changes`, because their spelling is part of what is tested."""
    config = {"model_type": "llama", "hidden_size": 32, "intermediate_size": 90,
              "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 4,
              "vocab_size": 193, "max_position_embeddings": 256, "hidden_act": "silu",
              "rms_norm_eps": 1e-5, "initializer_range": 0.02, "use_cache": True,
              "attention_bias": False, "mlp_bias": False, "attention_dropout": 0.0,
              "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2}
    return {**config, **changes}


MHA = llama(rope_theta=10000.0, rope_scaling=None)
GQA = llama(hidden_size=64, intermediate_size=172, num_hidden_layers=2, num_attention_heads=8,
            num_key_value_heads=2, vocab_size=131, tie_word_embeddings=True, rms_norm_eps=1e-6)
LLAMA3_ROPE = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 64, "rope_type": "llama3"}

FIXTURES = (
    Fixture("opt-tiny", opt(), tokenizer=True, fine=True),
    Fixture("opt-tiny-bin", opt(), layout="bin", weights_of="opt-tiny", store_lm_head=True, fine=True),
    Fixture("opt-tiny-f16", opt(vocab_size=131), dtype="f16"),
    Fixture("opt-tiny-f16-bin-decoder", opt(vocab_size=131), dtype="f16", layout="bin", prefix="",
            weights_of="opt-tiny-f16", fused_qkv_views=True),
    Fixture("opt-tiny-f16-bin-sharded", opt(vocab_size=131), dtype="f16", layout="bin", shards=2,
            weights_of="opt-tiny-f16"),
    Fixture("opt-tiny-bf16", opt(vocab_size=131), dtype="bf16", prefix=""),
    Fixture("opt-350m-tiny", opt(hidden_size=48, word_embed_proj_dim=24, ffn_dim=192,
                                 num_hidden_layers=2, vocab_size=197, do_layer_norm_before=False)),
    Fixture("llama-tiny-mha", MHA, fine=True),
    Fixture("llama-tiny-sharded", MHA, shards=3, weights_of="llama-tiny-mha", fine=True),
    Fixture("llama-tiny-gqa", {**GQA, "rope_theta": 50000.0}),
    Fixture("llama-tiny-head-dim", llama(
        hidden_size=64, num_hidden_layers=2, num_key_value_heads=2, head_dim=24, vocab_size=131,
        rms_norm_eps=0.01, rope_theta=10000.0)),
    Fixture("llama-tiny-bias", llama(
        num_key_value_heads=2, attention_bias=True, mlp_bias=True, rope_theta=10000.0)),
    Fixture("llama-tiny-f16", {**GQA, "rope_theta": 10000.0}, dtype="f16"),
    Fixture("llama-tiny-bf16", {
        **GQA, "rope_parameters": {"rope_type": "default", "rope_theta": 300.0}}, dtype="bf16"),
    Fixture("llama-tiny-rope-linear", llama(
        num_key_value_heads=1, num_hidden_layers=2, rope_theta=10000.0,
        rope_scaling={"type": "linear", "factor": 4.0})),
    Fixture("llama3-rope-tiny", llama(
        hidden_size=64, num_key_value_heads=2, num_hidden_layers=2, vocab_size=131,
        max_position_embeddings=512, eos_token_id=[2, 5], rope_theta=500000.0,
        rope_scaling=LLAMA3_ROPE)),
)


def main(fixtures=FIXTURES, description=__doc__):
    """`fixtures`: of a family with a script of its own, which has entered it into FAMILIES."""
    parser = argparse.ArgumentParser(description=description.split("\n")[0])
    parser.add_argument("--out", type=pathlib.Path, required=True, metavar="DIR")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="write these folders only")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for fixture in fixtures:
        if not arguments.only or fixture.name in arguments.only:
            write_fixture(arguments.out, fixture)
    write_versions(arguments.out)


if __name__ == "__main__":
    main()
