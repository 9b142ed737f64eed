"""Figures in pages that a plan gives, held against the program: scripts/check_docs.py --figures runs this.

A page says which of its figures a command gives in a comment that readers do not see:

    <!-- figures: plan llama-3.1-70b --hardware rtx-4090 --weights int4 --sequences 64
         predicted.tokens_per_s: 77
         predicted.job_s: 2m27s
         lifts[the link's speed].factor: 1.33x
    -->

The command is asked with --json. A path leads into its answer: names, and for a list in brackets any text that the wanted element has
as a value, or its number. Behind the colon is the figure as the page writes it: a number with or without a unit, a share in % or a
time such as 1h11m, 2m27s or 8s. It has to stand somewhere in the page's text, and may be TOLERANCE away from the program's.
"""
import json
import pathlib
import re
import shlex
import subprocess

TOLERANCE = 0.03
COMMENT = re.compile(r"<!-- figures: (.*?)-->", re.S)
TIME = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:([\d.]+)s)?")
NUMBER = re.compile(r"-?\d[\d,]*\.?\d*(?:e-?\d+)?")


def value_of(text):
    """The number that a figure is, seconds of a time, a share of a per cent; None where it is none."""
    text = text.strip()
    time = TIME.fullmatch(text)
    if text and time and any(time.groups()):
        hours, minutes, seconds = (float(part or 0) for part in time.groups())
        return 3600 * hours + 60 * minutes + seconds
    number = NUMBER.match(text)
    if not number:
        return None
    value = float(number[0].replace(",", ""))
    return value / 100 if text[number.end():].strip().startswith("%") else value


def step_into(answer, name, wanted):
    """One step of a path: the member `name`, and of a list the element that has `wanted`."""
    if name:
        answer = answer[name]
    if wanted is None:
        return answer
    if wanted.isdigit():
        return answer[int(wanted)]
    parts = wanted.split(", ")  # an element may be known by several of its values
    found = [one for one in answer if all(part in map(str, one.values()) for part in parts)]
    if len(found) != 1:
        raise KeyError(f"{len(found)} elements have {wanted}")
    return found[0]


def look_up(answer, path):
    """What a path leads to. KeyError, IndexError or TypeError where it leads nowhere."""
    for name, wanted in re.findall(r"([^.\[\]]+)(?:\[([^\]]*)\])?\.?", path):
        answer = step_into(answer, name, wanted or None)
    return answer


def claims_of(text):
    """[(command's words, [(path, figure)])] of a page."""
    claims = []
    for comment in COMMENT.findall(text):
        first, *rest = comment.strip().split("\n")
        while first.endswith("\\"):
            first = first[:-1] + rest.pop(0)
        pairs = [tuple(part.strip() for part in line.rsplit(": ", 1)) for line in rest if line.strip()]
        claims.append((shlex.split(first), pairs))
    return claims


def ask(program, words):
    done = subprocess.run([program, *words, "--json"], capture_output=True, text=True)
    if done.returncode != 0:
        raise ValueError(f"it ends with {done.returncode}: {done.stderr.strip()[-300:]}")
    return json.loads(done.stdout)


def stale_figures(text, answer_of):
    """What is wrong with a page's figures; `answer_of` gives the answer to a command's words. And how many were looked at."""
    wrong, seen = [], 0
    visible = COMMENT.sub("", text)
    for words, pairs in claims_of(text):
        command = shlex.join(words)
        try:
            answer = answer_of(words)
        except ValueError as error:
            wrong.append(f"{command}: {error}")
            continue
        for pair in pairs:
            if len(pair) != 2:
                wrong.append(f"{command}: \"{pair[0]}\" has no figure")
                continue
            path, figure = pair
            seen += 1
            written = value_of(figure)
            try:
                given = look_up(answer, path)
            except (KeyError, IndexError, TypeError) as error:
                wrong.append(f"{command}: {path} leads nowhere: {error}")
                continue
            if written is None or isinstance(given, bool) or not isinstance(given, (int, float)):
                wrong.append(f"{command}: {path} is {given}, the page's \"{figure}\"; both have to be numbers")
            elif not re.search(rf"(?<![\d.]){re.escape(figure)}(?!\d)", visible):
                wrong.append(f"{command}: \"{figure}\" of {path} is not in the page's text")
            elif abs(written - given) > TOLERANCE * max(abs(given), 1e-12):
                wrong.append(f"{command}: {path} is {given:.4g} now, the page says {figure}")
    return wrong, seen


def check(program, paths):
    """Prints what is wrong in these pages; returns how much."""
    answers, failures, seen = {}, 0, 0

    def answer_of(words):
        key = tuple(words)
        if key not in answers:
            answers[key] = ask(program, words)
        return answers[key]

    for path in map(pathlib.Path, paths):
        wrong, of_page = stale_figures(path.read_text(), answer_of)
        seen += of_page
        failures += len(wrong)
        for line in wrong:
            print(f"{path}: {line}")
    print(f"figures: {seen} looked at by {len(answers)} commands, {failures} wrong")
    return failures
