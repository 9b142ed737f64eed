"""scripts/doc_figures.py on a page written here, with answers written here."""
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
import doc_figures  # noqa: E402

ANSWER = {"predicted": {"tokens_per_s": 77.4, "job_s": 147.2}, "share": 0.98, "name": "x",
          "lifts": [{"twice": "the link's speed", "factor": 1.33}, {"twice": "the host memory", "factor": 2.0}],
          "fits": [{"model": "m", "weights": "int4", "rate": 5}, {"model": "m", "weights": "int8", "rate": 3}]}


def page(*lines):
    return "<!-- figures: plan m --sequences 64\n" + "\n".join(lines) + "\n-->\nIt has 77 tokens/s, 2m27s, 98 %, 1.33x, 5 and 3.\n"


def wrong(text, answer=ANSWER):
    return doc_figures.stale_figures(text, lambda words: answer)


class Figures(unittest.TestCase):
    def test_numbers_as_pages_write_them(self):
        for text, value in (("77", 77), ("77 tokens/s", 77), ("1.33x", 1.33), ("98 %", 0.98), ("2m27s", 147), ("1h11m", 4260),
                            ("8s", 8), ("12,885", 12885), ("0.0326", 0.0326), ("many", None), ("", None)):
            self.assertEqual(doc_figures.value_of(text), value, text)

    def test_what_the_program_gives_is_good(self):
        found, seen = wrong(page("predicted.tokens_per_s: 77", "predicted.job_s: 2m27s", "share: 98 %",
                                 "lifts[the link's speed].factor: 1.33x", "fits[m, int8].rate: 3", "fits[0].rate: 5"))
        self.assertEqual((found, seen), ([], 6))

    def test_a_figure_that_moved_is_told(self):
        moved = {**ANSWER, "predicted": {"tokens_per_s": 80, "job_s": 147}}
        [one], _ = wrong(page("predicted.tokens_per_s: 77"), moved)
        self.assertIn("is 80 now, the page says 77", one)
        near = {**ANSWER, "predicted": {"tokens_per_s": 78, "job_s": 147}}
        self.assertEqual(wrong(page("predicted.tokens_per_s: 77"), near)[0], [])

    def test_a_figure_has_to_be_in_the_text(self):
        [one], _ = wrong(page("lifts[the host memory].factor: 2.0x"))
        self.assertIn("is not in the page's text", one)
        [one], _ = wrong(page("fits[m, int4].rate: 7"))  # a part of 77 alone
        self.assertIn("is not in the page's text", one)

    def test_paths_that_lead_nowhere(self):
        for path in ("predicted.rate", "lifts[the disk].factor", "fits[m].rate", "fits[9].rate", "name.of"):
            found, _ = wrong(page(f"{path}: 77"))
            self.assertEqual(len(found), 1, path)
            self.assertIn("leads nowhere", found[0])
        found, _ = wrong(page("name: 77"))
        self.assertIn("both have to be numbers", found[0])
        found, _ = wrong(page("name"))
        self.assertIn("has no figure", found[0])

    def test_a_command_that_fails_is_told(self):
        def fails(words):
            raise ValueError(f"no model {words[1]}")
        found, _ = doc_figures.stale_figures(page("share: 98 %"), fails)
        self.assertEqual(found, ["plan m --sequences 64: no model m"])

    def test_long_commands_go_on(self):
        [(words, pairs)] = doc_figures.claims_of("<!-- figures: plan a \\\n   --weights int4\n  share: 98 %\n-->")
        self.assertEqual((words, pairs), (["plan", "a", "--weights", "int4"], [("share", "98 %")]))


if __name__ == "__main__":
    unittest.main()
