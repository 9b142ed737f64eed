#!/usr/bin/env python3
"""Which model types of transformers sluice reads, and whether it computes them as transformers does.

    scripts/model_types.py --program build/release/bin/sluice            # prints the table
    scripts/model_types.py --program ... --write docs/model-types.md     # renews the page's table
    scripts/model_types.py --program ... --check docs/model-types.md     # fails where the page differs
    scripts/model_types.py --program ... --logits [NAME ...]             # compares logits on tiny random checkpoints

The types are those of transformers' mappings: causal language models, and models that see or hear ("wrappers"), whose
text part is what sluice would run. A type is read where the program does not say that it is not supported. --logits
makes a checkpoint of each that is read, saves it as transformers does (which is as releases have it) and with the names
that its modules have, and compares the logits of one prompt. Needs transformers and torch.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

# What makes a text part small, where its config has the key.
SMALL = {
    "hidden_size": 48, "intermediate_size": 56, "num_hidden_layers": 4, "num_attention_heads": 6,
    "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 263, "max_position_embeddings": 96,
    "ffn_dim": 56, "n_embd": 48, "n_layer": 4, "n_head": 6,
    "n_positions": 96, "word_embed_proj_dim": 48,
    "num_experts": 6, "n_routed_experts": 6, "num_local_experts": 6, "num_experts_per_tok": 2,
    "moe_intermediate_size": 20, "shared_expert_intermediate_size": 24, "n_shared_experts": 1, "n_group": 1,
    "topk_group": 1, "first_k_dense_replace": 1, "moe_num_experts": 6, "moe_k": 2, "intermediate_size_mlp": 40,
    "q_lora_rank": 22, "kv_lora_rank": 16, "qk_nope_head_dim": 10, "qk_rope_head_dim": 8, "v_head_dim": 12,
    "sliding_window": 8, "attention_chunk_size": 8, "index_topk": 64, "index_n_heads": 2, "index_head_dim": 16,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 263, "global_head_dim": 16,
    "num_kv_shared_layers": 0, "query_pre_attn_scalar": 8, "num_global_key_value_heads": 2,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "max_window_layers": 2,
    "layer_types": None, "mlp_layer_types": None, "no_rope_layers": None, "moe_layers": None, "indexer_types": None,
    "mlp_only_layers": [], "decoder_sparse_step": 1, "mamba_n_heads": 6, "mamba_d_head": 16, "mamba_d_state": 8,
    "mamba_expand": 2, "mamba_n_groups": 1, "mamba_chunk_size": 8, "block_multiple_of": 8, "conv_L_cache": 3,
    "moe_num_shared_experts": 1, "moe_layer_start_index": 1, "moe_layer_end_index": 3, "moe_layer_interval": 1,
    "dim_model_base": 48, "num_heads": 6, "state_size": 8, "n_groups": 1, "expand": 2, "time_step_rank": 4,
    "shared_intermediate_size": 24, "embedding_multiplier": 1.5, "num_nextn_predict_layers": 0,
}
# What makes the other parts small.
SHALLOW = ("num_hidden_layers", "depth", "num_layers", "encoder_layers", "vision_layers", "n_layers", "layers",
           "num_global_layers", "decoder_layers")
NARROW = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_heads": 2, "embed_dim": 16,
          "mlp_dim": 16, "num_key_value_heads": 2, "d_model": 16, "ffn_dim": 16, "encoder_ffn_dim": 16,
          "encoder_attention_heads": 2, "head_dim": 8, "embed_dim_per_head": 8}
# Released with a part that has the text part in turn.
NESTED = {"qwen2_5_omni": "qwen2_5_omni_thinker", "qwen3_omni_moe": "qwen3_omni_moe_thinker"}
# Released with experts' stacks turned, saved upright: here the names of modules are of turned ones.
TURNED = ("qwen3_vl_moe",)
# Whose classes forget "logit_scale" (transformers 5.24), which their language models were trained with.
UNSCALED = ("aya_vision", "cohere2_vision")
# Text parts that are computed as a language model is.
MODELS_OF_TEXT = {"emu3_text_model": "llama", "granite4_vision_text": "granite"}
# Of some types: what their usual sizes do not fit.
CHANGES = {
    "falcon": {"num_kv_heads": 2}, "mamba2": {"head_dim": 16, "num_heads": 6}, "phi": {"num_key_value_heads": 6},
    "gptj": {"rotary_dim": 4}, "ministral": {"head_dim": 8},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 2},
    **{name: {"num_key_value_heads": 6} for name in ("deepseek_v2", "deepseek_v3", "deepseek_v32", "glm_moe_dsa",
                                                     "glm4_moe_lite", "minicpm3", "youtu")},
}


def mappings():
    from transformers.models.auto import modeling_auto as auto
    causal = dict(auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    wrappers = dict(auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)
    for name, kind in auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES.items():
        wrappers.setdefault(name, kind)
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    text = {}
    for name in sorted(set(causal) | set(wrappers)):
        try:
            config = CONFIG_MAPPING[name]()
            part = config.get_text_config(decoder=True)
            is_whole = part is config or part.model_type == name
            text[name] = None if is_whole else part.model_type
        except Exception:  # a class that has no defaults
            text[name] = None
    return causal, wrappers, text


def refusal(program, config):
    """The program's words, or None where it knows the model type."""
    import torch
    from safetensors.torch import save_file
    with tempfile.TemporaryDirectory() as folder:
        save_file({"a": torch.zeros(1)}, folder + "/model.safetensors")
        pathlib.Path(folder, "config.json").write_text(json.dumps(config))
        done = subprocess.run([program, "logits", folder, "--prompt-ids", "1", "-o", folder + "/o.npy"],
                              capture_output=True, text=True)
    if not done.stderr:
        raise RuntimeError(f"{program} says nothing of {config}")
    words = [line for line in done.stderr.splitlines() if "is not supported" in line and "model_type" in line]
    return words[0] if words else None


