"""scripts/lanes_svg.py on traces written here, and on one that the program writes (SLUICE: its path)."""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import lanes_svg  # noqa: E402


def trace(reads, computes):
    """A trace of one disk lane of [(begin, end, name)] and one compute lane of [(begin, end, name, pass)]."""
    events = [{"ph": "M", "pid": 1, "tid": lane, "name": "thread_name", "args": {"name": name}}
              for lane, name in ((0, "disk read"), (2, "host to device"), (4, "device compute"))]
    for number, (begin, end, name) in enumerate(reads):
        events.append({"ph": "b", "id": number, "tid": 0, "name": name, "ts": begin, "args": {"pass": 0, "bytes": 4096}})
        events.append({"ph": "e", "id": number, "tid": 0, "name": name, "ts": end})
    for begin, end, name, number in computes:
        events.append({"ph": "X", "tid": 4, "name": name, "ts": begin, "dur": end - begin, "args": {"pass": number}})
    return json.dumps({"traceEvents": events})


def shares(svg):
    """{lane: percent} as the picture's label says them."""
    label = re.search(r'aria-label="([^"]*)"', svg)[1]
    return {name.strip(): int(share) for name, share in re.findall(r"([a-z ]+) (\d+)%", label.split("busy", 1)[1])}


READS = [(0, 400, "load weights layer 0 attention"), (100, 500, "load weights layer 0 mlp")]
COMPUTES = [(500, 600, "compute layer 0 attention", 0), (900, 1000, "compute head", 1)]


class LanesSvg(unittest.TestCase):
    def test_shares_count_overlapping_transfers_once(self):
        self.assertEqual(shares(lanes_svg.draw(trace(READS, COMPUTES))), {"disk read": 50, "compute": 20})

    def test_bars_of_a_lane_neither_overlap_nor_lose_time(self):
        tasks = [lanes_svg.Task(10 * at, 10 * at + 35, f"load weights layer {at} mlp", 100) for at in range(20)]
        bars = lanes_svg.bars_of(tasks, 0, 1000, 0.0)
        self.assertEqual(sum(bar.end - bar.begin for bar in bars), lanes_svg.union(tasks, 0, 1000))
        self.assertTrue(all(left.end <= right.begin for left, right in zip(bars, bars[1:])))

    def test_short_bars_are_joined(self):
        tasks = [lanes_svg.Task(at, at + 0.5, "compute layer 0 mlp") for at in range(1000)]
        self.assertEqual(len(lanes_svg.bars_of(tasks, 0, 1000, 2.0)), 1)

    def test_transfers_that_end_together_share_the_time_by_their_bytes(self):
        tasks = [lanes_svg.Task(0, 100, "load weights layer 0 mlp", 10), lanes_svg.Task(50, 400, "load weights layer 1 mlp", 30),
                 lanes_svg.Task(60, 401, "load weights layer 2 mlp", 10), lanes_svg.Task(500, 600, "load weights layer 3 mlp", 5)]
        bars = lanes_svg.bars_of(tasks, 0, 1000, 2.0)
        self.assertEqual([(round(bar.begin, 3), round(bar.end, 3), bar.kind) for bar in bars],
                         [(0, 100, "even"), (100, 325.75, "odd"), (325.75, 401, "even"), (500, 600, "odd")])

    def test_passes_cut_the_time(self):
        svg = lanes_svg.draw(trace(READS, COMPUTES), pass_range=(1, 2))
        self.assertEqual(shares(svg), {"compute": 100})
        self.assertEqual(shares(lanes_svg.draw(trace(READS, COMPUTES), pass_range=(0, 1))), {"compute": 25})
        self.assertEqual(shares(lanes_svg.draw(trace(READS, COMPUTES), pass_range=(-2, -1))), {"compute": 25})

    def test_lanes_that_did_nothing_are_left_out(self):
        self.assertNotIn("host to device", lanes_svg.draw(trace(READS, COMPUTES)))

    def test_names_are_quoted(self):
        svg = lanes_svg.draw(trace(READS, COMPUTES), title='7B < 8B & "more"')
        self.assertIn('7B < 8B & "more"', "".join(xml.etree.ElementTree.fromstring(svg).itertext()))

    def test_ticks_are_few_and_round(self):
        for span in (0.003, 1, 7, 10, 10.01, 49, 12345):
            step = lanes_svg.tick_step(span)
            self.assertTrue(3 < span / step <= 10, (span, step))
            self.assertIn(f"{step:e}"[0], "125")

    def test_what_can_not_be_drawn_is_refused(self):
        with self.assertRaisesRegex(ValueError, "no tasks"):
            lanes_svg.draw(trace([], []))
        with self.assertRaisesRegex(ValueError, "no pass 7"):
            lanes_svg.draw(trace(READS, COMPUTES), pass_range=(7, 8))
        with self.assertRaisesRegex(ValueError, "ends before"):
            lanes_svg.draw(trace(READS, COMPUTES), begin=2, end=1)
        with self.assertRaisesRegex(ValueError, "no lane"):
            lanes_svg.draw(trace(READS, COMPUTES), begin=5, end=6)


@unittest.skipUnless(os.environ.get("SLUICE"), "SLUICE names no program")
class LanesSvgOfARun(unittest.TestCase):
    def test_a_run_that_streams(self):
        with tempfile.TemporaryDirectory() as folder:
            file = f"{folder}/run.json"
            model = ROOT / "tests/fixtures/models/stories260k"
            subprocess.run([os.environ["SLUICE"], "run", model, "-p", "Once", "-n", "8", "--cpu-mem", "900KiB", "--hardware",
                            "none", "--trace", file], check=True, capture_output=True)
            svg = f"{folder}/run.svg"
            subprocess.run([sys.executable, ROOT / "scripts/lanes_svg.py", file, svg, "--passes", "2:4"], check=True)
            text = pathlib.Path(svg).read_text()
        xml.etree.ElementTree.fromstring(text)
        self.assertEqual(set(shares(text)), {"disk read", "compute"})
        self.assertTrue(all(0 < share <= 100 for share in shares(text).values()))
        for kind in ("even", "odd", "other"):
            self.assertIn(f'<path class="{kind}"', text)


if __name__ == "__main__":
    unittest.main()
