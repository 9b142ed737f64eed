#!/usr/bin/env python3
"""The page of `sluice serve` in a headless Chromium: what a user does, what a screen reader gets, what must not happen.

    scripts/setup.sh --page                          # Debian's chromium, its driver, selenium and pillow (or pip's of the latter)
    pip install --no-deps axe-playwright-python      # for axe's rules, the axe.min.js in it; no playwright is run
    scripts/check_page.py [--pictures FOLDER]        # the server is $SLUICE, as for the other scripts here

Without axe or pillow it says what it leaves out. --pictures writes the pictures that docs/ shows.
"""
import argparse
import contextlib
import importlib.util
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request

from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

import page_talks
from browsed import EVIL, NARROW, WIDE, Page, browser, check, words
from served import SLUICE, served

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODEL = str(ROOT / "tests/fixtures/models/stories260k")
STORY = "Once upon a time"
# Thoughts and calls are read where the template speaks of them.
TEMPLATE = ("{# <think> #}{% for m in messages %}{% if m.role == 'system' %}{{ m.content }} {% else %}"
            "{{ m.content or '' }}{% endif %}{% endfor %}{% if tools %}{{ tools | length }} tools <tool_call>{% endif %}")
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {
    "type": "object", "properties": {"place": {"enum": ["Oslo"]}}, "required": ["place"], "additionalProperties": False}}}
MIXTURE = {"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 128, "intermediate_size": 256,
           "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 512,
           "max_position_embeddings": 512, "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2, "num_experts": 32,
           "num_experts_per_tok": 4, "moe_intermediate_size": 256, "norm_topk_prob": True, "mlp_only_layers": [],
           "decoder_sparse_step": 1, "rope_theta": 1000000.0, "rms_norm_eps": 1e-6, "hidden_act": "silu", "torch_dtype": "bfloat16"}


def first_answer(page):
    check("the page has no fault", page.problems() == [] and page.get("model").get_attribute("value") == "small", page.problems())
    check("the message box is where one types", page.run("return document.activeElement.id") == "message")
    page.set("temperature", "0")
    page.set("max-tokens", "60")
    page.message().send_keys("Once upon", Keys.SHIFT + Keys.ENTER, Keys.NULL, "a time")
    check("Shift+Enter begins a line", page.get("message").get_attribute("value") == "Once upon\na time" and not page.articles())
    page.get("message").clear()
    page.run("""window.lengths = new Set();
        const look = () => window.lengths.add(document.querySelector("article:last-child .text")?.textContent.length);
        new MutationObserver(look).observe(document.getElementById("log"), {childList: true, characterData: true, subtree: true});""")
    page.set("max-tokens", "200")
    # A small model's answer is there within a frame or two: what comes through a slow line takes a second.
    page.driver.set_network_conditions(latency=0, download_throughput=32 << 10, upload_throughput=32 << 10)
    page.send(STORY)
    page.driver.delete_network_conditions()
    lengths = page.run("return [...window.lengths]")
    check("an answer grows as it comes", len(lengths) > 3, f"{len(lengths)} lengths")
    whole = asked(page.url, {"messages": [{"role": "user", "content": STORY}], "temperature": 0, "max_tokens": 200})
    check("it is the server's", page.raw() == whole["message"]["content"] and words(page.last()) == words(page.raw()), repr(page.last()[:50]))
    check("it says why it ended and how fast it was", re.fullmatch(
        r"Cut off: the most tokens were reached\. 200 tokens, [\d.]+ a second; the first after [\d.]+ m?s\.", page.last(".note")),
        page.last(".note"))
    check("the box is empty again", page.get("message").get_attribute("value") == "")
    said = page.run("return [...document.querySelectorAll('#announcer p')].map((p) => p.textContent)")
    check("who listens hears it in a few pieces", 2 <= len(said) <= 8 and whole["message"]["content"][-20:] in said[-1], len(said))
    page.set("max-tokens", "60")


def asked(url, body, key=None):
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(), headers)
    return json.load(urllib.request.urlopen(request))["choices"][0]


