#!/usr/bin/env python3
"""Draws the lanes of a run as an SVG, from the file that --trace wrote.

    sluice run MODEL -p "..." --trace run.json
    scripts/lanes_svg.py run.json lanes.svg [--passes 3:5] [--from MS --to MS] [--title TEXT] [--subtitle TEXT]

A row is a lane, its bars are tasks: what was read, copied or computed, and for how long; layers have two colours by turns. Many
transfers of one lane are under way together; each is drawn from the end of the one before it, which is how long it kept the
lane, and those that end together share that time by their bytes. The share at a row's end is how much of the time drawn the
lane had something under way. --passes a:b draws passes a up to (not with) b, from the first computing of the one to the first
of the other; passes below 0 count from the end, as --passes=-4:-2. Colours follow the reader's light or dark scheme.
"""
import argparse
import collections
import html
import json
import re
import sys

WIDTH, LEFT, RIGHT, TOP, ROW, BAR = 880, 118, 64, 58, 40, 22
LEAST_PIXELS = 0.4  # shorter bars are joined with their neighbours of the same kind

Bar = collections.namedtuple("Bar", "begin end kind")  # microseconds; kind: even, odd (layers), other, kv
Task = collections.namedtuple("Task", "begin end name bytes", defaults=[0])  # bytes: of transfers; 0: computing
STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #24292f }
  .title { font-size: 14px; font-weight: 600 } .soft { fill: #57606a } .right { text-anchor: end } .middle { text-anchor: middle }
  .lane { fill: #eaeef2 } .grid { stroke: #d0d7de } .pass { stroke: #57606a; stroke-dasharray: 3 3 }
  .even { fill: #0969da } .odd { fill: #6cb6ff } .other { fill: #8250df } .kv { fill: #bf8700 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .soft { fill: #9198a1 } .lane { fill: #21262d } .grid { stroke: #30363d } .pass { stroke: #9198a1 }
    .even { fill: #1f6feb } .odd { fill: #79c0ff } .other { fill: #a371f7 } .kv { fill: #d29922 }
  }"""


def kind_of(name):
    if re.search(r"weights|compute", name):
        match = re.search(r"layer (\d+) ", name)
        return ("even", "odd")[int(match[1]) % 2] if match else "other"
    return "kv"


def read_trace(text):
    """({lane number: name}, {lane number: [Task]}, {pass: begin of its first computing})."""
    names, tasks, open_, passes = {}, collections.defaultdict(list), {}, {}
    for event in json.loads(text)["traceEvents"]:
        phase, lane = event["ph"], event.get("tid")
        if phase == "M" and event["name"] == "thread_name":
            names[lane] = event["args"]["name"]
        elif phase == "X" and not event["name"].startswith("compute"):
            tasks[lane].append(Task(event["ts"], event["ts"] + event["dur"], event["name"], max(event["args"]["bytes"], 1)))
        elif phase == "X":
            tasks[lane].append(Task(event["ts"], event["ts"] + event["dur"], event["name"]))
            number = event["args"]["pass"]
            passes[number] = min(passes.get(number, event["ts"]), event["ts"])
        elif phase == "b":
            open_[lane, event["id"]] = event
        elif phase == "e":
            begin = open_.pop((lane, event["id"]))
            tasks[lane].append(Task(begin["ts"], event["ts"], begin["name"], max(begin["args"]["bytes"], 1)))
    # "disk read 2": what the lane had under way beside.
    first = {name: lane for lane, name in names.items()}
    for lane, name in list(names.items()):
        of, _, row = name.rpartition(" ")
        if row.isdigit() and of in first:
            tasks[first[of]] += tasks.pop(lane, [])
            del names[lane]
    return names, tasks, passes


def union(spans, begin, end):
    """How long at least one of the spans lies within [begin, end]."""
    total, reached = 0.0, begin
    for first, last, *_ in sorted(spans):
        first, last = max(first, reached), min(last, end)
        if last > first:
            total += last - first
            reached = last
    return total


def apart(tasks, begin, together):
    """Tasks by their ends, none of them overlapping: transfers that end within `together` of each other share the time since
    what ended before, by their bytes."""
    left, reached = sorted(tasks, key=lambda task: task.end), begin
    while left:
        count = 1
        while left[0].bytes and count < len(left) and left[count].end - left[0].end < together:
            count += 1
        group, left = left[:count], left[count:]
        first, last = max(reached, min(task.begin for task in group)), group[-1].end
        if last <= first:
            continue
        at, total = first, max(sum(task.bytes for task in group), 1)
        for task in group:
            until = at + (last - first) * (task.bytes / total if count > 1 else 1)
            yield Task(at, until, task.name)
            at = until
        reached = last


def bars_of(tasks, begin, end, shortest):
    """What is drawn of tasks within [begin, end]; what is shorter than `shortest` joins its neighbour."""
    bars = []
    for task in apart(tasks, min([begin, *(task.begin for task in tasks)]), shortest):
        first, last, kind = max(task.begin, begin), min(task.end, end), kind_of(task.name)
        if last <= first:
            continue
        if bars and first - bars[-1].end < shortest and (bars[-1].kind == kind or last - first < shortest):
            bars[-1] = Bar(bars[-1].begin, last, bars[-1].kind)
        else:
            bars.append(Bar(first, last, kind))
    return bars


def tick_step(span):
    """The 1, 2 or 5 times a power of ten that makes four to ten ticks of a span."""
    power = 10.0 ** -6
    while True:
        for step in (1, 2, 5):
            if span / (step * power) <= 10:
                return step * power
        power *= 10


def unit_of(span_us):
    return (1e6, "s") if span_us >= 5e6 else (1e3, "ms") if span_us >= 2e3 else (1.0, "µs")


def axis(begin, end, bottom, x_of):
    scale, unit = unit_of(end - begin)
    step, rows, at = tick_step((end - begin) / scale), [], 0
    while at * step <= (end - begin) / scale * (1 + 1e-9):
        x = x_of(begin + at * step * scale)
        label = f"{at * step:g}" + (f" {unit}" if at == 0 else "")
        rows.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 6}" y2="{bottom}"/>'
                    f'<text class="soft middle" x="{x:.1f}" y="{bottom + 16}">{label}</text>')
        at += 1
    return rows


def legend(kinds, y):
    words = {"even": "even layers", "odd": "odd layers", "other": "embedding, head", "kv": "KV, hidden states"}
    rows, x = [], LEFT
    for kind in [kind for kind in words if kind in kinds]:
        rows.append(f'<rect class="{kind}" x="{x}" y="{y - 10}" width="12" height="12" rx="2"/>'
                    f'<text class="soft" x="{x + 18}" y="{y}">{words[kind]}</text>')
        x += 30 + 7 * len(words[kind])
    return rows


def draw(trace, begin=None, end=None, pass_range=None, title="", subtitle=""):
    """The SVG of a trace's text. begin, end: ms; pass_range: (first, behind the last)."""
    names, tasks, passes = read_trace(trace)
    if not tasks:
        raise ValueError("the trace has no tasks")
    first = min(task[0] for lane in tasks.values() for task in lane)
    last = max(task[1] for lane in tasks.values() for task in lane)
    if pass_range:
        pass_range = [number if number >= 0 else max(passes) + 1 + number for number in pass_range]
        for number in pass_range:
            if number not in passes and number != max(passes) + 1:
                raise ValueError(f"the trace has no pass {number}: they are 0 to {max(passes)}")
        first, last = passes[pass_range[0]], passes.get(pass_range[1], last)
    begin = first if begin is None else begin * 1e3
    end = last if end is None else end * 1e3
    if end <= begin:
        raise ValueError("nothing to draw: the time ends before it begins")
    if not any("to device" in names[lane] for lane in tasks):
        names = {lane: name.replace("device compute", "compute") for lane, name in names.items()}  # nothing but the CPU's
    lanes = [lane for lane in sorted(names) if union(tasks[lane], begin, end) > 0]
    if not lanes:
        raise ValueError("no lane had anything to do in that time")
    inner = WIDTH - LEFT - RIGHT
    bottom = TOP + ROW * len(lanes)

    def x_of(time):
        return LEFT + (time - begin) / (end - begin) * inner

    rows = axis(begin, end, bottom, x_of)
    for number, start in sorted(passes.items()):
        if begin < start < end:
            rows.append(f'<line class="pass" x1="{x_of(start):.1f}" x2="{x_of(start):.1f}" y1="{TOP - 6}" y2="{bottom}"/>')
    kinds, shares = set(), []
    for at, lane in enumerate(lanes):
        y = TOP + ROW * at + (ROW - BAR) / 2
        rows.append(f'<text class="right" x="{LEFT - 10}" y="{y + 15:.0f}">{html.escape(names[lane])}</text>'
                    f'<rect class="lane" x="{LEFT}" y="{y:.0f}" width="{inner}" height="{BAR}"/>')
        paths = collections.defaultdict(str)
        for bar in bars_of(tasks[lane], begin, end, LEAST_PIXELS / inner * (end - begin)):
            kinds.add(bar.kind)
            width = max(x_of(bar.end) - x_of(bar.begin) - (0.5 if x_of(bar.end) - x_of(bar.begin) > 2 else 0), 0.2)
            paths[bar.kind] += f"M{x_of(bar.begin):.1f} {y:.0f}h{width:.1f}v{BAR}h-{width:.1f}z"
        rows += [f'<path class="{kind}" d="{path}"/>' for kind, path in sorted(paths.items())]
        share = union(tasks[lane], begin, end) / (end - begin)
        shares.append(f"{names[lane]} {share:.0%}")
        rows.append(f'<text x="{WIDTH - RIGHT + 10}" y="{y + 15:.0f}">{share:.0%}</text>')
    height = bottom + 52
    rows += legend(kinds, bottom + 40)
    head = [f'<text class="title" x="{LEFT}" y="20">{html.escape(title)}</text>',
            f'<text class="soft" x="{LEFT}" y="38">{html.escape(subtitle)}</text>',
            f'<text class="soft" x="{WIDTH - RIGHT + 10}" y="{TOP - 12}">busy</text>']
    label = html.escape(f"{title}: busy {', '.join(shares)}", quote=True)
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
                      f'role="img" aria-label="{label}">', f"<style>{STYLE}\n</style>", *head, *rows, "</svg>"]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace")
    parser.add_argument("svg")
    parser.add_argument("--passes", help="first:behind the last, as 3:5")
    parser.add_argument("--from", dest="begin", type=float, help="ms of the trace")
    parser.add_argument("--to", dest="end", type=float, help="ms of the trace")
    parser.add_argument("--title", default="Lanes of a run")
    parser.add_argument("--subtitle", default="")
    flags = parser.parse_args()
    pass_range = None
    if flags.passes:
        match = re.fullmatch(r"(-?\d+):(-?\d+)", flags.passes)
        if not match or (int(match[1]) < 0) == (int(match[2]) < 0) and int(match[1]) >= int(match[2]):
            sys.exit(f"lanes_svg: --passes {flags.passes}: write first:behind the last, as 3:5")
        pass_range = int(match[1]), int(match[2])
    try:
        with open(flags.trace, encoding="utf-8") as file:
            text = draw(file.read(), flags.begin, flags.end, pass_range, flags.title, flags.subtitle)
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"lanes_svg: {flags.trace}: {error}")
    with open(flags.svg, "w", encoding="utf-8") as file:
        file.write(text)


if __name__ == "__main__":
    main()
