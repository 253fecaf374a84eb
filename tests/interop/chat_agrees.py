"""Renders chat templates with Transformers (Jinja2) and with us, and compares the texts.

python chat_agrees.py PROGRAM [TEMPLATE...]        needs: pip install transformers jinja2

PROGRAM is build/release/tests/interop/chat_texts. Each TEMPLATE is rendered for every conversation below, with and without
tools and a generation prompt; so are the constructs below. A text must be equal; what Python refuses must be refused, and
raise_exception() with the same message. What only we refuse is counted and shown: it must be in what the documents leave
out. Ends with 1 when a text or a refusal differs.
"""

import datetime
import json
import subprocess
import sys

import jinja2
import transformers
from transformers.utils import chat_template_utils

NOW = datetime.datetime(2024, 7, 26, 13, 5, 9)


class FixedTime(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW


chat_template_utils.datetime = FixedTime


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


def system(text):
    return {"role": "system", "content": text}


def tool(text, **more):
    return {"role": "tool", "content": text, **more}


CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Zürich", "days": 2, "x": 1e-7}}}
CONVERSATIONS = [
    [user("Hi")],
    [system("  Be brief.\n"), user("a"), assistant("b"), user("c")],
    [system(""), user(""), assistant("")],
    [user("天気は？ 🚀"), assistant("straße ŉ İ ΑΣ. ǆ"), user("\u3000wide\u00a0\u2028")],
    [user("w?"), assistant("", tool_calls=[CALL]), tool('{"t": 21.5}', name="weather", tool_call_id="call_1"), assistant("21.5")],
    [user("w?"), assistant(None, tool_calls=[CALL, CALL]), tool("r1"), tool("r2"), user("thanks")],
    [user("q"), assistant("<think>\nso\n</think>\n\na"), user("r"), assistant("z", reasoning_content="why\n")],
    [user([{"type": "text", "text": "part"}, {"type": "image"}]), assistant([{"type": "text", "text": "x"}])],
    [user("\" ' \\ {{ x }} {% raw %} <|im_end|> \r\n\t\x01"), assistant("a\rb\x0bc\x0cd\x1ce\x85f")],
    [user("one"), user("two"), assistant("three"), assistant("four")],
    [{"role": "developer", "content": "d", "name": "n"}, {"role": "custom", "content": "e", "n": -7, "f": 2.0, "g": 1e300}],
    [],
]
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "Weather — 天気 <b>&'",
     "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer", "enum": [1, 2]}}, "required": ["city"]}}},
    {"type": "function", "function": {"name": "noop", "parameters": {}}},
]