def table(program):
    causal, wrappers, text = mappings()
    rows = []
    for name in sorted(set(causal) | set(wrappers)):
        # Kinds that are both are those that see, whose classes take text alone too.
        kind = "wrapper" if name in wrappers or text[name] else "causal"
        config = {"model_type": name}
        if text[name]:
            config["text_config"] = {"model_type": text[name]}
        rows.append((name, kind, text[name] or "", refusal(program, config) is None))
    return rows


def wrapped(text):
    return textwrap.wrap(text, 118, break_long_words=False, break_on_hyphens=False)


def page(rows):
    import transformers
    out = [f"As of transformers {transformers.__version__}.", ""]
    for kind, title in (("causal", "Language models"), ("wrapper", "Models that see or hear")):
        of_kind = [row for row in rows if row[1] == kind]
        read = [row for row in of_kind if row[3]]
        out += [f"## {title}: {len(read)} read, {len(of_kind) - len(read)} refused", ""]
        if kind == "wrapper":
            out += ["| read | its text part |", "| --- | --- |"]
            out += [f"| `{row[0]}` | `{row[2] or row[0]}` |" for row in read]
        else:
            out += wrapped("Read: " + ", ".join(f"`{row[0]}`" for row in read) + ".")
        out += ["", *wrapped("Refused: " + ", ".join(
            f"`{row[0]}`" + (f" (`{row[2]}`)" if row[2] and kind == "wrapper" else "") for row in of_kind if not row[3])
            + "."), ""]
    return "\n".join(out)


