"""The small random Llama that foreign.py and kernel_layouts.py have packages quantise."""
import json
import pathlib

import torch
from safetensors.torch import save_file

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "fixtures" / "foreign"
CONFIG = dict(model_type="llama", architectures=["LlamaForCausalLM"], hidden_size=64, intermediate_size=128,
              num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2, vocab_size=40,
              max_position_embeddings=64, rms_norm_eps=1e-5, rope_theta=10000.0, torch_dtype="bfloat16",
              tie_word_embeddings=False)
SHAPES = {"self_attn.q_proj": (64, 64), "self_attn.k_proj": (32, 64), "self_attn.v_proj": (32, 64),
          "self_attn.o_proj": (64, 64), "mlp.gate_proj": (128, 64), "mlp.up_proj": (128, 64), "mlp.down_proj": (64, 128)}


def sampled(rows):
    return rows[[0, 1, rows.shape[0] // 2, rows.shape[0] - 1]].float().contiguous()


FEW = ("self_attn.k_proj", "mlp.down_proj")


def make(only, name, settings, quantise, inner=128, quantised=tuple(SHAPES)):
    """only: names of models, or none for all; quantise(weight) -> ({end of name: tensor}, dequantised); inner: intermediate
    size; of what is not quantised few values, which take little room"""
    if only and name not in only:
        return
    torch.manual_seed(7)
    tensors, expected = {}, {}
    for part, shape in SHAPES.items():
        shape = tuple(inner if size == 128 else size for size in shape)
        stem = f"model.layers.0.{part}"
        weight = torch.randn(shape) * 0.05
        if part not in quantised:
            tensors[stem + ".weight"] = (torch.round(weight * 20) / 20).bfloat16()
            if "ignore" in settings:
                settings["ignore"] = sorted({*settings["ignore"], stem})
            continue
        parts, values = quantise(weight)
        tensors |= {stem + "." + end: tensor.contiguous() for end, tensor in parts.items()}
        expected[stem + ".weight"] = sampled(values)
    for plain in ("model.embed_tokens.weight", "lm_head.weight"):
        tensors[plain] = (torch.randn(40, 64) * 0.5).bfloat16()
    for norm in ("model.norm", "model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm"):
        tensors[norm + ".weight"] = torch.ones(64).bfloat16()
    folder = OUT / name
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    save_file(expected, folder / "expected.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG | {"intermediate_size": inner, "quantization_config": settings}, indent=1) + "\n")
    for path in folder.iterdir():
        path.chmod(0o644)