def regenerating(page):
    page.get("new-chat").click()
    page.send(STORY)
    before = page.last()
    page.get("regenerate").click()
    page.until(lambda: not page.is_writing())
    check("Regenerate answers again", len(page.articles()) == 2 and page.last() == before)
    page.set("temperature", "1.5")
    page.set("seed", "5")
    page.get("regenerate").click()
    page.until(lambda: not page.is_writing())
    drawn = page.last()
    page.get("regenerate").click()
    page.until(lambda: not page.is_writing())
    check("temperature and seed are sent", drawn != before and page.last() == drawn, repr(drawn[:40]))
    page.set("temperature", "0")
    page.set("seed", "")


def reloading(page):
    page.set("system", "Lily had a dog.")
    page.send(" and then")
    texts = [article.text for article in page.articles()]
    messages = [{"role": "system", "content": "Lily had a dog."}]
    messages += [{"role": one["role"], "content": one["content"]} for one in page.kept()[:-1]]
    whole = asked(page.url, {"messages": messages, "temperature": 0, "max_tokens": 60})
    check("the system prompt and the whole conversation are sent", page.raw() == whole["message"]["content"])
    page.driver.refresh()
    page.until(lambda: page.get("model").get_attribute("value") == "small")
    check("conversation and settings survive a reload", [article.text for article in page.articles()] == texts
          and page.get("system").get_attribute("value") == "Lily had a dog." and page.get("max-tokens").get_attribute("value") == "60")
    page.get("new-chat").click()
    check("New chat clears", not page.articles() and page.get("empty").is_displayed() and not page.get("regenerate").is_displayed())
    page.driver.refresh()
    check("and stays cleared", not page.articles())
    page.set("system", "")


def schemas(page):
    page.set("schema", "{\"type\": ")
    check("a schema that is no JSON is told so", "not JSON" in page.get("schema-wrong").text
          and page.get("schema").get_attribute("aria-invalid") == "true")
    page.send(STORY, waits=False)
    check("and nothing is sent", not page.articles() and "JSON schema" in page.notice()
          and page.run("return document.activeElement.id") == "schema" and page.get("message").get_attribute("value") == STORY)
    page.set("schema", "[1]")
    check("a list is no schema", "object" in page.get("schema-wrong").text)
    page.get("message").clear()
    page.set("schema", json.dumps({"type": "object", "properties": {"name": {"enum": ["Lily", "Tom"]}, "age": {"type": "integer"}},
                                   "required": ["name", "age"], "additionalProperties": False}))
    page.send(STORY)
    answer = json.loads(page.raw())
    check("an answer in JSON is shown as it is", json.loads(page.last(".text code")) == answer)
    check("an answer keeps to a schema", answer["name"] in ("Lily", "Tom") and isinstance(answer["age"], int), page.last())
    page.set("schema", json.dumps({"$ref": "#/colour"}))
    page.send(STORY)
    check("what the server passes over is said", "colour" in page.last(".note"), page.last(".note"))
    page.set("schema", "")
    page.get("new-chat").click()
    page.set("tools", json.dumps([{"type": "function", "function": {"name": "no name"}}]))
    page.send(STORY)
    check("what the server refuses is said", "at most 128 letters" in page.last(".note") and page.get("regenerate").text == "Try again",
          page.last(".note"))
    page.set("tools", "")
    page.get("regenerate").click()
    page.until(lambda: not page.is_writing())
    check("and can be tried again", len(page.articles()) == 2 and page.raw(), page.last(".note"))
    page.get("new-chat").click()
    page.set("tools", json.dumps([{"type": "function", "function": {"name": "no name"}}]))
    page.send("A turn that fails")
    page.set("tools", "")
    page.send(STORY)
    check("a turn that failed leaves the conversation", [one["content"] for one in page.kept()][0] == STORY and len(page.articles()) == 2)
    page.set("schema", "")
    for field, value in (("temperature", "-1"), ("temperature", "101"), ("top-p", "1.5"), ("max-tokens", "0"),
                         ("max-tokens", "1.5"), ("seed", "-1")):
        page.set(field, value)
        said = page.get(field + "-wrong").text
        page.set(field, "")
        check(f"{field} {value} is told so", said.startswith("Give a") and not page.get(field + "-wrong").text, said)
    page.set("max-tokens", "60")
    page.set("temperature", "0")
    page.get("new-chat").click()


