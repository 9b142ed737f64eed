#!/usr/bin/env python3
"""The pages with plots, of `plan --html`, `bench --html` and `bench serve --html`, in a headless Chromium.

    scripts/setup.sh --page                  # as for scripts/check_page.py, whose browser and axe rules this uses
    scripts/check_plots.py [--pictures FOLDER]

Light and dark, wide and narrow: no fault that axe finds, nothing wider than the screen, no text of a picture on
another or outside it, nothing asked of the network. --pictures writes the pictures that docs/ shows.
"""
import argparse
import pathlib
import subprocess
import tempfile

from check_page import MODEL, Page, axe, browser, check, picture
from served import SLUICE, served

# Pairs of texts of one picture that cover each other, and texts that stand out of theirs.
CROWDED = """
const found = [];
for (const svg of document.querySelectorAll('svg')) {
  const frame = svg.getBoundingClientRect();
  const texts = [...svg.querySelectorAll('text')].map((e) => [e.textContent, e.getBoundingClientRect()]);
  texts.forEach(([name, a], i) => {
    if (a.left < frame.left - 1 || a.right > frame.right + 1 || a.top < frame.top - 1 || a.bottom > frame.bottom + 1)
      found.push(name + ' stands out');
    for (const [other, b] of texts.slice(i + 1))
      if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3)
        found.push(name + ' on ' + other);
  });
}
return found;"""


def made(folder):
    """Each page's name, its file, and words that it has to say."""
    def run(*words):
        subprocess.run([SLUICE, *words], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def page(name):
        return str(pathlib.Path(folder) / f"{name}.html")

    run("plan", "llama-3.1-70b", "--hardware", "rtx-4090", "--weights", "int4", "--cpu-mem", "64GiB", "--sequences", "1",
        "--html", page("plan"))
    yield "plan", page("plan"), ["It runs: ", "The limit is", "times as fast", "nothing here was run", "tokens/s", "TFLOP/s"]
    run("plan", "qwen3-30b-a3b", "--hardware", "laptop-8gb", "--html", page("plan-mixture"))
    yield "plan-mixture", page("plan-mixture"), ["It runs: "]
    run("plan", "opt-125m", "--hardware", "h100", "--device", "cpu", "--html", page("plan-cpu"))
    yield "plan-cpu", page("plan-cpu"), ["how fast the processor computes"]
    model = str(pathlib.Path(folder) / "model")
    run("synth", "opt-125m", model, "--layers", "4")
    run("bench", "-m", model, "--batch", "1,2,4,8,16", "--pp", "16", "--tg", "4", "--reps", "3", "--cpu-mem", "250MiB",
        "--html", page("bench"))
    yield "bench", page("bench"), ["sequences at a time", "of the disk's limit", "tokens/s"]
    with served(MODEL, "-c", "512", "--max-num-seqs", "8") as url:
        run("bench", "serve", "--url", url, "--users", "1,2,4,8,16", "--requests", "32", "--vocab", "512", "--html", page("bench-serve"))
    yield "bench-serve", page("bench-serve"), ["callers at a time", "whole answer, p99", "output tokens/s"]


def look_at(driver, name, path, words, pictures):
    driver.get(f"file://{path}")
    page = Page.__new__(Page)
    page.driver = driver
    text = page.run("return document.body.textContent")
    for word in words:
        check(f"{name} says", word in text, word)
    for scheme in ("light", "dark"):
        page.emulate(prefers_color_scheme=scheme)
        for size in ((1000, 1100), (360, 740)):
            page.resize(size)
            axe(page, f"{name}, {scheme}, {size[0]} wide")
            sideways = page.run("return document.documentElement.scrollWidth - document.documentElement.clientWidth")
            check("nothing is wider than the screen", sideways <= 0, f"{sideways} px")
            if size[0] >= 1000:
                crowded = page.run(CROWDED)
                check("texts of pictures stand apart", not crowded, crowded)
    check("nothing was asked for", page.run("return performance.getEntriesByType('resource').length") == 0)
    check("the browser complained of nothing", page.problems() == [])
    if pictures and name in ("plan", "bench", "bench-serve"):
        page.emulate(prefers_color_scheme="light")
        page.resize((1000, 1100))
        picture(page, pictures, name)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--pictures", help="write the pictures of docs/ here")
    arguments = parser.parse_args()
    driver = browser()
    try:
        with tempfile.TemporaryDirectory() as folder:
            for name, path, words in made(folder):
                look_at(driver, name, path, words, arguments.pictures)
    finally:
        driver.quit()


if __name__ == "__main__":
    main()
