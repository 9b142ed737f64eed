// Nodes of Markdown as elements. Of what was shown before, all stays that is the same: selections last, nothing
// flickers.

function codeBlock() {
  const block = made("div", "code-block");
  const top = made("div", "top");
  const copy = made("button", "", "Copy");
  const text = made("pre");
  copy.type = "button";
  copy.addEventListener("click", () => copyText(text.textContent, copy));
  text.tabIndex = 0;
  text.setAttribute("role", "region");
  text.append(made("code"));
  top.append(made("span", "language"), copy);
  block.append(top, text);
  return block;
}

function showCode(block, {language, text}) {
  const [top, pre] = block.children;
  write(top.firstChild, language);
  top.lastChild.setAttribute("aria-label", language ? `Copy ${language} code` : "Copy code");
  pre.setAttribute("aria-label", language ? `Code, ${language}` : "Code");
  showNodes(pre.firstChild, [text]);
}

function builtNode(node) {
  if (typeof node === "string") return document.createTextNode(node);
  const element = node.tag === "pre" ? codeBlock() : made(node.tag, node.className);
  element.kind = node.tag;
  if (node.className === "table") element.tabIndex = 0;
  updateNode(element, node);
  return element;
}

function updateNode(element, node) {
  if (typeof node === "string") {
    if (element.data === node) return;
    if (node.startsWith(element.data)) element.appendData(node.slice(element.data.length));
    else element.data = node;
    return;
  }
  if (node.tag === "pre") return showCode(element, node);
  if (element.className !== (node.className ?? "")) element.className = node.className;
  if (node.start !== undefined && element.start !== node.start) element.start = node.start;
  if (node.href && element.href !== node.href)
    Object.assign(element, {href: node.href, rel: "noopener noreferrer", target: "_blank"});
  if (node.children) showNodes(element, node.children);
}

// From its child `first` on, `place` has the nodes.
function showNodes(place, nodes, first = 0) {
  let old = place.childNodes[first];
  for (const node of nodes) {
    const next = old?.nextSibling;
    const fits = typeof node === "string" ? old?.nodeType === Node.TEXT_NODE : old?.kind === node.tag;
    if (fits) updateNode(old, node);
    else if (old) old.replaceWith(builtNode(node));
    else place.append(builtNode(node));
    old = next;
  }
  while (place.childNodes.length > first + nodes.length) place.lastChild.remove();
}

// An answer that is JSON is shown as such: Markdown would take away its backslashes.
const kJson = /^\s*(?:\{\s*["}]|\[\s*[{"[])/;

// A text that grows: blocks behind which another has begun are not read again until all is there.
class MarkdownView {
  constructor(place) {
    this.place = place;
    this.begin();
  }

  begin() {
    this.read = 0;    // letters of the blocks that stay
    this.blocks = 0;  // of them
    this.room = kMostNodes;
  }

  update(text, isWhole) {
    if (isWhole || text.length < this.read) this.begin();
    if (kJson.test(text)) return showNodes(this.place, [{tag: "pre", language: "json", text}]);
    const rest = text.slice(this.read);
    const blocks = blocksOf(rest, isWhole, {left: this.room});
    showNodes(this.place, blocks, this.blocks);
    const last = blocks[blocks.length - 1];
    if (isWhole || !last || last.at === 0) return;
    let at = 0;
    for (let line = 0; line < last.at; ++line) at = rest.indexOf("\n", at) + 1;
    this.read += at;
    this.blocks += blocks.length - 1;
    this.room = last.left;
  }
}