def small_text(part, model_type, has_sections=False):
    """Changes a text config's dict in place."""
    part.pop("per_layer_config", None)
    for key, value in {**SMALL, **CHANGES.get(model_type, {})}.items():
        if key not in part:
            continue
        is_changed = key in CHANGES.get(model_type, {})
        if part[key] is None and not is_changed and key in ("head_dim", "q_lora_rank", "sliding_window"):
            continue
        part[key] = value
    rope = part.get("rope_parameters")
    for group in ([rope] + [v for v in rope.values() if isinstance(v, dict)]) if isinstance(rope, dict) else []:
        if has_sections or "mrope_section" in group:
            width = part.get("head_dim") or part["hidden_size"] // part["num_attention_heads"]
            pairs = int(width * (group.get("partial_rotary_factor") or part.get("partial_rotary_factor") or 1)) // 2
            group["mrope_section"] = [pairs - 2 * (pairs // 3), pairs // 3, pairs // 3]
    return part


def small_config(name, narrow=True):
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    kind = CONFIG_MAPPING[name]
    config = kind()
    whole = config.to_dict()
    text = config.get_text_config(decoder=True)
    has_sections = False
    for one in (config, text):
        code = pathlib.Path(sys.modules[type(one).__module__].__file__.replace("configuration_", "modeling_"))
        has_sections = has_sections or (code.exists() and "mrope_section" in code.read_text())

    def walk(part, key):
        for inner, value in part.items():
            if not isinstance(value, dict) or "rope" in inner:
                continue
            if inner in ("text_config", "llm_config"):
                small_text(value, value.get("model_type", ""), has_sections)
            else:
                value.pop("layer_types", None)
                for one in SHALLOW:
                    if isinstance(value.get(one), int):
                        value[one] = 1
                for one in NARROW:
                    if narrow and isinstance(value.get(one), int):
                        value[one] = NARROW[one]
                for one in ("text_hidden_size", "out_hidden_size"):
                    if isinstance(value.get(one), int):
                        value[one] = SMALL["hidden_size"]
                walk(value, inner)
    if text is config:
        small_text(whole, name, has_sections)
    else:
        walk(whole, "")
        if "deepstack_layer_map" in whole:
            whole["deepstack_layer_map"] = []
        for key in list(whole):
            if key.endswith("token_id") or key.endswith("token_index"):
                whole[key] = 250
    for key in ("architectures", "transformers_version", "dtype"):
        whole.pop(key, None)
    return kind(**{k: v for k, v in whole.items() if k != "model_type"})


def randomise(model, seed):
    import torch
    generator = torch.Generator().manual_seed(seed)
    kept = set(model.state_dict())
    for name, value in list(model.named_parameters()) + list(model.named_buffers()):
        if not value.dtype.is_floating_point or "inv_freq" in name or name not in kept:
            continue
        with torch.no_grad():
            noise = torch.randn(value.shape, generator=generator)
            if "correction_bias" in name:
                value.copy_(0.1 * noise)
            elif name.endswith("A_log"):
                value.copy_(noise.abs())
            elif value.dim() == 1 and name.endswith("weight"):
                value.copy_(value + 0.1 * noise)
            elif value.dim() < 2:
                value.copy_(0.1 * noise)
            else:
                value.copy_(noise * (1.2 / value.shape[-1] ** 0.5))


def made(kind, name):
    """The model, and its config."""
    import torch
    for narrow in (True, False):  # sizes of other parts may have to fit each other
        try:
            config = small_config(name, narrow)
            with torch.no_grad():
                return kind._from_config(config, attn_implementation="eager", dtype=torch.float32).eval(), config
        except Exception as error:
            failure = error
    raise failure


def renamed(folder, config, prefix):
    """What was saved there as the part of a larger model that `config` says."""
    from safetensors.torch import load_file, save_file
    tensors = load_file(folder + "/model.safetensors")
    save_file({prefix + name: value for name, value in tensors.items()}, folder + "/model.safetensors")
    pathlib.Path(folder, "config.json").write_text(json.dumps(config))


def compare(program, name, kinds):
    import numpy
    import torch
    import transformers
    whole = None  # of a model whose class cannot be made small: its config, and what stands before names
    try:
        built = NESTED.get(name, name)
        model, config = made(getattr(transformers, kinds.get(built) or transformers.models.auto.modeling_auto.
                                     MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES[built]), built)
        if name in NESTED:
            whole = ({"model_type": name, "thinker_config": None}, "thinker_config", "thinker.")
    except Exception:
        part = mappings()[2][name]
        if part not in kinds and part not in MODELS_OF_TEXT:
            raise
        model, config = made(getattr(transformers, kinds.get(part) or kinds[MODELS_OF_TEXT[part]]),
                             part if part in kinds else MODELS_OF_TEXT[part])
        config.model_type = part
        whole = ({"model_type": name, "text_config": None, "tie_word_embeddings": config.tie_word_embeddings},
                 "text_config", "language_model.")
    randomise(model, 7)
    model.tie_weights()
    try:
        model.set_experts_implementation("eager")
    except Exception:  # no mixture
        pass
    text = config.get_text_config(decoder=True)
    ids = [int(x) for x in torch.randint(3, 240, (40,), generator=torch.Generator().manual_seed(5))]
    with torch.no_grad():
        try:
            out = model(input_ids=torch.tensor([ids]))
        except (AttributeError, TypeError):  # of classes that want an image
            out = model.language_model(input_ids=torch.tensor([ids]))
    want = out.logits[0].float().numpy()
    if name in UNSCALED:
        want = want * text.logit_scale
    said = []
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder + "/saved")
        if whole:
            saved = json.loads(pathlib.Path(folder, "saved", "config.json").read_text())
            saved.setdefault("model_type", config.model_type)
            renamed(folder + "/saved", {**whole[0], whole[1]: saved}, whole[2])
        state = {k: v.clone().contiguous() for k, v in model.state_dict().items()
                 if "vision" not in k and "visual" not in k}
        # Nobody saves stacks of experts that transformers itself takes apart.
        from safetensors import safe_open
        with safe_open(folder + "/saved/model.safetensors", "pt") as file:
            names = set(file.keys())
        is_apart = any(".experts." in k and v.dim() == 3 and k not in names for k, v in state.items())
        for form in ("saved",) if whole or (is_apart and name not in TURNED) else ("saved", "modules"):
            at = pathlib.Path(folder, form)
            if form == "modules":
                at.mkdir()
                tied = set(model.all_tied_weights_keys)
                from safetensors.torch import save_file
                if name in TURNED:
                    state = {k: v.transpose(1, 2).contiguous() if ".experts." in k else v for k, v in state.items()}
                save_file({k: v for k, v in state.items() if k not in tied}, str(at / "model.safetensors"))
                (at / "config.json").write_text((at.parent / "saved" / "config.json").read_text())
            done = subprocess.run([program, "logits", str(at), "--prompt-ids", ",".join(map(str, ids)), "-o",
                                   str(at / "o.npy"), "--compute", "f32", "--kv-dtype", "f32", "-t", "1"],
                                  capture_output=True, text=True)
            if done.returncode:
                lines = [x for x in done.stderr.splitlines() if "error" in x] or done.stderr.splitlines() or [""]
                said.append((None, lines[0].replace(str(at) + ": ", "")[:200]))
                continue
            got = numpy.load(at / "o.npy")
            error = float(numpy.abs(got[:, :want.shape[1]] - want).max() / (want.max() - want.min()))
            said.append((error, "right" if error <= 1e-4 else "WRONG"))
    return said


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/release/bin/sluice")
    parser.add_argument("--write")
    parser.add_argument("--check")
    parser.add_argument("--logits", nargs="*")
    options = parser.parse_args()
    import torch
    torch.set_num_threads(1)
    if options.logits is not None:
        causal, wrappers, _ = mappings()
        kinds = {**causal, **wrappers}
        names = options.logits or [row[0] for row in table(options.program) if row[3]]
        failed = 0
        for name in names:
            try:
                said = compare(options.program, name, kinds)
            except Exception as error:
                said = [(None, f"transformers: {type(error).__name__}: {str(error)[:160]!r}")]
            right = any(word == "right" for _, word in said) and all(word != "WRONG" for _, word in said)
            failed += not right
            words = [word if error is None else f"{word} {error:.1e}" for error, word in said]
            print(f"{name}: " + " | ".join(words), flush=True)
        return 1 if failed else 0
    text = page(table(options.program))
    begin = "<!-- scripts/model_types.py writes what follows -->\n"
    if options.write:
        at = pathlib.Path(options.write)
        head = at.read_text().split(begin)[0]
        at.write_text(head + begin + text)
    elif options.check:
        if pathlib.Path(options.check).read_text().split(begin)[-1] != text:
            print(f"{options.check} is not what the program reads: run this with --write", file=sys.stderr)
            return 1
    else:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
