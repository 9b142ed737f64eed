"""What scripts/check_page.py holds against the page's Markdown and its conversations."""

import json
import pathlib
import tempfile
import time

from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from browsed import EVIL, check

RICH = """# A title
Some **bold, `code` and *both*** with [a link](https://example.org/a_(b) "t") and https://example.com/x.

1. One
   - inner **a**
   - inner b

   ```python
   def f(x):
       return x * 2  # <b>
   ```
2. Two

| name | n |
|:-----|--:|
| a `b` | 1 |
| c | **2** |

> quoted
> text

---
[bad](javascript:alert(1)) <img src=x onerror="window.hacked=3"> ![p](https://example.org/p.png)

The end is \\*here\\* and \\(x_1 + y_1\\)."""


def scripted(page, text, piece, pause=0):
    """Sends a message that is answered with `text`, in pieces, whatever the server would say."""
    page.run(
        r"""const [text, piece, pause] = arguments;
        window.real ??= window.fetch;
        window.fetch = (url, ...rest) => {
          if (!String(url).includes("chat")) return window.real(url, ...rest);
          const bytes = new TextEncoder();
          const say = (delta) => bytes.encode(`data: ${JSON.stringify({choices: [{index: 0, delta}]})}\n\n`);
          let at = 0;
          return Promise.resolve(new Response(new ReadableStream({async pull(to) {
            if (at >= text.length) { to.enqueue(bytes.encode("data: [DONE]\n\n")); return to.close(); }
            to.enqueue(say({content: text.slice(at, at += piece)}));
            if (pause) await new Promise((go) => setTimeout(go, pause));
          }}), {headers: {"Content-Type": "text/event-stream"}}));
        };""",
        text,
        piece,
        pause,
    )
    page.send("Say it")
    page.run("window.fetch = window.real")


def markdown(page):
    page.get("new-chat").click()
    page.run("""window.gone = 0;
        const count = (node) => { window.gone += node.nodeType === 1; };
        new MutationObserver((all) => all.forEach((one) => one.removedNodes.forEach(count)))
            .observe(document.getElementById("log"), {childList: true, subtree: true});""")
    scripted(page, RICH, 1, 2)
    grown = page.run("return document.querySelector('article:last-child .text').innerHTML")
    gone = page.run("return window.gone")
    tags = page.run("return [...document.querySelectorAll('article:last-child .text *')].map((one) => one.localName)")
    check(
        "Markdown becomes elements",
        all(tag in tags for tag in ("h4", "strong", "em", "code", "ol", "ul", "pre", "table", "blockquote", "hr"))
        and not {"img", "script", "b"} & set(tags),
        len(tags),
    )
    check("as it is written, little is taken back", gone <= 12, f"{gone} elements")
    links = page.run(
        "return [...document.querySelectorAll('article:last-child .text a')]"
        ".map((a) => [a.getAttribute('href'), a.rel, a.target])"
    )
    check(
        "links are safe and open apart",
        [one[0] for one in links] == ["https://example.org/a_(b)", "https://example.com/x", "https://example.org/p.png"]
        and all(one[1:] == ["noopener noreferrer", "_blank"] for one in links),
        links,
    )
    page.driver.refresh()
    page.until(lambda: len(page.articles()) == 2)
    whole = page.run("return document.querySelector('article:last-child .text').innerHTML")
    check("what grew is what is shown whole", grown == whole, "" if grown == whole else f"\n{grown}\n{whole}")
    page.articles()[-1].find_element(By.CSS_SELECTOR, ".code-block button").send_keys(Keys.ENTER)
    page.until(lambda: page.notice() == "Copied.")
    page.message().send_keys(Keys.CONTROL, "v")
    pasted = page.get("message").get_attribute("value")
    check("code is copied by a key", pasted == "def f(x):\n    return x * 2  # <b>", repr(pasted))
    page.get("message").clear()
    page.articles()[-1].find_element(By.CSS_SELECTOR, ".turn button").click()
    page.message().send_keys(Keys.CONTROL, "v")
    check("and an answer as it was written", page.get("message").get_attribute("value") == RICH)
    page.get("message").clear()
    page.get("new-chat").click()


