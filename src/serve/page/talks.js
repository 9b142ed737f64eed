// The conversations that the browser keeps, each an entry of its own: {stamp, title, time, messages}. Bounded: those
// that were used longest ago make room.
const kMostTalks = 50;
const kMostLetters = 2000000;  // of all; browsers keep about five million

const newId = () => Array.from(crypto.getRandomValues(new Uint32Array(2)), (part) => part.toString(36)).join("");

function titleOf(messages) {
  const said = messages.find(({role}) => role === "user")?.content ?? "";
  return said.trim().split("\n", 1)[0].slice(0, 60) || "Conversation";
}

function readTalk(id) {
  const kept = id ? inBrowser.get(`talk.${id}`) : null;
  return isObject(kept) && Array.isArray(kept.messages) ? kept : null;
}

// [{id, title, time, letters}], what was used last first.
function allTalks() {
  return inBrowser.names().filter((name) => name.startsWith("talk.")).flatMap((name) => {
    const talk = readTalk(name.slice(5));
    if (!talk) return [];
    const {title, time} = talk;
    return [{id: name.slice(5), title: String(title), time: Number(time), letters: JSON.stringify(talk).length}];
  }).sort((a, b) => b.time - a.time);
}

// Keeps `messages` as what `place`, {id, stamp}, has shown so far. Where another tab has gone on with it meanwhile,
// they become a conversation of their own. Returns where they are now, and whether they outlast the page.
function keepTalk({id, stamp}, messages) {
  const kept = readTalk(id);
  const place = {id: !id || (kept && kept.stamp !== stamp) ? newId() : id, stamp: newId()};
  const talk = {stamp: place.stamp, title: titleOf(messages), time: Date.now(), messages};
  const others = allTalks().filter((other) => other.id !== place.id);
  let letters = others.reduce((sum, other) => sum + other.letters, JSON.stringify(talk).length);
  const dropOldest = () => {
    letters -= others[others.length - 1].letters;
    inBrowser.remove(`talk.${others.pop().id}`);
  };
  while (others.length > 0 && (others.length >= kMostTalks || letters > kMostLetters)) dropOldest();
  let isKept = inBrowser.set(`talk.${place.id}`, talk);
  while (!isKept && others.length > 0) {
    dropOldest();
    isKept = inBrowser.set(`talk.${place.id}`, talk);
  }
  return {place, isKept};
}

// The list of them beside the chat.
class TalkList {
  constructor(chat) {
    this.chat = chat;
    chat.onKept = () => this.show();
    byId("talks").addEventListener("toggle", () => this.show());
    byId("export").addEventListener("click", () => this.save());
    byId("delete-all").addEventListener("click", () => {
      if (!confirm("Delete all conversations that this browser keeps?")) return;
      for (const {id} of allTalks()) inBrowser.remove(`talk.${id}`);
      chat.leaveFor(null);
      tell("All conversations were deleted.");
    });
    window.addEventListener("storage", () => this.show());
  }

  show() {
    if (!byId("talks").open) return;
    const talks = allTalks();
    byId("talk-list").replaceChildren(...talks.map((talk) => this.row(talk)));
    byId("no-talks").hidden = talks.length > 0;
    byId("delete-all").hidden = talks.length === 0;
    byId("export").hidden = this.chat.messages.length === 0;
  }

  row({id, title, time}) {
    const row = made("li");
    const open = made("button", "open", title);
    open.append(made("span", "small", new Date(time).toLocaleString()));
    if (id === this.chat.place.id) open.setAttribute("aria-current", "true");
    open.addEventListener("click", () => {
      this.chat.leaveFor(id);
      byId("message").focus();
    });
    const remove = made("button", "", "Delete");
    remove.setAttribute("aria-label", `Delete ${title}`);
    remove.addEventListener("click", () => {
      if (!confirm(`Delete “${title}”?`)) return;
      if (id === this.chat.place.id) this.chat.leaveFor(null);
      inBrowser.remove(`talk.${id}`);
      this.show();
      tell(`Deleted: ${title}`);
      byId("talks").firstElementChild.focus();
    });
    for (const button of [open, remove]) button.type = "button";
    row.append(open, remove);
    return row;
  }

  // The conversation that is shown, as a file.
  save() {
    const text = JSON.stringify({title: titleOf(this.chat.messages), messages: this.chat.messages}, null, 2);
    const link = made("a");
    link.href = URL.createObjectURL(new Blob([text], {type: "application/json"}));
    link.download = "conversation.json";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }
}

