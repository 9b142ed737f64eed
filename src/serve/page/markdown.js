// Markdown as models write it, CommonMark's and GitHub's common parts, read to nodes (inlines.js). What is nested too
// deep, or more than a page can show, stays text. A text that is still written is shown as it will most likely turn
// out.
const kMostDeep = 12;
const kMostNodes = 20000;
const kMostHead = 4096;  // letters of a table's head: longer ones are no table
const kItem = /^([ \t]*)([-*+]|\d{1,9}[.)])(?:([ \t]+)(.*))?$/;
const kRule = /^ {0,3}([-*_])[ \t]*(?:\1[ \t]*){2,}$/;
const kHeading = /^ {0,3}(#{1,6})(?:[ \t]+(.*))?$/;
const kQuote = /^ {0,3}> ?/;
const kFence = /^ {0,3}(`{3,}|~{3,})(.*)$/;
const kDelimiters = /^[ \t|:-]+$/;
const kUndecided = /^[\s>]*(?:[-*_+=#|:`~\s]*|\d{1,9}[.)]?)$/;  // a line that may become anything

function columnsOf(line) {
  let columns = 0;
  for (let at = 0; line[at] === " " || line[at] === "\t"; ++at) columns += line[at] === "\t" ? 4 : 1;
  return columns;
}

function withoutIndent(line, columns) {
  let at = 0;
  for (; columns > 0 && (line[at] === " " || line[at] === "\t"); ++at) columns -= line[at] === "\t" ? 4 : 1;
  return line.slice(at);
}

function fenceOf(line) {
  const found = kFence.exec(line);
  return found && !(found[1][0] === "`" && found[2].includes("`")) ? found : null;
}

function closesFence(line, fence) {
  const text = line.trim();
  return text.length >= fence.length && text === fence[0].repeat(text.length) && columnsOf(line) < 4;
}

function isDelimiters(line) {
  return line !== undefined && kDelimiters.test(line) && line.includes("-") && line.includes("|");
}

function cellsOf(line) {
  const cells = line.trim().replace(/^\|/, "").split(/(?<!\\)\|/);
  if (cells.length > 1 && cells[cells.length - 1].trim() === "") cells.pop();
  return cells.map((cell) => cell.trim().replaceAll("\\|", "|"));
}

// Whether a line ends the paragraph above it.
function interrupts(line) {
  const item = kItem.exec(line);
  return fenceOf(line) || kHeading.test(line) || kQuote.test(line) || kRule.test(line) ||
    (item && item[4] && !/^([02-9]|1\d)/.test(item[2]));
}

class BlockReader {
  constructor(lines, isWhole, room, depth) {
    Object.assign(this, {lines, isWhole, room, depth, at: 0});
  }

  // The blocks, each with the line that it begins at.
  read() {
    const blocks = [];
    while (this.at < this.lines.length) {
      const {at} = this;
      if (!this.lines[at].trim()) {
        ++this.at;
        continue;
      }
      const left = this.room.left--;
      const block = left > 0 && this.depth < kMostDeep ? this.block(this.lines[at]) : this.rest();
      blocks.push({...block, at, left});
    }
    return blocks;
  }

  // Whether nothing is added any more to what ends before the line that is next.
  get isDone() {
    return this.isWhole || this.at < this.lines.length;
  }

  inlines(text, isWhole = this.isDone) {
    return inlinesOf(text, isWhole, this.room);
  }

  within(lines) {
    return new BlockReader(lines, this.isDone, this.room, this.depth + 1).read();
  }

  block(line) {
    const heading = kHeading.exec(line);
    if (fenceOf(line)) return this.code(fenceOf(line));
    if (heading) return this.heading(heading);
    if (kRule.test(line)) {
      ++this.at;
      return {tag: "hr"};
    }
    if (kQuote.test(line)) return this.quote();
    if (kItem.test(line)) return this.list(kItem.exec(line));
    return this.isTable(this.at) ? this.table() : this.paragraph();
  }

  rest() {
    const text = this.lines.slice(this.at).join("\n");
    this.at = this.lines.length;
    return {tag: "p", children: [text]};
  }