def harmless(page):
    """Text of a model, a user, a tool or the server never becomes markup."""
    page.set("schema", json.dumps({"type": "object", "properties": {"a": {"const": EVIL}}, "required": ["a"], "additionalProperties": False}))
    page.set("max-tokens", "300")
    page.send(EVIL)
    check("markup in an answer is text", json.loads(page.raw())["a"] == json.loads(page.last(".text code"))["a"] == EVIL
          and not page.run("return window.hacked"), page.last()[:60])
    page.set("schema", json.dumps({"$ref": "#/" + EVIL}))
    page.send(EVIL)
    check("and in a warning", "onerror" in page.last(".note"), page.last(".note"))
    page.set("schema", "")
    page.run("""window.real = window.fetch; const message = arguments[0];
        window.fetch = (url, ...rest) => String(url).includes("chat") ? Promise.resolve(new Response(
            JSON.stringify({error: {message}}), {status: 400})) : window.real(url, ...rest);""", EVIL)
    page.send(EVIL)
    check("and in a refusal", page.last(".note") == EVIL, page.last(".note"))
    page.run("window.fetch = window.real")
    page.driver.refresh()
    page.until(lambda: len(page.articles()) == 6)
    found = page.run("return [window.hacked ?? 0, document.querySelectorAll('#log img, #log script').length, document.scripts.length]")
    check("and after a reload", found == [0, 0, 1], found)
    blocked = page.run("try { document.body.innerHTML = '<b></b>'; return ''; } catch (error) { return error.name; }")
    check("the policy leaves no way to make markup of text", blocked == "TypeError", blocked)
    fetched = page.run("const done = fetch('https://example.org/').then(() => 'went', (error) => error.name); return done;")
    check("nor to another host", fetched == "TypeError")
    page.set("schema", "")
    page.set("max-tokens", "60")
    page.get("new-chat").click()
    page.problems()


def tools_and_thoughts(page):
    page.set("tools", "{}")
    check("tools that are no list are told so", "list" in page.get("tools-wrong").text)
    page.set("tools", json.dumps([TOOL]))
    page.set("tool-choice", "required")
    page.send(STORY)
    check("a call is shown, folded", page.last("summary") == "Call of weather" and json.loads(page.last(".folded pre")) == {"place": "Oslo"}
          and not page.articles()[-1].find_element(By.CSS_SELECTOR, ".folded pre").is_displayed(), page.last(".folded pre"))
    page.articles()[-1].find_element(By.TAG_NAME, "summary").send_keys(Keys.ENTER)
    check("a key unfolds it", page.articles()[-1].find_element(By.CSS_SELECTOR, ".folded pre").is_displayed())
    page.set("tool-choice", "none")
    page.send(" and then")
    check("a conversation goes on after a call", page.last() and not page.last("summary"), page.last(".note"))
    page.set("tools", "")
    page.get("new-chat").click()
    page.send(STORY + " <think>")
    check("thoughts are shown apart", page.last("summary") == "Thoughts" and len(page.last(".folded pre")) > 20 and not page.last())
    page.driver.refresh()
    page.until(lambda: len(page.articles()) == 2)
    check("and are kept", len(page.last(".folded pre")) > 20)
    page.get("new-chat").click()


def pictures_refused(page):
    def give(kind, name, file_type, text=""):
        return page.run("""const [kind, name, type, text] = arguments;
            const data = new DataTransfer();
            data.items.add(new File(["x"], name, {type}));
            if (text) data.setData("text/plain", text);
            const event = kind === "paste" ? new ClipboardEvent("paste", {clipboardData: data, bubbles: true, cancelable: true})
                                           : new DragEvent(kind, {dataTransfer: data, bubbles: true, cancelable: true});
            document.getElementById("message").dispatchEvent(event);
            return event.defaultPrevented;""", kind, name, file_type, text)
    for kind in ("paste", "drop"):
        page.run("document.getElementById('notice').textContent = ''")
        taken = give(kind, "a.png", "image/png")
        check(f"a picture is refused politely: {kind}", taken and "picture was left out" in page.notice(), page.notice())
    check("a file too", give("drop", "a.txt", "text/plain") and "paste its text" in page.notice())
    check("text that comes with its picture goes in", not give("paste", "a.png", "image/png", "words"))
    check("nothing was sent", not page.articles())


