#!/usr/bin/env python3
"""Writes inputs for the fuzz targets to start from: scripts/fuzz_seeds.py FOLDER [TARGET...]

One folder a target, one file an input, in the form that the target reads (tests/fuzz/fuzz_*.cc say it): valid ones, so that
what is behind the first check is reached, and tests/fixtures/fuzz_found/TARGET/*, which once broke something.
"""
import gzip
import json
import pathlib
import sys
import zipfile
import zlib

import fixtures
import model_files as made

FIXTURES = pathlib.Path(__file__).resolve().parent.parent / "tests/fixtures"
LARGEST = 64 << 10  # bytes; what is longer is seldom mutated where it matters


def files(pattern):
    return {str(path.relative_to(FIXTURES)).replace("/", "_"): path.read_bytes()
            for path in sorted(FIXTURES.glob(pattern)) if path.is_file() and path.stat().st_size <= LARGEST}


def texts(**values):
    return {name: (value if isinstance(value, str) else json.dumps(value)).encode() for name, value in values.items()}


def config():
    return files("models/*/config.json") | files("malformed_configs/*.json") | files("json_test_suite/*.json") | files("foreign/*/config.json")


def policy():
    device = dict(made.POLICY, weights={"device": 0.5, "host": 0.25, "disk": 0.25}, attention="host", inplace_host_fraction=0.1)
    return texts(default=made.POLICY, device=device, empty="{}", one={"micro_batches": 4})


def profile():
    link = {"to_device_bytes_per_second": 1e10, "to_host_bytes_per_second": 1e10, "both_share": 0.8, "latency_seconds": 1e-5}
    return texts(host=made.profile(), device=made.profile(device=made.processor(), link=link, device_memory_bytes=2**34),
                 emulated=made.profile(device=made.processor(), link=link, device_memory_bytes=2**34, shares_cores=True,
                                       copy_delay_seconds_per_byte=1e-11, read_delay_seconds_per_byte=1e-11))


def job():
    return files("prompts/*.jsonl") | files("jobs/*.jsonl")


def content_key(text):
    """FNV-1a of 128 bits, as src/jobs/content_key.h has it."""
    value = 0x6C62272E07BB014262B821756295C58D
    for byte in text.encode():
        value = (value ^ byte) * 0x0000000001000000000000000000013B % 2**128
    return f"{value:032x}"


def results():
    mark = {"config": content_key("config")}

    def record(name, **parts):
        key = content_key(name)
        out = {"id": "batch_req_" + key, "custom_id": name, "response": None, "error": None, "sluice": {"key": key, **mark}}
        return json.dumps(out | parts, separators=(",", ":")) + "\n"

    answer = record("a", response={"status_code": 200, "request_id": "req_1", "body": {"choices": [{"text": "b"}]}})
    error = record("b", error={"code": "invalid_json", "message": "no", "line": 2})
    return texts(empty="", one=answer, two=answer + error, torn=answer + error[:40], unended=answer + error[:-1])


def npy():
    return files("models/*/logits_1.npy") | {"none": made.npy(0, 3), "one": made.npy(1, 1), "rows": made.npy(5, 7)}


