"""Tables of pages that scripts write between two marks. For scripts."""
import sys


def keep(how, page, marks, tables, script):
    """Writes `tables` between the two `marks` of `page` (--write), or fails where others stand there (--check)."""
    text = page.read_text()
    begin, end = text.index(marks[0]) + len(marks[0]), text.index(marks[1])
    if how == "--write":
        page.write_text(text[:begin] + tables + text[end:])
    elif text[begin:end] != tables:
        sys.exit(f"docs/{page.name}: the tables of {script} are old; run scripts/{script} --write")