def stopping(driver):
    """A server so slow that one can stop it."""
    with slow_server() as url:
        page = Page(driver, url)
        page.run("localStorage.clear()")
        page.driver.refresh()
        for how in ("Esc", "button", "new chat"):
            page.set("max-tokens", "400")
            page.send(STORY, waits=False)
            page.until(lambda: page.last() and len(page.last()) > 5)
            check("one answer at a time", not page.get("send").is_enabled())
            page.message().send_keys("more", Keys.ENTER)
            kept = page.get("message").get_attribute("value")
            check("and a message waits", len(page.articles()) == 2 and kept == "more", page.notice())
            page.get("message").clear()
            if how == "Esc":
                page.get("message").send_keys(Keys.ESCAPE)
            elif how == "button":
                page.get("stop").send_keys(Keys.ENTER)
            else:
                page.get("new-chat").click()
            page.until(lambda: not page.is_writing())
            page.until(lambda: metric(url, "vllm:num_requests_running") + metric(url, "vllm:num_requests_waiting") == 0)
            check(f"stopped by {how}: the server works on nothing", metric(url, "sluice:kv_pages_used") == 0)
            if how == "new chat":
                check("and nothing comes late", not page.articles())
            else:
                check("what there is stays", page.last() and page.last(".note") == "Stopped."
                      and page.get("regenerate").text == "Regenerate")
                check("and one types on", page.run("return document.activeElement.id") == "message")
                page.get("new-chat").click()
        page.send(STORY, waits=False)
        page.until(lambda: page.last() and len(page.last()) > 5)
        page.driver.refresh()
        page.until(lambda: len(page.articles()) == 2)
        note = page.last(".note")
        check("a reload in the middle keeps what there was", len(page.last()) > 5 and "page was left" in note, note)
        page.get("regenerate").click()
        page.until(lambda: page.last() and len(page.last()) > 5)
        driver.get(url + "/version")
        driver.back()
        page.until(lambda: not page.is_writing() and page.last(".note"))
        note = page.last(".note")
        check("and so does going away and back", len(page.last()) > 5 and "page was left" in note
              and page.get("send").is_enabled(), note)
        figures(page, url)
        yield page


def two_tabs(page):
    """Side by side on one server: each has its own conversation, none undoes the other's settings."""
    driver, first = page.driver, page.driver.current_window_handle
    page.get("new-chat").click()
    page.send(STORY)
    begun = page.last()
    driver.switch_to.new_window("tab")
    other = Page(driver, page.url)
    other.until(lambda: other.get("model").get_attribute("value") == "small")
    check("another tab begins with what was said last", len(other.articles()) == 2 and other.last() == begun)
    second = driver.current_window_handle
    other.set("max-tokens", "300")
    other.set("top-p", "0.9")
    other.send(" and then", waits=False)
    driver.switch_to.window(first)
    page.set("seed", "7")
    page.send(" but", waits=False)
    talks = {}
    for tab in (first, second):
        driver.switch_to.window(tab)
        page.until(lambda: not page.is_writing() and len(page.articles()) == 4)
        talks[tab] = [article.text for article in page.articles()]
    check("both are answered", talks[first][2] != talks[second][2] and all(len(one[3]) > 20 for one in talks.values()),
          [one[3][:40] for one in talks.values()])
    for tab in (first, second):
        driver.switch_to.window(tab)
        driver.refresh()
        page.until(lambda: page.get("model").get_attribute("value") == "small")
        kept = [page.get(field).get_attribute("value") for field in ("max-tokens", "top-p", "seed")]
        check("each keeps its own conversation, both the settings", [one.text for one in page.articles()] == talks[tab]
              and kept == ["300", "0.9", "7"], kept)
    driver.switch_to.window(second)
    other.get("new-chat").click()
    driver.close()
    driver.switch_to.window(first)
    driver.refresh()
    check("New chat clears in its own tab alone", [one.text for one in page.articles()] == talks[first])
    for field, value in (("max-tokens", "60"), ("top-p", ""), ("seed", "")):
        page.set(field, value)
    page.get("new-chat").click()


