#!/usr/bin/env python3
"""Makes tests/fixtures/foreign/: a small random Llama as the packages quantise it, and its matrices as the packages
dequantise them.

    pip install torch transformers bitsandbytes compressed-tensors safetensors
    scripts/golden/foreign.py [--only NAME ...]

  NAME/config.json, NAME/model.safetensors   as transformers would save them
  NAME/expected.safetensors                  some rows of each quantised matrix, f32
"""
import argparse
import functools
import json

import bitsandbytes.functional as bnb
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

import foreign_model

def bnb4(kind, doubled):
    def quantise(weight):
        packed, state = bnb.quantize_4bit(weight.float(), blocksize=64, compress_statistics=doubled, quant_type=kind)
        parts = {"weight": packed} | {"weight." + key: value for key, value in state.as_dict(packed=True).items()}
        return parts, bnb.dequantize_4bit(packed, state)
    return quantise


def bnb8(weight):
    codes, scales, _ = bnb.int8_vectorwise_quant(weight.half())
    return {"weight": codes, "SCB": scales, "weight_format": torch.tensor(0, dtype=torch.uint8)}, bnb.int8_vectorwise_dequant(
        codes, scales)


def fp8(block, scales=torch.float32, scheme="dynamic"):
    """As DeepSeek-V3's files are: e4m3, a scale for each block of rows and columns; scales of a byte are powers of two. A
    block of None: one scale for all; of 1: one for each row."""
    settings = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": scheme}
    is_power = scales in (torch.uint8, torch.float8_e8m0fnu)
    if is_power:
        settings["scale_fmt"] = "ue8m0"
    if block and block != 1:
        settings["weight_block_size"] = list(block)

    def quantise(weight):
        rows, cols = weight.shape
        high, wide = (rows, cols) if block is None else (1, cols) if block == 1 else block
        scale = torch.stack([torch.stack([part.abs().max() for part in strip.split(wide, 1)]) for strip in weight.split(high)]) / 448
        if is_power:
            exponents = torch.ceil(torch.log2(scale))
            stored, scale = (exponents + 127).to(torch.uint8).view(scales), torch.exp2(exponents)
        else:
            stored = scale.to(scales)
            scale = stored.float()
        each = scale.repeat_interleave(high, 0)[:rows].repeat_interleave(wide, 1)[:, :cols]
        codes = (weight / each).to(torch.float8_e4m3fn)
        parts = {"weight": codes, "weight_scale_inv": stored}
        if block is None:
            parts = {"weight": codes, "weight_scale": stored.reshape(()), "input_scale": torch.tensor(0.01)}
        if block == 1:
            parts = {"weight": codes, "weight_scale": stored}
        return parts, codes.float() * each

    return settings, quantise


