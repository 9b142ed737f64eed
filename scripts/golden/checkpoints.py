#!/usr/bin/env python3
"""Makes the checkpoint fixtures with the real libraries (torch, safetensors), and what the readers must say of them.

    python3 scripts/golden/checkpoints.py tests/fixtures/checkpoints/made

Needs torch, safetensors and numpy. The same versions give the same files; SOURCE.txt notes those that were used.
    python3 scripts/golden/checkpoints.py --third-party tests/fixtures/checkpoints/third_party
writes what torch and safetensors find in the files of other projects.
    python3 scripts/golden/checkpoints.py --check-store FOLDER
opens every weight file of a packed store with the official safetensors library and prints the tensors.
"""
import argparse
import json
import os
import pathlib
import shutil
import sys
import zipfile

import numpy
import safetensors
import safetensors.torch
import torch


def crc32c(data: bytes) -> int:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


NAMES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.float64: "f64", torch.int64: "i64",
         torch.int32: "i32", torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8", torch.bool: "bool"}


def describe(tensors: dict) -> dict:
    """name -> dtype, shape, CRC32C of the elements in row-major order."""
    described = {}
    for name, tensor in tensors.items():
        raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
        described[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "crc32c": crc32c(raw)}
    return described


def random_tensor(*shape, dtype=torch.float32):
    return torch.randn(*shape, generator=GENERATOR).to(dtype)


GENERATOR = torch.Generator().manual_seed(20240607)


