#!/usr/bin/env python3
"""Holds the pages (README.md, ARCHITECTURE.md, docs/) against the tree, and their commands against the program.

    scripts/check_docs.py                     links and their headings, files that pages name and pages that files name, pages
                                              that nothing leads to, lines of more than 120 characters, messages of
                                              docs/troubleshooting.md that no source has
    scripts/check_docs.py --program SLUICE    commands, flags, models' and machines' names in pages, by the program's --help
    scripts/check_docs.py --figures SLUICE    figures of plans that pages tell, by the plans that the program makes now (some
                                              minutes of a core; scripts/doc_figures.py says how a page names its commands)
"""
import functools
import pathlib
import re
import subprocess
import sys

import doc_figures

ROOT = pathlib.Path(__file__).resolve().parent.parent
MOST_CHARACTERS = 120
LINK = re.compile(r"\]\(([^()\s]+)\)")
NAMED_FILE = re.compile(r"`((?:src|policy|io|kernels|tools|python|tests|scripts|cmake|examples|benchmarks|include)/[\w./-]*\w)")
NAMED_PAGE = re.compile(r"(?<![\w/])docs/[\w./-]+\.(?:md|tsv|svg)\b")
MESSAGES_PAGE = "docs/troubleshooting.md"
SOURCES = ["include", "src", "policy", "io", "tools"]
# Flags in pages that are other programs'; those of a line that has no sluice in it are not looked at.
FOREIGN = {"--requeue", "--dependency", "--enable-recovery", "--bind-to", "--strict", "--benchmark_filter", "--toggle-collect",
           "--mem", "--mpi", "--map-by", "--gres", "--tool"}


def pages():
    return [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").rglob("*.md"))]


def short(path):
    return str(path.relative_to(ROOT))


def slug(heading):
    """A heading's anchor, as GitHub makes it."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def prose_and_code(text):
    """[(line number, text, is code)]: code is fenced, or indented behind a line that is blank or code."""
    rows, fenced, before = [], False, ("", True)
    for number, line in enumerate(text.split("\n"), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
            rows.append((number, line, True))
            before = (line, True)
            continue
        is_code = fenced or (line.startswith("    ") and (not before[0].strip() or before[1]))
        rows.append((number, line, is_code))
        before = (line, is_code or (before[1] and not line.strip()))
    return rows


def anchors(path):
    found = set()
    for _, line, is_code in prose_and_code(path.read_text()):
        if not is_code and line.startswith("#"):
            found.add(slug(line.lstrip("#")))
    return found


def bad_links(path, leads_to):
    for number, line, is_code in prose_and_code(path.read_text()):
        if is_code:
            continue
        for target in LINK.findall(line):
            if re.match(r"[a-z]+:", target):
                continue
            file, _, anchor = target.partition("#")
            there = (path.parent / file).resolve() if file else path
            if not there.exists():
                yield f"{short(path)}:{number}: {target} is not there"
                continue
            leads_to.append(there)
            if anchor and there.suffix == ".md" and anchor not in anchors(there):
                yield f"{short(path)}:{number}: {target}: that page has no such heading"


def links():
    leads_to, failures = {}, []
    for path in pages():
        leads_to[path] = []
        failures += bad_links(path, leads_to[path])
    reached, to_do = set(), [ROOT / "README.md"]
    while to_do:
        path = to_do.pop()
        if path not in reached:
            reached.add(path)
            to_do += leads_to.get(path, [])
    failures += [f"{short(path)}: no link leads here from README.md" for path in pages() if path not in reached]
    return failures


def named_pages():
    """docs/... named anywhere in the tree has to be there."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:  # a copy without its history
        return []
    failures = []
    for name in listed.stdout.split("\0"):
        if not name or name.startswith("tests/fixtures/") or pathlib.PurePath(name).suffix in (".svg", ".tsv"):
            continue
        file = ROOT / name
        if not file.is_file():
            continue
        for number, line in enumerate(file.read_text(errors="replace").split("\n"), 1):
            failures += [f"{name}:{number}: {page} is not there" for page in NAMED_PAGE.findall(line)
                         if not (ROOT / page).exists()]
    return failures


def named_files():
    """Files and folders of the tree that the pages name; an object may stand for its .h, .cc or .cu."""
    failures = []
    for path in pages():
        for number, line in enumerate(path.read_text().split("\n"), 1):
            for name in NAMED_FILE.findall(line):
                file = ROOT / name
                if not file.exists() and not list(file.parent.glob(file.name + ".*")) and not re.search(r"\bX\b|_X\b", name):
                    failures.append(f"{short(path)}:{number}: {name} is not there")
    return failures


def long_lines():
    return [f"{short(path)}:{number}: {len(line)} characters, more than {MOST_CHARACTERS}"
            for path in pages() for number, line, _ in prose_and_code(path.read_text())
            if len(line) > MOST_CHARACTERS and not line.startswith("|")]


def source_strings():
    """All string literals of the product, adjacent ones joined, as people see them."""
    texts = []
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".cc", ".h"):
                text = re.sub(r'"\s*\n\s*"', "", path.read_text())
                texts += re.findall(r'"((?:[^"\\\n]|\\.)*)"', text)
    return "\n".join(text.replace('\\"', '"').replace("\\n", " ").replace("{{", "{").replace("}}", "}") for text in texts)