# Expressions; each is printed for the conversations `messages` and the names of SETUP.
SETUP = """{%- set l = [3, 1, 2] -%}{%- set s = 'Hello wörld, the 2nd  time' -%}{%- set d = {'b': 1, 'a': [1, 2.5, none, true, 'x'], 'items': 5} -%}
{%- set t = (1, 'two', 3.0) -%}{%- set ns = namespace(n=1, s='q') -%}{%- set words = ['b', 'A', 'c', 'a', 'B'] -%}"""
EXPRESSIONS = """
1 + 2 * 3 ** 2 // 4 % 5 - -6
7 / 2 ~ ' ' ~ 8 / 2 ~ ' ' ~ -7 // 2 ~ ' ' ~ -7 % 3 ~ ' ' ~ 7 % -3 ~ ' ' ~ 7.5 // 2 ~ ' ' ~ -7.5 % 2
2 ** -1 ~ ' ' ~ 2 ** 0.5 ~ ' ' ~ 10 ** 15 ~ ' ' ~ 1e15 ~ ' ' ~ 1e16 ~ ' ' ~ 1.5e-5 ~ ' ' ~ 0.0001 ~ ' ' ~ 123456789.125
1_000 + 0x_ff + 0b11 + 0o17
'a' 'b' "c" ~ 'd\\n\\t\\x41\\u00e9\\101\\q\\'' ~ "\\\\" ~ 'ü\\é'
true and none or 'x'
not l is defined
1 < 2 < 3 ~ ''
(1 < 2 <= 2 != 3) ~ (1 == 1.0 == true)
none == false
'a' if false
('a' if false) is defined
'a' if l else 'b' if s else 'c'
missing ~ '|' ~ missing.x is defined
missing is defined ~ ''
missing.x
missing + 1
d.a ~ d['b'] ~ d.missing ~ d['missing']
d.items
d.items() | list
d['items']
d.keys() ~ d.values() ~ d.items()
d.get('b') ~ d.get('q') ~ d.get('q', 7)
d | items | list
d | dictsort
d | dictsort(reverse=true, by='key')
{'b': 2, 'a': 1, 'C': 3} | dictsort(case_sensitive=true)
d | tojson
d | tojson(indent=2)
d | tojson(indent=2, separators=(',', ':'), sort_keys=true)
{'é': '天', 'n': {}, 'l': [], 1: 2, none: 3, true: 4, 2.5: 5} | tojson(ensure_ascii=true)
'\\x00\\x1f\\x7f\\u2028"\\\\/🚀' | tojson
'🚀é' | tojson(ensure_ascii=true)
(1, 2) | tojson
missing | tojson
l.append(4)
d.update({})
d.pop('b')
l[0] ~ l[-1] ~ l[5] ~ l[-4]
l[1:] ~ l[:-1] ~ l[::-1] ~ l[5:] ~ l[-2:] ~ l[::2] ~ l[2:0:-1]
s[0] ~ s[-1] ~ s[7] ~ s[6:9] ~ s[::-1] ~ s[::3] ~ s[99:] ~ s[:-99]
t ~ t[0] ~ t[1:] ~ () ~ (1,)
d[1:]
none[0]
none.x
none.x.y
5 .real
s.upper() ~ s.lower() ~ s.title() ~ s.capitalize() ~ s.swapcase
s.upper() ~ s.lower() ~ s.title() ~ s.capitalize()
s | upper ~ s | lower ~ s | title ~ s | capitalize
'they\\'re bill-and(ted) don\\'t x1y' | title
'they\\'re bill-and(ted) x1y'.title()
s.split() ~ s.split(' ') ~ s.split(' ', 1) ~ s.rsplit(' ', 1) ~ s.split(none, 2) ~ s.rsplit(none, 2) ~ '  a b '.split(none, 1) ~ '  a b  '.rsplit(none, 1)
s.split('')
'a,b,,c'.split(',') ~ ''.split() ~ ''.split(',') ~ ',a,'.split(',') ~ 'a--b--c'.split('--', 1) ~ 'a--b--c'.rsplit('--', 1)
'xxhixx'.strip('x') ~ '|' ~ ' \\t hi \\n'.strip() ~ '|' ~ 'xyhiyx'.lstrip('xy') ~ '|' ~ 'hi  '.rstrip() ~ '|'
s.startswith('Hello') ~ s.endswith(('x', 'time')) ~ s.startswith('w', 6) ~ s.startswith('', 99)
s.replace('l', 'L') ~ s.replace('l', 'L', 1) ~ 'abc'.replace('', '-') ~ 'abc'.replace('', '-', 2) ~ s.replace('zz', 'y')
s | replace('l', 'L') ~ s | replace('l', 'L', 2) ~ 123 | replace('2', 'x')
s.find('w') ~ s.find('zz') ~ s.rfind('e') ~ s.index('t') ~ s.count('e') ~ s.count('') ~ s.find('e', 2) ~ s.find('e', -4)
s.index('zz')
'-'.join(words) ~ ','.join('abc')
','.join([1])
words | join ~ words | join(', ') ~ l | join('-') ~ messages | join(',', attribute='role')
'a=b=c'.partition('=') ~ 'a=b=c'.rpartition('=') ~ 'abc'.partition('=') ~ 'abc'.rpartition('=')
'12'.isdigit() ~ 'a1'.isalpha() ~ 'ab'.isalpha() ~ 'a1'.isalnum() ~ ' '.isspace() ~ ''.isspace() ~ 'AB'.isupper() ~ 'aB'.islower() ~ '1'.islower()
'a\\nb\\r\\nc\\x0bd'.splitlines() ~ 'a\\nb\\n'.splitlines(true)
'ab'.ljust(5) ~ '|' ~ 'ab'.rjust(5, '*') ~ '|' ~ 'ab'.center(5) ~ '|' ~ 'abc'.center(6, '-') ~ '|' ~ 'ab' | center(7) ~ '|'
'TestHook'.removeprefix('Test') ~ 'TestHook'.removesuffix('Hook') ~ 'x'.removeprefix('y')
'{} {}'.format(1, 2)
'%s' % 1
s * 2 ~ 2 * 'ab' ~ 'ab' * 0 ~ 'ab' * -1 ~ [1] * 3 ~ (1, 2) * 2
'a' + 1
1 + 'a'
[1] + [2] ~ (1,) + (2,)
[1] + (2,)
{} + {}
'a' < 'b' ~ ('a' < 'B') ~ ([1, 2] < [1, 3]) ~ ((1, 2) <= (1, 2))
'a' < 1
none < 1
1 in l ~ 9 in l ~ 'b' in d ~ 'wör' in s ~ 1 not in l ~ 'q' not in d
1 in 'abc'
1 in none
1 in missing
[1, [2]] == [1, [2]] ~ ((1,) == [1]) ~ ({'a': 1, 'b': 2} == {'b': 2, 'a': 1}) ~ (missing == missing2)
l | sort ~ l | sort(reverse=true) ~ words | sort ~ words | sort(case_sensitive=true) ~ messages | sort(attribute='role') | map(attribute='role') | list
[1, 'a'] | sort
l | first ~ l | last ~ [] | first ~ [] | last ~ 'abc' | first ~ 'abc' | last ~ d | first
l | length ~ s | length ~ d | length ~ missing | length ~ t | count
5 | length
none | length
l | reverse | list ~ 'äbc' | reverse ~ d | reverse | list
words | unique | list ~ words | unique(case_sensitive=true) | list
l | min ~ l | max ~ words | min ~ words | max ~ [] | max ~ messages | max(attribute='role')
l | sum ~ [1.5, 2] | sum ~ [[1], [2]] | sum(start=[]) ~ [{'a': 1}, {'a': 2}] | sum(attribute='a')
l | batch(2) | list ~ l | batch(2, 0) | list
range(3) | list ~ range(1, 4) | list ~ range(5, 0, -2) | list ~ range(3) ~ range(1, 9, 2) ~ range(2)[0] ~ range(0) | list
range(100001) | list
messages | map(attribute='content') | list
messages | map(attribute='x.y', default='none') | list
words | map('upper') | list ~ words | map('replace', 'a', 'z') | join
messages | selectattr('role', 'equalto', 'user') | list | length ~ messages | rejectattr('role', 'in', ['user', 'tool']) | map(attribute='role') | list
messages | selectattr('tool_calls') | list | length ~ messages | selectattr('tool_calls', 'defined') | list | length
l | select('odd') | list ~ l | reject('gt', 1) | list ~ [0, 1, '', 'a', none] | select | list ~ ['a', 1] | select('string') | list
l | select('nosuch') | list
missing | default('x') ~ none | default('x') ~ none | default('x', true) ~ '' | d('y', boolean=true) ~ 0 | default(1)
' a ' | trim ~ '|' ~ 'xax' | trim('x') ~ '|'
'a\\nb\\n\\nc' | indent ~ 'a\\nb' | indent(2, true) ~ 'a\\n\\nb' | indent(2, blank=true) ~ 'a\\nb' | indent('> ') ~ '' | indent
3.7 | int ~ '42' | int ~ ' 42 ' | int ~ '4.9' | int ~ 'x' | int ~ 'x' | int(7) ~ 'ff' | int(base=16) ~ -3.7 | int ~ true | int ~ none | int
'3.5' | float ~ 2 | float ~ 'x' | float ~ 'x' | float(1.5) ~ '1e3' | float
2.5 | round ~ 3.5 | round ~ 2.567 | round(2) ~ 2.1 | round(method='ceil') ~ -2.1 | round(0, 'floor') ~ 7 | round ~ 2.675 | round(2)
-5 | abs ~ 2.5 | abs ~ -0.0 | abs
s | wordcount ~ 'a-b c_d' | wordcount
s | truncate(9) ~ s | truncate(9, true) ~ s | truncate(9, false, '…') ~ 'short' | truncate(255) ~ s | truncate(20, leeway=0)
'a b/ü&=' | urlencode
'<a href="x">\\'&' | escape ~ ('<' | safe) ~ (('<b>' | safe) + '<i>') ~ ('<' | e | e)
l | string ~ 1.0 | string ~ none | string
s | list | length ~ d | list ~ 'aé' | list
t is sequence ~ d is mapping ~ s is string ~ l is iterable ~ 5 is iterable ~ none is none ~ 5 is number ~ true is number ~ 5 is integer ~ true is integer ~ 5.0 is float ~ true is boolean
5 is odd ~ 4 is even ~ 9 is divisibleby 3 ~ 9 is divisibleby(2) ~ 'a' is lower ~ 'A1' is upper ~ 1 is true ~ true is true ~ false is false
3 is eq 3 ~ 3 is ne 4 ~ 3 is lt 4 ~ 3 is ge 3 ~ 3 is in [3] ~ 3 is not in [3] ~ none is sameas none ~ 3 is sameas 3.0 ~ range is callable
missing is undefined ~ missing is iterable ~ missing is sequence ~ missing is mapping
1 is nosuch
1 | nosuch
ns.n ~ ns.q ~ ns
namespace({'a': 1}, b=2).b
namespace(_x=1)
dict(a=1, b=[2]) ~ dict({'x': 1}, y=2) ~ dict([('k', 'v')])
[none, true, false, 1, -2, 1.0, 1e100, 'a\\'b', 'a"b', 'a\\'"b', 'é\\n\\x00\\u200b\\\\', {'k': (1,)}]
raise_exception('no ' ~ l)
raise_exception(5)
strftime_now('%d %b %Y|%Y-%m-%d|%H:%M:%S|%A|%%|%j')
strftime_now('')
messages[0].role ~ messages[-1]['role'] ~ messages | length
messages[0].content.strip().upper()
messages[0].content[0]
messages[0].content + '!'
messages[0].content ~ '!'
messages[1].tool_calls[0].function.arguments | tojson
messages[1].tool_calls[0].function.arguments.items() | list
messages | tojson
messages | tojson(indent=4)
tools | tojson
tools
documents
add_generation_prompt ~ bos_token ~ eos_token ~ pad_token
s.__class__
s.__class__.__mro__
''.__len__()
[].__class__
(lambda)
{'a': 1}['a']['b']
{'a': 1, 'a': 2}
{[1]: 2}
[1, 2,]
(l | first) + (l | last)
l | map('string') | join('+') ~ (l | length - 1)
-l | first
- 3 | abs
not 1 == 2
not (1 in l) or 5
1 if 0 else 2 if 0 else 3
s | attr('upper')
d | attr('b')
loop is defined
'a' ~ 1 ~ none ~ true ~ 1.5 ~ [1]
9223372036854775807 ~ -9223372036854775807
'é' is string and 'é' | length == 1
1 .x
1.5.x
l.0
l.1 ~ t.2
'x' | default
('a', 'b') | join
''|length
'%'
s[1:3:0]
s['upper']()
messages[0]['content']['strip']()
l.index(1) ~ l.count(3) ~ t.index('two')
l.index(9)
l.copy()
d.copy() == d
'ß'.upper() ~ 'ﬁ'.title() ~ 'ΑΣ'.lower() ~ 'ΑΣ Σ'.lower() ~ 'İ'.lower() ~ 'ŉ'.upper() ~ 'ǆ'.title() ~ 'straße'.capitalize()
""".strip("\n").splitlines()