def hostile(page):
    """Texts that a page could choke on, in pieces of 4 KiB: each within its time, and the page answers meanwhile."""
    size = 1 << 20
    for name, text in (
        ("a line", "a" * size),
        ("brackets", "[" * size),
        ("stars", "*a" * (size // 2)),
        ("quotes", "> " * (size // 2)),
        ("nested lists", "".join("  " * (i % 400) + "- a\n" for i in range(2000))),
        ("items", "- a\n" * (size // 4)),
        ("an open fence", "```\n" + "code\n" * (size // 5)),
        ("table rows", "|a|b|\n|-|-|\n" + "|c|d|\n" * (size // 6)),
        ("backticks", "`" * 7 + "`a" * (size // 2)),
        ("markup", (EVIL + "\n\n") * (size // 80)),
        ("links", "[a](javascript:x) https://a.b " * (size // 30)),
    ):
        page.get("new-chat").click()
        begun = time.monotonic()
        scripted(page, text, 4096)
        page.run("return document.body.offsetHeight")
        took = time.monotonic() - begun
        nodes = page.run("return document.querySelectorAll('#log *').length")
        check(
            f"1 MiB of {name} is shown",
            took < 60 and nodes < 70000 and not page.run("return window.hacked"),
            f"{took:.1f} s, {nodes} elements",
        )
    page.get("new-chat").click()
    page.run(
        "for (const name of Object.keys(localStorage))"
        "  if (name.startsWith('sluice.talk.')) localStorage.removeItem(name);"
    )
    page.driver.refresh()
    page.until(lambda: page.get("model").get_attribute("value") == "small")


def press(page, article, name):
    next(one for one in article.find_elements(By.CSS_SELECTOR, ".turn button") if one.text == name).send_keys(
        Keys.ENTER
    )


def editing(page):
    page.get("new-chat").click()
    page.set("max-tokens", "20")
    for text in ("One", "Two"):
        page.send(text)
        page.until(lambda: not page.is_writing())
    page.message().send_keys("a draft")
    press(page, page.articles()[0], "Edit")
    check(
        "Edit puts a message into the box",
        page.get("message").get_attribute("value") == "One"
        and "Esc" in page.notice()
        and page.run("return document.activeElement.id") == "message",
    )
    page.type(Keys.ESCAPE)
    check(
        "Esc leaves it, and gives the draft back",
        page.get("message").get_attribute("value") == "a draft" and len(page.articles()) == 4,
    )
    page.get("message").clear()
    press(page, page.articles()[0], "Edit")
    page.type(" more", Keys.ENTER)
    page.until(lambda: not page.is_writing() and len(page.articles()) == 2)
    check(
        "what is sent takes the place of it and all behind",
        [one["content"] for one in page.kept()][0] == "One more",
        page.kept()[0]["content"],
    )
    page.send("Two")
    page.until(lambda: not page.is_writing() and len(page.articles()) == 4)
    first = page.kept()[1]["content"]
    press(page, page.articles()[1], "Again")
    page.driver.switch_to.alert.accept()
    page.until(lambda: not page.is_writing() and len(page.articles()) == 2)
    check("an earlier answer is written again", page.kept()[1]["content"] == first)
    page.set("max-tokens", "60")


def conversations(page):
    page.run("localStorage.clear(); document.getElementById('talks').open = true")
    for text in ("First talk", "Second talk\nline", EVIL):
        page.get("new-chat").click()
        page.run("document.getElementById('message').value = arguments[0]", text)
        page.send("")
    titles = lambda: [one.text.split("\n")[0] for one in page.driver.find_elements(By.CSS_SELECTOR, "#talk-list .open")]
    page.until(lambda: len(titles()) == 3)
    check(
        "conversations are listed, the last one first", titles() == [EVIL[:60], "Second talk", "First talk"], titles()
    )
    page.driver.find_elements(By.CSS_SELECTOR, "#talk-list .open")[2].send_keys(Keys.ENTER)
    check(
        "and opened by a key",
        page.kept()[0]["content"] == "First talk"
        and page.articles()[0].text.startswith("You\nFirst talk")
        and page.driver.find_element(By.CSS_SELECTOR, "#talk-list [aria-current]").text.startswith("First talk"),
    )
    with tempfile.TemporaryDirectory() as folder:
        page.driver.execute_cdp_cmd("Page.setDownloadBehavior", {"behavior": "allow", "downloadPath": folder})
        page.get("export").click()
        file = pathlib.Path(folder) / "conversation.json"
        page.until(file.exists)
        check("one is saved as a file", json.loads(file.read_text())["messages"] == page.kept())
    page.driver.find_elements(By.CSS_SELECTOR, "#talk-list button:not(.open)")[1].click()
    page.driver.switch_to.alert.dismiss()
    check("nothing is deleted without a word", len(titles()) == 3)
    page.driver.find_elements(By.CSS_SELECTOR, "#talk-list button:not(.open)")[1].click()
    page.driver.switch_to.alert.accept()
    page.until(lambda: titles() == [EVIL[:60], "First talk"])
    check("one is deleted", len(page.articles()) == 2)
    page.run(
        """for (let i = 0; i < 70; ++i) localStorage.setItem(`sluice.talk.x${i}`,
                JSON.stringify({stamp: 1, time: i, title: `old ${i}`,
                messages: [{role: "user", content: "a".repeat(60000)}]}));"""
    )
    page.send("More")
    kept = page.run("return Object.keys(localStorage).filter((one) => one.startsWith('sluice.talk.')).length")
    check(
        "those that were used longest ago make room",
        kept <= 36 and titles()[0] == "First talk" and "old 69" in titles() and "old 0" not in titles(),
        kept,
    )
    page.run("""try { for (let i = 0; ; ++i) localStorage.setItem(`other.${i}`, "x".repeat(10000)); } catch {}
                try { for (let i = 0; ; ++i) localStorage.setItem(`little.${i}`, "x".repeat(100)); } catch {}""")
    page.send("And more")
    check(
        "where the browser is full, too",
        page.kept()[-2]["content"] == "And more" and len(titles()) < kept,
        len(titles()),
    )
    page.run(
        "for (const name of Object.keys(localStorage))"
        "  if (name.startsWith('sluice.talk.')) localStorage.removeItem(name);"
        "try { for (let i = 0; ; ++i) localStorage.setItem(`more.${i}`, 'x'.repeat(1000)); } catch {}"
    )
    page.run("try { for (let i = 0; ; ++i) localStorage.setItem(`least.${i}`, ''); } catch {}")
    page.send("No room")
    check("what can't be kept is said", "no room" in page.notice() and len(page.articles()) >= 2, page.notice())
    page.run("localStorage.clear()")
    page.get("new-chat").click()
    for text in ("One", "Two"):
        page.get("new-chat").click()
        page.send(text)
    page.get("delete-all").click()
    page.driver.switch_to.alert.accept()
    check("all are deleted", titles() == [] and not page.articles() and page.get("no-talks").is_displayed())
    page.driver.refresh()
    check("for good", not page.articles())
    page.until(lambda: page.get("model").get_attribute("value") == "small")
    for field, value in (("max-tokens", "60"), ("temperature", "0")):
        page.set(field, value)
    page.problems()


CHECKS = (markdown, editing, conversations, hostile)