def no_template(driver):
    """A model that has no chat template can't chat: the page says what the server says."""
    with served(MODEL, "-c", "256", "--served-model-name", "small") as url:
        page = Page(driver, url)
        page.run("sessionStorage.clear(); localStorage.clear()")
        driver.refresh()
        page.until(lambda: page.get("state").text == "Idle.")
        page.send(STORY)
        check("a model without a chat template is said to have none", "no chat template" in page.last(".note"), page.last(".note"))
        page.problems()


def mixture(driver, folder):
    """A mixture of experts that does not fit in its memory: random weights, the small model's tokenizer."""
    shape = pathlib.Path(folder) / "mixture.json"
    shape.write_text(json.dumps(MIXTURE))
    model = pathlib.Path(folder) / "mixture"
    subprocess.run([SLUICE, "synth", str(shape), str(model), "-t", "1"], check=True, stderr=subprocess.DEVNULL)
    for name in ("tokenizer.json", "tokenizer.model", "tokenizer_config.json"):
        shutil.copy(pathlib.Path(MODEL) / name, model / name)
    with served(str(model), "-c", "512", "-t", "1", "--cpu-mem", "32MiB", "--max-num-seqs", "2", "--kv-tokens", "512",
                *chat_flags(folder)) as url:
        page = Page(driver, url)
        page.until(lambda: page.get("state").text == "Idle.")
        check("no experts, no figure of them", not page.get("expert-row").is_displayed())
        page.set("max-tokens", "100")
        page.send(STORY)
        page.until(lambda: page.get("expert-row").is_displayed() and page.get("state").text == "Idle.")
        found = metric(url, "sluice:experts_found_total") / metric(url, "sluice:experts_asked_total")
        check("hits of experts", page.get("experts").text == f"{round(100 * found)} %", page.get("experts").text)
        check("the disk's lane is there", "disk read" in page.get("lanes").text, page.get("lanes").text.replace("\n", " "))
        page.run("""window.real = window.fetch;
            window.fetch = (where, {signal}) => new Promise((_, fail) => signal?.addEventListener("abort", () => fail(signal.reason)));""")
        page.until(lambda: "cannot be reached" in page.get("state").text)
        check("a server that says nothing is not shown as idle", True, page.get("state").text)
        page.run("window.fetch = window.real")
        page.until(lambda: page.get("state").text == "Idle.")


def broken_engine(driver, folder):
    """A file of weights is cut off while it is read from: the engine stops, then the server, and the page says so."""
    store = pathlib.Path(folder) / "store"
    subprocess.run([SLUICE, "convert", MODEL, str(store)], check=True, stderr=subprocess.DEVNULL)
    with served(str(store), "-c", "256", "-t", "1", "--cpu-mem", "1000KiB", "--max-num-seqs", "1", *chat_flags(folder)) as url:
        page = Page(driver, url)
        page.set("max-tokens", "20")
        page.send(STORY)
        check("weights that come from the disk answer", len(page.last()) > 5, page.last())
        for weights in store.glob("layer-*"):
            os.truncate(weights, 4096)
        page.send(" and then")
        check("an answer that the engine breaks off says so", "the engine has stopped" in page.last(".note"), page.last(".note"))
        page.until(lambda: "cannot be reached" in page.get("state").text)
        check("and the server ends, which is not shown as idle", True, page.get("state").text)
        page.get("regenerate").click()
        page.until(lambda: not page.is_writing())
        check("also to whom asks later", "cannot be reached" in page.last(".note") and page.get("regenerate").text == "Try again",
              page.last(".note"))
        page.problems()


def metric(url, name):
    text = urllib.request.urlopen(url + "/metrics").read().decode()
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name + "{"))


@contextlib.contextmanager
def slow_server():
    """An emulated device with a slow link and slow products; weights on all three tiers, a mixture's experts among them."""
    with tempfile.TemporaryDirectory() as folder:
        with served(MODEL, "-c", "512", "-t", "1", "--device", "emulated:mem=64MiB,h2d=30MB/s,flops=15000000",
                    "--cpu-mem", "256MiB", "--percent", "30", "40", "100", "0", "100", "0", "--gpu-batch-size", "4", *chat_flags(folder)) as url:
            yield url