  code([, fence, info]) {
    const text = [];
    while (++this.at < this.lines.length && !closesFence(this.lines[this.at], fence)) text.push(this.lines[this.at]);
    ++this.at;
    return {tag: "pre", language: info.trim().split(/[\s,{]/, 1)[0].slice(0, 40), text: text.join("\n")};
  }

  heading([, marks, rest]) {
    ++this.at;
    const text = (rest ?? "").trim();
    let end = text.length;
    while (text[end - 1] === "#") --end;
    const isClosed = end === 0 || text[end - 1] === " ";
    // All are one step below the answer's name: models skip steps.
    const children = this.inlines(isClosed ? text.slice(0, end).trim() : text);
    return {tag: "h4", className: `h${marks.length}`, children};
  }

  quote() {
    const lines = [];
    for (; this.at < this.lines.length; ++this.at) {
      const line = this.lines[this.at];
      const isLazy = lines.length > 0 && lines[lines.length - 1].trim() && line.trim() && !interrupts(line);
      if (!kQuote.test(line) && !isLazy) break;
      lines.push(line.replace(kQuote, ""));
    }
    return {tag: "blockquote", children: this.within(lines)};
  }

  list(first) {
    const items = [];
    const kind = first[2][first[2].length - 1];
    for (let item = first; item && item[2].endsWith(kind) && !kRule.test(this.lines[this.at]);) {
      if (this.room.left-- <= 0) break;
      items.push({tag: "li", children: this.within(this.itemLines(item))});
      item = this.at < this.lines.length ? kItem.exec(this.lines[this.at]) : null;
    }
    const isNumbered = /\d/.test(first[2]);
    return {tag: isNumbered ? "ol" : "ul", start: isNumbered ? parseInt(first[2], 10) : undefined, children: items};
  }

  // The lines of one item, without what they are set in by; models are less exact there than CommonMark.
  itemLines([, indent, mark, space, text]) {
    const outer = columnsOf(indent);
    const inner = outer + mark.length + ((space?.length ?? 1) > 4 ? 1 : space?.length ?? 1);
    const lines = [(text ?? "").replace(/^\[([ xX])\] /, (_, tick) => (tick === " " ? "☐ " : "☑ "))];
    let fence = fenceOf(lines[0])?.[1];
    for (++this.at; this.at < this.lines.length; ++this.at) {
      const line = this.lines[this.at];
      const isLazy = !fence && lines[lines.length - 1].trim() && !interrupts(line) && !kItem.test(line);
      if (line.trim() && columnsOf(line) < Math.min(inner, outer + 2) && !isLazy) break;
      const own = withoutIndent(line, inner);
      fence = fence ? (closesFence(own, fence) ? undefined : fence) : fenceOf(own)?.[1];
      lines.push(own);
    }
    return lines;
  }

  // Of a text that is still written, a line that begins as a table's is taken for its head.
  isTable(at) {
    const line = this.lines[at];
    if (!line.includes("|") || line.length > kMostHead) return false;
    return isDelimiters(this.lines[at + 1]) ||
      (!this.isWhole && at + 1 >= this.lines.length && line.trimStart().startsWith("|"));
  }

  table() {
    const head = cellsOf(this.lines[this.at]);
    const sides = cellsOf(this.lines[this.at + 1] ?? "").map((cell) =>
      (cell.endsWith(":") ? (cell.startsWith(":") ? "middle" : "right") : ""));
    const rows = [head];
    for (this.at += 2; this.lines[this.at]?.includes("|") && this.room.left > 0; ++this.at) {
      rows.push(cellsOf(this.lines[this.at]).slice(0, head.length));
      this.room.left -= rows[rows.length - 1].length + 1;
    }
    const made = rows.map((cells, index) => ({tag: "tr", children: cells.map((cell, column) => {
      const isLast = index === rows.length - 1 && column === cells.length - 1;
      return {tag: index === 0 ? "th" : "td", className: sides[column] ?? "",
        children: this.inlines(cell, !isLast || this.isDone)};
    })}));
    const parts = [{tag: "thead", children: made.slice(0, 1)}, {tag: "tbody", children: made.slice(1)}];
    return {tag: "div", className: "table", children: [{tag: "table", children: parts}]};
  }

  paragraph() {
    const lines = [this.lines[this.at]];
    for (++this.at; this.at < this.lines.length; ++this.at) {
      const line = this.lines[this.at];
      if (!line.trim() || interrupts(line) || this.isTable(this.at)) break;
      lines.push(line);
    }
    return {tag: "p", children: this.inlines(lines.join("\n").trim())};
  }
}

// The blocks of a text; of each: the line that it begins at, and what room was left there. `isWhole`: nothing is added.
function blocksOf(text, isWhole = true, room = {left: kMostNodes}) {
  const lines = text.split(/\r?\n/);
  const last = lines[lines.length - 1];
  if (!isWhole && last.length < 400 && kUndecided.test(last)) lines.pop();
  return new BlockReader(lines, isWhole, room, 0).read();
}