TEMPLATES = [
    "{% for m in messages %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.previtem.role if not loop.first }}{{ loop.nextitem.role }}{{ loop.cycle('a', 'b') }}\n{% else %}none{% endfor %}",
    "{% for m in messages if m.role == 'user' %}{{ loop.index }}/{{ loop.length }} {{ m.content }}{% if not loop.last %}, {% endif %}{% else %}empty{% endfor %}",
    "{% set ns = namespace(stop=false) %}{% for m in messages if not ns.stop %}{{ m.role }}{% if m.role == 'assistant' %}{% set ns.stop = true %}{% endif %}{% endfor %}",
    "{% set ns = namespace(stop=false) %}{% for m in messages if not ns.stop %}{{ m.role }}{{ loop.last }}{% set ns.stop = true %}{% endfor %}",
    "{% set x = 1 %}{% for m in messages %}{% set x = x + 1 %}{{ x }}{% endfor %}{{ x }}",
    "{% if true %}{% set x = 5 %}{% endif %}{{ x }}{% for i in [1] %}{% if true %}{% set y = 6 %}{% endif %}{{ y }}{% endfor %}{{ y }}",
    "{% for m in messages %}{% if loop.index == 2 %}{% continue %}{% endif %}{{ m.role }}{% if loop.index == 3 %}{% break %}{% endif %}{% endfor %}",
    "{% for a, b in [(1, 2), [3, 4]] %}{{ a }}{{ b }};{% endfor %}{% for k, v in {'x': 1}.items() %}{{ k }}{{ v }}{% endfor %}{% for (a, (b, c)) in [(1, (2, 3))] %}{{ a + b + c }}{% endfor %}",
    "{% for a, b in [(1, 2, 3)] %}{% endfor %}",
    "{% for x in 5 %}{% endfor %}",
    "{% for x in none %}{% endfor %}",
    "{% for x in missing %}{% else %}e{% endfor %}{% for c in 'aé' %}[{{ c }}]{% endfor %}{% for k in {'p': 1} %}{{ k }}{% endfor %}",
    "{% for i in range(3) recursive %}{{ i }}{% if i %}{{ loop(range(i)) }}{% endif %}{{ loop.depth }}{% endfor %}",
    "{% macro f(a, b=2, c=a) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ f(1) }}|{{ f(1, c=9) }}|{{ f(b=3, a=4) }}|{{ f() }}",
    "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, 2) }}",
    "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(b=2) }}",
    "{% macro f(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 2, 3, x=4) }}{{ f(*[7, 8], **{'z': 9}) }}",
    "{% macro f(x) %}[{{ caller(x) }}]{% endmacro %}{% call(y) f(3) %}{{ y * 2 }}{% endcall %}{% macro g() %}({{ caller() }}){% endmacro %}{% call g() %}in{% endcall %}",
    "{% macro f() %}{{ z }}{% endmacro %}{% set z = 1 %}{{ f() }}{% set z = 2 %}{{ f() }}",
    "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}",
    "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "{% macro f() %}\n  text\n{% endmacro %}\n{{ f() | trim }}|{{- f() -}}|",
    "{% set x %}a{{ 1 }}b{% endset %}{{ x }}{% set y | upper %}q{% endset %}{{ y }}{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set t = 1, 2 %}{{ t }}",
    "{% with a = 1, b = 2 %}{{ a }}{{ b }}{% set c = 3 %}{% endwith %}{{ a }}{{ c }}",
    "{% filter upper | replace('A', 'x') %}abc{{ 'd' }}{% endfilter %}",
    "{% raw %}{{ x }}{% y %}{# z #}{% endraw %}{%- raw -%}  a  {%- endraw -%}  b",
    "{# comment #}a{#- c -#} b {#+ d #}\nc",
    "a\n  {% if true %}\n  b\n  {% endif %}\nc\n",
    "a\n  {%- if true -%}\n  b\n  {%+ endif %}\nc\n\n",
    "a {% if true %} b {% endif %} c\n{% if true +%}\nd{% endif %}",
    "  {{ 1 }}  \n  {{- 2 -}}  \n {% set x = 1 %} \n  {{ x }}\r\nnext\rlast\n",
    "x\n\n{%- for m in messages %}\n{{ m.role }}\n{%- endfor %}\n",
    "{{ '{{' }}{{ {'a': {'b': 1}}.a.b }}{{ {'a': 1}}}",
    "{% generation %}{{ messages[0].content }}{% set q = 1 %}{% endgeneration %}{{ q }}",
    "{% for m in messages %}{% generation %}{{ m.role }}{% endgeneration %}{% endfor %}",
    "{% if messages[0].role == 'system' %}S{% elif messages[0].role == 'user' %}U{% else %}O{% endif %}",
    "{% print 1, 'a' %}",
    "{{ 1, 2 }}{{ (1, 2)[0] }}",
    "{% set ns = namespace() %}{% set ns.a = 1 %}{% set ns.b = ns.a + 1 %}{{ ns.a }}{{ ns.b }}{{ ns.c }}",
    "{% set x = {} %}{% set x.a = 1 %}",
    "{% set x.a = 1 %}",
    "{% set ns = namespace() %}{% set ns.a, ns.b = 1, 2 %}{{ ns.b }}",
    "{% if x is not defined %}{% set x = 'd' %}{% endif %}{{ x }}",
    "{% for m in messages %}{% if loop.previtem is defined and loop.previtem.role == m.role %}{{ raise_exception('same role twice: ' + m.role) }}{% endif %}{% endfor %}ok",
    "{%- for m in messages[::-1] %}{{ m.role[0] }}{% endfor %}{{ messages[1:] | length }}",
    "{% if enable_thinking is defined and enable_thinking is false %}off{% elif enable_thinking %}on{% else %}unset{% endif %}",
    "{% include 'x' %}",
    "{% extends 'x' %}",
    "{% unknown %}",
    "{% if %}{% endif %}",
    "{% if true %}",
    "{{ 1 + }}",
    "{{ 'a }}",
    "{% endif %}",
    "{{ (1 }}",
    "{{ 1) }}",
    "{# open",
    "{% raw %} open",
    "{% break %}",
    "{% for x in [1] %}{% macro f() %}{% break %}{% endmacro %}{% endfor %}",
    "{{ f(a=1, 2) }}",
    "{% macro f(a=1, b) %}{% endmacro %}",
    "{{ 1 is is }}",
    "{{ a.b.c }}",
    "{{ 5() }}",
    "{{ 'x'() }}",
    "{% set loop_items = [] %}{% for i in [1, 2] %}{% for j in [3, 4] %}{{ i }}{{ j }}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}",
    "{% for i in [1, 2] %}{% set outer = loop %}{% for j in 'ab' %}{{ outer.index }}{{ loop.index }}{% endfor %}{% endfor %}",
    "{% for i in [3, 1] | sort %}{{ i }}{% endfor %}{% for i in messages | map(attribute='role') %}{{ i }}{{ loop.length }}{% endfor %}",
    "{% set a = [1, 2, 3] | map('string') %}{{ a | join }}|{{ a | join }}|{{ a is iterable }}",
    "{% set x = 1 if false %}{{ x is defined }}{{ x }}",
    "{{ [1, 2, 3] | select('gt', 1) }}",
    "{% for m in messages %}{{ '<|' ~ m.role ~ '|>' ~ (m.content | string | trim) ~ eos_token }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}",
    "{% for d in documents or [] %}{{ d.title }}: {{ d.text }}\n{% endfor %}",
    "  {%- set a = 1 %}\n\n{{ a }}\n   {# c #}   \n{% if a %}  x  {% endif %}   \n",
    "\u3000{%- if true %}\u3000{%- endif -%}\u00a0\u2003 x",
    "{%set a=1%}{{a}}{%if a==1%}y{%endif%}{{a|string+'z'}}",
    "{{ messages[0]\n  .content\n}}\n{{ undefined_name.attr }}",
]