def figures(page, url):
    page.get("new-chat").click()
    page.set("max-tokens", "300")
    page.send(STORY, waits=False)
    page.until(lambda: page.get("running").text == "1" and page.get("generated").text not in ("–", "0 tokens/s"))
    time.sleep(3)
    rate, lanes = page.get("generated").text, page.get("lanes").text
    shares = [int(share) for share in re.findall(r"(\d+) %", lanes)]
    check("the figures are live: tokens", 1 < float(rate.split()[0]) < 1000, rate)
    check("lanes", len(shares) >= 2 and max(shares) > 50, lanes.replace("\n", " "))
    used, of = page.get("pages").text.split(" of ")
    check("KV pages", 0 < int(used) <= int(of) == metric(url, "sluice:kv_pages"), page.get("pages").text)
    check("the queue", page.get("waiting").text == "0" and "1 of 1" in page.get("state").text, page.get("state").text)


def idle(page):
    page.get("stop").click()
    page.until(lambda: page.get("generated").text == "0 tokens/s" and page.get("state").text == "Idle.")
    shares = set(re.findall(r"(\d+) %", page.get("lanes").text))
    check("and fall to nothing", shares == {"0"} and page.get("pages").text.startswith("0 of"))
    page.get("new-chat").click()


def keys(driver, folder):
    with served(MODEL, "-c", "256", "--api-key", "secret", *chat_flags(folder)) as url:
        page = Page(driver, url)
        page.until(lambda: page.get("key-dialog").is_displayed())
        check("a server with a key asks for it", "API key" in page.get("key-words").text
              and page.run("return document.activeElement.id") == "key")
        for wrong, words in (("wrong", "not the server's"), ("", "Give a key"), ("Schlüssel\u2026", "not the server's")):
            page.get("key").clear()
            page.get("key").send_keys(wrong, Keys.ENTER)
            page.until(lambda: words in page.get("key-wrong").text)
        check("wrong keys are told so", page.get("key-dialog").is_displayed(), page.get("key-wrong").text)
        page.get("key").send_keys(Keys.ESCAPE)
        page.until(lambda: not page.get("key-dialog").is_displayed())
        page.send(STORY, waits=False)
        page.until(lambda: page.get("key-dialog").is_displayed())
        check("a message without a key asks again", "API key is missing or wrong" in page.last(".note"), page.last(".note"))
        page.get("key").clear()
        page.get("key").send_keys("secret", Keys.ENTER)
        page.until(lambda: not page.get("key-dialog").is_displayed())
        page.set("max-tokens", "20")
        page.get("regenerate").click()
        page.until(lambda: not page.is_writing() and page.last())
        check("with the key it answers", len(page.last()) > 10 and page.get("model").get_attribute("value") == "small")
        page.until(lambda: page.get("running").text == "0")
        page.driver.refresh()
        page.until(lambda: page.get("model").get_attribute("value") == "small")
        kept = page.run("return [JSON.stringify(localStorage), location.href, document.cookie, JSON.stringify(sessionStorage)]")
        check("the key stays in the tab alone", "secret" in kept[3] and not any("secret" in one for one in kept[:3]))
        page.driver.switch_to.new_window("tab")
        other = Page(page.driver, url)
        other.until(lambda: other.get("key-dialog").is_displayed())
        check("another tab asks for itself", True)
        page.driver.close()
        page.driver.switch_to.window(page.driver.window_handles[0])
    page.send(STORY, waits=False)
    page.until(lambda: not page.is_writing())
    check("a server that is gone is said to be", "cannot be reached" in page.last(".note"), page.last(".note"))
    page.until(lambda: "cannot be reached" in page.get("state").text)
    page.problems()


