#!/usr/bin/env python3
"""Renders chat templates with Python's Jinja2, set up as Hugging Face transformers sets it up, for tests/chat.

    scripts/golden/chat.py [--templates FOLDER] [--out FILE]      (needs the PyPI package jinja2)

Every template below FOLDER meets every conversation; what Jinja2 printed, or that it refused, becomes a line of FILE. Expressions of
the language itself, one by one, follow.
"""
import argparse
import json
import os
import pathlib

import jinja2
import jinja2.ext
import jinja2.sandbox

ROOT = pathlib.Path(__file__).resolve().parents[2]
SYSTEM = {"role": "system", "content": "You are terse."}
HELLO = {"role": "user", "content": "Hello, wörld! 你好"}
ANSWER = {"role": "assistant", "content": " Hi.\n"}
TOOL = {"type": "function", "function": {
    "name": "get_weather", "description": "Weather of a \"city\"",
    "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "where"},
                                                    "days": {"type": "integer", "enum": [1, 2]}}, "required": ["city"]}}}
CALL = {"role": "assistant", "content": "", "tool_calls": [
    {"id": "call12345", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Köln", "days": 2}}}]}
CALL_TEXT = {"role": "assistant", "content": None, "tool_calls": [
    {"id": "call12345", "type": "function", "function": {"name": "get_weather", "arguments": "{\"city\": \"Köln\"}"}}]}
RESULT = {"role": "tool", "tool_call_id": "call12345", "name": "get_weather", "content": "{\"celsius\": 21.5}"}
CONVERSATIONS = {
    "user": dict(messages=[HELLO]),
    "system": dict(messages=[SYSTEM, HELLO]),
    "turns": dict(messages=[SYSTEM, HELLO, ANSWER, {"role": "user", "content": "More?"}]),
    "no prompt": dict(messages=[HELLO, ANSWER], add_generation_prompt=False),
    "assistant first": dict(messages=[ANSWER, HELLO]),
    "two users": dict(messages=[HELLO, HELLO]),
    "parts": dict(messages=[{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}]),
    "tools": dict(messages=[SYSTEM, HELLO], tools=[TOOL]),
    "tool call": dict(messages=[HELLO, CALL, RESULT, {"role": "user", "content": "And now?"}], tools=[TOOL]),
    "tool call as text": dict(messages=[HELLO, CALL_TEXT, RESULT], tools=[TOOL]),
    "thinking": dict(messages=[HELLO, {"role": "assistant", "content": "<think>why</think>Because.", "reasoning_content": "why"},
                               {"role": "user", "content": "Ok"}], enable_thinking=True),
    "no thinking": dict(messages=[HELLO], enable_thinking=False),
    "empty": dict(messages=[]),
    "strange role": dict(messages=[{"role": "wizard", "content": "x"}]),
}
VALUES = dict(n=7, x=2.5, s="Ab c\n", l=[3, 1, 2], d={"b": 1, "a": [1, "two", None, True]}, e=[], u="äöü你", t="  pad  ",
              people=[{"name": "Bo", "age": 3}, {"name": "al", "age": 2}, {"name": "Cy", "age": 3}])
SNIPPETS = r"""
{{ 1 + 2 * 3 - 4 }}|{{ 7 // 2 }}|{{ -7 // 2 }}|{{ -7 % 3 }}|{{ 7 / 2 }}|{{ 2 ** 10 }}|{{ 2 ** -1 }}|{{ 1e3 }}|{{ 1_000 }}|{{ 0.1 + 0.2 }}|{{ 1e16 }}
{{ 'a' ~ 1 ~ none ~ true }}|{{ 'a' 'b' }}|{{ "it's" }}|{{ 'q"q' }}|{{ '\t\x41\u00e9\\' }}
{{ [1, 'a', none, true, 2.0, {'k': "v'"}, (1,), (1, 2)] }}
{{ 1 < 2 < 3 }}|{{ 1 < 3 < 2 }}|{{ not 1 == 2 }}|{{ 1 == 1.0 }}|{{ true == 1 }}|{{ 'a' < 'b' }}|{{ [1, 2] < [1, 3] }}|{{ 'b' in 'abc' }}|{{ 4 not in l }}|{{ 'a' in d }}
{{ none or 'x' }}|{{ '' or 0 or 'y' }}|{{ 1 and 2 }}|{{ 0 and 1 }}|{{ 'a' if false }}|{{ 'a' if n > 3 else 'b' }}
{{ s.strip() }}|{{ s.upper() }}|{{ 'a,b,,c'.split(',') }}|{{ ' a  b '.split() }}|{{ 'a b c'.split(' ', 1) }}|{{ 'a b c'.rsplit(' ', 1) }}|{{ 'abc'.startswith(('x', 'a')) }}
{{ 'xxabxx'.strip('x') }}|{{ 'xxabxx'.lstrip('x') }}|{{ 'aXbX'.replace('X', '-') }}|{{ 'aXbX'.replace('X', '-', 1) }}|{{ 'hello world'.title() }}|{{ u.upper() }}|{{ 'x'.join(['a', 'b']) }}
{{ 'abc'.find('c') }}|{{ u.find('你') }}|{{ 'abc'.find('z') }}|{{ 'aba'.count('a') }}|{{ '12'.isdigit() }}|{{ ''.isdigit() }}|{{ 'a1'.isalpha() }}|{{ '7'.zfill(3) }}|{{ '{} {x}'.format(1, x=2) }}
{{ u[0] }}|{{ u[-1] }}|{{ u[1:3] }}|{{ u[::-1] }}|{{ l[1:] }}|{{ l[:-1] }}|{{ l[::2] }}|{{ l[5:] }}|{{ l[-2:] }}|{{ u|length }}|{{ l[10] }}
{{ d.b }}|{{ d['a'][1] }}|{{ d.get('z') }}|{{ d.get('z', 5) }}|{{ d.keys()|list }}|{{ d.items()|list }}|{{ d|dictsort }}|{{ d.zz }}|{{ d.zz is defined }}|{{ d|items|list }}
{{ l|sort }}|{{ l|sort(reverse=true) }}|{{ l|max }}|{{ l|min }}|{{ l|sum }}|{{ l|first }}|{{ l|last }}|{{ l|reverse|list }}|{{ l|join('-') }}|{{ e|first }}|{{ 'abc'|reverse }}
{{ people|map(attribute='name')|join(',') }}|{{ people|selectattr('age', 'equalto', 3)|map(attribute='name')|list }}|{{ people|rejectattr('age', 'gt', 2)|list }}|{{ people|sort(attribute='name')|map(attribute='name')|list }}
{{ l|map('string')|list }}|{{ l|select('odd')|list }}|{{ l|reject('odd')|list }}|{{ [1, 1, 2]|unique|list }}|{{ ['a', 'A']|unique|list }}|{{ people|groupby('age')|length }}
{{ d|tojson }}|{{ d|tojson(indent=2) }}|{{ u|tojson }}|{{ [1.0, 1e20, -0.5]|tojson }}|{{ e|tojson(indent=2) }}|{{ "a\"b\n<"|tojson }}
{{ t|trim }}|{{ 'a b'|capitalize }}|{{ 'ab'|upper }}|{{ zz|default('q') }}|{{ ''|default('q', true) }}|{{ '5'|int + 1 }}|{{ 'x'|int(9) }}|{{ '2.5'|float }}|{{ 2.567|round(1) }}|{{ 3|abs }}|{{ -3|abs }}
{{ "%s is %d"|format("a", 3) }}|{{ '%05.1f' % 3.14159 }}|{{ 'a\nb'|indent(2) }}|{{ '<b>'|e }}|{{ [1, 2, 3]|batch(2)|list }}|{{ 'abc def ghi jkl'|truncate(9) }}
{{ n is odd }}|{{ n is divisibleby 7 }}|{{ n is string }}|{{ zz is undefined }}|{{ none is none }}|{{ d is mapping }}|{{ l is iterable }}|{{ 's' is sequence }}|{{ n is number and x is float }}|{{ n is not even }}|{{ 1 in l and 2 is in(l) }}
{% for i in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.cycle('x', 'y') }}{{ loop.previtem }}{{ loop.nextitem }};{% endfor %}
{% for k, v in d.items() %}{{ k }}={{ v }} {% endfor %}{% for i in e %}x{% else %}none{% endfor %}{% for i in l if i > 1 %}{{ i }}{{ loop.length }}{% endfor %}
{% for i in range(10) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}{% endif %}{{ i }}{% endfor %}|{{ range(5, 0, -2)|list }}|{% for c in u %}{{ c }}.{% endfor %}
{% set v = 1 %}{% for i in l %}{% set v = i %}{% endfor %}{{ v }}{% set ns = namespace(v=1) %}{% for i in l %}{% set ns.v = ns.v + i %}{% endfor %}{{ ns.v }}{% if true %}{% set w = 3 %}{% endif %}{{ w }}
{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set block %}x{{ a }}y{% endset %}{{ block }}{% set c | upper %}abc{% endset %}{{ c }}{% filter upper %}abc{% endfilter %}{% with q = 5 %}{{ q }}{% endwith %}{{ q is defined }}
{% macro m(a, b='B', c=none) %}<{{ a }}{{ b }}{{ c }}{{ varargs }}{{ kwargs }}>{% endmacro %}{{ m(1) }}{{ m(1, c=2) }}{{ m(1, 2, 3, 4, z=5) }}{% macro w() %}[{{ caller() }}]{% endmacro %}{% call w() %}in{% endcall %}
{% macro f(n) %}{{ n }}{% if n > 0 %},{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(4) }}{% set ns = namespace() %}{% for i in [1, 2] %}{% macro g(x) %}{{ i }}{{ x }}{% endmacro %}{% set ns.g = g %}{% endfor %}
a   {%- if true -%}   b   {%- endif %}   c {# note #} d {{- ' e ' -}} f {% raw %}{{ raw }}{% endraw %} g {%+ if true %} h {% endif +%} i
   {% if true %}
  x
   {% endif %}
y
{{ raise_exception('no ' ~ 'way') }}
{{ zz.a }}
{{ zz + 1 }}
{{ 1 / 0 }}
{{ l.append(4) }}
{{ 'a' + 1 }}
{{ d.pop('b') }}
{{ [] | nosuch }}
{% if %}
{{ 1 +
{% for i in l %}
{% endif %}
{{ n is nosuch }}
{{ 'abc }}
{{ {16384: 1, 0: 2, 512: 3, 4096: 4}|dictsort }}|{{ {3: 'a', 1: 'b'}|dictsort(reverse=true) }}|{{ {10: 'b', 9: 'a'}|dictsort(by='value') }}
{% set gear = namespace(v=none) %}{% for k, v in {1024: 256, 0: 0, 16384: 9, 512: 128} | dictsort %}{% if gear.v is none and 600 <= k %}{% set gear.v = v %}{% endif %}{% endfor %}{{ gear.v }}
{{ {1: 'a', true: 'b', 1.0: 'c'} }}|{{ {2: 1, 'x': 2, none: 3, 2.5: 4, false: 5}|tojson }}|{{ {10: 1, 9: 2}|tojson(sort_keys=true) }}
{{ 512 in {512: 1} }}|{{ '512' in {512: 1} }}|{{ {512: 1}['512'] is defined }}|{{ {512: 1}[512.0] }}|{{ {(1, 2): 't'}[(1, 2)] }}
{% for k, v in {10: 'a', 9: 'b'}.items() %}{{ k + 1 }}{{ v }} {% endfor %}{% for k in {10: 1, 9: 2} %}{{ k }},{% endfor %}{{ {5: 6}|items|list }}
{{ {1: 'a'}.get(1) }}|{{ {1: 'a'}.get('1', 'none') }}|{{ dict([(3, 'x')]) }}|{{ {1: 'a'} == {1.0: 'a'} }}|{{ {1: 'a'} == {'1': 'a'} }}
{{ {[1]: 2} }}
{{ {(1, 2): 't'}|tojson }}
{{ {'a': 1, 2: 3}|dictsort }}
""".strip("\n")


def environment():
    class Generation(jinja2.ext.Extension):
        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("_inside"), [], [], body).set_lineno(line)

        def _inside(self, caller):
            return caller()

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                       extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.filters["safe"] = str  # Jinja2's own makes + and ~ escape quotes for HTML, which no model was trained on
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda form: "DATE"
    return env


def render(source, values):
    """(text, None) or (None, why)."""
    try:
        return environment().from_string(source).render(**values), None
    except Exception as error:  # whatever Jinja2 or Python throws on it
        return None, f"{type(error).__name__}: {error}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--templates", default=str(ROOT / "tests/fixtures/chat/templates"))
    parser.add_argument("--out", default=str(ROOT / "tests/fixtures/chat/goldens.jsonl"))
    arguments = parser.parse_args()
    records = []
    base = pathlib.Path(arguments.templates)
    for path in sorted(base.rglob("*.jinja")):
        source = path.read_text(encoding="utf-8")
        for name, given in CONVERSATIONS.items():
            values = dict(tools=None, documents=None, add_generation_prompt=True, bos_token="<s>", eos_token="</s>")
            values.update(given)
            text, error = render(source, values)
            records.append(dict(template=os.path.relpath(path, base), conversation=name, values=given, text=text, error=error))
    lines = SNIPPETS.split("\n")
    at = lines.index("   {% if true %}")
    snippets = lines[:at] + ["\n".join(lines[at:at + 4])] + lines[at + 4:]
    for source in snippets:
        text, error = render(source, VALUES)
        records.append(dict(source=source, values=VALUES, text=text, error=error))
    with open(arguments.out, "w", encoding="utf-8") as out:
        for record in records:
            out.write(json.dumps(record, ensure_ascii=False) + "\n")
    failed = sum(record["text"] is None for record in records)
    print(f"{len(records)} renderings of {len(set(r.get('template') for r in records)) - 1} templates and {len(snippets)} snippets; "
          f"Jinja2 {jinja2.__version__} refused {failed}")


if __name__ == "__main__":
    main()
