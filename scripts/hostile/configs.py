"""config.json, generation_config.json, quantisation configs, policies, profiles of machines."""
import json

from .case import (ANYHOW, BROKEN_JSON, CONVERT, INSPECT, REFUSED, RUN, WRONG_VALUES, Case, label, llama, made, not_files)


def config_cases():
    for what, text in BROKEN_JSON.items():
        yield Case(f"config/{what}", llama(config__json=text), RUN, REFUSED)
        yield Case(f"config-inspected/{what}", llama(config__json=text), INSPECT)
    yield from not_files("config.json", llama(), INSPECT)
    for key in made.LLAMA:
        yield Case(f"config/no-{key}", llama({k: v for k, v in made.LLAMA.items() if k != key}), RUN)
        for value in WRONG_VALUES:
            yield Case(f"config/{key}={label(value)}", llama({**made.LLAMA, key: value}), INSPECT)
    for key in ("head_dim", "attention_bias", "mlp_bias", "rope_scaling", "rope_parameters", "quantization_config", "sliding_window",
                "pad_token_id", "partial_rotary_factor", "attention_dropout", "pretraining_tp", "dtype", "layer_types", "text_config"):
        for value in WRONG_VALUES[:14]:
            yield Case(f"config/{key}={label(value)}", llama({**made.LLAMA, key: value}), INSPECT)
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
    for key in scaling:
        for value in (None, "x", 0, -1, 1e308, 1e-308, [], 2**63):
            yield Case(f"config/rope_scaling.{key}={label(value)}", llama({**made.LLAMA, "rope_scaling": {**scaling, key: value}}), RUN)
    for name in ("yarn", "dynamic", "longrope", "su", "mrope", "", "proportionate"):
        yield Case(f"config/rope-{name}", llama({**made.LLAMA, "rope_scaling": {"rope_type": name, "factor": 4.0}}), RUN, REFUSED)
    for name in ("gpt2", "mistral", "", "llama\u0000", "../../etc/passwd", "x" * 100000, "%s%n{}"):
        changes = {"model_type": name, "architectures": [name]}
        yield Case(f"config/type-{label(name)}", llama({**made.LLAMA, **changes}), INSPECT)
    twice = json.dumps(made.LLAMA)[:-1] + ', "hidden_size": 64}'
    yield Case("config/repeated-key", llama(config__json=twice.encode()), RUN)


def generation_cases():
    for what, text in BROKEN_JSON.items():
        yield Case(f"generation/{what}", llama(generation_config__json=text), RUN)
    yield from not_files("generation_config.json", llama(generation_config__json=b"{}"), RUN, ANYHOW)
    for key in ("eos_token_id", "bos_token_id", "temperature", "top_p", "top_k", "repetition_penalty", "max_length", "stop_strings"):
        for value in (None, "x", [], [-1], [2**40], -1, 2**63, 1.5, 1e308, list(range(5000)), {"a": 1}):
            yield Case(f"generation/{key}={label(value)}", llama(generation_config__json=json.dumps({key: value}).encode()), RUN)


