// The conversation: what was said, the answer that is being written, and what can be done about it.
class Chat {
  constructor(announcer, onKeyNeeded) {
    this.announcer = announcer;
    this.onKeyNeeded = onKeyNeeded;
    this.messages = [];
    this.views = [];
    this.abort = null;  // of the answer that is being written
    const kept = inTab.get("conversation") ?? inBrowser.get("conversation");
    for (const message of (Array.isArray(kept) ? kept : []).map(readKept)) if (message) this.add(message);
    this.showButtons();
  }

  get isWriting() {
    return this.abort !== null;
  }

  // Each tab has its own, so that two don't undo each other's; a new one begins with what was said last.
  keep() {
    inTab.set("conversation", this.messages);
    inBrowser.set("conversation", this.messages);
  }

  add(message) {
    const view = new MessageView(message, message.role === "user" ? "You" : message.model || "Answer");
    this.messages.push(message);
    this.views.push(view);
    byId("empty").hidden = true;
    byId("log").append(view.element);
    byId("log").scrollTop = byId("log").scrollHeight;
    return view;
  }

  removeLast() {
    this.messages.pop();
    this.views.pop().element.remove();
  }

  clear() {
    this.stop();
    while (this.views.length > 0) this.removeLast();
    byId("empty").hidden = false;
    this.keep();
    this.showButtons();
  }

  showButtons() {
    const last = this.messages[this.messages.length - 1];
    byId("send").disabled = this.isWriting;
    byId("stop").hidden = !this.isWriting;
    byId("regenerate").hidden = this.isWriting || !last;
    write(byId("regenerate"), last?.role === "assistant" && !last.isFailed ? "Regenerate" : "Try again");
  }

  stop() {
    this.abort?.abort();
  }

  // False: nothing was sent.
  send(text) {
    const settings = this.settings();
    if (!settings) return false;
    this.add({...emptyAnswer(), role: "user", content: text});
    this.answer(settings);
    return true;
  }

  regenerate() {
    const settings = this.isWriting ? null : this.settings();
    if (!settings) return;
    if (this.messages[this.messages.length - 1]?.role === "assistant") this.removeLast();
    this.answer(settings);
  }

  settings() {
    try {
      return readSettings();
    } catch (error) {
      if (!(error instanceof Unusable)) throw error;
      showUnusable(error);
      return null;
    }
  }

  async answer({system, fields}) {
    const messages = asSent(this.messages, system);
    const body = {messages, stream: true, stream_options: {include_usage: true}, ...fields};
    const model = byId("model").value;
    if (model) body.model = model;
    const message = {...emptyAnswer(), model};
    const view = this.add(message);
    const abort = new AbortController();
    this.abort = abort;
    this.isLeft = false;
    this.keep();
    tell("");
    view.setWriting(true);
    this.showButtons();
    this.announcer.begin("Answering.");
    const begun = performance.now();
    let first = 0;
    let reason = null;
    try {
      const usage = await streamAnswer(body, abort.signal, (delta, ended) => {
        if (!first && (delta.content || delta.reasoning_content || delta.tool_calls)) first = performance.now();
        reason = ended ?? reason;
        addDelta(message, delta);
        this.announcer.add(delta.content ?? "");
        this.refresh(view);
      });
      message.note = noteOf(reason, usage, begun, first);
    } catch (error) {
      message.isFailed = error.name !== "AbortError" && !this.isLeft;
      message.note = this.isLeft ? "Stopped: the page was left." : message.isFailed ? error.message : "Stopped.";
      if (error.status === 401) this.onKeyNeeded();
    }
    this.finish(view, abort);
  }

  finish(view, abort) {
    view.setWriting(false);
    view.update();
    if (this.abort === abort) this.abort = null;
    if (!this.views.includes(view)) return this.showButtons();  // cleared meanwhile
    this.announcer.end(view.message.calls.length > 0 ? "The model calls a tool." : view.message.note);
    this.keep();
    const hadFocus = document.activeElement === byId("stop");
    this.showButtons();
    if (hadFocus) byId("message").focus();
  }

  // At most once a frame, however fast tokens come; who has scrolled up stays there.
  refresh(view) {
    if (this.isDue) return;
    this.isDue = true;
    const log = byId("log");
    requestAnimationFrame(() => {
      this.isDue = false;
      const isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 48;
      view.update();
      if (isAtEnd) log.scrollTop = log.scrollHeight;
    });
  }

  // The page goes: what there is of an answer is kept as stopped. A browser that goes back may show the page as it was.
  leave() {
    if (!this.isWriting || this.messages.length === 0) return;
    this.isLeft = true;
    this.messages[this.messages.length - 1].note = "Stopped: the page was left.";
    this.keep();
    this.stop();
  }
}

// Why it ended, where that is not plain; how many tokens, how fast.
function noteOf(reason, usage, begun, first) {
  const parts = [];
  if (reason === "length") parts.push("Cut off: the most tokens were reached.");
  if (reason === "abort") parts.push("The server ended it.");
  const tokens = usage?.completion_tokens ?? 0;
  if (tokens > 0 && first > 0) {
    const seconds = (performance.now() - first) / 1000;
    // What came at once says nothing of how fast it was made.
    const rate = tokens > 1 && seconds > 0.02 ? `, ${shortNumber((tokens - 1) / seconds)} a second` : "";
    parts.push(`${tokens} tokens${rate}; the first after ${shortSeconds((first - begun) / 1000)}.`);
  }
  return parts.join(" ");
}

