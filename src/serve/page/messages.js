// A message as the conversation keeps it: {role, content, thought, calls: [{id, name, arguments}], note, isFailed}; and
// as an element. `thought`, `calls`, `note` are of answers.

function emptyAnswer() {
  return {role: "assistant", content: "", thought: "", calls: [], note: "", isFailed: false};
}

// A message as it was kept; null: it was not kept by this page.
function readKept(kept) {
  if (!["user", "assistant"].includes(kept?.role) || typeof kept.content !== "string") return null;
  const calls = (Array.isArray(kept.calls) ? kept.calls : []).filter((call) => typeof call?.arguments === "string");
  return {...emptyAnswer(), ...kept, thought: String(kept.thought ?? ""), calls};
}

// Adds what a delta of a stream brings.
function addDelta(message, delta) {
  message.content += delta.content ?? "";
  message.thought += delta.reasoning_content ?? "";
  for (const part of delta.tool_calls ?? []) {
    const call = (message.calls[part.index ?? 0] ??= {id: part.id ?? "", name: "", arguments: ""});
    call.name += part.function?.name ?? "";
    call.arguments += part.function?.arguments ?? "";
  }
}

// Whether a call was written to its end; one that was stopped is no JSON, which chat templates may refuse.
function isWhole(call) {
  try {
    return isObject(JSON.parse(call.arguments));
  } catch {
    return false;
  }
}

// What the server is asked with: the messages in its form. Answers and calls that never came or came in part are left
// out, and two of a user's in a row are one then: many chat templates take turns.
function asSent(messages, system) {
  const out = system ? [{role: "system", content: system}] : [];
  for (const message of messages) {
    const calls = (message.calls ?? []).filter(isWhole);
    if (message.role === "assistant" && !message.content && calls.length === 0) continue;
    const last = out[out.length - 1];
    if (message.role === "user" && last?.role === "user") {
      last.content += `\n\n${message.content}`;
      continue;
    }
    const sent = {role: message.role, content: message.content};
    if (calls.length > 0)
      sent.tool_calls = calls.map((call) => (
        {id: call.id, type: "function", function: {name: call.name, arguments: call.arguments}}));
    out.push(sent);
  }
  return out;
}

function foldedBlock(title) {
  const block = made("details", "folded");
  block.append(made("summary", "", title), made("pre"));
  return block;
}

// The element of one message; update() shows what has been added since. What a user says is shown as it is, an answer
// as Markdown.
class MessageView {
  constructor(message, chat) {
    this.message = message;
    this.isWriting = false;
    this.element = made("article", message.role);
    const name = message.role === "user" ? "You" : message.model || "Answer";
    this.text = made("div", "text");
    this.note = made("p", "note");
    this.element.append(made("h3", "", name), this.text, this.note, this.buttons(chat, name));
    this.markdown = message.role === "user" ? null : new MarkdownView(this.text);
    this.calls = [];
    this.update(true);
  }

  buttons(chat, name) {
    const row = made("div", "turn");
    const add = (text, act) => {
      const button = made("button", "", text);
      button.type = "button";
      button.setAttribute("aria-label", `${text}: ${name}`);
      button.addEventListener("click", () => act(button));
      row.append(button);
    };
    add("Copy", (button) => copyText(this.message.content, button));
    if (this.message.role === "user") add("Edit", () => chat.edit(this));
    else add("Again", () => chat.regenerate(this));
    return row;
  }

  update(isWhole) {
    const message = this.message;
    if (message.thought && !this.thought) {
      this.thought = foldedBlock("Thoughts");
      this.text.before(this.thought);
    }
    if (this.thought) showNodes(this.thought.lastChild, [message.thought]);
    if (this.markdown) this.markdown.update(message.content, isWhole);
    else write(this.text, message.content);
    (message.calls ?? []).forEach((call, index) => {
      if (!this.calls[index]) {
        this.calls[index] = foldedBlock("");
        this.note.before(this.calls[index]);
      }
      write(this.calls[index].firstChild, `Call of ${call.name}`);
      showNodes(this.calls[index].lastChild, [call.arguments]);
    });
    write(this.note, message.note ?? "");
    this.note.classList.toggle("failed", Boolean(message.isFailed));
  }

  setWriting(isWriting) {
    this.isWriting = isWriting;
    this.element.classList.toggle("writing", isWriting);
    this.element.setAttribute("aria-busy", String(isWriting));
  }
}