def axe(page, what):
    found = importlib.util.find_spec("axe_playwright_python")
    if not found:
        print("     axe is not here: pip install axe-playwright-python")
        return
    rules = (pathlib.Path(found.origin).parent / "axe.min.js").read_text()
    page.run(rules)
    report = page.driver.execute_async_script("axe.run(document).then(arguments[0], (error) => arguments[0]({error: String(error)}))")
    problems = report.get("violations", [report.get("error")])
    check(f"axe finds no fault: {what}", not problems, "".join(
        f"\n     {one['id']}: {one['help']}: {[node['html'][:100] for node in one['nodes']]}" if isinstance(one, dict) else str(one)
        for one in problems) or f"{len(report['passes'])} rules hold")


def accessible(page):
    page.driver.execute_cdp_cmd("Page.setBypassCSP", {"enabled": True})  # axe makes markup of its own
    page.driver.refresh()
    page.until(lambda: page.get("model").get_attribute("value") == "small")
    order = []
    for _ in range(11):
        page.type(Keys.TAB)
        order.append(page.run("return document.activeElement.id || document.activeElement.className || document.activeElement.tagName"))
    check("Tab goes through the page in its order", order[5:10] == ["skip", "model", "new-chat", "log", "message"], order)
    page_talks.scripted(page, page_talks.RICH, 200)
    page.send(STORY + " <think>")
    page.set("schema", "[")
    page.run("document.getElementById('talks').open = true")
    for scheme in ("light", "dark"):
        for size, name in ((WIDE, "wide"), (NARROW, "narrow")):
            page.emulate(prefers_color_scheme=scheme, prefers_reduced_motion="reduce")
            page.resize(size)
            axe(page, f"{scheme}, {name}")
            sideways = page.run("return document.documentElement.scrollWidth - document.documentElement.clientWidth")
            check("nothing is wider than the screen", sideways <= 0, f"{sideways} px")
            small = page.run("return [...document.querySelectorAll('button, input, select')]"
                             ".filter((e) => e.offsetParent && e.offsetHeight < 24).length")
            check("buttons and fields are large enough", small == 0)
    still = page.run("const a = document.querySelector('article.assistant'); a.classList.add('writing');"
                     "return getComputedStyle(a.querySelector('.text > :last-child'), '::after').animationName")
    check("nothing blinks where motion is to be less", still == "none", still)
    page.get("key-button").send_keys(Keys.ENTER)
    axe(page, "the key's dialog")
    page.get("key").send_keys(Keys.ESCAPE)
    page.set("schema", "")
    page.resize(WIDE)
    page.emulate(prefers_color_scheme="light", prefers_reduced_motion="no-preference")
    page.driver.execute_cdp_cmd("Page.setBypassCSP", {"enabled": False})
    page.get("new-chat").click()


def counted(page):
    """What the script makes of /metrics, apart: names, labels, rates over short and long passes."""
    code = (ROOT / "src/serve/page/figures.js").read_text()
    told = page.run(code + r"""
        const metrics = parseMetrics('# HELP a b\na{m="x \\"y\\" \\\\",lane="disk read"} 1.5\na{lane="b"} 2e3\nbare 7\nbad line\n');
        const look = (time, passes, seconds, tokens, running, busy) => ({time, passes, passSeconds: seconds, generated: tokens, running,
            lanes: new Map([["disk", {busy, bytes: 100 * busy}]])});
        const rates = new Rates();
        const told = [];
        const add = (...of) => {
          rates.add(look(...of));
          told.push([rates.late().of("generated"), rates.late().lane("disk").share]);
        };
        add(0, 0, 0, 0, 0, 0);
        add(1000, 10, 1, 100, 1, 0.5);     // ten passes in the second: 100 tokens
        add(2000, 10, 1, 100, 1, 0.5);     // a long pass has begun: what was, stays
        add(60000, 11, 59, 102, 1, 58.5);  // and took 58 s for two tokens, the disk busy all the time
        add(61000, 11, 59, 102, 0, 58.5);
        add(63000, 11, 59, 102, 0, 58.5);  // nothing happens any more
        add(64000, 1, 1, 5, 1, 1);         // another server at the address
        add(65000, 2, 2, 15, 1, 3);        // a lane that reads ahead is busy for more than its pass
        return {metrics: [...metrics], told, words: [
            ...[0, 0.044, 7, 99.4, 99.6, 12345].map(shortNumber), shortBytes(999), shortBytes(1e9), shortSeconds(0.0123), shortSeconds(58), percent(0.995)]};""")
    check("metrics are read", told["metrics"] == [
        ["a", [{"labels": {"m": "x \"y\" \\", "lane": "disk read"}, "value": 1.5}, {"labels": {"lane": "b"}, "value": 2000}]],
        ["bare", [{"labels": {}, "value": 7}]]], told["metrics"])
    wanted = [(0, 0), (100, .5), (100, .5), (2 / 58, 1), (2 / 58, 1), (0, 0), (0, 0), (10, 1)]
    check("rates are those of the passes", all(
        abs(a - b) < 1e-9 for one, want in zip(told["told"], wanted) for a, b in zip(one, want)), told["told"])
    words = ["0", "0.044", "7", "99", "100", "12345", "999 B", "954 MiB", "12 ms", "58 s", "100 %"]
    check("numbers are short", told["words"] == words, told["words"])