def tokenizer():
    out = {"stories": (FIXTURES / "models/stories260k/tokenizer.json").read_bytes(),
           "tiny": (FIXTURES / "tokenizers/small_bpe/tiny_bpe_tokenizer.json").read_bytes(),
           "configured": json.dumps(made.bpe_json()).encode() + b"\0" + json.dumps({"bos_token": "<|end|>", "add_bos_token": True}).encode()}
    steps = {"normalizer": [{"type": "NFC"}, {"type": "NFKC"}, {"type": "Lowercase"}, {"type": "Prepend", "prepend": "\u2581"},
                            {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
                            {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "x"},
                            {"type": "Sequence", "normalizers": [{"type": "Strip", "strip_left": True, "strip_right": True}]}],
             "pre_tokenizer": [{"type": "Split", "pattern": {"Regex": "\\p{N}{1,3}|\\s+"}, "behavior": "Isolated", "invert": False},
                               {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": True},
                               {"type": "Digits", "individual_digits": True}, {"type": "Punctuation", "behavior": "Isolated"},
                               {"type": "Sequence", "pretokenizers": [{"type": "Whitespace"}, {"type": "ByteLevel", "add_prefix_space": True}]}],
             "decoder": [{"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
                         {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always"}],
             "post_processor": [{"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<|end|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                                 "pair": [], "special_tokens": {"<|end|>": {"id": "<|end|>", "ids": [97], "tokens": ["<|end|>"]}}},
                                {"type": "ByteLevel", "trim_offsets": True}]}
    for part, choices in steps.items():
        for i, step in enumerate(choices):
            out[f"{part}{i}"] = json.dumps(made.bpe_json(**{part: step})).encode() + b"\0\0lo  12 \xc3\xa9"
    return out


def tokenizer_model():
    ranks = (FIXTURES / "tokenizers/small_bpe/tiktoken_small.model").read_bytes()
    vocabulary = {chr(33 + i): i for i in range(94)} | {"\u0120": 94, "lo": 95}
    return {"stories": b"\0" + (FIXTURES / "models/stories260k/tokenizer.model").read_bytes(),
            "bpe": b"\0" + made.sentencepiece(made.small_pieces()), "unigram": b"\0" + made.sentencepiece(made.small_pieces(), 1),
            "plain": b"\0" + made.sentencepiece(made.small_pieces(), 1, normalizer=b"\x18\x00\x20\x00\x28\x00"),
            "ranks": b"\0" + ranks, "few_ranks": b"\0" + b"".join(ranks.splitlines(True)[:300]),
            "merges": b"\1" + json.dumps(vocabulary).encode() + b"\0#version: 0.2\nl o\n"}


def gguf_tokenizer():
    more = [("general.architecture", made.STRING, "llama"), ("tokenizer.ggml.add_bos_token", made.BOOL, True)]
    qwen = [row if row[0] != "tokenizer.ggml.pre" else (*row[:2], "qwen2") for row in made.gguf_vocabulary("gpt2")]
    return {"llama": made.gguf(made.gguf_vocabulary("llama", more)), "gpt2": made.gguf(made.gguf_vocabulary("gpt2", more)),
            "qwen2": made.gguf(qwen), "template": made.gguf(made.gguf_vocabulary("llama", [("tokenizer.chat_template", made.STRING, "{{ 1 }}")]))}


def checkpoint():
    folder = FIXTURES / "checkpoints/made"
    # The first byte: kFiles of tests/fuzz/fuzz_checkpoint.cc.
    places = [("torch_single/pytorch_model.bin", "torch_*.pt", "../third_party/*/*.pt"), ("single/model.safetensors", "../third_party/*/*.safetensors"),
              ("sharded/model.safetensors.index.json",), ("store/sluice-store.json",), ("tiny.gguf",), ("torch_sharded/pytorch_model.bin.index.json",),
              ("sharded/model-00001-of-00002.safetensors",), ("store/layer-00000.safetensors",)]
    out = {}
    for which, patterns in enumerate(places):
        for pattern in patterns:
            for path in sorted(folder.glob(pattern)):
                if path.stat().st_size <= LARGEST:
                    out[f"{which}_{path.name}"] = bytes([which]) + path.read_bytes()
    out["4_llama.gguf"] = b"\4" + made.gguf_llama(vocab=265, hidden=16, ffn=16)
    return out


def imatrix():
    return files("imatrix/*")


def journal():
    group = {"group": "embed", "file": "embed.safetensors", "bytes": 8192, "crc32c": 123456789}
    begin = json.dumps({"sluice-convert": 1, "identity": "0123456789abcdef"}) + "\n"
    return texts(empty="", begun=begin, one=begin + json.dumps(group) + "\n", torn=begin + json.dumps(group)[:30])


def pickle():
    out = {"made": made.torch_pickle({"a.weight": (2, 3), "b": ()})}
    for path in sorted(FIXTURES.glob("checkpoints/**/*.*")):
        if path.suffix in (".pt", ".pth", ".bin") and zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                for name in archive.namelist():
                    if name.endswith("data.pkl"):
                        out[path.name] = archive.read(name)
    return out


def safetensors():
    return {str(path.relative_to(FIXTURES)).replace("/", "_"): made.header_of(path.read_bytes())[0]
            for path in sorted(FIXTURES.glob("**/*.safetensors")) if path.stat().st_size > 8}


def foreign():
    out = files("models/*-moe-odd-gguf/model.gguf")
    for file in sorted([*FIXTURES.glob("foreign/*/model.safetensors"), *FIXTURES.glob("models/gpt-oss-*/model.safetensors")]):
        folder = file.parent
        header, data = made.header_of(file.read_bytes())
        out[folder.name] = b"\0".join([(folder / "config.json").read_bytes(), header.rstrip(), data[:64]])
    # GGML's types: elements and bytes of a block.
    for kind, block in {1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 30: (1, 2)}.items():
        out[f"ggml{kind}"] = made.gguf_llama(vocab=265, kind=kind, block=block, tokens=False)
    for kind, size in {10: 84, 11: 110, 12: 144, 13: 176, 14: 210}.items():
        out[f"ggml{kind}"] = made.gguf_llama(hidden=256, ffn=256, vocab=8, kind=kind, block=(256, size), tokens=False)
    out.update(gptq(4), **gptq(8), **awq())
    return out


def lora():
    out = {}
    for folder in sorted(FIXTURES.glob("lora/*/")):
        header, data = made.header_of((folder / "adapter_model.safetensors").read_bytes())
        out[folder.name] = b"\0".join([(folder / "adapter_config.json").read_bytes(), header.rstrip(), data])
    return out


def routing():
    head = "# route_trace v1\n# model=m arch=a n_layer=2 n_expert=8 n_expert_used=2\n# layer=1 expert_bytes=100 dense_bytes=7\n"
    plain = head + "turn,phase,step,layer,slot,expert\n" + "".join(
        f"0,{t // 3},{t},{layer},{slot},{(3 * t + layer + 5 * slot) % 8}\n" for t in range(9) for layer in (0, 1) for slot in (0, 1))
    passes = head + "turn,phase,step,layer,slot,expert,weight,pass\n" + "".join(
        f"{s},1,{p},0,0,{(p + s) % 8},0.5,{p}\n" for p in range(6) for s in range(3))
    order = "# route_trace v1\r\n# n_expert=3 n_layer=1\r\nexpert,x,slot,layer,step,phase,turn\r\n2,,0,0,0,0,0\r\n"
    return texts(plain=plain, passes=passes, order=order)


def linear_names():
    return [name[:-7] for name, shape in made.llama_shapes(made.LLAMA).items() if name.endswith("proj.weight")]


def with_linear(settings, parts):
    """A config and a header with each matrix as `parts(out, in)` = {end: (dtype, shape)} says."""
    shapes, size = made.llama_shapes(made.LLAMA), {"I32": 4, "F16": 2, "F32": 4}
    tensors = {name: ("F32", shape) for name, shape in shapes.items() if not name.endswith("proj.weight")}
    for stem in linear_names():
        for end, value in parts(*shapes[stem + ".weight"]).items():
            tensors[stem + end] = value
    entries, at = {}, 0
    for name, (dtype, shape) in tensors.items():
        count = made.elements(shape) * size[dtype]
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + count]}
        at += count
    return json.dumps(dict(made.LLAMA, quantization_config=settings)).encode() + b"\0" + json.dumps(entries).encode() + b"\0"


def gptq(bits):
    per_word = 32 // bits
    settings = {"quant_method": "gptq", "bits": bits, "group_size": 32, "desc_act": False, "sym": True}
    return {f"gptq{bits}": with_linear(settings, lambda rows, cols: {
        ".qweight": ("I32", (cols // per_word, rows)), ".qzeros": ("I32", (cols // 32, rows // per_word)),
        ".scales": ("F16", (cols // 32, rows)), ".g_idx": ("I32", (cols,))})}


def awq():
    settings = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
    return {"awq": with_linear(settings, lambda rows, cols: {
        ".qweight": ("I32", (cols, rows // 8)), ".qzeros": ("I32", (cols // 32, rows // 8)), ".scales": ("F16", (cols // 32, rows))})}


def guide():
    schemas = [{"type": "object", "properties": {"a": {"type": "integer", "minimum": 3}, "b": {"enum": ["x", None]}}, "required": ["a"]},
               {"type": "array", "items": {"$ref": "#/$defs/n"}, "$defs": {"n": {"anyOf": [{"type": "number"}, {"type": "null"}]}}, "minItems": 1, "maxItems": 3},
               {"type": "string", "pattern": "^[a-f]{2,4}$"}, {"const": {"a": [1]}}, {"type": "string", "format": "date"}]
    regexes = ["a(b|c)*d+", "[^a-z]{2,3}\\d\\w?", "(?:x|y){0,5}\\.", "\\p{L}+"]
    grammars = ['root ::= "a" [b-d]* | item{2,3} # so\nitem ::= [^x\\n] ("," item)?', 'root ::= (\n "\\x41" |\n . )+\n | "\\u00e9"',
                'root ::= "{" pair ("," pair)* "}"\npair ::= "\\"" [a-z]+ "\\":" (root | [0-9]+)', 'root ::= a "x"\na ::= b?\nb ::= root']
    out = {f"schema{i}": b"\0" + json.dumps(one).encode() for i, one in enumerate(schemas)}
    out |= {f"grammar{i}": b"\2" + one.encode() for i, one in enumerate(grammars)}
    return out | {f"regex{i}": b"\1" + one.encode() for i, one in enumerate(regexes)}


def chat_template():
    return files("chat/templates/*") | texts(short="{% for m in messages %}{{ m['role'] }}: {{ m.content | trim }}{% endfor %}")


def message():
    calls = ['<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>', '[TOOL_CALLS][{"name": "f", "arguments": {}}]',
             '{"name": "f", "parameters": {"a": "b"}}', "<function=f>\n<parameter=a>\n1\n</parameter>\n</function>",
             "<tool_call>\n<function=f>\n<parameter=a>\nx\n</parameter>\n<parameter=b>\n1\n</parameter>\n</function>\n</tool_call>",
             "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>x</arg_value>\n</tool_call>", "<tool_call>f<arg_key>b</arg_key><arg_value>1</arg_value></tool_call>",
             '<|channel|>analysis<|message|>so<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>',
             "[TOOL_CALLS]f[ARGS]{\"a\": 1}", "<think>so</think>yes",
             "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"a\": 1}<|tool_call_end|>"
             "<|tool_calls_section_end|>"]
    return {f"{form}_{i}": bytes([form, 1]) + one.encode() for form in range(12) for i, one in enumerate(calls)}


def api():
    completion = {"model": "m", "prompt": "a", "max_tokens": 3, "temperature": 0.5, "n": 2, "stop": ["x"], "logit_bias": {"5": 1}, "stream": True,
                  "stream_options": {"include_usage": True}}
    tool = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}}
    chat = {"model": "m", "messages": [{"role": "user", "content": "a"}], "tools": [tool], "tool_choice": "auto", "top_logprobs": 2, "logprobs": True,
            "response_format": {"type": "json_object"}}
    out = {"completion": b"\0" + json.dumps(completion).encode(), "ids": b"\0" + json.dumps({"model": "m", "prompt": [[1, 2], [3]]}).encode(),
           "chat": b"\1" + json.dumps(chat).encode()}
    chat = dict(chat, messages=[{"role": "user", "content": [{"type": "text", "text": "a"}]},
                                {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
                                {"role": "tool", "tool_call_id": "1", "content": "x"}], tool_choice={"type": "function", "function": {"name": "f"}})
    del chat["response_format"]
    flat = dict(tool["function"], type="function")
    responses = {"instructions": "b", "max_output_tokens": 3, "tools": [flat], "text": {"format": {"type": "text"}}, "stream": True,
                 "input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]},
                           {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
                           {"type": "function_call_output", "call_id": "1", "output": "x"}]}
    messages = {"max_tokens": 3, "system": "b", "stop_sequences": ["x"], "tool_choice": {"type": "any"},
                "tools": [{"name": "f", "input_schema": {"type": "object"}}],
                "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {}}]},
                             {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "x"}]}]}
    ollama = {"model": "m", "options": {"num_predict": 3, "seed": 1, "stop": ["x"]}, "keep_alive": "5m", "format": "json"}
    turns = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]},
                          {"role": "tool", "tool_name": "f", "content": "x"}]}
    llama = {"prompt": [1, "a", 2], "n_predict": 3, "stream": True, "repeat_penalty": 1.5, "repeat_last_n": -1, "n_probs": 2, "seed": -1,
             "logit_bias": [[5, 1], [6, False]], "cache_prompt": True, "id_slot": -1, "grammar": "root ::= [a]", "mirostat": 2, "lora": []}
    out |= {"llama": b"g" + json.dumps(llama).encode(), "llama_text": b"g" + json.dumps({"prompt": "a", "json_schema": {"type": "null"}}).encode()}
    rerank = {"query": "a", "documents": ["b", {"text": "c"}], "top_n": 1, "return_documents": True, "instruction": "d"}
    out |= {"rerank": b"h" + json.dumps(rerank).encode()}
    embed = {"model": "m", "input": [[1, 2], "a"], "encoding_format": "base64", "dimensions": 3, "truncate_prompt_tokens": -1, "pooling": "mean"}
    out |= {"embeddings": b"i" + json.dumps(embed).encode(), "llama_embedding": b"l" + json.dumps({"content": "a", "embd_normalize": -1}).encode(),
            "ollama_embed": b"j" + json.dumps({"input": ["a"], "truncate": True, "options": {"num_ctx": 5}}).encode(),
            "ollama_embeddings": b"k" + json.dumps({"prompt": "a", "keep_alive": "5m"}).encode()}
    return out | {"tools": b"\1" + json.dumps(chat).encode(), "responses": b"a" + json.dumps(responses).encode(),
                  "messages": b"b" + json.dumps(messages).encode(), "count": b"c" + json.dumps(messages).encode(),
                  "ollama_chat": b"d" + json.dumps(ollama | turns).encode(),
                  "ollama_raw": b"e" + json.dumps(ollama | {"prompt": "a", "raw": True}).encode(),
                  "ollama_generate": b"f" + json.dumps(ollama | {"prompt": "a", "system": "b"}).encode()}


def multipart():
    purpose = b'Content-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    file = b'Content-Disposition: form-data; name="file"; filename="a.jsonl"\r\nContent-Type: application/jsonl\r\n\r\n{"a":\r\n--1}\r\n'
    form = b"--x\r\n" + purpose + b"--x\r\n" + file + b"--x--\r\n"
    empty = b'--x\r\nContent-Disposition: form-data; name=a\r\n\r\n\r\n--x--'
    return {"two": b"multipart/form-data; boundary=x\n" + form, "quoted": b'Multipart/Form-Data; charset=utf-8; boundary="x"\n' + form,
            "preamble": b"multipart/form-data; boundary=x\nhello\r\n" + form, "empty": b"multipart/form-data; boundary=x\n" + empty}


def http():
    head = b" /v1/completions?a=%20b&c HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
    post = b"POST" + head + b"Content-Length: 7\r\n\r\n[1,2,3]"
    chunked = b"POST" + head + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nT: v\r\n\r\n"
    get = b"GET" + head + b"Connection: close\r\n\r\n"
    return {"get": get, "post": post, "chunked": chunked, "three": post + chunked + b"HEAD" + head + b"\r\n",
            "expect": b"POST" + head + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n{}", "old": b"GET / HTTP/1.0\r\n\r\n",
            "gzip": gzip.compress(b"{}" * 50, mtime=0), "bomb": gzip.compress(bytes(1 << 20), mtime=0), "deflate": zlib.compress(b"{}" * 50)}


TARGETS = {f"fuzz_{make.__name__}": make for make in (config, policy, profile, job, results, npy, tokenizer, tokenizer_model, gguf_tokenizer,
                                                      checkpoint, imatrix, journal, pickle, safetensors, foreign, lora, routing, guide, chat_template, message, api, multipart, http)}


def main(folder, wanted):
    for target in wanted or TARGETS:
        if target not in TARGETS:
            sys.exit(f"fuzz_seeds: no seeds for {target}; add a function to {__file__}")
        seeds = TARGETS[target]() | files(f"fuzz_found/{target}/*")
        out = pathlib.Path(folder) / target
        out.mkdir(parents=True, exist_ok=True)
        for name, content in seeds.items():
            (out / name).write_bytes(content)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    fixtures.unpack()
    main(sys.argv[1], sys.argv[2:])
