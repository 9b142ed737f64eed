"""scripts/gpu_same.py on answers written here."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def answer(tokens, shift=0.0, pinned=3 << 30, read=1 << 30):
    """As sluice run --json says it, of [(token, its log-probability, {other: theirs})]."""
    choices = [{"id": token, "logprob": logprob + shift, "top": [{"id": token, "logprob": logprob + shift}]
                + [{"id": other, "logprob": value + shift} for other, value in others.items()]} for token, logprob, others in tokens]
    return "sluice: 1 token/s\n" + json.dumps(
        {"logprobs": choices, "stats": {"tokens_per_s": 1.0, "pinned_bytes": pinned, "pageable_bytes": 0, "peak_bytes": {"device": 1},
                                        "lanes": {"disk read": {"bytes": read}}}}, indent=2) + "\nsluice: done\n"


class Same(unittest.TestCase):
    def compare(self, cpu, gpu, *options):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in (("cpu", cpu), ("gpu", gpu)):
                pathlib.Path(folder, name).write_text(text, encoding="utf-8")
            return subprocess.run([sys.executable, ROOT / "scripts/gpu_same.py", "cpu", "gpu", *options], cwd=folder, text=True,
                                  capture_output=True, check=False)

    TOKENS = [(5, -7.0, {6: -7.5}), (9, -7.1, {3: -7.11}), (4, -6.9, {})]

    def test_equal_tokens_pass_and_the_difference_is_told(self):
        outcome = self.compare(answer(self.TOKENS), answer(self.TOKENS, 0.001))
        self.assertEqual(outcome.returncode, 0, outcome.stderr)
        self.assertIn("3 of 3 tokens equal; log-probabilities differ by 0.0010", outcome.stdout)

    def test_another_token_passes_where_both_are_as_likely(self):
        other = [self.TOKENS[0], (3, -7.1, {9: -7.105}), (8, -5.0, {})]
        outcome = self.compare(answer(self.TOKENS), answer(other))
        self.assertEqual(outcome.returncode, 0, outcome.stderr)
        self.assertIn("1 of 3 tokens equal, then 9 and 3 within 0.0050", outcome.stdout)

    def test_what_differs_fails(self):
        far = [(6, -7.0, {5: -7.5})]
        unknown = [(77, -7.0, {78: -7.5})]
        for gpu in (answer(self.TOKENS, 0.03), answer(self.TOKENS, float("nan")), answer(far), answer(unknown), answer(self.TOKENS[:2]),
                    "nothing", ""):
            self.assertEqual(self.compare(answer(self.TOKENS), gpu).returncode, 1, gpu)

    def test_three_places_are_wanted(self):
        self.assertEqual(self.compare(answer(self.TOKENS), answer(self.TOKENS), "--least-host", "2GiB").returncode, 0)
        for gpu in (answer(self.TOKENS, pinned=1 << 30), answer(self.TOKENS, read=0)):
            outcome = self.compare(answer(self.TOKENS), gpu, "--least-host", "2GiB")
            self.assertEqual(outcome.returncode, 1)
            self.assertIn("not in three places", outcome.stderr)


if __name__ == "__main__":
    unittest.main()
