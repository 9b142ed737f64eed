// Markdown of the page, read by node: what becomes what, that no text is slow, unsafe or lost.
import assert from "node:assert/strict";
import fs from "node:fs";
import test from "node:test";

const folder = new URL("../../src/serve/page/", import.meta.url);
const source = ["inlines.js", "markdown.js"].map((name) => fs.readFileSync(new URL(name, folder), "utf8")).join("");
const {blocksOf, inlinesOf, addressOf} = new Function(`${source}; return {blocksOf, inlinesOf, addressOf};`)();

// Nodes as short text: "p(a em(b))".
function shown(nodes) {
  return nodes.map((node) => {
    if (typeof node === "string") return node;
    const name = node.tag + (node.href ? `=${node.href}` : "") + (node.start > 1 ? `=${node.start}` : "");
    return `${name}(${node.tag === "pre" ? `${node.language}:${node.text}` : shown(node.children ?? [])})`;
  }).join("");
}
const inline = (text, isWhole) => shown(inlinesOf(text, isWhole));
const block = (text, isWhole) => shown(blocksOf(text, isWhole));
const textOf = (nodes) =>
  nodes.map((node) => (typeof node === "string" ? node : node.text ?? textOf(node.children ?? []))).join("");
function each(nodes, look, depth = 1) {
  for (const node of nodes) {
    look(node, depth);
    if (node.children) each(node.children, look, depth + 1);
  }
}

function holds(cases, read) {
  for (const [text, wanted] of cases) assert.equal(read(text), wanted, JSON.stringify(text));
}

test("marks within a line", () => holds([
  ["a *b* **c** ~~d~~ `e`", "a em(b) strong(c) del(d) code(e)"],
  ["***a*** **b *c* d** *e **f***", "strong(em(a)) strong(b em(c) d) em(e strong(f))"],
  ["_a_ __b__ snake_case_name 2*3*4 a * b", "em(a) strong(b) snake_case_name 2*3*4 a * b"],
  ["**a *b** c* **d", "strong(a *b) c* **d"],
  ["中文**（括号）**后", "中文strong(（括号）)后"],
  ["`` a ` b `` `c", "code(a ` b) `c"],
  ["\\*a\\* \\\\ \\q a\\", "*a* \\ \\q a\\"],
  ["\\(x_1*y*z\\) $$a*b*c$$ \\[*d*\\] \\(*e*", "\\(x_1*y*z\\) $$a*b*c$$ \\[*d*\\] \\(em(e)"],
  ["a<br>b<br/>c<b>d</b>", "a\nb\nc<b>d</b>"],
  ["*****a*****", "*****a*****"],
], inline));

test("links", () => holds([
  ["[a *b*](https://x.y/z_(w) \"t\")", "a=https://x.y/z_(w)(a em(b))"],
  ["see https://a.b/c_d*e, (https://e.f/g_(h)). <mailto:i@j.k>",
    "see a=https://a.b/c_d*e(https://a.b/c_d*e), " +
      "(a=https://e.f/g_(h)(https://e.f/g_(h))). a=mailto:i@j.k(mailto:i@j.k)"],
  ["![alt](https://x.y/z.png) ![](https://x.y/)", "a=https://x.y/z.png(alt) a=https://x.y/(picture)"],
  ["[a [b](http://c/) d](http://e/)", "a=http://e/(a b d)"],
  ["[https://a.b](https://c.d)", "a=https://c.d/(https://a.b)"],
  ["[a](javascript:alert(1)) [b](data:text/html,x) [c](/metrics) [d] [e](",
    "[a](javascript:alert(1)) [b](data:text/html,x) [c](/metrics) [d] [e]("],
  ["[a](java\tscript:x) [b](JaVaScRiPt:x) [c](vbscript:x) [d](file:///etc)",
    "[a](java\tscript:x) [b](JaVaScRiPt:x) [c](vbscript:x) [d](file:///etc)"],
], inline));

test("blocks", () => holds([
  ["# A #\n## B#\ntext\n---\n#no", "h4(A)h4(B#)p(text)hr()p(#no)"],
  ["a\nb\n\nc", "p(a\nb)p(c)"],
  ["```js\n*a*\n\n<b>\n```\nb", "pre(js:*a*\n\n<b>)p(b)"],
  ["~~~~\n~~~\n~~~~", "pre(:~~~)"],
  ["```\nopen", "pre(:open)"],
  ["`a``` b", "p(`a``` b)"],
  ["> a\nb\n> - c\n\nd", "blockquote(p(a\nb)ul(li(p(c))))p(d)"],
  ["- a\n- b\n  - c\n\n    d\n- [x] e", "ul(li(p(a))li(p(b)ul(li(p(c)p(d))))li(p(☑ e)))"],
  ["3. a\n   ```py\n   if x:\n     y\n   ```\n4. b\n  - c", "ol=3(li(p(a)pre(py:if x:\n  y))li(p(b)ul(li(p(c)))))"],
  ["1. a\n\n2. b\n\nc\n* d", "ol(li(p(a))li(p(b)))p(c)ul(li(p(d)))"],
  ["In\n1984. no list", "p(In\n1984. no list)"],
  ["a\n| b | c |\n|:--|--:|\n| `d\\|e` | f | g |\nh",
    "p(a)div(table(thead(tr(th(b)th(c)))tbody(tr(td(code(d|e))td(f)))))p(h)"],
  ["<script>alert(1)</script>\n<!-- a -->", "p(<script>alert(1)</script>\n<!-- a -->)"],
  ["", ""], ["\r\n a\r\n\r\nb\r", "p(a)p(b)"],
], block));

