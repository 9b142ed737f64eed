"""scripts/check_docs.py on pages written here; that the tree's own pages are right is scripts/check.sh's to say."""
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
import check_docs  # noqa: E402


class Program:
    commands = {"run", "plan", "synth", "bench", "bench-serve"}
    models = {"opt-30b"}
    machines = {"t4"}

    def flags_of(self, command):
        return {"run": {"-p", "--cpu-mem"}, "bench-serve": {"--url"}}.get(command, {"--hardware", "--json"})


def found(line):
    return [what for command, words in check_docs.command_words(line, Program())
            for what in check_docs.bad_words(command, words, Program())]


class Commands(unittest.TestCase):
    def test_what_the_program_has_is_good(self):
        for line in ("sluice run MODEL -p 'a --b' --cpu-mem 4GiB", "build/release/bin/sluice bench serve --url URL",
                     "nice sluice plan opt-30b --hardware t4 | grep --color x", "sluice run M -p x   # --not-a-flag",
                     "mpirun -n 1 sluice run M -p a : -n 3 sluice run M -p b", "sluice plan --hardware FILE"):
            self.assertEqual(found(line), [], line)

    def test_what_it_has_not_is_named(self):
        self.assertEqual(found("sluice run MODEL --gpu-memry 4GiB"), ["sluice run has no --gpu-memry"])
        self.assertEqual(found("sluice bench serve --users 4"), ["sluice bench-serve has no --users"])
        self.assertEqual(found("sluice serv MODEL"), ["sluice has no command serv"])
        self.assertEqual(found("sluice plan opt-31b --hardware t5"), ["no machine is called t5", "no model is called opt-31b"])
        self.assertEqual(found("sluice run M -p x | sluice bench --no"), ["sluice bench has no --no"])


class Pages(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        (self.root / "docs").mkdir()
        for name, text in {"README.md": "[a](docs/plan.md#two-words)\n", "ARCHITECTURE.md": "\n", "docs/plan.md": "## Two words\n"}.items():
            (self.root / name).write_text(text)
        patch = mock.patch.object(check_docs, "ROOT", self.root)
        patch.start()
        self.addCleanup(patch.stop)

    def test_links(self):
        (self.root / "README.md").write_text("[a](docs/plan.md#two-words) [up](ARCHITECTURE.md) [web](https://example.org/x)\n")
        self.assertEqual(check_docs.links(), [])
        (self.root / "docs/plan.md").write_text("[b](b.md)\n\n    [not a link](c.md)\n\n[up](../README.md#none)\n")
        self.assertEqual(check_docs.links(), ["README.md:1: docs/plan.md#two-words: that page has no such heading",
                                              "docs/plan.md:1: b.md is not there",
                                              "docs/plan.md:5: ../README.md#none: that page has no such heading"])

    def test_pages_that_nothing_leads_to(self):
        self.assertEqual(check_docs.links(), ["ARCHITECTURE.md: no link leads here from README.md"])

    def test_long_lines(self):
        (self.root / "README.md").write_text("x" * 120 + "\n| " + "x" * 300 + " |\n" + "ä" * 121 + "\n")
        self.assertEqual(check_docs.long_lines(), ["README.md:3: 121 characters, more than 120"])

    def test_files_that_are_named(self):
        (self.root / "src").mkdir()
        (self.root / "src/team.h").write_text("")
        (self.root / "README.md").write_text("`src/team.h`, `src/team`, `src`, `src/crew.h`, `tests/fuzz/fuzz_X.cc`\n")
        self.assertEqual(check_docs.named_files(), ["README.md:1: src/crew.h is not there"])

    def test_messages_are_what_a_source_says(self):
        (self.root / "src").mkdir()
        (self.root / "src/a.cc").write_text('throw Error(fmt::format("{} budget {} is "\n    "short: {}", a), "raise \\"it\\"");\n')
        page = self.root / "docs/troubleshooting.md"
        page.write_text('**`… budget … is\nshort: …`** and **`raise "it"`**\n')
        self.assertEqual(check_docs.messages(), [])
        page.write_text("\n**`… budget … was short: …`**, **`…`**\n")
        self.assertEqual(check_docs.messages(), ['docs/troubleshooting.md:2: no source says "was short:"',
                                                 "docs/troubleshooting.md:2: a message of placeholders alone"])
        page.write_text("nothing\n")
        self.assertEqual(check_docs.messages(), ["docs/troubleshooting.md: no message found"])

    def test_commands_go_on_behind_a_backslash_and_in_the_text(self):
        (self.root / "README.md").write_text("See `sluice run\nMODEL -p`:\n\n    sluice run M \\\n      -p x\n\nor `run --cpu-mem 1`.\n")
        self.assertEqual([(number, line.strip()) for number, line in check_docs.logical_lines(self.root / "README.md")],
                         [(4, "sluice run M -p x"), (1, "sluice run MODEL -p"), (7, "run --cpu-mem 1")])


if __name__ == "__main__":
    unittest.main()