SETTINGS = {
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True, "checkpoint_format": "gptq"},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"},
    "bitsandbytes": {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": False},
    "compressed-tensors": {"quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed",
                           "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
                               "num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}}}}}


def quantisation_cases():
    # The tensors are plain: settings that say otherwise are refused, or have nothing to do.
    for method, settings in SETTINGS.items():
        for key in settings:
            for value in (None, "x", 0, -1, 3, 5, 2**40, [], {}, True, 1.5):
                changed = {**settings, key: value}
                yield Case(f"quantisation/{method}.{key}={label(value)}", llama({**made.LLAMA, "quantization_config": changed}), CONVERT)
    weights = SETTINGS["compressed-tensors"]["config_groups"]["group_0"]["weights"]
    for key in list(weights) + ["actorder", "block_structure", "dynamic", "observer"]:
        for value in (None, "x", 0, -1, 3, 2**40, [], {}, "float", True):
            groups = {"group_0": {"targets": ["Linear"], "weights": {**weights, key: value}}}
            changed = {**SETTINGS["compressed-tensors"], "config_groups": groups}
            yield Case(f"quantisation/ct.weights.{key}={label(value)}", llama({**made.LLAMA, "quantization_config": changed}), CONVERT)
    for method in ("fp8", "hqq", "eetq", "quanto", "mxfp4", "aqlm", "", None, 4, "GPTQ"):
        yield Case(f"quantisation/method-{label(method)}", llama({**made.LLAMA, "quantization_config": {"quant_method": method}}), CONVERT)


def policy_cases():
    command = RUN + ["--policy", "{}/policy.json"]
    for what, text in BROKEN_JSON.items():
        yield Case(f"policy/{what}", llama(policy__json=text), command, ANYHOW if what in ("object", "bom") else REFUSED)
    yield from not_files("policy.json", llama(policy__json=b"{}"), command, may_wait=True)
    for key in made.POLICY:
        for value in WRONG_VALUES:
            yield Case(f"policy/{key}={label(value)}", llama(policy__json=json.dumps({**made.POLICY, key: value}).encode()), command)
    for tier in ("device", "host", "disk"):
        for value in (-0.1, 1.1, None, "x", 1e-300, 2**63):
            shares = {"device": 0.5, "host": 0.25, "disk": 0.25, tier: value}
            for part in ("weights", "kv", "activations"):
                text = json.dumps({**made.POLICY, part: shares}).encode()
                yield Case(f"policy/{part}.{tier}={label(value)}", llama(policy__json=text), command)


def profile_cases():
    plan = ["plan", "opt-125m", "--hardware", "{}/machine.json", "--no-lifts", "--sequences", "4", "--prompt-len", "32", "--gen-len", "8"]
    show = ["profile", "--show", "{}/machine.json"]

    def case(what, machine, command=show, codes=ANYHOW):
        text = machine if isinstance(machine, bytes) else json.dumps(machine).encode()
        return Case(f"profile/{what}", {"machine.json": text}, command, codes)

    for what, text in BROKEN_JSON.items():
        yield case(what, text, show, REFUSED)
    yield from not_files("machine.json", {}, show, name="profile-shown", may_wait=True)
    yield from not_files("machine.json", {}, plan, name="profile", may_wait=True)
    machine = made.profile()
    for key in machine:
        yield case(f"no-{key}", {k: v for k, v in machine.items() if k != key}, plan)
        for value in WRONG_VALUES:
            yield case(f"{key}={label(value)}", {**machine, key: value})
    for key in machine["host"]:
        for value in (None, "x", 0, -1, [], [{}], {}, 1e308, 1e-308):
            yield case(f"host.{key}={label(value)}", made.profile(host=made.processor(**{key: value})))
    for key in machine["disks"][0]:
        for value in (None, "x", 0, -1, [], {}, 6.5, 1e308, {"value": None}, {"value": 1, "spread": -1}, {"value": 1, "source": "god"}):
            yield case(f"disk.{key}={label(value)}", made.profile(disks=[{**machine["disks"][0], key: value}]), plan)
    row = machine["host"]["matmul"][0]
    for what, rows in {"none": [], "empty": [{}], "many": [row] * 50000, "huge": [{**row, "m": 2**62, "n": 2**62, "k": 2**62}]}.items():
        yield case(f"matmul-{what}", made.profile(host=made.processor(matmul=rows)), plan)
    yield case("many-disks", made.profile(disks=machine["disks"] * 5000), plan)


def template_cases():
    """Chat templates: in tokenizer_config.json, and as a file."""
    chat = ["chat", "{}", "-n", "2", "--cpu-mem", "64MiB"]
    texts = {"open": "{% for", "unclosed": "{% if true %}", "endless": "{% for i in range(10**12) %}x{% endfor %}", "nested-loops":
             "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}x{% endfor %}{% endfor %}{% endfor %}",
             "recursion": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "long-text": "{{ 'x' * 10**10 }}", "doubling":
             "{% set ns = namespace(t='x') %}{% for i in range(64) %}{% set ns.t = ns.t + ns.t %}{% endfor %}{{ ns.t }}", "raise":
             "{{ raise_exception('no') }}", "escape": "{{ ''.__class__.__mro__[1].__subclasses__() }}", "import": "{% import 'os' as os %}",
             "include": "{% include '/etc/passwd' %}", "deep": "{{ " + "(" * 20000 + "1" + ")" * 20000 + " }}", "deep-lists": "{{ " + "[" * 20000 + " }}",
             "many-tags": "{{ 1 }}" * 50000, "nul": "a\0b", "divide": "{{ 1 // 0 }}", "modulo": "{{ 1 % 0 }}", "smallest": "{{ (-9223372036854775807 - 1) // -1 }}",
             "power": "{{ 10 ** 10000 }}", "missing": "{{ a.b.c }}", "index": "{{ messages[99] }}", "slice": "{{ messages[::0] }}", "undefined": "{{ nope() }}",
             "filter": "{{ 1 | nope }}", "join": "{{ messages | join(messages) }}", "sort": "{{ [1, 'a', none] | sort }}", "json": "{{ messages | tojson(indent=10**9) }}",
             "center": "{{ 'x' | center(10**12) }}", "indent": "{{ 'a\nb' | indent(10**12) }}", "ljust": "{{ 'x'.ljust(10**12) }}", "replace":
             "{{ ('x' * 9999).replace('', 'y' * 9999) }}", "format": "{{ '%1000000000d' % 1 }}", "strftime": "{{ strftime_now('%' * 9999) }}",
             "not-utf8": "caf\udce9", "empty": "", "huge": "x" * (3 << 20)}
    for what, text in texts.items():
        config = json.dumps({"chat_template": text}).encode()
        yield Case(f"template/{what}", llama(tokenizer_config__json=config), chat, input=b"hello\n")
        raw = text.encode("utf-8", "surrogateescape")
        yield Case(f"template-file/{what}", llama(t=raw), chat + ["--chat-template", "{}/t"], input=b"hello\n")
    for value in (None, 3, [], {}, [{"name": "default"}], [{"name": 1, "template": 2}], {"default": "x"}):
        yield Case(f"template/value-{label(value)}", llama(tokenizer_config__json=json.dumps({"chat_template": value}).encode()), chat, input=b"hello\n")
    yield from not_files("t", llama(), chat + ["--chat-template", "{}/t"], ANYHOW, name="template-file", may_wait=True)


def cases():
    for make in (config_cases, generation_cases, quantisation_cases, policy_cases, profile_cases, template_cases):
        yield from make()


