#!/usr/bin/env python3
"""Has llama.cpp's own converter write GGUF files of the checkpoints under tests/fixtures/models, and holds the logits
that sluice computes of them against transformers' (the checkpoints' goldens).

    pip install torch transformers gguf numpy
    scripts/check_converter.py LLAMA_CPP [--fuse-qkv] [NAME ...]

LLAMA_CPP: a folder with llama.cpp's conversion/ and gguf-py/ (its repository, or vendor/llama.cpp of the source package
llama-cpp-python). Files are written without vocabularies. Prints each fixture that the converter does not take, that
sluice refuses, or whose logits differ by more than 1e-4 of the largest, and why where a file can't say what the
checkpoint does; fails where there is no such reason. --fuse-qkv: q, k and v of a layer in one tensor.
"""
import argparse
import json
import logging
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
MODELS = ROOT / "tests" / "fixtures" / "models"
PROGRAM = ROOT / "build" / "release" / "bin" / "sluice"
ORIGINAL = {}  # of the converter's functions
# What files as the converter writes them do not say.
UNSAID = {
    "deepseek-v2-moe-tiny": "mscale beside mscale_all_dim", "deepseek-v3-moe-tiny": "mscale beside mscale_all_dim",
    "deepseek-v2-tiny": "that no layer has experts", "deepseek-v2-odd": "that no layer has experts",
    "deepseek-v3-tiny": "mscale beside mscale_all_dim", "deepseek-v3-odd": "that no layer has experts",
    "cohere2-odd": "layer_types", "gemma3-odd": "layer_types, query_pre_attn_scalar",
    "gemma4-odd": "the factor of positions", "gemma4-moe-odd": "the factor of positions",
    "granitemoehybrid-odd": "position_embedding_type", "granitemoehybrid-moe-odd": "position_embedding_type",
    "gpt-neox-odd": "rotary_emb_base, hidden_act", "gpt2-odd": "n_inner",
    "glm-tiny": "heads wider than their share", "glm-odd": "heads wider than their share",
    "glm4-moe-lite-odd": "mlp_layer_types",
    "gpt-oss-mxfp4": "swiglu_limit", "llama4-tiny": "chunks", "llama4-odd": "chunks",
    "mamba2-odd": "time_step_limit", "minicpm3-tiny": "dim_model_base, v_head_dim", "mistral-tiny": "sliding_window",
    "nemotron-odd": "an odd share of a head", "olmoe-odd": "norm_topk_prob", "phi-tiny": "intermediate_size",
    "phi-odd": "num_key_value_heads", "qwen2-tiny-window": "sliding_window", "qwen3-windows": "sliding_window",
    "smollm3-odd": "no_rope_layers", "stablelm-odd": "rope_theta", "starcoder2-tiny": "sliding_window",
    "starcoder2-odd": "hidden_act", "youtu-odd": "rope_interleave"}


def read_config(source):
    """As the converter has it of transformers, beside what config.json says and older transformers kept."""
    config = ORIGINAL["load_hparams"](source, False)
    written = json.loads((source / "config.json").read_text())
    rope = config.get("rope_parameters") or {}
    usual = {"rotary_pct": rope.get("partial_rotary_factor", written.get("rotary_pct", 1.0)),
             "n_ctx": written.get("n_positions")}
    for key, value in {**written, **usual}.items():
        config.setdefault(key, value)
    if config.get("model_type") == "glm4_moe_lite":
        kinds = config.get("mlp_layer_types") or ["dense"]
        config.setdefault("first_k_dense_replace", (kinds + ["sparse"]).index("sparse"))
    return config