def sent(page):
    """What messages.js makes of a conversation for the server: only what is whole, users and answers in turn."""
    code = "".join((ROOT / "src/serve/page" / name).read_text() for name in ("storage.js", "messages.js"))
    told = page.run(code + r"""
        const user = (content) => ({...emptyAnswer(), role: "user", content});
        const call = (id, text) => ({id, name: "weather", arguments: text});
        return asSent([user("a"), {...emptyAnswer(), note: "Stopped."}, user("b"),
            {...emptyAnswer(), calls: [call("1", '{"place": "Oslo"}'), call("2", '{"place": "Os')]}, user("c"),
            {...emptyAnswer(), calls: [call("3", "")]}, user("d")], "s");""")
    whole = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": "{\"place\": \"Oslo\"}"}}
    check("only what is whole is sent", told == [
        {"role": "system", "content": "s"}, {"role": "user", "content": "a\n\nb"},
        {"role": "assistant", "content": "", "tool_calls": [whole]}, {"role": "user", "content": "c\n\nd"}], told)


def picture(page, folder, name):
    path = pathlib.Path(folder) / f"{name}.png"
    data = page.driver.get_screenshot_as_png()
    with contextlib.suppress(ImportError):
        from PIL import Image
        out = io.BytesIO()
        Image.open(io.BytesIO(data)).convert("RGB").quantize(16, dither=Image.Dither.NONE).save(out, "PNG", optimize=True)
        data = out.getvalue()
    path.write_bytes(data)
    print(f"     {path}: {len(data)} bytes")


def pictures(page, folder):
    page.set("system", "You tell stories for children.")
    page.run("document.getElementById('talks').open = false; document.getElementById('settings').open = true")
    page.resize((1120, 760))
    for scheme in ("light", "dark"):
        page.emulate(prefers_color_scheme=scheme)
        picture(page, folder, f"page-{scheme}")
    page.resize(NARROW)
    picture(page, folder, "page-narrow")
    page.resize(WIDE)
    page.set("system", "")
    page.emulate(prefers_color_scheme="light")


def chat_flags(folder):
    template = pathlib.Path(folder) / "chat.jinja"
    template.write_text(TEMPLATE)
    return ["--chat-template", str(template), "--tool-call-parser", "hermes", "--served-model-name", "small"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--pictures", help="write the pictures of docs/ here")
    arguments = parser.parse_args()
    driver = browser()
    try:
        with tempfile.TemporaryDirectory() as folder:
            with served(MODEL, "-c", "512", *chat_flags(folder)) as url:
                page = Page(driver, url)
                page.until(lambda: page.get("model").get_attribute("value") == "small")
                for look in (first_answer, regenerating, reloading, schemas, harmless, *page_talks.CHECKS, tools_and_thoughts, pictures_refused,
                             two_tabs, counted, sent, accessible):
                    look(page)
                check("the browser complained of nothing", page.problems() == [])
            keys(driver, folder)
            no_template(driver)
            mixture(driver, folder)
            broken_engine(driver, folder)
            for page in stopping(driver):
                if arguments.pictures:
                    pictures(page, arguments.pictures)
                idle(page)
    finally:
        driver.quit()


if __name__ == "__main__":
    main()
