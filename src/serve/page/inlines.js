// What stands within a line of Markdown, read to nodes: texts, or {tag, children, ...}. Time grows with the text alone,
// whatever the text is. Of a text that is still written, what is open at its end counts as closed there.
const kMostOpen = 32;  // marks that wait for their other half; one more is text
const kSchemes = ["http:", "https:", "mailto:"];
const kMark =
  /\\[\s\S]|`+|\*+|_+|~~|!?\[|\]|\$\$|<br ?\/?>|<(?:https?:\/\/|mailto:)[^\s<>]*>|\bhttps?:\/\/[^\s<>"'`[\]|]+/g;
const kTarget = /\(\s*<?([^\s<>()]*(?:\([^\s()]*\)[^\s<>()]*)*)>?(?:\s+(?:"[^"]*"|'[^']*'))?\s*\)/y;
const kTargetBegun = /\([^\s()]{0,4096}$/y;

// The address that a link may lead to; null: none that is safe, such as a script's.
function addressOf(text) {
  try {
    const url = new URL(text);
    return kSchemes.includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

// An address in running text ends before the marks that end a sentence, and before a bracket that it did not open.
function bareAddress(text) {
  let end = text.length;
  let open = 0;
  for (const letter of text) open += letter === "(" ? 1 : letter === ")" ? -1 : 0;
  for (; end > 0; --end) {
    const last = text[end - 1];
    if (last === ")" && open < 0) ++open;
    else if (!".,:;!?*_~".includes(last)) break;
  }
  return text.slice(0, end);
}

const tagOf = (mark) => (mark === "~~" ? "del" : mark.length === 2 ? "strong" : "em");

function withoutLinks(nodes) {
  return nodes.flatMap((node) => (typeof node === "string" ? node
    : node.tag === "a" ? node.children : {...node, children: node.children && withoutLinks(node.children)}));
}

class InlineReader {
  constructor(text, isWhole, room) {
    this.isWhole = isWhole;
    this.room = room;  // {left}: of nodes
    let end = text.length;
    while (!isWhole && end > 0 && "*_~`\\[]!<$".includes(text[end - 1])) --end;  // could mean anything yet
    this.text = text.slice(0, end);
    this.frames = [{mark: "", children: []}];  // what is open, outermost first
    this.missing = new Set();                  // marks that do not come any more
  }

  read() {
    let at = 0;
    kMark.lastIndex = 0;
    for (let found; (found = kMark.exec(this.text)) !== null;) {
      this.add(this.text.slice(at, found.index));
      at = this.room.left > 0 ? this.mark(found[0], found.index) : found.index;
      if (this.room.left <= 0) break;
      kMark.lastIndex = at;
    }
    this.add(this.text.slice(at));
    return this.finish();
  }

  add(node) {
    if (node === "") return;
    const children = this.frames[this.frames.length - 1].children;
    const last = children.length - 1;
    if (typeof node !== "string") --this.room.left;
    if (typeof node === "string" && typeof children[last] === "string") children[last] += node;
    else children.push(node);
  }

  // Takes what `mark` begins; returns where to read on.
  mark(mark, at) {
    const end = at + mark.length;
    const first = mark[0];
    if (first === "`") return this.code(mark, end);
    if (mark === "\\(" || mark === "\\[" || mark === "$$") return this.formula(mark, at, end);
    if (first === "\\") this.add(/[!-/:-@[-`{-~\n]/.test(mark[1]) ? mark[1] : mark);
    else if (mark === "[" || mark === "![") this.open(mark, mark);
    else if (mark === "]") return this.link(end);
    else if (mark.startsWith("<b")) this.add("\n");
    else if (first === "<") this.addLink(mark.slice(1, -1), mark);
    else if (first === "h") {
      const text = bareAddress(mark);
      this.addLink(text, text);
      return at + text.length;
    } else this.emphasis(mark, this.text[at - 1] ?? " ", this.text[end] ?? " ");
    return end;
  }

  addLink(address, text) {
    const href = addressOf(address);
    this.add(href ? {tag: "a", href, children: [address]} : text);
  }

  // Where `mark` comes next; -1: no more. Nobody looks twice for what is not there.
  next(mark, from) {
    const at = this.missing.has(mark) ? -1 : this.text.indexOf(mark, from);
    if (at < 0) this.missing.add(mark);
    return at;
  }

  // Formulas stay as they are written: no mark in them means anything here.
  formula(mark, at, end) {
    const closing = mark === "$$" ? "$$" : mark === "\\(" ? "\\)" : "\\]";
    const found = this.next(closing, end);
    const stop = found >= 0 ? found + 2 : this.isWhole ? end : this.text.length;
    this.add(this.text.slice(at, stop));
    return stop;
  }

  code(mark, end) {
    let close = this.nextRun(mark.length, end);
    if (close < 0 && this.isWhole) {
      this.add(mark);
      return end;
    }
    if (close < 0) close = this.text.length;
    let text = this.text.slice(end, close).replaceAll("\n", " ");
    if (text.startsWith(" ") && text.endsWith(" ") && text.trim()) text = text.slice(1, -1);
    this.add({tag: "code", children: [text]});
    return close + mark.length;
  }

  // Where the next run of just so many backticks begins; -1: none does.
  nextRun(length, from) {
    if (!this.runs) {
      this.runs = new Map();
      for (const run of this.text.matchAll(/`+/g)) {
        if (!this.runs.has(run[0].length)) this.runs.set(run[0].length, {at: 0, places: []});
        this.runs.get(run[0].length).places.push(run.index);
      }
    }
    const runs = this.runs.get(length);
    if (!runs) return -1;
    while (runs.at < runs.places.length && runs.places[runs.at] < from) ++runs.at;
    return runs.places[runs.at] ?? -1;
  }

  open(kind, mark) {
    if (this.frames.length < kMostOpen) this.frames.push({kind, mark, children: []});
    else this.add(mark);
  }

  // The innermost open frame of one of the kinds; 0: none is.
  find(...kinds) {
    let index = this.frames.length - 1;
    while (index > 0 && !kinds.includes(this.frames[index].kind)) --index;
    return index;
  }

  // Frames from `index` on turn out to be text.
  flatten(index) {
    for (const {mark, children} of this.frames.splice(index)) {
      this.add(mark);
      for (const child of children) {
        if (typeof child !== "string") ++this.room.left;  // it was counted
        this.add(child);
      }
    }
  }

  close(index, node) {
    this.flatten(index + 1);
    node.children = this.frames.pop().children;
    this.add(node);
  }

  emphasis(run, before, after) {
    const letter = run[0];
    // Within a word, snake_case and 2*3 stay what they are.
    const kLetter = letter === "_" ? /[\p{L}\p{N}]/u : /[A-Za-z0-9]/;
    const isWord = (one) => (letter === "_" || run === "*") && kLetter.test(one);
    const opens = /\S/.test(after) && !isWord(before);
    const closes = /\S/.test(before) && !isWord(after);
    let left = run.length;
    if (left > 3) return this.add(run);
    while (closes && left > 0) {
      const kinds = left === 1 ? [letter] : left === 2 ? [letter + letter] : [letter, letter + letter];
      const index = this.find(...kinds);
      if (index === 0) break;
      const {kind} = this.frames[index];
      this.close(index, {tag: tagOf(kind)});
      left -= kind.length;
    }
    if (left > 1 && opens) this.open(letter + letter, letter + letter);
    if (left % 2 === 1 && opens) this.open(letter, letter);
    if (!opens) this.add(letter.repeat(left));
  }

  link(end) {
    const index = this.find("[", "![");
    if (index === 0) {
      this.add("]");
      return end;
    }
    kTarget.lastIndex = kTargetBegun.lastIndex = end;
    const found = kTarget.exec(this.text);
    const href = found && addressOf(found[1]);
    const isBegun = !found && !this.isWhole && kTargetBegun.test(this.text);
    if (!href && !isBegun) {
      this.flatten(index);
      this.add("]");
      return end;
    }
    const isPicture = this.frames[index].kind === "![";
    const node = href ? {tag: "a", href} : {tag: "span"};
    this.close(index, node);
    node.children = withoutLinks(node.children);
    if (isPicture && node.children.length === 0) node.children = ["picture"];
    return found ? kTarget.lastIndex : this.text.length;
  }

  finish() {
    for (let last; !this.isWhole && (last = this.frames.length - 1) > 0;) {
      const {kind} = this.frames[last];
      this.close(last, {tag: kind.endsWith("[") ? "span" : tagOf(kind)});
    }
    this.flatten(1);
    return this.frames[0].children;
  }
}

function inlinesOf(text, isWhole = true, room = {left: Infinity}) {
  return new InlineReader(text, isWhole, room).read();
}

