// The conversation: what was said, the answer that is being written, and what can be done about it.
class Chat {
  constructor(announcer, onKeyNeeded) {
    this.announcer = announcer;
    this.onKeyNeeded = onKeyNeeded;
    this.onKept = () => {};
    this.views = [];
    this.abort = null;    // of the answer that is being written
    this.editing = null;  // the view whose text is in the message box
    this.show(inTab.get("place")?.id ?? (inTab.get("place") ? null : allTalks()[0]?.id));
  }

  get isWriting() {
    return this.abort !== null;
  }

  get messages() {
    return this.views.map((view) => view.message);
  }

  // Each tab has its own, so that two don't undo each other's; a new tab begins with what was said last.
  keep() {
    const {place, isKept} = keepTalk(this.place, this.messages);
    this.place = place;
    inTab.set("place", place);
    if (!isKept) tell("The browser has no room left: this conversation is gone when the page is.");
    this.onKept();
  }

  show(id) {
    const talk = readTalk(id);
    this.place = {id: talk ? id : null, stamp: talk?.stamp};
    inTab.set("place", this.place);
    this.truncate(0);
    for (const message of (talk?.messages ?? []).map(readKept)) if (message) this.add(message);
    byId("empty").hidden = this.views.length > 0;
    this.showButtons();
    this.onKept();
  }

  // Another conversation, or a new one: what there is of an answer stays with its own.
  leaveFor(id) {
    this.leave("Stopped.");
    this.endEdit();
    this.show(id);
  }

  add(message) {
    const view = new MessageView(message, this);
    this.views.push(view);
    byId("empty").hidden = true;
    byId("log").append(view.element);
    byId("log").scrollTop = byId("log").scrollHeight;
    return view;
  }

  truncate(count) {
    for (const view of this.views.splice(count)) view.element.remove();
  }

  showButtons() {
    const last = this.views[this.views.length - 1]?.message;
    byId("log").classList.toggle("busy", this.isWriting);
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
    if (this.editing) this.truncate(this.views.indexOf(this.editing));
    this.endEdit();
    this.dropFailed();
    this.add({...emptyAnswer(), role: "user", content: text});
    this.answer(settings);
    return true;
  }

  // A turn to which no answer came is no part of the conversation.
  dropFailed() {
    const last = this.views[this.views.length - 1]?.message;
    if (!last?.isFailed || last.content || last.calls.length > 0) return;
    const isTurn = this.views[this.views.length - 2]?.message.role === "user";
    this.truncate(this.views.length - (isTurn ? 2 : 1));
  }

  // Puts what a user said into the message box, to be said in other words; what followed goes when it is sent.
  edit(view) {
    if (this.isWriting) return;
    this.endEdit();
    this.draft = byId("message").value;
    this.editing = view;
    view.element.classList.add("editing");
    byId("message").value = view.message.content;
    byId("message").focus();
    tell("Send takes the place of this message and of all behind it; Esc leaves it as it is.");
  }

  endEdit(draft = "") {
    if (!this.editing) return false;
    this.editing.element.classList.remove("editing");
    this.editing = null;
    byId("message").value = draft;
    tell("");
    return true;
  }

  // Answers again from `view` on, an answer; without one: what was said last.
  regenerate(view = this.views[this.views.length - 1]) {
    const settings = this.isWriting ? null : this.settings();
    if (!settings) return;
    const index = this.views.indexOf(view);
    if (index + 1 < this.views.length && !confirm("Answer again? All that was said behind it goes.")) return;
    this.endEdit();
    if (view?.message.role === "assistant") this.truncate(index);
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
    this.keep();
    tell("");
    view.setWriting(true);
    this.showButtons();
    this.announcer.begin("Answering.");
    const begun = performance.now();
    let first = 0;
    let reason = null;
    try {
      const {usage, warning} = await streamAnswer(body, abort.signal, (delta, ended) => {
        if (!first && (delta.content || delta.reasoning_content || delta.tool_calls)) first = performance.now();
        reason = ended ?? reason;
        addDelta(message, delta);
        this.announcer.add(delta.content ?? "");
        this.refresh(view);
      });
      message.note = noteOf(reason, usage, begun, first) + (warning ? ` The server warns: ${warning}` : "");
    } catch (error) {
      message.isFailed = error.name !== "AbortError";
      message.note ||= message.isFailed ? error.message : "Stopped.";
      if (error.status === 401) this.onKeyNeeded();
    }
    this.finish(view, abort);
  }

  finish(view, abort) {
    view.setWriting(false);
    view.update(true);
    if (this.abort === abort) this.abort = null;
    if (!this.views.includes(view)) return this.showButtons();  // another conversation is shown
    this.announcer.end(view.message.calls.length > 0 ? "The model calls a tool." : view.message.note);
    this.keep();
    const hadFocus = document.activeElement === byId("stop");
    this.showButtons();
    if (hadFocus) byId("message").focus();
  }

  // At most once a frame, and in a small share of the time, however fast tokens come and however long the answer is;
  // who has scrolled up stays there.
  refresh(view) {
    if (this.isDue) return;
    this.isDue = true;
    const log = byId("log");
    const show = () => requestAnimationFrame(() => {
      const begun = performance.now();
      this.isDue = false;
      if (view.isWriting) {
        const isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 48;
        view.update(false);
        if (isAtEnd) log.scrollTop = log.scrollHeight;
      }
      this.pause = Math.min(8 * (performance.now() - begun), 2000);
    });
    if (this.pause > 100) setTimeout(show, this.pause);
    else show();
  }

  // The answer that is written ends here: what there is of it is kept. A browser that goes back may show the page as it
  // was.
  leave(note) {
    if (!this.isWriting || this.views.length === 0) return;
    this.views[this.views.length - 1].message.note = note;
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