def messages():
    """Each message that the page on troubles has in bold code: its words between … have to be in a source."""
    path = ROOT / MESSAGES_PAGE
    strings, failures, text = source_strings(), [], path.read_text()
    found = list(re.finditer(r"\*\*`([^`]+)`\*\*", text))
    for match in found:
        where = f"{short(path)}:{text.count(chr(10), 0, match.start()) + 1}"
        parts = [part for part in re.split(r"\s*…\s*", " ".join(match[1].split())) if len(part) > 3]
        failures += [f"{where}: no source says \"{part}\"" for part in parts if part not in strings]
        if not parts:
            failures.append(f"{where}: a message of placeholders alone")
    return failures if found else [f"{MESSAGES_PAGE}: no message found"]


class Program:
    """What the program says of itself."""

    def __init__(self, path):
        self.path = path
        self.commands = set(re.findall(r"(?m)^  (\w[\w-]*)  ", self.said("--help").split("Subcommands:")[1]))
        self.models = set(re.findall(r"[\w.-]+", self.said("plan", "--list-models")))
        self.machines = set(re.findall(r"[\w.-]+", self.said("profile", "--list")))
        self.flags = {}

    def said(self, *words):
        return subprocess.run([self.path, *words], capture_output=True, text=True, check=True).stdout

    def flags_of(self, command):
        if command not in self.flags:
            heads = re.findall(r"(?m)^  (-[^\n]*)", self.said(command, "--help"))
            self.flags[command] = {flag for head in heads for flag in re.findall(r"(?<![\w-])--?[A-Za-z][\w-]*", head)}
        return self.flags[command]

    def any_flag(self):
        return set().union(*(self.flags_of(command) for command in self.commands))


def logical_lines(path):
    """(number, command line) of a page: lines of code with their continuations, and code within the text."""
    held, first = "", 0
    for number, line, is_code in prose_and_code(path.read_text()):
        if is_code:
            first = first if held else number
            held += line.rstrip("\\").strip() + " "
            if not line.endswith("\\"):
                yield first, held
                held = ""
    prose = "\n".join("" if is_code else line for _, line, is_code in prose_and_code(path.read_text()))
    prose = re.sub(r"\*\*`[^`]*`\*\*", lambda message: "\n" * message[0].count("\n"), prose)  # what the program says
    for span in re.finditer(r"(?<!`)`([^`]+)`(?!`)", prose):
        yield prose.count("\n", 0, span.start()) + 1, span[1].replace("\n", " ")


def command_words(line, program):
    """[(command, its words)] of each call of sluice in a line."""
    words = re.sub(r"'[^']*'|\"[^\"]*\"", "TEXT", line.split(" # ")[0]).split()
    calls = []
    for at, word in enumerate(words):
        if word in ("|", ";", "&&", ":", ":::"):
            if calls and calls[-1][2]:
                calls[-1][2] = False
        elif (word.strip("$(") == "sluice" or word.endswith("/sluice") or word == "$S") and at + 1 < len(words):
            calls.append(["", [], True])
        elif at == 0 and word in program.commands and "--" in line:
            calls.append([word, [], True])
        elif calls and calls[-1][2]:
            if not calls[-1][0]:
                calls[-1][0] = word.rstrip(";,.")
            else:
                calls[-1][1].append(word)
    return [(command, rest) for command, rest, _ in calls]


def bad_words(command, words, program):
    if words and f"{command}-{words[0]}" in program.commands:
        command, words = f"{command}-{words[0]}", words[1:]
    if command not in program.commands:
        if re.fullmatch(r"[a-z][a-z-]*", command):
            yield f"sluice has no command {command}"
        return
    known = program.flags_of(command)
    for at, word in enumerate(words):
        flag = re.match(r"\[?(--?[A-Za-z][\w-]*)", word)
        if flag and flag[1] not in known and not re.match(r"-\d", word):
            yield f"sluice {command} has no {flag[1]}"
        value = words[at + 1].strip("`;,)") if flag and at + 1 < len(words) else ""
        is_name = re.fullmatch(r"[a-z][\w-]*", value)
        if flag and flag[1] == "--hardware" and is_name and value not in program.machines | {"none", "this"}:
            yield f"no machine is called {value}"
    if command in ("plan", "synth") and words and re.fullmatch(r"[a-z][\w.]*-[\w.-]*", words[0]):
        if words[0] not in program.models and not words[0].endswith(".json"):
            yield f"no model is called {words[0]}"


def commands(program_path):
    program, failures, seen = Program(program_path), [], 0
    every_flag = program.any_flag()
    for path in pages():
        for number, line in logical_lines(path):
            calls = command_words(line, program)
            for command, words in calls:
                seen += 1
                failures += [f"{short(path)}:{number}: {what}" for what in bad_words(command, words, program)]
            flag = re.match(r"(--[a-z][\w-]*)(?=[ =]|$)", line)
            if flag and not calls and flag[1] not in every_flag | FOREIGN | script_flags():
                failures.append(f"{short(path)}:{number}: no command has {flag[1]}")
    if seen < 100:
        failures.append(f"only {seen} commands found in the pages")
    return failures, seen


@functools.cache
def script_flags():
    scripts = [*(ROOT / "scripts").rglob("*.py"), *(ROOT / "scripts").rglob("*.sh")]
    return {flag for path in scripts for flag in re.findall(r"--[a-z][\w-]*", path.read_text())}


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "--program":
        failures, seen = commands(sys.argv[2])
        good = f"docs: {seen} commands, each as the program has it"
    elif len(sys.argv) == 3 and sys.argv[1] == "--figures":
        return 1 if doc_figures.check(sys.argv[2], pages()) else 0
    elif len(sys.argv) == 1:
        failures = links() + named_pages() + named_files() + long_lines() + messages()
        good = f"docs: {len(pages())} pages, links, names and messages are there"
    else:
        sys.exit(__doc__)
    print("\n".join(failures) if failures else good)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