def compressed(form, **settings):
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**settings))
    args = scheme.weights
    compressor = BaseCompressor.get_value_from_registry(form)

    def quantise_blocks(weight):
        parts, _ = fp8(args.block_structure)[1](weight)
        state = {"weight": weight.float(), "weight_scale": parts["weight_scale_inv"]}
        packed = compressor.compress(state, scheme)
        return dict(packed), compressor.decompress(packed, scheme)["weight"]

    def quantise(weight):
        if args.strategy == "block":
            return quantise_blocks(weight)
        group = args.group_size or weight.shape[1]
        grouped = weight.reshape(weight.shape[0], -1, group)
        low, high = grouped.amin(-1), grouped.amax(-1)
        if args.strategy == "tensor":
            low, high = weight.min().reshape(1), weight.max().reshape(1)
        scale, zero = calculate_qparams(low, high, args)
        state = {"weight": weight.float(), "weight_scale": scale.bfloat16() if args.num_bits == 4 else scale.float(),
                 "weight_zero_point": zero}
        if args.symmetric:
            del state["weight_zero_point"]
        packed = compressor.compress(state, scheme)
        return dict(packed), compressor.decompress(packed, scheme)["weight"]

    return {"quant_method": "compressed-tensors", "format": form, "ignore": ["lm_head"],
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": json.loads(args.model_dump_json())}}}, quantise


def within_words(bits, settings_and_quantise):
    """Codes as earlier versions packed them, which kept each within a word: 32 // bits of them, and bits left over."""
    settings, dense = settings_and_quantise

    def quantise(weight):
        parts, values = dense(weight)
        codes = unpack_from_int32(parts["weight_packed"], bits, torch.Size(weight.shape)).to(torch.int64) + (1 << (bits - 1))
        each = 32 // bits
        codes = torch.nn.functional.pad(codes, (0, -codes.shape[1] % each)).reshape(weight.shape[0], -1, each)
        words = (codes << (bits * torch.arange(each))).sum(-1)
        return parts | {"weight_packed": (words - ((words >> 31) << 32)).to(torch.int32)}, values

    return settings, quantise


def small_floats(form, bits, group):
    """Scales of e4m3 with one of the whole tensor (NVFP4), or powers of two (MX)."""
    is_nvfp4 = group == 16
    stored = torch.float8_e4m3fn if is_nvfp4 else torch.uint8
    args = QuantizationArgs(num_bits=bits, type="float", symmetric=True, dynamic=False, group_size=group, scale_dtype=stored,
                            zp_dtype=stored, strategy="tensor_group" if is_nvfp4 else "group")
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    compressor = BaseCompressor.get_value_from_registry(form)

    def quantise(weight):
        grouped = weight.reshape(weight.shape[0], -1, group)
        low, high = grouped.amin(-1), grouped.amax(-1)
        state = {"weight": weight.float()}
        if is_nvfp4:
            state["weight_global_scale"] = generate_gparam(weight.min().reshape(1), weight.max().reshape(1))
        state["weight_scale"], _ = calculate_qparams(low, high, args, global_scale=state.get("weight_global_scale"))
        packed = compressor.compress(state, scheme)
        return dict(packed), compressor.decompress(packed, scheme)["weight"]

    return {"quant_method": "compressed-tensors", "format": form, "ignore": ["lm_head"],
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": json.loads(args.model_dump_json())}}}, quantise


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="*", help="names of folders; default: all")
    make = functools.partial(foreign_model.make, parser.parse_args().only)
    for name, kind, doubled in (("bnb-nf4", "nf4", False), ("bnb-nf4-double", "nf4", True), ("bnb-fp4", "fp4", False)):
        make(name, {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": kind,
                    "bnb_4bit_use_double_quant": doubled}, bnb4(kind, doubled))
    make("bnb-int8", {"quant_method": "bitsandbytes", "load_in_8bit": True}, bnb8)
    make("ct-int4", *compressed("pack-quantized", num_bits=4, type="int", symmetric=True, strategy="group", group_size=32))
    make("ct-int4-asymmetric",
         *compressed("pack-quantized", num_bits=4, type="int", symmetric=False, strategy="group", group_size=64))
    make("ct-int4-channel", *compressed("pack-quantized", num_bits=4, type="int", symmetric=True, strategy="channel"))
    make("ct-int3", *compressed("pack-quantized", num_bits=3, type="int", symmetric=False, strategy="group", group_size=32), quantised=foreign_model.FEW)
    make("ct-int6", *within_words(6, compressed("pack-quantized", num_bits=6, type="int", symmetric=True, strategy="group",
                                                group_size=64)), quantised=foreign_model.FEW)
    make("ct-nvfp4", *small_floats("nvfp4-pack-quantized", 4, 16), quantised=foreign_model.FEW)
    make("ct-mxfp4", *small_floats("mxfp4-pack-quantized", 4, 32), quantised=foreign_model.FEW)
    make("ct-mxfp6", *small_floats("mxfp6-pack-quantized", 6, 32), quantised=foreign_model.FEW)
    make("ct-mxfp8", *small_floats("mxfp8-quantized", 8, 32), quantised=foreign_model.FEW)
    make("ct-int8", *compressed("int-quantized", num_bits=8, type="int", symmetric=True, strategy="channel"))
    make("ct-int8-packed", *compressed("pack-quantized", num_bits=8, type="int", symmetric=True, strategy="channel"))
    make("ct-fp8", *compressed("float-quantized", num_bits=8, type="float", symmetric=True, strategy="channel"))
    make("ct-fp8-tensor", *compressed("float-quantized", num_bits=8, type="float", symmetric=True, strategy="tensor"))
    make("ct-fp8-block",
         *compressed("float-quantized", num_bits=8, type="float", symmetric=True, strategy="block", block_structure=[16, 32]))
    make("fp8-block", *fp8((128, 128)), inner=160)
    make("fp8-block-odd", *fp8((48, 96), torch.bfloat16), inner=200)
    make("fp8-ue8m0", *fp8((1, 32), torch.uint8))
    make("fp8-e8m0", *fp8((16, 32), torch.float8_e8m0fnu))
    make("fp8-tensor", *fp8(None, torch.bfloat16, "static"))
    make("fp8-rows", *fp8(1))
