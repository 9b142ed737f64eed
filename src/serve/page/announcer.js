// Reads an answer out to those who listen: whole sentences, every few seconds, not token by token.
class Announcer {
  static pause = 4000;  // ms: a sentence or two of speech
  static kept = 8;      // lines that stay for who comes late

  constructor(place) {
    this.place = place;
    this.unread = "";
    this.last = 0;
  }

  begin(text) {
    this.unread = "";
    this.say(text);
  }

  add(text) {
    this.unread += text;
    if (performance.now() - this.last < Announcer.pause) return;
    const end = Math.max(...[". ", "! ", "? ", ".\n", "\n\n"].map((mark) => this.unread.lastIndexOf(mark)));
    if (end < 0) return;
    this.say(this.unread.slice(0, end + 1));
    this.unread = this.unread.slice(end + 1);
  }

  end(text) {
    this.say(`${this.unread} ${text}`.trim());
    this.unread = "";
  }

  say(text) {
    this.last = performance.now();
    this.place.append(made("p", "", text));
    while (this.place.children.length > Announcer.kept) this.place.firstChild.remove();
  }
}