def refusal_of(error) -> dict:
    # raise_exception() gives a plain TemplateError; everything else is Python's or Jinja's own.
    kind = "error" if type(error) is jinja2.exceptions.TemplateError else "error_other"
    return {kind: str(error)}


def theirs(question) -> dict:
    try:
        rendered, _ = chat_template_utils.render_jinja_template(
            conversations=[question["messages"]],
            tools=question["tools"],
            documents=question["documents"],
            chat_template=question["template"],
            add_generation_prompt=question["add_generation_prompt"],
            **question["tokens"],
            **question["variables"],
        )
        return {"rendered": rendered[0]}
    except Exception as error:  # noqa: BLE001: every refusal counts
        return refusal_of(error)


def questions(templates) -> list[dict]:
    asked = []

    def ask(template, conversation, tools=False, prompt=False, variables=None, documents=None):
        asked.append({
            "template": template, "tokens": {"bos_token": "<s>", "eos_token": "</s>"}, "messages": conversation,
            "tools": TOOLS if tools else None, "documents": documents, "add_generation_prompt": prompt, "variables": variables or {},
        })

    for expression in EXPRESSIONS:
        for conversation in (CONVERSATIONS[1], CONVERSATIONS[4], CONVERSATIONS[8]):
            ask(SETUP + "{{ " + expression + " }}", conversation, tools=True)
    for template in TEMPLATES:
        for conversation in CONVERSATIONS:
            ask(template, conversation, prompt=len(conversation) % 2 == 0, documents=[{"title": "t", "text": "x"}])
    for template in templates:
        for conversation in CONVERSATIONS:
            for tools in (False, True):
                for variables in ({}, {"enable_thinking": False}, {"enable_thinking": True}):
                    ask(template, conversation, tools, not tools, variables)
                    ask(template, conversation, tools, tools, variables)
    return asked


def main() -> int:
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    templates = [open(path, encoding="utf-8").read() for path in sys.argv[2:]]
    asked = questions(templates)
    lines = "".join(json.dumps(each) + "\n" for each in asked)
    ours = [json.loads(line) for line in subprocess.run([sys.argv[1]], input=lines, capture_output=True, text=True, check=True).stdout.split("\n")[:-1]]
    equal = refused = differ = 0
    only_ours = {}
    for question, our in zip(asked, ours, strict=True):
        their = theirs(question)
        same = their == our or ("error_other" in their and "error_other" in our)
        if same and "rendered" in their:
            equal += 1
        elif same:
            refused += 1
        elif "error_other" in our and "rendered" in their:
            only_ours.setdefault(our["error_other"], question["template"].replace(SETUP, ""))
        else:
            differ += 1
            print(f"DIFFERENT {question['template'].replace(SETUP, '')[:300]!r}\n  theirs {str(their)[:600]}\n  ours   {str(our)[:600]}")
    print(f"transformers {transformers.__version__}, Jinja2 {jinja2.__version__}: {len(asked)} renderings, {equal} equal, {refused} refused by both, {differ} different; only we refuse:")
    for message, template in only_ours.items():
        print(f"  {message}   in {template[:100]!r}")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