class Output:
    """Collects expected.json while files are written."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self.expected = {}

    def path(self, name: str) -> pathlib.Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def expect(self, name: str, tensors: dict):
        self.expected[name] = describe(tensors)

    def torch_file(self, name: str, value, tensors: dict = None, **options):
        torch.save(value, self.path(name), **options)
        if tensors is not None:
            self.expect(name, tensors)


def make_safetensors(out: Output):
    tensors = {
        "embed.weight": random_tensor(7, 6),
        "half.weight": random_tensor(3, 5, dtype=torch.float16),
        "layers.0.weight": random_tensor(4, 6, dtype=torch.bfloat16),
        "scalar": torch.tensor(3.5),
        "empty": torch.zeros(0, 4),
        "ids": torch.arange(5, dtype=torch.int64),
        "small_ids": torch.arange(-2, 3, dtype=torch.int8),
        "mask": torch.tensor([True, False, True]),
        "names with spaces / ünïcode": torch.ones(2),
    }
    safetensors.torch.save_file(tensors, out.path("single/model.safetensors"), metadata={"format": "pt", "note": "fixture"})
    out.path("single/config.json").write_text('{"model_type": "fixture", "hidden_size": 6}\n')
    out.path("single/generation_config.json").write_text('{"eos_token_id": 2}\n')
    out.expect("single", tensors)

    shards = [{"a.weight": random_tensor(5, 4), "b.weight": random_tensor(3, 3, dtype=torch.bfloat16)},
              {"c.weight": random_tensor(8, 2, dtype=torch.float16), "d.bias": random_tensor(9)}]
    weight_map = {}
    for i, shard in enumerate(shards):
        file = f"model-0000{i + 1}-of-00002.safetensors"
        safetensors.torch.save_file(shard, out.path(f"sharded/{file}"), metadata={"format": "pt"})
        weight_map.update({name: file for name in shard})
    out.path("sharded/model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}, indent=1))
    out.path("sharded/config.json").write_text('{"model_type": "fixture"}\n')
    out.expect("sharded", {**shards[0], **shards[1]})


def make_torch(out: Output):
    module = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.LayerNorm(4), torch.nn.Linear(4, 6, bias=False))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(random_tensor(*parameter.shape))
    state = module.state_dict()  # an OrderedDict with a _metadata attribute
    out.torch_file("torch_single/pytorch_model.bin", state, state)
    out.expect("torch_single", state)
    del out.expected["torch_single/pytorch_model.bin"]
    out.path("torch_single/config.json").write_text('{"model_type": "fixture"}\n')

    everything = {name: torch.arange(6).reshape(2, 3).to(dtype) for dtype, name in NAMES.items()}
    everything["scalar"] = torch.tensor(2.5)
    everything["empty"] = torch.zeros(0, 3)
    everything["one_row"] = torch.arange(8.0).reshape(2, 4).t()[:1]  # shape [1, 2]: strides (1, 4), not contiguous
    everything["one_row"] = everything["one_row"].clone(memory_format=torch.contiguous_format)
    everything["odd_stride"] = torch.arange(12.0).as_strided((1, 6), (99, 1))  # a dimension of 1 may have any stride
    out.torch_file("torch_types.pt", everything, everything)
    out.torch_file("torch_protocol4.pt", everything, everything, pickle_protocol=4)
    out.torch_file("torch_protocol5.pt", everything, everything, pickle_protocol=5)

    base = random_tensor(6, 4, dtype=torch.float16)
    tied = {"embed.weight": base, "head.weight": base, "rows": base[2:5], "parameter": torch.nn.Parameter(base)}
    out.torch_file("torch_tied.pt", tied, tied)

    shards = [{"decoder.layers.0.fc1.weight": random_tensor(8, 4, dtype=torch.float16)},
              {"decoder.layers.1.fc1.weight": random_tensor(8, 4, dtype=torch.bfloat16), "decoder.norm": random_tensor(3)}]
    weight_map = {}
    for i, shard in enumerate(shards):
        file = f"pytorch_model-0000{i + 1}-of-00002.bin"
        out.torch_file(f"torch_sharded/{file}", shard)
        weight_map.update({name: file for name in shard})
    out.path("torch_sharded/pytorch_model.bin.index.json").write_text(
        json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}, indent=1))
    out.expect("torch_sharded", {**shards[0], **shards[1]})

    nested = {"epoch": 3, "loss": 0.25, "history": [1, 2.5, None, "text", (1, 2)], "big": 10**30, "flag": True,
              "device": torch.device("cpu"), "size": torch.Size([2, 3]), "state_dict": state}
    out.torch_file("torch_nested.pt", nested, state)
    out.torch_file("torch_model_key.pt", {"model": {"w": base}, "optimizer": {"lr": 0.1}}, {"w": base})


class Hostile:
    """Unpickled the ordinary way this runs a command."""

    def __reduce__(self):
        return os.system, ("touch hostile_pickle_ran",)


def rezip(source: pathlib.Path, target: pathlib.Path, compression=zipfile.ZIP_STORED, replace=None):
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for item in old.infolist():
            data = old.read(item)
            if replace and item.filename.endswith(replace[0]):
                data = replace[1]
            info = zipfile.ZipInfo(item.filename, (1980, 1, 1, 0, 0, 0))
            new.writestr(info, data, compress_type=compression)


def make_refused(out: Output):
    weight = {"w": torch.arange(12.0).reshape(3, 4)}
    out.torch_file("refused/hostile.pt", {"w": weight["w"], "x": Hostile()})
    out.torch_file("refused/hostile_protocol4.pt", {"w": weight["w"], "x": Hostile()}, pickle_protocol=4)
    out.torch_file("refused/not_contiguous.pt", {"fine": weight["w"], "turned": weight["w"].t()})
    out.torch_file("refused/legacy.pt", weight, _use_new_zipfile_serialization=False)
    out.torch_file("refused/uint16.pt", {"w": torch.arange(4).to(torch.uint16)})
    out.torch_file("refused/complex.pt", {"w": torch.ones(2, dtype=torch.complex64)})
    out.torch_file("refused/lone_tensor.pt", weight["w"])
    out.torch_file("refused/no_tensors.pt", {"epoch": 1})
    out.torch_file("refused/whole_module.pt", torch.nn.Linear(2, 2))
    plain = out.path("refused/plain.pt")
    torch.save(weight, plain)
    rezip(plain, out.path("refused/compressed.pt"), zipfile.ZIP_DEFLATED)
    rezip(plain, out.path("refused/big_endian.pt"), replace=("/byteorder", b"big"))
    rezip(plain, out.path("refused/short_storage.pt"), replace=("/data/0", b"\0" * 20))
    plain.unlink()
    with zipfile.ZipFile(out.path("refused/other_zip.pt"), "w") as other:
        other.writestr(zipfile.ZipInfo("readme.txt", (1980, 1, 1, 0, 0, 0)), "no checkpoint")
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), str(out.path("refused/torchscript.pt")))


# Files of other projects that can be read, and the key under which their tensors lie ("" for the top).
THIRD_PARTY = {"burn/mixed_types.pt": "", "burn/parameter.pt": "", "burn/state_dict.pt": "", "burn/extreme_values.pt": "",
               "burn/buffers.pt": "", "burn/key_remap.pt": "", "burn/weights_with_config.pt": "my_model",
               "burn/multi_layer.safetensors": "", "candle/test.pt": "", "torchtune/tiny_state_dict_with_one_key.pt": ""}


def describe_third_party(folder: pathlib.Path):
    expected = {}
    for name, key in THIRD_PARTY.items():
        if name.endswith(".safetensors"):
            value = safetensors.torch.load_file(folder / name)
        else:
            value = torch.load(folder / name, weights_only=True)
        value = value[key] if key else value
        expected[name] = describe({k: v for k, v in value.items() if isinstance(v, torch.Tensor)})
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


def check_store(folder: pathlib.Path):
    index = json.loads((folder / "sluice-store.json").read_text())
    for group in index["groups"]:
        with safetensors.safe_open(folder / group["file"], framework="pt") as file:
            names = [name for name in file.keys() if not name.startswith("__pad.")]
            assert sorted(names) == sorted(t["name"] for t in group["tensors"]), group["name"]
            described = describe({name: file.get_tensor(name) for name in names})
        for tensor in group["tensors"]:
            assert described[tensor["name"]]["shape"] == tensor["shape"], tensor
            assert described[tensor["name"]]["dtype"] == tensor["dtype"], tensor
            print(tensor["name"], tensor["dtype"], tensor["shape"], f'{described[tensor["name"]]["crc32c"]:08x}')
        raw = (folder / group["file"]).read_bytes()
        assert len(raw) == group["bytes"] and f"crc32c:{crc32c(raw):08x}" == group["checksum"], group["name"]
        assert all(t["offset"] % index["alignment"] == 0 for t in group["tensors"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--check-store", action="store_true", help="FOLDER is a packed store: check it")
    parser.add_argument("--third-party", action="store_true", help="FOLDER is third_party: write its expected.json")
    arguments = parser.parse_args()
    if arguments.third_party:
        describe_third_party(arguments.folder)
        return
    if arguments.check_store:
        check_store(arguments.folder)
        return
    shutil.rmtree(arguments.folder, ignore_errors=True)
    out = Output(arguments.folder)
    make_safetensors(out)
    make_torch(out)
    make_refused(out)
    out.path("expected.json").write_text(json.dumps(out.expected, indent=1, ensure_ascii=False) + "\n")
    out.path("SOURCE.txt").write_text(
        "Made by scripts/golden/checkpoints.py; random numbers, no one's model. Licence: as the project.\n"
        f"python {sys.version.split()[0]}, torch {torch.__version__}, safetensors {safetensors.__version__}, "
        f"numpy {numpy.__version__}\n")


if __name__ == "__main__":
    main()
