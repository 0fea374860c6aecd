"""Renderings by Python's Jinja2, set up as in Hugging Face's transformers: tests/data/chat-templates/.

    python templates.py

Writes expected.json, the fetched templates of real models in the contexts of contexts.json, and cases.json, templates of our own
for one feature each. "error" names the exception where Jinja2 refuses.
"""
import datetime
import json

import jinja2
import jinja2.ext
import jinja2.sandbox

from common import DATA, fetched, write_json

NOW = datetime.datetime(2025, 7, 10, 12, 0, 0)


class Generation(jinja2.ext.Extension):
    """`{% generation %}` marks what the assistant says; it renders as what stands between."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_same"), [], [], body).set_lineno(line)

    def _same(self, caller):
        return caller()


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    made = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = NOW.strftime
    return made


def outcome(template, context):
    try:
        return {"expected": environment().from_string(template).render(**context)}
    except jinja2.exceptions.TemplateError as e:
        return {"error": type(e).__name__, "message": e.message or ""}
    except Exception as e:
        return {"error": type(e).__name__, "message": str(e)}


TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi there "},
    {"role": "assistant", "content": "Hello!"},
    {"role": "user", "content": "Name a bird."},
]
PEOPLE = [
    {"name": "Ina", "age": 41, "at": {"city": "Oslo", "rank": 3}},
    {"name": "Bo", "age": 7, "at": {"city": "Bern", "rank": 1}},
    {"name": "cy", "age": 23, "at": {"city": "Rome", "rank": 2}},
]
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "It's \"the\" weather <now> & later é 🙂",
          "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]

# (name, template, context)
CASES = [
    # Text and expressions
    ("text", "plain {text} % # } }}", {}),
    ("expressions", "{{ 1 }}|{{ -2 }}|{{ 1.5 }}|{{ 2.0 }}|{{ 1e3 }}|{{ true }}|{{ False }}|{{ none }}|{{ 'a' }}", {}),
    ("arithmetic", "{{ 7 + 2 * 3 }}|{{ (7 + 2) * 3 }}|{{ 7 / 2 }}|{{ 7 // 2 }}|{{ -7 // 2 }}|{{ 7 % 3 }}|{{ 2 ** 5 }}|{{ 8 / 2 }}", {}),
    ("negative", "{{ -3 + 1 }}|{{ 2 - -1 }}|{{ -(2 + 1) }}|{{ - 5 | abs }}", {}),
    ("strings", "{{ 'it''s' }}{{ \"a\\\"b\" }}{{ 'tab\\tnew\\nline' }}{{ 'q\\'q' }}{{ '\\\\' }}", {}),
    ("adjacent", "{{ 'a' 'b' \"c\" }}", {}),
    ("joined", "{{ 'a' + 'b' ~ 1 ~ none ~ true ~ [1, 'x'] }}", {}),
    ("repeated", "{{ 'ab' * 3 }}|{{ [1, 2] * 2 }}", {}),
    ("lists", "{{ [1, 'a', [true, none], {'k': 1.5}] }}|{{ [] }}|{{ (1, 2) }}|{{ (1,) }}", {}),
    ("dicts", "{{ {'a': 1, 'b': [2, 'c'], 3: none} }}|{{ {} }}|{{ {'k': {'l': 'm'}}['k']['l'] }}|{{ {'k': 1}.k }}", {}),
    ("quotes in lists", "{{ [\"it's\", 'say \"x\"', 'both \\' \"', 'back\\\\slash', 'new\\nline', 'é🙂'] }}", {}),
    ("comparison", "{{ 1 < 2 }}{{ 2 <= 1 }}{{ 'a' < 'b' }}{{ 1 == 1.0 }}{{ 'a' != 'a' }}{{ [1, 2] == [1, 2] }}{{ {'a': 1} == {'a': 1} }}{{ 1 < 2 < 3 }}", {}),
    ("logic", "{{ true and false }}|{{ 1 and 'x' }}|{{ '' or 'y' }}|{{ not 0 }}|{{ none or [] }}|{{ not (1 == 2) and 3 }}", {}),
    ("membership", "{{ 2 in [1, 2] }}{{ 'x' not in 'abc' }}{{ 'bc' in 'abc' }}{{ 'k' in {'k': 1} }}{{ not 3 in [1] }}", {}),
    ("ternary", "{{ 'a' if x else 'b' }}|{{ 'a' if not x else 'b' }}|{{ 'only' if x is defined }}|{{ 1 if false else 2 if false else 3 }}", {"x": 1}),
    ("nothing", "[{{ nowhere }}][{{ d.nowhere }}][{{ d['nowhere'] }}]{% if nowhere %}x{% endif %}{% for i in nowhere %}x{% endfor %}", {"d": {}}),
    ("literals of Python", "{{ True }}{{ None }}{{ true == True }}{{ none is none }}", {}),
    ("large numbers", "{{ 9007199254740993 }}|{{ 4294967296 * 4 }}|{{ 0.1 + 0.2 }}", {}),
    ("exponents", "{{ 1e21 }}|{{ 1e-7 }}|{{ 100000000000000000.0 }}", {}),
    # Subscripts and slices
    ("subscripts", "{{ l[0] }}{{ l[-1] }}{{ s[1] }}{{ s[-2] }}{{ d['a'] }}{{ d.a }}{{ d['b'].c[1] }}{{ l[i] }}",
     {"l": [5, 6, 7], "s": "hello", "d": {"a": 1, "b": {"c": [8, 9]}}, "i": 1}),
    ("slices", "{{ l[1:] }}{{ l[:2] }}{{ l[1:3] }}{{ l[::2] }}{{ l[::-1] }}{{ l[-2:] }}{{ l[:-1] }}{{ l[3:1] }}", {"l": [0, 1, 2, 3, 4, 5]}),
    ("slice backwards to an end", "{{ l[4:0:-2] }}", {"l": [0, 1, 2, 3, 4, 5]}),
    ("slices of strings", "{{ s[1:] }}|{{ s[:2] }}|{{ s[::-1] }}|{{ s[-3:-1] }}|{{ s[10:] }}|{{ 'é🙂x'[1:] }}", {"s": "abcdef"}),
    # Conditions and loops
    ("if", "{% if a == 1 %}one{% elif a == 2 %}two{% else %}many{% endif %}{% if b %}b{% endif %}", {"a": 2, "b": []}),
    ("nested if", "{% if a %}{% if b %}ab{% else %}a{% endif %}{% else %}none{% endif %}", {"a": 1, "b": 0}),
    ("for", "{% for m in messages %}{{ m['role'] }}: {{ m.content }};{% endfor %}", {"messages": TALK}),
    ("for else", "{% for x in [] %}{{ x }}{% else %}empty{% endfor %}{% for x in [1] %}{{ x }}{% else %}empty{% endfor %}", {}),
    ("for if", "{% for x in range(10) if x % 3 == 0 %}{{ loop.index }}:{{ x }}{{ ',' if not loop.last }}{% endfor %}", {}),
    ("loop", "{% for x in ['a', 'b', 'c'] %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }};{% endfor %}", {}),
    ("loop over a string", "{% for x in 'abc' %}{{ loop.revindex }}{{ loop.length }}{% endfor %}", {}),
    ("loop neighbours", "{% for x in [1, 2, 3] %}({{ loop.previtem }}<{{ x }}<{{ loop.nextitem if not loop.last else 'end' }}){% endfor %}", {}),
    ("loop cycle", "{% for x in range(5) %}{{ loop.cycle('odd', 'even') }} {% endfor %}", {}),
    ("loop changed", "{% for x in [1, 1, 2, 2, 1] %}{% if loop.changed(x) %}{{ x }}{% endif %}{% endfor %}", {}),
    ("break and continue", "{% for x in range(9) %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 5 %}{% break %}{% endif %}{{ x }}{% endfor %}", {}),
    ("unpacking", "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for a, b in [[1, 2], [3, 4]] %}{{ a + b }};{% endfor %}", {"d": {"x": 1, "y": [2]}}),
    ("dict methods", "{{ d.keys() | list }}{{ d.values() | list }}{{ d.get('x') }}{{ d.get('z', 'none') }}{{ d.get('z') }}{% for k in d %}{{ k }}{% endfor %}", {"d": {"x": 1, "y": 2}}),
    ("range", "{{ range(4) | list }}{{ range(2, 5) | list }}{{ range(9, 0, -4) | list }}{{ range(0) | list }}", {}),
    ("recursive", "{% for x in tree recursive %}{{ x.n }}{% if x.c %}({{ loop(x.c) }}){% endif %}{% endfor %}", {"tree": [{"n": 1, "c": [{"n": 2, "c": []}, {"n": 3, "c": [{"n": 4}]}]}]}),
    ("loops within loops", "{% for a in [1, 2] %}{% for b in [3, 4] %}{{ a }}{{ b }}{{ loop.index }} {% endfor %}{{ loop.index }};{% endfor %}", {}),
    # Variables
    ("set", "{% set x = 1 %}{% set y = x + 1 %}{{ x }}{{ y }}{% set a, b = 1, [2] %}{{ a }}{{ b }}{% set (c, d) = ('p', 'q') %}{{ c }}{{ d }}", {}),
    ("set block", "{% set t %}[{{ 1 + 1 }}]{% endset %}{{ t }}{{ t | length }}{% set u | upper %}abc{% endset %}{{ u }}", {}),
    ("scope of loops", "{% set x = 1 %}{% for i in [1, 2] %}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}", {}),
    ("scope of conditions", "{% if true %}{% set x = 5 %}{% endif %}{{ x }}", {}),
    ("namespace", "{% set ns = namespace(n=0, found=false) %}{% for i in range(4) %}{% set ns.n = ns.n + i %}{% if i == 2 %}{% set ns.found = true %}{% endif %}{% endfor %}{{ ns.n }}{{ ns.found }}", {}),
    ("with", "{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}[{{ a }}]", {}),
    ("keywords of Python as names", "{% set class = 1 %}{{ class }}{{ lambda }}{{ def }}{{ pass }}", {"lambda": 2, "pass": 3}),
    # Macros
    ("macro", "{% macro f(x, y='d', z=none) %}<{{ x }}{{ y }}{{ z }}>{% endmacro %}{{ f(1) }}{{ f(1, 2) }}{{ f(x=3, z='k') }}{{ f('a', z=1) }}", {}),
    ("macro in macro", "{% macro a(n) %}{{ n }}{% if n > 0 %}{{ a(n - 1) }}{% endif %}{% endmacro %}{% macro b() %}[{{ a(2) }}]{% endmacro %}{{ b() }}", {}),
    ("macro sees globals", "{% set g = 'g' %}{% macro f() %}{{ g }}{{ h }}{% endmacro %}{{ f() }}", {"h": "h"}),
    ("macro result is a string", "{% macro f() %} x {% endmacro %}{{ f() | trim | length }}{{ f() ~ '!' }}{% set r = f() %}{{ r == ' x ' }}", {}),
    ("caller", "{% macro each(l) %}{% for x in l %}{{ caller(x) }};{% endfor %}{% endmacro %}{% call(p) each(people) %}{{ p.name }}{% endcall %}", {"people": PEOPLE}),
    ("varargs", "{% macro f(a) %}{{ a }}{{ varargs | list }}{{ kwargs | tojson }}{% endmacro %}{{ f(1, 2, 3, k=4) }}", {}),
    # Whitespace
    ("whitespace control", "  {%- if true -%}  A  {%- endif -%}  B {{- ' C ' -}} D ", {}),
    ("trimmed blocks", "{% if true %}\n  a\n{% endif %}\n  {% for x in [1, 2] %}\n  {{ x }}\n  {% endfor %}\nend\n", {}),
    ("kept whitespace", "  {%+ if true %} a {% endif %}\n  {{ 1 }}\n\n  {# c #}\nb", {}),
    ("comments", "a{# one {{ x }} {% if %} #}b\n  {# two\nlines #}\nc{#- three -#}  d", {}),
    ("raw", "{% raw %}{{ x }}{% if %}{# #}{% endraw %}|{%- raw -%} {{ y }} {%- endraw -%} |", {}),
    ("last newline", "a\n", {}),
    ("two last newlines", "a\n\n", {}),
    ("carriage returns", "a\r\n{% if true %}\r\nb\r\n{% endif %}\r\nc", {}),
    ("filter block", "{% filter upper %}abc {{ 'd' }}{% endfilter %}", {}),
    # Tests
    ("tests", "{{ x is defined }}{{ y is defined }}{{ y is undefined }}{{ x is none }}{{ n is none }}{{ x is number }}{{ 's' is string }}{{ [1] is sequence }}{{ {} is mapping }}{{ [1] is iterable }}{{ true is boolean }}{{ 1 is integer }}{{ 1.5 is float }}", {"x": 1, "n": None}),
    ("tests of values", "{{ 3 is odd }}{{ 4 is even }}{{ 9 is divisibleby(3) }}{{ 1 is eq(1) }}{{ 2 is gt(1) }}{{ 'a' is in(['a']) }}{{ 1 is not none }}{{ 'abc' is lower }}{{ true is true }}{{ 1 is true }}{{ false is false }}", {}),
    ("strings and dicts as sequences", "{{ 'a' is sequence }}{{ {} is sequence }}", {}),
    ("tests of kinds", "{{ 'a' is iterable }}{{ 1 is iterable }}{{ 'a' is mapping }}{{ true is number }}{{ true is integer }}{{ none is defined }}", {}),
    ("test for callable", "{{ m is callable }}", {"m": "x"}),
    ("is not", "{% if x is not defined or x is not string %}a{% endif %}{% if 1 is not string and not 1 is string %}b{% endif %}", {}),
    # Filters
    ("length", "{{ 'aé🙂' | length }}{{ [1, 2] | length }}{{ {'a': 1} | length }}{{ '' | count }}{{ [1, 2] | length + 1 }}", {}),
    ("case", "{{ 'hELLO wORLD' | upper }}{{ 'ABC' | lower }}{{ 'hello big world' | title }}{{ 'hELLO wORLD' | capitalize }}", {}),
    ("trim", "[{{ ' a b \n' | trim }}][{{ 'xxaxx' | trim('x') }}]", {}),
    ("default", "{{ nowhere | default('d') }}{{ '' | default('d') }}{{ '' | default('d', true) }}{{ none | default('d') }}", {}),
    ("default by keyword", "{{ none | d('e', boolean=true) }}", {}),
    ("join", "{{ [1, 'b', true] | join }}{{ ['a', 'b'] | join(', ') }}{{ people | join('/', attribute='name') }}{{ 'abc' | join('-') }}", {"people": PEOPLE}),
    ("first and last", "{{ [1, 2, 3] | first }}{{ [1, 2, 3] | last }}{{ 'xyz' | first }}{{ 'xyz' | last }}[{{ [] | first }}]", {}),
    ("sort", "{{ [3, 1, 2] | sort }}{{ ['b', 'A', 'c'] | sort }}{{ ['b', 'A', 'c'] | sort(case_sensitive=true) }}{{ [3, 1, 2] | sort(reverse=true) }}{{ people | sort(attribute='age') | map(attribute='name') | list }}{{ people | sort(attribute='at.rank') | map(attribute='name') | list }}", {"people": PEOPLE}),
    ("dictsort", "{% for k, v in d | dictsort %}{{ k }}{{ v }}{% endfor %}|{% for k, v in d | dictsort(by='value') %}{{ k }}{{ v }}{% endfor %}|{% for k, v in d | dictsort(reverse=true) %}{{ k }}{{ v }}{% endfor %}|{% for k, v in d | dictsort(case_sensitive=true) %}{{ k }}{% endfor %}", {"d": {"b": 2, "A": 3, "c": 1}}),
    ("map", "{{ people | map(attribute='name') | list }}{{ ['a', 'b'] | map('upper') | join }}{{ people | map(attribute='at.city') | join(',') }}{{ people | map(attribute='no', default='-') | join }}{{ ['a b', 'c'] | map('replace', ' ', '_') | list }}", {"people": PEOPLE}),
    ("select", "{{ [0, 1, 2, 3] | select('odd') | list }}{{ [0, 1, '', 'x', none] | select | list }}{{ [1, 2, 3] | reject('equalto', 2) | list }}{{ [1, 'a'] | select('string') | list }}{{ [1, 5] | select('gt', 2) | list }}", {}),
    ("selectattr", "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list }}{{ messages | rejectattr('role', 'equalto', 'user') | list | length }}{{ people | selectattr('age', 'gt', 20) | map(attribute='name') | list }}{{ people | selectattr('none') | list }}{{ people | selectattr('age', 'defined') | list | length }}", {"messages": TALK, "people": PEOPLE}),
    ("groupby", "{% for role, group in messages | groupby('role') %}{{ role }}:{{ group | length }};{% endfor %}", {"messages": TALK}),
    ("unique", "{{ [3, 1, 3, 2, 1] | unique | list }}{{ ['a', 'A', 'b'] | unique | list }}", {}),
    ("reverse", "{{ [1, 2, 3] | reverse | list }}{{ 'abc' | reverse }}", {}),
    ("sum, min, max", "{{ [1, 2, 3] | sum }}{{ people | sum(attribute='age') }}{{ [3, 1, 2] | min }}{{ [3, 1, 2] | max }}{{ ['b', 'a'] | min }}", {"people": PEOPLE}),
    ("batch and slice", "{{ range(7) | batch(3) | list }}{{ range(7) | batch(3, 'x') | list }}{{ range(7) | slice(3) | list }}", {}),
    ("replace", "{{ 'banana' | replace('a', 'o') }}{{ 'a.b' | replace('.', '') }}", {}),
    ("replace the first ones", "{{ 'banana' | replace('a', 'o', 2) }}", {}),
    ("numbers", "{{ '12' | int + 1 }}{{ 'x' | int }}{{ 'x' | int(7) }}{{ 3.9 | int }}{{ '2.5' | float }}{{ 'x' | float(1.5) }}{{ -3 | abs }}{{ 2.567 | round(2) }}{{ 2.5 | round }}{{ 2.1 | round(0, 'ceil') }}{{ 7.9 | round(method='floor') | int }}", {}),
    ("string filters", "{{ 3 | string + 'x' }}{{ 'a\nb' | indent(2) }}|{{ 'a\nb\n\nc' | indent(2, true) }}|{{ 'a\n\nb' | indent(3, blank=true) }}", {}),
    ("wordcount", "{{ 'a b  c' | wordcount }}", {}),
    ("list filter", "{{ 'abc' | list }}{{ {'a': 1} | list }}{{ range(3) | list }}{{ {'a': 1, 'b': 2} | items | list }}", {}),
    ("escape", "{{ '<a href=\"x\">&\\'</a>' | e }}", {}),
    ("safe", "{{ '<b>' | safe }}{{ '<b>' }}{{ 'a & b' | e }}", {}),
    ("chained", "{{ ' a,b ,c ' | trim | replace(' ', '') | upper | list | length }}", {}),
    ("filter precedence", "{{ 1 + [1, 2] | length }}|{{ 'a' ~ 'b' | upper }}|{{ (1 + 2) | string ~ 'x' }}|{{ -1 | abs }}|{{ not x | default(true) }}", {}),
    # Methods of strings
    ("strip", "[{{ '  a ' .strip() }}][{{ '  a '.lstrip() }}][{{ '  a '.rstrip() }}][{{ 'xxaxy'.strip('xy') }}][{{ '\n\na\n'.strip('\n') }}][{{ '--a'.lstrip('-') }}]", {}),
    ("split", "{{ 'a b  c'.split() }}{{ 'a b  c'.split(' ') }}{{ 'a,b,c'.split(',', 1) }}{{ 'a,b,c'.rsplit(',', 1) }}{{ 'x</think>y</think>z'.split('</think>')[-1] }}{{ ''.split(',') }}{{ 'a\nb\n'.splitlines() }}", {}),
    ("starts and ends", "{{ 'hello'.startswith('he') }}{{ 'hello'.endswith('lo') }}{{ 'hello'.startswith('x') }}{{ 'hello'.startswith(('x', 'h')) }}", {}),
    ("more methods", "{{ 'aBc'.upper() }}{{ 'aBc'.lower() }}{{ 'a b'.title() }}{{ 'hELLO'.capitalize() }}{{ 'a-b'.replace('-', '+') }}{{ 'abcabc'.find('c') }}{{ 'abc'.find('x') }}{{ 'aXbX'.count('X') }}{{ '-'.join(['a', 'b']) }}{{ 'Abc'.isupper() }}{{ '12'.isdigit() }}{{ 'ab'.isalpha() }}", {}),
    ("format", "{{ '%s is %d years and %.2f' | format('x', 3, 1.5) }}{{ '{} {}'.format('a', 1) }}{{ '{0}{1}{0}'.format('x', 'y') }}{{ '{k}'.format(k=5) }}", {}),
    ("formatting operator", "{{ '%s-%s' % ('a', 'b') }}", {}),
    # JSON
    ("tojson", "{{ tools | tojson }}", {"tools": TOOLS}),
    ("tojson indent", "{{ tools | tojson(indent=2) }}|{{ [] | tojson(indent=4) }}|{{ {'a': []} | tojson(indent=1) }}", {"tools": TOOLS}),
    ("tojson separators", "{{ {'a': [1, 2], 'b': 1.5} | tojson(separators=(',', ':')) }}|{{ {'a': [1]} | tojson(indent=2, separators=(', ', ' : ')) }}", {}),
    ("tojson ascii", "{{ 'é🙂\x00' | tojson(ensure_ascii=true) }}{{ 'é🙂\\u2028</script>' | tojson }}", {}),
    ("tojson of delete", "{{ '\x7f' | tojson(ensure_ascii=true) }}", {}),
    ("tojson order", "{{ {'b': 1, 'a': {'d': 1, 'c': 2}} | tojson }}{{ {'b': 1, 'a': {'d': 1, 'c': 2}} | tojson(sort_keys=true) }}", {}),
    ("tojson numbers", "{{ [1, 1.0, -0.5, 1e20, 123456789012345678, true, none] | tojson }}", {}),
    ("tojson strings", "{{ 'a\"b\\\\c\\n\\t\\r/' | tojson }}", {}),
    # Functions
    ("strftime_now", "{{ strftime_now('%d %b %Y') }}|{{ strftime_now('%Y-%m-%d %H:%M:%S') }}|{{ strftime_now('%A, %B %-d') }}", {}),
    ("dict", "{{ dict(a=1, b='x') }}", {}),
    ("joiner", "{% set sep = joiner('; ') %}{% for x in [1, 2, 3] %}{{ sep() }}{{ x }}{% endfor %}", {}),
    ("cycler", "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}", {}),
    ("raise_exception", "{% if messages[0].role == 'system' %}{{ raise_exception('no system messages, please') }}{% endif %}", {"messages": TALK}),
    # Whole chat templates
    ("ChatML", "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}", {"messages": TALK, "add_generation_prompt": True}),
    ("roles by turns", "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] | trim %}{% set rest = messages[1:] %}{% else %}{% set rest = messages %}{% endif %}{% for m in rest %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}{% if loop.first and system is defined %}{{ '<<SYS>>\n' + system + '\n<</SYS>>\n\n' }}{% endif %}{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'].strip() + ' [/INST]' }}{% else %}{{ ' ' + m['content'] + ' ' + eos_token }}{% endif %}{% endfor %}", {"messages": TALK, "bos_token": "<s>", "eos_token": "</s>"}),
    ("roles out of turn", "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}{% endfor %}", {"messages": TALK}),
    ("tools", "{%- if tools %}\n    {{- '<tools>' }}\n    {%- for tool in tools %}\n        {{- '\\n' }}\n        {{- tool | tojson }}\n    {%- endfor %}\n    {{- '\\n</tools>\\n' }}\n{%- endif %}\n{%- for m in messages %}\n    {%- if m.role == 'tool' and (loop.first or messages[loop.index0 - 1].role != 'tool') %}\n        {{- '<|user|>' }}\n    {%- endif %}\n    {{- '<|' ~ m.role ~ '|>' ~ m.content }}\n    {%- if m.tool_calls is defined and m.tool_calls %}\n        {%- for call in m.tool_calls %}\n            {{- '<call>' ~ call.function.name ~ call.function.arguments | tojson ~ '</call>' }}\n        {%- endfor %}\n    {%- endif %}\n{%- endfor %}",
     {"tools": TOOLS, "messages": [{"role": "user", "content": "Weather?"}, {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "weather", "arguments": {"city": "Ålesund", "days": 2}}}]}, {"role": "tool", "content": "rain"}, {"role": "tool", "content": "{\"mm\": 4.0}"}]}),
    ("thinking is dropped", "{% set ns = namespace(last=-1) %}{% for m in messages[::-1] %}{% if m.role == 'user' and ns.last < 0 %}{% set ns.last = messages | length - 1 - loop.index0 %}{% endif %}{% endfor %}{% for m in messages %}{% set c = m.content %}{% if m.role == 'assistant' and '</think>' in c and loop.index0 < ns.last %}{% set c = c.split('</think>')[-1].lstrip('\\n') %}{% endif %}{{ m.role }}:{{ c }}|{% endfor %}",
     {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nb"}, {"role": "user", "content": "c"}, {"role": "assistant", "content": "<think>x</think>d"}]}),
    ("content parts", "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}{% if part.type == 'text' %}{{ part['text'] }}{% elif part['type'] == 'image' %}<image>{% endif %}{% endfor %}{% endif %};{% endfor %}",
     {"messages": [{"role": "user", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "look: "}, {"type": "image"}]}]}),
    ("schema to text", "{%- macro kind(p) -%}\n    {%- if p.type == 'array' -%}list[{{ kind(p['items']) }}]\n    {%- elif p.type == 'object' -%}{ {%- for k, v in p.properties.items() -%}{{ k }}: {{ kind(v) }}{{ ', ' if not loop.last }}{%- endfor -%} }\n    {%- elif p.enum is defined -%}{{ p.enum | map('tojson') | join(' | ') }}\n    {%- else -%}{{ {'string': 'str', 'integer': 'int'}.get(p.type, 'Any') }}{%- endif -%}\n{%- endmacro -%}\n{{ kind(schema) }}",
     {"schema": {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}, "b": {"enum": ["x", 1]}, "c": {"type": "null"}, "d": {"type": "object", "properties": {}}}}}),
    # What Jinja2 refuses
    ("unclosed", "{% if true %}x", {}),
    ("unknown filter", "{{ 1 | nofilter }}", {}),
    ("unknown tag", "{% nothing %}", {}),
    ("attribute of nothing", "{{ nowhere.x }}", {}),
    ("string and number", "{{ 'a' + 1 }}", {}),
    ("private attribute", "{{ ''.__class__.__mro__ }}", {}),
]


def digest(outcome):
    """A rendering holds its template's own words, which are others': only its length and hash are kept."""
    if "expected" not in outcome:
        return outcome
    text = outcome["expected"].encode()
    fnv1a = 0xCBF29CE484222325
    for byte in text:
        fnv1a = (fnv1a ^ byte) * 0x100000001B3 % 2**64
    return {"bytes": len(text), "fnv1a": f"{fnv1a:016x}"}


def main():
    folder = DATA / "chat-templates"
    contexts = json.loads((folder / "contexts.json").read_text(encoding="utf-8"))
    real = []
    for path in sorted(fetched("chat-templates").glob("*.jinja")):
        for name, context in contexts.items():
            rendered = outcome(path.read_text(encoding="utf-8"), context)
            real.append({"template": path.name, "context": name} | digest(rendered))
    write_json(folder / "expected.json", real)
    ours = [{"name": name, "template": template, "context": context} | outcome(template, context)
            for name, template, context in CASES]
    assert len({case["name"] for case in ours}) == len(ours)
    write_json(folder / "cases.json", ours)
    for what, cases in (("templates of models", real), ("of our own", ours)):
        print(what, len(cases), "refused:", sum("error" in case for case in cases))


main()
