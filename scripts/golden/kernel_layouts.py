#!/usr/bin/env python3
"""Makes the models of tests/fixtures/foreign/ whose weights lie as certain kernels want them, or without their zeros, as
the packages' older releases wrote them:

    pip install torch safetensors compressed-tensors==0.12.2 auto-gptq==0.7.1; pip download --no-deps autoawq==0.2.9
    scripts/golden/kernel_layouts.py --awq FOLDER [--only NAME ...]

FOLDER is autoawq's unpacked source. Neither auto-gptq nor autoawq is imported as a whole (they want a GPU): the two files
that pack are. What is expected is what was packed: each package's own codes, times their scales."""
import argparse
import functools
import importlib.util
import pathlib
import sys
import types

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.sparse_compressors.sparse_24_bitmask import Sparse24BitMaskTensor, get_24_bytemasks
from compressed_tensors.compressors.sparse_compressors.sparse_bitmask import BitmaskTensor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

import foreign_model


def file_of_package(path, stubs):
    for name, attributes in stubs.items():
        sys.modules[name] = types.SimpleNamespace(**attributes)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rounded(weight, group, bits=4):
    """Codes around 0 and f16 scales [rows, groups], and their products."""
    grouped = weight.reshape(weight.shape[0], -1, group)
    scales = (grouped.abs().amax(-1) / (2 ** (bits - 1) - 1)).half()
    codes = torch.clamp(torch.round(grouped / scales.float()[..., None]), -2 ** (bits - 1), 2 ** (bits - 1) - 1)
    return codes.reshape(weight.shape), scales, (codes * scales.float()[..., None]).reshape(weight.shape)


def layer_of(values):
    linear = torch.nn.Linear(values.shape[1], values.shape[0], bias=False)
    linear.weight.data = values
    return linear


def gptq_marlin(marlin, group):
    settings = {"quant_method": "gptq", "bits": 4, "group_size": group, "desc_act": False, "sym": True, "lm_head": False,
                "is_marlin_format": True}

    def quantise(weight):
        rows, cols = weight.shape
        of = group if group > 0 else cols
        _, scales, values = rounded(weight, of)
        to = types.SimpleNamespace(group_size=of, infeatures=cols, outfeatures=rows, bias=None,
                                   B=torch.zeros(cols // 16, rows * 2, dtype=torch.int32),
                                   s=torch.zeros(cols // of, rows, dtype=torch.half))
        marlin.QuantLinear.pack(to, layer_of(values.half()), scales)
        return {"B": to.B, "s": to.s}, values

    return settings, quantise


def awq_gemv(gemv, group):
    settings = {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemv", "zero_point": True}

    def quantise(weight):
        grouped = weight.reshape(weight.shape[0], -1, group)
        low, high = grouped.amin(-1), grouped.amax(-1)
        scales = ((high - low) / 15).half()
        zeros = torch.clamp(torch.round(-low / scales.float()), 0, 15)
        each, middle = scales.float()[..., None], zeros[..., None]
        codes = torch.clamp(torch.round(grouped / each) + middle, 0, 15)
        values = ((codes - middle) * each).reshape(weight.shape)
        packed = gemv.WQLinear_GEMV.from_linear(layer_of(values), 4, group, scales=scales, zeros=zeros)
        return {"qweight": packed.qweight, "qzeros": packed.qzeros, "scales": packed.scales}, values

    return settings, quantise


def scheme_of(bits, kind, group=None):
    return QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(
        num_bits=bits, type=kind, symmetric=True, strategy="group" if group else "channel", group_size=group))


def settings_of(scheme, form, sparse=None):
    out = {"quant_method": "compressed-tensors", "format": form, "ignore": ["lm_head"]}
    if scheme:
        weights = scheme.weights
        out["config_groups"] = {"group_0": {"targets": ["Linear"], "weights": {
            "num_bits": weights.num_bits, "type": str(weights.type), "symmetric": True, "group_size": weights.group_size,
            "strategy": str(weights.strategy), "dynamic": False}}}
    if sparse:
        out["sparsity_config"] = {"format": sparse, "global_sparsity": 0.5, "ignore": [], "targets": ["Linear"],
                                  "registry_requires_subclass": False,
                                  "sparsity_structure": "2:4" if "24" in sparse else "unstructured"}
    return out


def marlin_24(bits, group):
    scheme = scheme_of(bits, "int", group)

    def quantise(weight):
        weight = weight * get_24_bytemasks(weight)
        _, scales, values = rounded(weight, group or weight.shape[1], bits)
        state = {"layer.weight": values, "layer.weight_scale": scales}
        parts = BaseCompressor.get_value_from_registry("marlin-24")().compress(state, {"layer": scheme})
        return {name.removeprefix("layer."): tensor for name, tensor in parts.items()}, values

    return settings_of(scheme, "marlin-24"), quantise


def bitmask(weight):
    kept = torch.where(weight.abs() > 0.05, weight, 0).bfloat16()
    return BitmaskTensor.from_dense(kept).dict("x"), kept


def sparse(form, scheme=None):
    def quantise(weight):
        if not scheme:
            parts, values = bitmask(weight)
        else:
            weight = weight * get_24_bytemasks(weight)
            is_float = scheme.weights.type == "float"
            scale = weight.abs().amax(-1, keepdim=True) / (448 if is_float else 127)
            codes = (weight / scale).to(torch.float8_e4m3fn) if is_float else torch.round(weight / scale).to(torch.int8)
            parts = Sparse24BitMaskTensor.from_dense(codes).dict("x") | {"x.weight_scale": scale}
            values = codes.float() * scale
        return {name.removeprefix("x."): tensor for name, tensor in parts.items()}, values

    kind = "dense" if not scheme else "float-quantized" if scheme.weights.type == "float" else "int-quantized"
    return settings_of(scheme, kind, form), quantise


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--awq", type=pathlib.Path, required=True)
    parser.add_argument("--only", nargs="*", help="names of folders; default: all")
    arguments = parser.parse_args()
    make = functools.partial(foreign_model.make, arguments.only)
    gptq = pathlib.Path(importlib.util.find_spec("auto_gptq").submodule_search_locations[0])
    marlin = file_of_package(gptq / "nn_modules" / "qlinear" / "qlinear_marlin.py", {})
    gemv = file_of_package(arguments.awq / "awq" / "modules" / "linear" / "gemv.py",
                           {"awq": {}, "awq.utils": {}, "awq.utils.module": {"try_import": lambda name: (None, "")}})
    wide = ("mlp.gate_proj", "mlp.down_proj")
    make("gptq-marlin", *gptq_marlin(marlin, 128), inner=256, quantised=wide[1:])
    make("gptq-marlin-rows", *gptq_marlin(marlin, -1), inner=128, quantised=wide)
    make("awq-gemv", *awq_gemv(gemv, 64), quantised=wide)
    make("ct-marlin24", *marlin_24(4, 128), inner=512, quantised=wide[1:])
    make("ct-marlin24-int8", *marlin_24(8, None), quantised=wide)
    make("ct-bitmask", *sparse("sparse-bitmask"), quantised=foreign_model.FEW)
    make("ct-24-fp8", *sparse("sparse-24-bitmask", scheme_of(8, "float")), quantised=foreign_model.FEW)
    make("ct-24-int8", *sparse("sparse-24-bitmask", scheme_of(8, "int")), quantised=foreign_model.FEW)
