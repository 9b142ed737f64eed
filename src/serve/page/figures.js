// What /metrics says (Prometheus' text form), and rates from what was counted between two looks.

// {name: [{labels, value}]}.
function parseMetrics(text) {
  const all = new Map();
  for (const line of text.split("\n")) {
    const parts = /^([A-Za-z_:][\w:]*)(?:\{(.*)\})? ([-+\d.eE]+)$/.exec(line);
    if (!parts) continue;
    const labels = {};
    for (const [, name, value] of (parts[2] ?? "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g))
      labels[name] = value.replace(/\\(.)/g, (_, letter) => (letter === "n" ? "\n" : letter));
    if (!all.has(parts[1])) all.set(parts[1], []);
    all.get(parts[1]).push({labels, value: Number(parts[3])});
  }
  return all;
}

// One look at the server's counters.
function lookOf(text, time) {
  const all = parseMetrics(text);
  const sum = (name) => (all.get(name) ?? []).reduce((total, row) => total + row.value, 0);
  const lanes = new Map();
  for (const {labels, value} of all.get("sluice:lane_busy_seconds_total") ?? [])
    lanes.set(labels.lane, {busy: value, bytes: 0});
  for (const {labels, value} of all.get("sluice:lane_bytes_total") ?? [])
    if (lanes.has(labels.lane)) lanes.get(labels.lane).bytes = value;
  return {
    time,
    lanes,
    running: sum("vllm:num_requests_running"),
    waiting: sum("vllm:num_requests_waiting"),
    pages: sum("sluice:kv_pages"),
    memory: sum("process_resident_memory_bytes"),
    usedPages: sum("sluice:kv_pages_used"),
    passes: sum("sluice:passes_total"),
    passSeconds: sum("sluice:pass_seconds_total"),
    generated: sum("sluice:pass_class_decode_tokens_total"),
    prompted: sum("sluice:pass_class_prompt_tokens_total"),
    prefixAsked: sum("vllm:prefix_cache_queries_total"),
    prefixFound: sum("vllm:prefix_cache_hits_total"),
    expertsAsked: sum("sluice:experts_asked_total"),
    expertsFound: sum("sluice:experts_found_total"),
  };
}

// Rates of late, in the time that passes took: so a pass of half a minute counts as one of a millisecond does, however
// seldom one looks. Kept are the looks after which more passes had been counted.
class Rates {
  static span = 5000;  // ms that "of late" reaches back, or the last pass where it took longer
  static idle = 2000;  // ms without a pass and without a request: nothing happens

  add(look) {
    this.now = look;
    this.looks ??= [look];
    const last = this.looks[this.looks.length - 1];
    if (look.passes < last.passes) this.looks = [look];  // another server
    else if (look.passes > last.passes) this.looks.push(look);
    else if (look.running > 0 || look.time - last.time < Rates.idle) return;
    else this.looks = [look];
    while (this.looks.length > 2 && this.looks[1].time < look.time - Rates.span) this.looks.shift();
  }

  // {seconds, passes, of(name), lane(name)}: null before the first pass; all zero while nothing happens.
  late() {
    const first = this.looks[0];
    const last = this.looks[this.looks.length - 1];
    const seconds = last.passSeconds - first.passSeconds;
    const per = (value) => (seconds > 0 ? value / seconds : 0);
    return {
      seconds,
      passes: last.passes - first.passes,
      of: (name) => per(last[name] - first[name]),
      lane: (name) => {
        const none = {busy: 0, bytes: 0};
        const end = last.lanes.get(name) ?? none;
        const begin = first.lanes.get(name) ?? none;
        return {share: Math.min(per(end.busy - begin.busy), 1), bytes: per(end.bytes - begin.bytes)};
      },
    };
  }
}

// Numbers for people: 0.42, 7.3, 128.
function shortNumber(value) {
  if (!(value > 0)) return "0";
  return value >= 99.5 ? String(Math.round(value)) : value.toPrecision(2).replace(/^(\d+)\.0$/, "$1");
}
function shortBytes(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; bytes >= 1000 && unit < units.length - 1; ++unit) bytes /= 1024;
  return `${shortNumber(bytes)} ${units[unit]}`;
}
function shortSeconds(seconds) {
  return seconds >= 1 ? `${shortNumber(seconds)} s` : `${shortNumber(seconds * 1000)} ms`;
}
function percent(share) {
  return `${Math.round(100 * share)} %`;
}

