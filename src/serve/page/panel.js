// The live figures beside the chat: asks /metrics each second while somebody can see them.
class Panel {
  static every = 1000;      // ms
  static later = 5000;      // ms, where the server did not answer
  static patience = 10000;  // ms until no answer is taken for none
  static reach = 120000;    // ms of the curve

  constructor(onRefused) {
    this.onRefused = onRefused;
    this.rates = new Rates();
    this.points = [];
    document.addEventListener("visibilitychange", () => this.look());
    byId("live").addEventListener("toggle", () => this.look());
    this.look();
  }

  isSeen() {
    return !document.hidden && byId("live").open;
  }

  // Once, and again after a while: never two at a time.
  async look() {
    if (this.isAsking || !this.isSeen()) return;
    this.isAsking = true;
    clearTimeout(this.timer);
    let wait = Panel.every;
    try {
      const text = await (await ask("metrics", {signal: AbortSignal.timeout(Panel.patience)})).text();
      this.rates.add(lookOf(text, performance.now()));
      this.show();
    } catch (error) {
      wait = Panel.later;
      write(byId("state"), error instanceof Refused ? error.message : `No figures: ${error.message}`);
      if (error.status === 401) this.onRefused();
    }
    this.isAsking = false;
    this.timer = setTimeout(() => this.look(), wait);
  }

  show() {
    const now = this.rates.now;
    const late = this.rates.late();
    const all = now.running + now.waiting;
    write(byId("state"), all > 0 ? `Computing for ${now.running} of ${all} requests.` : "Idle.");
    write(byId("generated"), `${shortNumber(late.of("generated"))} tokens/s`);
    write(byId("prompted"), `${shortNumber(late.of("prompted"))} tokens/s`);
    write(byId("running"), String(now.running));
    write(byId("waiting"), String(now.waiting));
    write(byId("pages"), now.pages > 0 ? `${now.usedPages} of ${now.pages}` : "–");
    fill(byId("pages-bar"), now.pages > 0 ? now.usedPages / now.pages : 0);
    const found = (hits, asked) => (asked > 0 ? percent(hits / asked) : "–");
    write(byId("prefixes"), found(now.prefixFound, now.prefixAsked));
    byId("expert-row").hidden = now.expertsAsked === 0;
    write(byId("experts"), found(now.expertsFound, now.expertsAsked));
    fill(byId("experts-bar"), now.expertsAsked > 0 ? now.expertsFound / now.expertsAsked : 0);
    write(byId("pass"), late.passes > 0 ? shortSeconds(late.seconds / late.passes) : "–");
    this.points = this.points.filter((point) => point.time >= now.time - Panel.reach);
    this.points.push({time: now.time, rate: late.of("generated"), memory: now.memory});
    const most = this.showCurve("curve", "rate");
    write(byId("curve-words"), `Tokens generated a second, the last two minutes; at most ${shortNumber(most)}.`);
    const mostMemory = this.showCurve("memory", "memory");
    write(byId("memory-words"), `Memory of the server: ${shortBytes(now.memory)}; at most ${shortBytes(mostMemory)}.`);
    this.showLanes(now, late);
  }

  // Draws one figure of the last two minutes; returns the most it was.
  showCurve(id, name) {
    const {time} = this.rates.now;
    const most = Math.max(...this.points.map((point) => point[name]));
    const points = this.points.map((point) =>
      `${240 - (240 * (time - point.time)) / Panel.reach},${46 - (44 * point[name]) / Math.max(most, 1e-9)}`);
    byId(id).firstElementChild.setAttribute("points", points.join(" "));
    return most;
  }

  // Lanes that have ever worked: a machine without a device has none of its copies.
  showLanes(now, late) {
    const list = byId("lanes");
    const names = [...now.lanes].filter(([, lane]) => lane.busy > 0 || lane.bytes > 0).map(([name]) => name);
    if (names.join() !== this.names) {
      this.names = names.join();
      list.replaceChildren(...names.map((name) => {
        const row = made("li");
        const bar = made("div", "bar");
        bar.setAttribute("aria-hidden", "true");
        bar.append(made("i"));
        row.append(made("span", "", name), made("span", "value"), bar, made("span", "moved"));
        return row;
      }));
    }
    names.forEach((name, index) => {
      const {share, bytes} = late.lane(name);
      const [, shown, bar, moved] = list.children[index].children;
      write(shown, percent(share));
      fill(bar.firstChild, share);
      write(moved, bytes > 0 ? `${shortBytes(bytes)}/s` : "");
    });
  }
}