test("what is still written is shown as it will be", () => {
  for (const [text, wanted] of [
    ["**a", "p(strong(a))"], ["**a*", "p(strong(a))"], ["a `b", "p(a code(b))"], ["a **", "p(a )"], ["[a",
      "p(span(a))"],
    ["[a](htt", "p(span(a))"], ["a\n-", "p(a)"], ["a\n``", "p(a)"], ["12", ""], ["12.", ""], ["12. a",
      "ol=12(li(p(a)))"],
    ["| a | b |", "div(table(thead(tr(th(a)th(b)))tbody()))"], ["| a | b |\n|--",
      "div(table(thead(tr(th(a)th(b)))tbody()))"],
    ["```js\na\n``", "pre(js:a)"], ["**a\n\nb", "p(**a)p(b)"], ["- **a\n- b **c",
      "ul(li(p(**a))li(p(b strong(c))))"]])
    assert.equal(block(text, false), wanted, JSON.stringify(text));
});

const kPieces = ["a", " ", "\n", "\n\n", "*", "**", "_", "`", "```", "~~~\n", "[", "](", ")", "!", "https://a.b",
  "javascript:", "<", ">", "> ",
  "- ", "1. ", "  ", "\t", "|", "|-|\n", "# ", "\\", "$$", "~~", "<script>", "---\n", "é", "\u{1f600}", "\r\n"];
const kTags = "p h4 hr pre blockquote ul ol li div table thead tbody tr th td a em strong del code span".split(" ");
let seed = 7;
function draw(most) {
  seed = (Math.imul(seed, 1103515245) + 12345) >>> 0;
  return (seed >>> 8) % most;
}

test("no text is lost, nested deep, or leads anywhere unsafe", () => {
  for (let round = 0; round < 20000; ++round) {
    const text = Array.from({length: draw(40)}, () => kPieces[draw(kPieces.length)]).join("");
    for (const isWhole of [true, false])
      each(blocksOf(text, isWhole), (node, depth) => {
        assert.ok(depth < 120, text);
        if (node.href) assert.match(node.href, /^(https?|mailto):/);
        if (node.tag) assert.ok(kTags.includes(node.tag), node.tag);
      });
    const letters = (from) => from.replace(/[^aé\u{1f600}]/gu, "");
    if (!text.includes("](") && !/[`~|]/.test(text))  // addresses, fences' words and surplus cells are not shown
      assert.equal(letters(textOf(blocksOf(text))), letters(text), JSON.stringify(text));
  }
});

test("addresses", () => {
  for (const bad of ["javascript:1", " \u0001javascript:1", "java\nscript:1", "data:,", "blob:x", "//a", "a", "",
    "file:///", "ftp://a"])
    assert.equal(addressOf(bad), null, bad);
});

const kHostile = ["*", "*a", "**a ", "***", "_a_", "`", "``a`", "~~", "[", "]", "[a](", "](", "![", "[a](b ",
  "[a](b \"", "](((", "\\(", "\\", "$$ $", "<", "<br",
  "<https://", "https://a", "http://a.)", "(", ")", "> ", ">", "- ", "-", "  - a\n", "1. ", "1. a\n", "# ", "#",
    " #", "|", "|a", "|-", "a|b\n", "|-|-|\n", "```", "```a\n",
  "~~~\n", " ", "\t", "\n", "a", "a ", "a\n", "- a\n  ", "> a\n", "---", "- - -\n", "=", "é", "<b>", "\r\n",
    "`".repeat(7) + "a", "*a_b~~", "[*a", "*a**b", "1.", "* * "];

test("time grows with the text alone", () => {
  const read = (piece, bytes, isWhole) => {
    const text = piece.repeat(bytes / piece.length);
    const begun = performance.now();
    each(blocksOf(text, isWhole), () => {});
    return performance.now() - begun;
  };
  for (const piece of [...kHostile, ...kHostile.map((one) => `\n${one}`)])
    for (const isWhole of [true, false]) {
      const long = read(piece, 1 << 17, isWhole);
      const half = long > 5000 ? read(piece, 1 << 16, isWhole) : 0;
      assert.ok(long <= 5000, `${JSON.stringify(piece)}: ${long} ms for 128 KiB, ${half} ms for half`);
    }
  const runs = Array.from({length: 1400}, (_, index) => "`".repeat(index + 1)).join("a");
  const begun = performance.now();
  blocksOf(runs);
  assert.ok(performance.now() - begun < 5000);
});

test("more than a page can show stays text", () => {
  let nodes = 0;
  each(blocksOf("- a\n".repeat(1 << 18)), () => ++nodes);
  assert.ok(nodes < 60000, `${nodes}`);
  const lines = blocksOf(`${"a\n\n".repeat(30000)}`);
  assert.match(lines[lines.length - 1].children[0], /^a\n\na/);
});