def convert(source, target, fuse_qkv):
    import conversion
    import gguf
    import torch
    ORIGINAL.setdefault("load_hparams", conversion.ModelBase.load_hparams)
    conversion.ModelBase.load_hparams = staticmethod(lambda folder, is_mistral_format: read_config(folder))
    folder = target.with_suffix("")  # Gemma's class counts the tokens of a tokenizer.json
    folder.mkdir()
    for path in source.iterdir():
        (folder / path.name).symlink_to(path)
    config = json.loads((source / "config.json").read_text())
    if not (folder / "tokenizer.json").exists():
        vocabulary = {str(i): i for i in range(config.get("vocab_size", 0))}
        (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}, "added_tokens": []}))
    if config["model_type"] == "granitemoehybrid":  # whose class reads the file itself, and older names
        older = {"linear_attention": "mamba", "full_attention": "attention"}
        config["layer_types"] = [older.get(kind, kind) for kind in config["layer_types"]]
        config.setdefault("rms_norm_eps", 1e-6)
        (folder / "config.json").unlink()
        (folder / "config.json").write_text(json.dumps(config))
    source = folder
    with torch.inference_mode():
        hparams = conversion.ModelBase.load_hparams(source, False)
        kind = conversion.get_model_class(conversion.get_model_architecture(hparams, conversion.ModelType.TEXT))
        for base in kind.__mro__:
            if "set_vocab" in base.__dict__:
                base.set_vocab = lambda self: None
            if "no_mtp" in base.__dict__:
                base.no_mtp = True
        is_half = json.loads((source / "goldens.json").read_text()).get("stored_dtype", "f32") != "f32"
        form = gguf.LlamaFileType.GUESSED if is_half else gguf.LlamaFileType.ALL_F32
        model = kind(source, form, target, eager=True, fuse_qkv=fuse_qkv)
        if hasattr(model, "impl"):
            model.impl.set_vocab = lambda: None
        model.write()


def worst_error(path, source):
    """Of all logits that goldens have, or what the program says."""
    import numpy as np
    worst = 0
    for case in json.loads((source / "goldens.json").read_text())["cases"]:
        if not case.get("logits"):
            continue
        expected, ids = np.load(source / case["logits"]), case["prompt_ids"]
        out = path.with_suffix(".npy")
        done = subprocess.run([PROGRAM, "logits", path, "--prompt-ids", ",".join(map(str, ids)), "-o", out, "--compute",
                               "f32", "--kv-dtype", "f32"], capture_output=True, text=True)
        if done.returncode:
            return next(line for line in done.stderr.splitlines() if "error" in line)
        positions = case.get("positions") or list(range(len(ids)))
        ours = np.load(out).reshape(len(ids), -1)[positions]
        worst = max(worst, np.abs(ours - expected.reshape(ours.shape)).max() / np.abs(expected).max())
    return worst


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("llama_cpp", type=pathlib.Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--fuse-qkv", action="store_true")
    options = parser.parse_intermixed_args()
    sys.path[:0] = [str(options.llama_cpp), str(options.llama_cpp / "gguf-py")]
    sys.dont_write_bytecode = True
    logging.disable(logging.CRITICAL)
    counts, largest = dict.fromkeys(("equal", "unsaid", "not converted", "wrong"), 0), 0
    with tempfile.TemporaryDirectory() as folder:
        for goldens in sorted(MODELS.glob("*/goldens.json")):
            source = goldens.parent
            path = pathlib.Path(folder) / f"{source.name}.gguf"
            if not (source / "config.json").exists() or options.names and source.name not in options.names:
                continue
            try:
                convert(source, path, options.fuse_qkv)
            except Exception as error:  # whatever the converter meets
                counts["not converted"] += 1
                print(f"{source.name:28} not converted: {type(error).__name__} {str(error)[:80]}", flush=True)
                continue
            error = worst_error(path, source)
            path.unlink()
            if not isinstance(error, str) and error <= 1e-4:
                counts["equal"] += 1
                largest = max(largest, error)
                continue
            what = "unsaid" if source.name in UNSAID else "wrong"
            counts[what] += 1
            said = error.replace(str(path), "FILE") if isinstance(error, str) else f"off by {error:.1e}"
            print(f"{source.name:28} {what}: {UNSAID.get(source.name, '')} {said[:140]}", flush=True)
    print(", ".join(f"{count} {what}" for what, count in counts.items()),
          f"largest error of the equal ones {largest:.1e}", sep="; ")
    sys.exit(1 if counts["wrong"] else 0)


if __name__ == "__main__":
    main()
