"""Plans, profiles, stores."""
import json
import shutil

import numpy
import pytest

import sluice
from conftest import FIXTURES, STORIES


def test_a_models_plan_says_where_things_lie(opened, model):
    plan = model.plan
    assert plan.streamed_bytes == 0 and plan.resident_bytes == plan.weight_bytes > 0
    assert plan.weight_bytes < plan.memory_bytes <= plan.memory_budget_bytes == 256 << 20
    assert plan.context == 512 and plan.sequences == 16 and plan.tokens_per_second is None
    assert "MiB memory" in repr(plan) and "weights" in str(plan)
    with opened(policy={"weights": {"device": 0, "host": 0, "disk": 1}}) as streamed:
        assert streamed.plan.streamed_bytes > streamed.plan.resident_bytes
        assert "stream" in repr(streamed.plan)
        assert streamed.plan.policy["weights"]["disk"] == 1
        with opened(policy=streamed.plan.policy) as again:
            assert again.plan.streamed_bytes == streamed.plan.streamed_bytes


def test_a_plan_for_a_machine_that_is_not_here(tool):
    plan = sluice.plan("opt-30b", hardware="t4", sequences=64, lifts=True)
    assert plan.tokens_per_second > 0 and plan.latency_seconds > 0 and plan.bottleneck
    assert set(plan.bytes) == set(plan.limits) == {"device", "host", "disk"}
    assert all(0 <= plan.bytes[tier] <= plan.limits[tier] for tier in ("device", "host"))
    assert plan.lifts and min(plan.lifts.values()) > 1
    assert plan.model == "opt-30b" and "opt-30b on" in repr(plan) and "tokens/s" in str(plan)
    assert plan.details["predicted"]["tokens_per_s"] == plan.tokens_per_second
    smaller = sluice.plan("opt-30b", hardware="t4", sequences=64, weights="int4", lifts=False)
    assert smaller.tokens_per_second > plan.tokens_per_second and smaller.lifts == {}
    assert "opt-30b" in sluice.plan.models()


def test_plans_are_the_command_lines():
    plan = sluice.plan(STORIES, hardware="rtx-4090", cpu_mem="1GiB", prompt_tokens=64, new_tokens=16, sequences=8,
                       objective="latency", lifts=False)
    assert plan.details["job"] == {"sequences": 8, "prompt_tokens": 64.0, "new_tokens": 16.0}
    assert plan.limits["host"] == 1 << 30


@pytest.mark.parametrize("options, word", [
    ({"hardware": "abacus"}, "abacus"), ({"cpu_mem": "x"}, "cpu_mem"), ({"objective": "fun"}, "objective"),
    ({"sequences": 0}, "sequences"), ({"prompt_tokens": float("nan")}, "prompt_tokens"), ({"new_tokens": 0}, "new_tokens"),
    ({"weights": "int3"}, "weights"), ({"kv_dtype": "x"}, "kv_dtype"), ({"latency_bound": -1}, "latency_bound"),
    ({"gpu_memory": 1}, "gpu_mem")])
def test_plan_refusals(options, word):
    with pytest.raises(sluice.UserError, match=word):
        sluice.plan("opt-125m", **{"hardware": "t4", **options})


def test_what_fits_nowhere_says_so():
    with pytest.raises(sluice.ResourceError):
        sluice.plan("opt-175b", hardware="t4", cpu_mem="1MiB", disk_mem="1MiB", gpu_mem="1MiB")
    with pytest.raises(sluice.UserError, match="opt-17"):
        sluice.plan("opt-17b", hardware="t4")


def test_profiles(tmp_path):
    assert "t4" in sluice.profile.names()
    profile = sluice.profile("t4")
    assert profile.device and profile.device_bytes > 10 << 30 and profile.disk_read > 0 and profile.memory_read > 1e9
    assert "T4" in repr(profile) or "t4" in repr(profile)
    profile.save(tmp_path / "mine.json")
    again = sluice.profile(tmp_path / "mine.json")
    assert again.details == profile.details == json.loads((tmp_path / "mine.json").read_text())
    one = sluice.plan("opt-30b", hardware=tmp_path / "mine.json", sequences=8, lifts=False)
    assert one.tokens_per_second == sluice.plan("opt-30b", hardware="t4", sequences=8, lifts=False).tokens_per_second
    with pytest.raises(sluice.UserError, match="quick"):
        sluice.profile("t4", quick=True)
    with pytest.raises(sluice.Error, match="nowhere"):
        sluice.profile("/nowhere.json")


def test_a_store_says_what_its_checkpoint_says(opened, model, tmp_path):
    store = sluice.convert(STORIES, tmp_path / "store")
    with opened(store) as one:
        assert one.generate("Once upon a time", max_tokens=20).text == model.generate("Once upon a time", max_tokens=20).text
    with opened(sluice.convert(STORIES, tmp_path / "int8", weights="int8")) as small:
        assert small.weights.startswith("int8") and small.generate("Once upon a time", max_tokens=5).text
    with pytest.raises(sluice.UserError, match="weights"):
        sluice.convert(STORIES, tmp_path / "other", weights="int3")
    with pytest.raises(sluice.UserError, match="lora"):
        sluice.convert(STORIES, tmp_path / "other", adapter="x")


def test_a_text_says_what_quantisation_may_lose(opened, tmp_path):
    text = tmp_path / "text.txt"
    with opened(STORIES) as plain:
        text.write_text("\n".join(plain.generate("Once upon a time", max_tokens=200, seed=seed).text for seed in range(3)))
        asked = plain.generate("One day", max_tokens=100, seed=7).text
        as_it_is = plain.loglikelihood("One day", asked).token_logprobs
    loss = {}
    for name, options in {"plain": {}, "calibrated": {"calibrate": text, "calibrate_tokens": 500, "cpu_mem": "64MiB"}}.items():
        with opened(sluice.convert(STORIES, tmp_path / name, weights="int4-g32", **options)) as small:
            loss[name] = abs(small.loglikelihood("One day", asked).token_logprobs - as_it_is).sum()
    assert 0 < loss["calibrated"] < loss["plain"], loss
    with pytest.raises(sluice.UserError, match="bits"):
        sluice.convert(STORIES, tmp_path / "other", weights="int4", bits=4.5)
    with pytest.raises(sluice.UserError, match="calibrate"):
        sluice.convert(STORIES, tmp_path / "other", calibrate=text)
    with pytest.raises(sluice.FileError):
        sluice.convert(STORIES, tmp_path / "other", bits=4.5, calibrate=tmp_path / "none.txt")



def test_an_adapter_is_merged(opened, tmp_path):
    adapter = FIXTURES / "lora" / "plain"
    golden = json.loads((adapter / "golden.json").read_text())
    expected = numpy.load(adapter / "logits.npy")  # PEFT's, of the prompt's last token
    base = FIXTURES / "models" / golden["base"]

    def error_of(path):
        with opened(path) as one:
            return numpy.abs(one.logits(golden["prompt"])[-1] - expected).max() / numpy.abs(expected).max()

    assert error_of(sluice.convert(base, tmp_path / "merged", lora=adapter)) < 2e-5
    assert error_of(base) > 1e-2
    with pytest.raises(sluice.FileError, match="adapter"):
        sluice.convert(base, tmp_path / "none", lora=tmp_path)
