"""Random chat templates, with what transformers makes of them.

    python generate.py --seed 1 --count 20000 > /tmp/snippets.jsonl
    python generate.py --keep > ../../tests/data/chat-templates/snippets.jsonl
    WGSLM_TEMPLATE_SNIPPETS=/tmp/snippets.jsonl cargo test --test host random_templates -- --nocapture

The last command renders a file with this library and lists what differs; without the variable it takes the kept file.
The first line of a file has the context and the exceptions. Each other line is a template, its text (null where
transformers refuses it), and the exception that it falls under, or null.

The environment is transformers' own: its sandbox, filters and functions. Only the clock is replaced. The grammar is
what chat templates use. Types mostly fit: a template that both sides refuse tests little.
"""
import argparse
import datetime
import itertools
import json
import random
import re

from jinja2 import nodes
from jinja2.runtime import Macro, Undefined
from markupsafe import Markup
from transformers.utils import chat_template_utils


class Clock(datetime.datetime):
    """2025-07-10 12:00:00, as in the tests."""

    @classmethod
    def now(cls, tz=None):
        return cls(2025, 7, 10, 12, 0, 0)


chat_template_utils.datetime = Clock

# What is not the same here, on purpose. "refused": we refuse it where transformers renders it. "differs": we may render
# another text, or what transformers refuses. COMPATIBILITY.md has the same list, with the reasons.
EXCEPTIONS = {
    "a template that fails in Jinja2": "differs",
    "an undefined value for an argument with a default": "differs",
    "a range, generator or view that is printed": "refused",
    "values put into a text that is marked as HTML": "refused",
    "a character of a text that is marked as HTML": "refused",
    "an integer beyond 2^53 in a format": "refused",
    "%d of a float": "refused",
    "break or continue in with, set, filter or generation": "refused",
    "a constant times a number": "refused",
    "an operator after a test": "refused",
    "a name of with in another value of it": "differs",
    "what a macro or call block takes from around it": "differs",
    "the letter ß in what is sorted": "differs",
    "a name that is set after a loop or block that reads it": "differs",
}
HTML = "values put into a text that is marked as HTML"
# One of each, for the part that the tests keep, and what random templates seldom have.
BY_HAND = [
    "{{ [1]|list + (1,) }}",
    "{% macro m(a=1) %}{{ a }}{% endmacro %}{{ m(x) }}",
    "{{ range(3) }}",
    "{{ ('%s'|e) % s }}",
    "{{ ('<'|e)[0] }}",
    "{{ '%d' % floats[0] }}", "{{ n is none + 1 }}",
    "{% with a = 1 %}{% with a = 2, b = a %}{{ b }}{% endwith %}{% endwith %}",
    "{% for i in l %}{% macro m() %}{{ loop.index }}{% endmacro %}{{ m() }}{% endfor %}",
    "{% for i in l %}{{ s }}{% endfor %}{% set s = 'a' %}{{ s }}",
    "{% for i in l %}{% macro m() %}{{ w|length }}{% endmacro %}{{ m() }}{% set w = w[1:] %}{% endfor %}",
    "{{ [1.0, 1, 0]|max }}{{ d|reverse|list }}{{ true|abs }}{{ yes < -1 }}{{ x|first }}{{ x|last }}{{ ['Ü', 'ä', 'z', 'Z']|sort }}",
    "{{ ['ß', 'z']|sort }}",
    "{{ x|items|list }}[{{ 'a'|int(x) }}]{{ big / 2 }}",
    "{{ big / 3 }}{{ -big / 7 }}{{ (big * big) / 3 }}{{ 1 / (big * 5) }}{{ 0 / big }}",
    "{{ -true }}{{ d|last }}{{ big * 3 / 3 }}{{ people|groupby('age')|tojson }}",
    "{{ '%d' % big }}|{{ '%.1f' % (big * 3) }}",
    "{% for i in l %}{% with a = 1 %}{{ i }}{% break %}{% endwith %}{% endfor %}",
    "{% for i in l %}{% set v %}{{ i }}{% continue %}{% endset %}{% endfor %}",
    "{{ 'a' * (10 ** 1) }}",
    "{% for i in l %}{% for j in [] %}{% else %}{% break %}{% endfor %}{{ i }}{% endfor %}",
    "{% set s = 'a' %}{% set v %}{% set s = 'b' %}{{ s }}{% endset %}{{ s }}{{ v }}",
    "{% filter upper %}{% set i = 9 %}{{ i }}{% endfilter %}{{ i }}",
    "{% generation %}{% set i = 9 %}{{ i }}{% endgeneration %}{{ i }}",
    "a\n  {%+ generation %}b{% endgeneration %}",
    "{% for c in 'ab' %}{{ c }}{{ ',' if not loop.last }}{{ loop.length }}{% endfor %}",
    "{% for t in none %}{% endfor %}",
    "{{ tools|tojson(2) }}{{ tools|tojson(false, 2) }}",
    "{{ [1e21, 1e-7, x, 'a'|e, (1,), ()] }}{{ (1,) + (2,) }}{{ (1,) * 2 }}",
    "{{ 'a\\r\\nb'|indent(2) }}{{ 'a b-c'.title() }}{{ 'ß'.capitalize() }}{{ 'ß'|capitalize }}",
    "{{ 2.5|round }}{{ 7|round(1) }}{{ -0.125|round(method='ceil') }}{{ -0.0 % 1 }}{{ 0.15|round(1) }}",
    "{% set ns = namespace(a=1) %}{{ ns }}{{ [ns] }}{{ none|map('upper')|list }}{{ {}.get('a', x) }}",
    "{{ people|groupby('age')|list }}{{ w|join(none) }}{{ people|join('/', attribute='at.city') }}",
    "{{ ['<'|e]|last + '<' }}{{ {'a': x}.get('a', 1) }}",
    "{{ 1 < 'a' }}", "{{ 1 in 'a' }}", "{{ dict([['a', 1]]) }}", "{{ 'a,b'.partition(',') }}",
    "{{ '<' + ('>'|e) }}{{ ('<'|e) + '<' }}{{ ('<'|e) ~ '<' }}{{ '<'|e|e }}{{ '<'|e|forceescape }}{{ '<'|safe + '<' }}",
    "{{ '<'|tojson }}{{ '<'|tojson|e }}{{ '<'|e|tojson }}{{ ['<'|e]|tojson }}{{ tools|tojson|safe }}",
    "{{ '<'|e|upper + '<' }}{{ ('<'|e).replace('l', '<') }}{{ ('<>'|e).split('&')|list }}{{ ['<'|e, '<']|join }}",
]
INSIDE = r"\{%[-+]? *(with|set \w+ [^=]|filter|generation)"
FOUND = []


def note(owner, name, what, when=lambda *_: True):
    """Has `what` noted when a method is called."""
    method = getattr(owner, name)

    def noting(self, *args, **kwargs):
        if when(self, *args):
            FOUND.append(what)
        return method(self, *args, **kwargs)

    setattr(owner, name, noting)


def takes_undefined(macro, arguments, *_):
    return any(isinstance(argument, Undefined) for argument in arguments)


note(Macro, "_invoke", "an undefined value for an argument with a default", takes_undefined)
for method in ("__mod__", "format", "join"):
    note(Markup, method, HTML)
note(Markup, "replace", HTML, lambda _, old, new, *__: not isinstance(new, str))
note(Markup, "__getitem__", "a character of a text that is marked as HTML", lambda _, at: isinstance(at, int))


CONTEXT = {
    "bos_token": "<s>", "eos_token": "<|im_end|>", "add_generation_prompt": True, "enable_thinking": False,
    "s": "Hello, World", "t": "  two  words\n", "u": "Ünï🙂 ßtraße", "e": "", "q": "it's <b>\"q\"</b> & \\ \t",
    "p": "a,b,,c", "digits": "042", "lines": "one\n  two\r\n\nthree",
    "i": 3, "j": -7, "z": 0, "big": 9007199254740993, "f": 2.5, "g": -0.125, "h": 1e21,
    "yes": True, "no": False, "n": None,
    "l": [3, 1, 2], "w": ["pear", "Apple", "fig", "apple"], "el": [], "mixed": [1, "a", None, 2.5, True, [1], {"a": 1}],
    "pairs": [["a", 1], ["b", 2]], "floats": [1.5, -2.0, 0.1],
    "d": {"b": 1, "a": "x", "items": [1, 2], "c": None}, "ed": {}, "deep": {"x": {"y": [{"z": "end"}]}, "n": 1},
    "people": [{"name": "Ina", "age": 41, "at": {"city": "Oslo"}}, {"name": "bo", "age": 7, "at": {"city": "Bern"}},
               {"name": "Al", "age": 7, "at": {}}],
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": " Hi there \n"},
        {"role": "assistant", "content": "<think>hm</think>Hello!", "tool_calls": [
            {"function": {"name": "get", "arguments": {"city": "Oslo", "n": 3, "deep": [1, {"k": None}]}}}]},
        {"role": "user", "content": [{"type": "text", "text": "Ä?"}, {"type": "image"}]},
    ],
    "tools": [{"type": "function", "function": {"name": "w", "parameters": {"b": 1, "a": "é<'&"}}}],
    "tree": [{"n": 1, "c": [{"n": 2, "c": []}, {"n": 3, "c": [{"n": 4, "c": []}]}]}],
}

# Expressions without parts, by their kind.
LEAVES = {
    "str": ["s", "t", "u", "e", "q", "p", "digits", "lines", "bos_token", "messages[0].content",
            "messages[1]['content']",
            "messages[2].content", "messages[0]['role']", "people[0].name", "'a'", "''", "'b c'", "\"it's\"", "'\\n'",
            "'é🙂'", "'<|im_end|>'", "'</think>'", "','", "' '", "'x' 'y'", "'<&>'", "'12'", "'user'"],
    "int": ["i", "j", "z", "big", "0", "1", "2", "3", "-1", "7", "10", "d.b", "people[0].age", "s|length"],
    "float": ["f", "g", "floats[1]", "0.5", "1.0", "2.25", "100.0", "3.14159", "h", "1e3"],
    "bool": ["yes", "no", "true", "false", "True", "add_generation_prompt", "enable_thinking", "n is none",
             "x is defined", "messages[-1].role == 'user'", "'tool_calls' in messages[2]", "tools"],
    "none": ["none", "None", "n", "d.c"],
    "undefined": ["x", "d.nosuch", "messages[0].name", "people[0]['x']", "l[99]"],
    "strs": ["w", "p.split(',')", "['b', 'a']", "['<', 'ä']", "messages|map(attribute='role')|list", "d|list"],
    "ints": ["l", "[1, 2, 3]", "range(3)|list", "range(1, 4)|list", "el", "[2, 2, 1]",
             "people|map(attribute='age')|list"],
    "list": ["mixed", "pairs", "floats", "el", "[]", "(1, 'a')", "[none, 1]", "messages", "tools", "people"],
    "dicts": ["people", "messages", "tools", "messages[1:]", "messages[::-1]", "messages[2].tool_calls"],
    "dict": ["d", "ed", "deep", "people[0]", "messages[1]", "messages[-1]", "tools[0].function", "{}",
             "tools[0].function.parameters", "messages[2].tool_calls[0].function.arguments"],
    "json": ["tools", "messages", "mixed", "d", "deep", "people[1]", "floats", "'<&>'", "q", "u", "h", "lines", "i"],
}
# Expressions with parts. <int> stands for an expression of that kind, <any> for one of any.
RULES = {
    "str": [
        "<str> + <str>", "<str> + <str>", "<str> ~ <any>", "<str> ~ <str> ~ <any>", "<str> * <small>",
        "<int> ~ <float>",
        "<str>|<text>", "<str>|<text>", "<str>|<text>|<text>", "<str>.<method>", "<str>.<method>",
        "<str>.<method>.<method>",
        "<str>[<slice>]", "<str>[0]", "<str>[-1]", "<str>.split(<by>)[0]", "<str>.split(<by>)[-1]",
        "<str>.split()|join('_')",
        "<str>.split(<by>, 1)|last", "<strs>|join(<str>)", "<list>|join(', ')", "<ints>|join", "<str>.join(<strs>)",
        "<dicts>|map(attribute='name')|join('|')", "people|join(', ', attribute='name')", "<json>|tojson",
        "<json>|tojson",
        "<json>|tojson(<json_options>)", "<any>|tojson", "<any>|string", "<str> if <bool> else <str>",
        "<str> if <bool>",
        "<str> or <str>", "<str> and <str>", "<undefined> or <str>", "<dict>.get(<str>, <str>)",
        "<dict>.get('a', <str>)",
        "<dict>['a']", "<strs>|first", "<strs>|last", "<strs>[0]", "<strs>[-1]", "<undefined>|default(<str>)",
        "<none>|default(<str>, true)", "<str>|d(<str>, <bool>)", "'%s: %s' % (<str>, <any>)", "'%s' % <str>",
        "'%d|%5d|%-4d|%03d' % (<int>, <int>, <small>, <int>)", "'%.2f' % <float>", "'%s and %s'|format(<str>, <any>)",
        "'{} {}'.format(<str>, <int>)", "'{0}{x}'.format(<str>, x=<any>)", "strftime_now('%d %b %Y')",
        "strftime_now('%Y-%m-%d')", "strftime_now('%B %-d, %H:%M')", "<str>|e", "(<str>|e) ~ <str>",
        "(<str>|e) + <str>",
        "<str>|safe", "<str>|tojson|e", "(<str>|tojson|safe) + <str>", "<str>|forceescape", "<str>|e|e",
        "<str>|e|<text>", "<str>|wordcount ~ <str>", "<str>|reverse",
        "[<str>|e, <str>]|join", "(<str>|e).<method>", "<str>|e|tojson", "[<str>|safe]",
        "<json>|tojson|<text>", "(<json>|tojson).<method>", "(<json>|tojson)[<slice>]", "<json>|tojson + <str>",
    ],
    "text": [
        "trim", "trim", "upper", "lower", "capitalize", "title", "string", "e", "safe", "tojson", "indent", "indent(2)",
        "indent(2, true)", "indent(width=2, first=true)", "indent(2, false, true)", "replace(<str>, <str>)",
        "replace('a', <str>, 1)", "replace(<by>, '')", "default(<str>)", "default(<str>, true)", "upper|trim",
        "e|upper",
        "string|replace('\\n', ' ')", "trim|capitalize",
    ],
    "method": [
        "strip()", "strip()", "lstrip()", "rstrip()", "upper()", "lower()", "title()", "capitalize()", "strip(<by>)",
        "lstrip('\\n')", "rstrip('\\n')", "strip('a \\n')", "replace(<by>, <str>)", "replace(<by>, '')",
        "replace(<by>, <str>, 1)", "removeprefix(<str>)", "removesuffix(<str>)",
    ],
    "by": ["','", "' '", "'\\n'", "'</think>'", "'a'", "'o'", "'<'", "', '", "eos_token"],
    "small": ["0", "1", "2", "3", "-1", "i", "z"],
    "step": ["2", "-1", "1", "-2", "3"],
    "slice": ["1:", ":2", ":-1", "-2:", "1:-1", "::-1", "<small>:<int>", ":<int>", "<small>::<step>", "::<step>",
              "<int>:<small>:<step>", "-9:9", "none:2", "0:0"],
    "json_options": [
        "indent=<small>", "indent=2", "indent=4", "indent=none", "indent='  '", "ensure_ascii=false",
        "ensure_ascii=true",
        "separators=(',', ':')", "separators=(', ', ': ')", "separators=[';', '=']", "sort_keys=true",
        "sort_keys=<bool>",
        "indent=2, separators=(',', ': ')", "indent=1, ensure_ascii=true", "sort_keys=true, ensure_ascii=true", "2",
        "true",
        "indent=2, sort_keys=true", "ensure_ascii=True, indent=0, separators=(',', ':')", "false", "none", "true, 2",
        "false, 2, none, true", "false, none, (',', ':')",
    ],
    "int": [
        "<int> + <int>", "<int> - <int>", "<int> * <int>", "<int> // <step>", "<int> % <step>",
        "<int> + <int> * <small>",
        "<str>|length", "<strs>|length", "<list>|length", "<dict>|length", "<dicts>|count", "-<int>", "<ints>|sum",
        "'12'|int", "<str>|int", "digits|int", "<float>|int", "<int>|abs", "<float>|round|int", "[1, <int>]|max",
        "[<int>, 2]|min", "<str>.count('a')", "<str>.find(<by>)", "<str>.rfind('o')", "<int> if <bool> else <int>",
        "<str>|wordcount", "people|map(attribute='age')|sum", "people|sum(attribute='age')", "<int>|default(3)",
        "<bool> + 1", "2 ** <step>", "<int>|string|int", "<str>|int(<int>)", "<bool>|int", "(<ints>|list)[<slice>]|sum",
    ],
    "float": [
        "<int> / <step>", "<float> + <int>", "<float> - <float>", "<float> * <small>", "<float> // <step>",
        "<float> % <step>", "<float>|round", "<float>|round(1)", "<float>|round(2)", "<float>|round(1, 'floor')",
        "<float>|round(method='ceil')", "'1.5'|float", "<str>|float", "<int>|float", "-<float>", "<float>|abs",
        "[<float>, <int>]|sum", "[<float>, <int>]|max", "<float> if <bool> else <int>", "<int>|round(1)",
        "<float> ** 2",
    ],
    "bool": [
        "<any> == <any>", "<any> != <any>", "<str> == <str>", "<int> < <int>", "<int> >= <float>", "<str> <= <str>",
        "<str> in <str>", "<str> not in <str>", "<any> in <list>", "<str> in <strs>", "<str> in <dict>",
        "<str> not in <dict>", "<int> in <ints>", "<any> is <test>", "<any> is not <test>", "<any> is <test>",
        "<undefined> is defined", "<undefined> is not defined", "<int> is <number>", "<str> is in <strs>", "not <any>",
        "<bool> and <bool>", "<bool> or <bool>", "<bool> and not <bool>", "0 < <int> < 5", "<str>.startswith(<str>)",
        "<str>.endswith(<str>)", "<str>.startswith(('a', 'H'))", "<str>.isdigit()", "<str>.isupper()",
        "<str>.isalpha()",
        "<dict>.a is defined", "<dict>.get('role') == 'user'", "<dict>.role == 'user'", "<list>|length > <int>",
        "<any> is not none and <any>", "<strs> == <strs>", "<dict> == <dict>", "<str> is string and <str>",
        "<dict>['content'] is string", "<ints>|list == <ints>", "<str> is eq <str>", "not (<bool> or <bool>)",
        "not <str> in <str>", "<bool> == <bool> and <int>",
    ],
    "test": ["defined", "none", "string", "mapping", "iterable", "sequence", "undefined", "number", "boolean", "true",
             "false", "integer", "float", "eq(1)", "sameas(true)", "in(['a', 1, none])", "lower", "upper"],
    "number": ["odd", "even", "divisibleby(2)", "divisibleby 3", "gt(1)", "lt 3", "eq 2", "number", "in(l)",
               "ge(<int>)"],
    "strs": [
        "[<str>, <str>]", "<strs> + <strs>", "<strs>[<slice>]", "<strs>|sort", "<strs>|sort(reverse=true)",
        "<strs>|reverse|list", "<strs>|unique|list", "<strs>|map('<map>')|list", "<strs>|select('in', <str>)|list",
        "<strs>|reject('equalto', 'a')|list", "<str>.split(<by>)", "<str>.split()", "<str>.splitlines()", "<str>|list",
        "<dict>.keys()|list", "<dict>|list", "<ints>|map('string')|list", "<strs>|list", "<str>.split(<by>, 1)",
        "<str>.rsplit(<by>, 1)", "people|map(attribute='name')|list", "<strs> * 2", "<strs>|sort(case_sensitive=true)",
        "<strs>|map('replace', 'a', 'b')|list", "<strs>|map('tojson')|list", "<str>.partition(<by>)",
        "<strs>|select|list",
        "people|map(attribute='at.city', default='?')|list",
    ],
    "map": ["upper", "lower", "trim", "string", "length", "tojson", "capitalize", "first", "title", "e"],
    "ints": [
        "[<int>, <int>]", "<ints>|list", "<ints>|sort", "<ints>|sort(reverse=true)", "<ints>|unique|list",
        "range(<small>)|list", "range(<small>, <small>)|list", "range(5, 0, -2)|list", "<ints>|reverse|list",
        "<ints>|select('odd')|list", "<ints>|reject('gt', 1)|list", "<strs>|map('length')|list", "l[<slice>]",
        "<ints>|map('float')|list", "<ints>|map('string')|map('int')|list",
    ],
    "list": [
        "[<any>, <any>, <any>]", "(<any>, <any>)", "(<any>,)", "<list> + [<any>]", "<list>[<slice>]", "<list>|list",
        "<list>|reverse|list", "<list>|map('string')|list", "<list>|map('tojson')|list", "<list>|select|list",
        "<list>|select('<select>')|list", "<list>|reject('<select>')|list", "<dict>.items()|list",
        "<dict>.values()|list",
        "<dict>|dictsort", "<dict>|items|list", "<list>|batch(2)|list", "<ints>|batch(2, 0)|list",
        "<ints>|slice(2)|list",
        "[<list>, <dict>]", "<list> if <bool> else <list>", "people|groupby('age')|list",
        "<list>|map('default', 1)|list",
        "[<float>, <float>]", "<none> or <list>", "[<none>, <bool>]",
    ],
    "select": ["string", "none", "number", "mapping", "defined", "iterable", "boolean"],
    "dicts": [
        "[<dict>, <dict>]", "<dicts>[<slice>]", "<dicts>|list", "<dicts>|reverse|list", "messages|selectattr('role', "
        "'equalto', 'user')|list", "messages|rejectattr('role', 'in', ['user', 'tool'])|list",
        "messages|selectattr('tool_calls')|list", "messages|selectattr('tool_calls', 'defined')|list",
        "people|selectattr('age', 'gt', 8)|list", "people|sort(attribute='age')", "people|sort(attribute='name')|list",
        "people|rejectattr('at.city')|list", "people|sort(attribute='age,name')", "people|unique(attribute='age')|list",
        "people|sort(attribute='name', reverse=true)",
    ],
    "dict": [
        "{'a': <any>}", "{'a': <any>, 'b': <any>}", "{<str>: <any>}", "dict(a=<any>, b=<int>)", "dict(<dict>, a=<any>)",
        "<dicts>[0]", "<dicts>[-1]", "<dicts>|first", "<dict>.get('x', {})", "<dict> if <bool> else <dict>",
        "{'role': <str>, 'content': <str>}", "{1: <any>, 2: <any>}", "<dicts>|last", "dict(<dict>|dictsort)",
    ],
    "json": ["<any>", "<list>", "<dict>", "<dicts>", "[<any>, <json>]", "{'k': <json>}", "<str>", "<float>", "<strs>",
             "<bool>", "(<int>, <float>)", "<ints>"],
}
ANY = {"str": 30, "int": 14, "float": 6, "bool": 8, "none": 3, "undefined": 3, "strs": 8, "ints": 6, "list": 6,
       "dicts": 3,
       "dict": 9}
# <body:KIND NAME, ..> stands for a part that knows these names, <def:KIND NAME> lets what follows know one.
LOOP = "bool loop.first, bool loop.last, int loop.index, int loop.index0, int loop.length, bool not loop.last, "
STATEMENTS = [
    "{% for m in <dicts> %}<body:dict m, str m.role, str m['content'], LOOP any m.content>{% endfor %}",
    "{% for m in messages %}{{ '<|' + m.role + '|>' }}"
    "<body:dict m, str m.role, any m.content, LOOP bool m>{% endfor %}",
    "{% for m in messages if m.role != 'system' %}<body:dict m, str m['role'], LOOP any m.content>{% endfor %}",
    "{% for m in messages %}{% if m.content is string %}{{ m.content|trim }}{% else %}{% for c in m.content %}"
    "{% if c.type == 'text' %}<body:str c.text, LOOP str c['type']>{% endif %}{% endfor %}{% endif %}{% endfor %}",
    "{% for k, v in <dict>.items() %}<body:str k, any v, LOOP str k>{% endfor %}",
    "{% for k, v in <dict>|dictsort %}<body:str k, any v, LOOP str k>{% endfor %}",
    "{% for k, v in <dict>|items %}<body:str k, any v, LOOP str k>{% endfor %}",
    "{% for k in <dict> %}<body:str k, LOOP any d[k]>{% endfor %}",
    "{% for a, b in pairs %}<body:str a, int b, LOOP int b>{% endfor %}",
    "{% for it in <strs> %}<body:str it, LOOP str it>{% endfor %}",
    "{% for it in <ints> %}<body:int it, LOOP int it>{% else %}<body>{% endfor %}",
    "{% for it in <list> %}<body:any it, LOOP any it>{% else %}<data>{% endfor %}",
    "{% for it in <list> if <bool> %}<body:any it, LOOP any it>{% endfor %}",
    "{% for it in <ints> %}{% if it == 2 %}{% break %}{% endif %}<body:int it, LOOP int it>{% endfor %}",
    "{% for it in <strs> %}{% if <bool> %}{% continue %}{% endif %}<body:str it, LOOP str it>{% endfor %}",
    "{% for it in <list> %}{{ loop.index }}/{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }}<data>{% endfor %}",
    "{% for it in <strs> %}"
    "{{ loop.previtem }}<{{ loop.nextitem }}{{ loop.cycle('a', 'b') }}{{ loop.depth }}{% endfor %}",
    "{% for it in <ints> %}{{ loop.changed(it) }}{{ loop.nextitem is defined }}{{ ',' if not loop.last }}{% endfor %}",
    "{% for it in tree recursive %}{{ it.n }}{% if it.c %}({{ loop(it.c) }}){% endif %}<data>{% endfor %}",
    "{% for it in range(<small>) %}<body:int it, LOOP int it>{% endfor %}",
    "{% if <bool> %}<body>{% endif %}",
    "{% if <bool> %}<body>{% else %}<body>{% endif %}",
    "{% if <any> %}<body>{% elif <bool> %}<body>{% else %}<body>{% endif %}",
    "{% if <bool> %}<body>{% elif <bool> %}<body>{% elif <any> %}<body>{% endif %}",
    "{% set v1 = <str> %}<def:str v1>", "{% set v2 = <int> %}<def:int v2>", "{% set v3 = <list> %}<def:list v3>",
    "{% set v4 = <dict> %}<def:dict v4>", "{% set v5 = <bool> %}<def:bool v5>", "{% set v1 = <any> %}<def:any v1>",
    "{% set s = <str> %}<def:str s>", "{% set v6 = <float> %}<def:float v6>",
    "{% set a, b = <str>, <int> %}<def:str a><def:int b>", "{% set v1, v2 = pairs[0] %}<def:str v1><def:int v2>",
    "{% set v7 %}<body>{% endset %}<def:str v7>{{ v7 }}", "{% set v7 | <text> %}<body>{% endset %}{{ v7 }}",
    "{% set messages = messages[1:] %}<def:dicts messages>",
    "{% macro m1(a, b=<any>) %}<body:any a, any b>{% endmacro %}{{ m1(<any>) }}{{ m1(<str>, <any>) }}<def:str m1(1)>",
    "{% macro m2(a='z', b=none) %}<body:str a, any b>{% endmacro %}{{ m2() }}{{ m2(b=<any>) }}<def:str m2()>",
    "{% macro m3(a) %}<body:any a>{% endmacro %}{{ m3(<str>)|<text> }}{{ m3() }}",
    "{% macro each(i) %}[{{ caller(i) }}]{% endmacro %}{% call(c) each(<any>) %}<body:any c>{% endcall %}",
    "{% macro box() %}<{{ caller() }}>{% endmacro %}{% call box() %}<body>{% endcall %}",
    "{% with v1 = <str>, v2 = <any> %}<body:str v1, any v2>{% endwith %}",
    "{% filter <text> %}<body>{% endfilter %}",
    "{% set ns = namespace(a=<any>, n=0) %}{% for it in <list> %}{% set ns.n = ns.n + 1 %}{% set ns.a = <any> %}"
    "<body:any it, int ns.n, any ns.a>{% endfor %}{{ ns.n }}{{ ns.a }}",
    "{% set ns = namespace(found=false, text='') %}{% for m in messages[::-1] %}"
    "{% if not ns.found and m.role == 'user' %}{% set ns.found = true %}{% set ns.text = ns.text ~ <str> %}"
    "{% endif %}{% endfor %}{{ ns.text }}{{ ns.found }}",
    "{% generation %}<body>{% endgeneration %}", "{%- raw %}{{ x }}<data>{% endraw -%}", "{# {{ no }}<data> #}",
    "{% if <bool> %}{{ raise_exception('no') }}{% endif %}", "{%- if <bool> -%}<body>{%- endif -%}",
    "{{- <str> -}}", "{{- <any> }}", "{{ <str> -}}", "{{ <any> }}", "{{ <str> }}",
]
DATA = ["", "", "", " ", "\n", "a", "x\n", "  ", "\n  ", "{ }", "é", "\t", "|", "<|end|>", "\n\n", " %} ", "#"]
PART = re.compile(r"<(\w+)(?::([^<>]*))?>")


class Writer:
    """Writes random snippets."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.known, self.depth = {}, 0

    def chance(self, p):
        return self.random.random() < p

    def expand(self, text):
        return PART.sub(self.part, text)

    def part(self, found):
        kind, names = found.groups()
        if kind == "data":
            return self.random.choice(DATA)
        if kind == "body":
            return self.body(names or "")
        if kind == "def":
            self.add(names)
            return ""
        text = self.expr(kind)
        # Parentheses are left out at times: precedence is the same then, too.
        if kind not in ANY and kind != "json" or re.fullmatch(r"[\w.]+|'\w*'", text):
            return text
        # Only a test takes other operators after it than Jinja2.
        if " is " not in text and self.chance(0.15):
            return text
        return f"({text})"

    def add(self, names):
        for item in names.replace("LOOP ", LOOP).split(", "):
            kind, _, name = item.partition(" ")
            self.known[kind] = [*self.known.get(kind, []), name]

    def expr(self, kind):
        if kind == "any" or kind in ANY and self.chance(0.01):
            if self.known.get("any") and self.chance(0.3):
                return self.random.choice(self.known["any"])
            kind = self.random.choices(list(ANY), list(ANY.values()))[0]
        leaves, rules = LEAVES.get(kind), RULES.get(kind)
        if leaves and (not rules or self.depth > 3 or self.chance(0.35)):
            known = self.known.get(kind)
            return self.random.choice(known if known and self.chance(0.5) else leaves)
        self.depth += 1
        text = self.expand(self.random.choice(rules))
        self.depth -= 1
        return text

    def statement(self):
        text = self.random.choice(STATEMENTS)
        if "raw" not in text:  # Jinja2 has no `+` there
            text = re.sub(r"\{%(?!-)|(?<!-)%\}", self.control, text)
        return self.expand(text)

    def control(self, found):
        sign = self.random.choice(["", "", "", "", "-", "+"]) if self.chance(0.5) else ""
        return "{%" + sign if found[0] == "{%" else sign + "%}"

    def body(self, names=""):
        saved = self.known
        self.known = dict(saved)
        if names:
            self.add(names)
        self.depth += 1
        text = "".join(self.expand("<data>") + (self.statement() if self.depth < 4 and self.chance(0.5) else
                       "{{ " + self.expr("any") + " }}") for _ in range(self.random.choice([1, 1, 2])))
        self.depth -= 1
        self.known = saved
        return text + self.expand("<data>")

    def snippet(self):
        self.known, self.depth = {}, 0
        if self.chance(0.4):
            return "{{ " + self.expr("any") + " }}"
        return self.expand("".join(self.random.choice(["<data>", "{{ <any> }}"]) + self.statement()
                                   for _ in range(self.random.choice([1, 1, 2]))))


def rendered(template):
    """What transformers makes of it, or None, and the exception that it falls under, or None."""
    FOUND.clear()
    try:
        text = chat_template_utils._cached_compile_jinja_template(template).render(**CONTEXT)
    except Exception:  # whatever a template raises is how it is refused
        return None, "a template that fails in Jinja2"
    if FOUND:
        return text, FOUND[0]
    if re.search(r"range\(\d|dict_(keys|values|items)\(|<generator", text):
        return text, "a range, generator or view that is printed"
    if re.search(r"(break|continue) [-+]?%\}", template) and re.search(INSIDE, template):
        return text, "break or continue in with, set, filter or generation"
    if re.search("'[^']*%[-0-9]*d", template) and re.search("float|floats", template):
        return text, "%d of a float"
    if re.search(r"%[-.0-9]*[sdf]|format", template) and "big" in template:
        return text, "an integer beyond 2^53 in a format"
    if "**" in template:
        return text, "a constant times a number"
    if re.search(r" is (not )?\w+ [-+*/%]", template):
        return text, "an operator after a test"
    if re.search(r"\|(sort|dictsort|unique|groupby|min|max)", template) and re.search(r"ß|\bu\b", template):
        return text, "the letter ß in what is sorted"
    return text, scope(template)


def scope(template):
    """The exception of a name that is looked up elsewhere, or None."""
    def names(node, ctx):
        return {name.name for name in node.find_all(nodes.Name) if name.ctx == ctx}

    tree = chat_template_utils._cached_compile_jinja_template(template).environment.parse(template)
    for block in tree.find_all(nodes.With):
        for i, value in enumerate(block.values):
            if names(nodes.Tuple([value], "load"), "load") & {target.name for target in block.targets[:i]}:
                return "a name of with in another value of it"
    read = set()
    for node in tree.body:
        if isinstance(node, nodes.Assign) and names(node, "store") & read:
            return "a name that is set after a loop or block that reads it"
        if not isinstance(node, (nodes.Assign, nodes.Output)):
            read |= names(node, "load")
    in_loops = set().union(*(names(node, "store") for loop in tree.find_all(nodes.For) for node in loop.body))
    for block in tree.find_all((nodes.Macro, nodes.CallBlock)):
        filtered = any(loop.test for loop in block.find_all(nodes.For))
        if filtered or next(block.find_all(nodes.Macro), None) or names(block, "load") & (
                {"loop"} | names(block, "store") | in_loops):
            return "what a macro or call block takes from around it"
    return None


def lines(snippets, count, longest):
    seen = set()
    for template in snippets:
        text, exception = rendered(template)
        # An address is different at each run.
        address = re.search("0x[0-9a-f]{8}", text or "", re.I)
        if template in seen or len(template) + len(text or "") > longest or address:
            continue
        seen.add(template)
        yield [template, text, exception]
        if len(seen) == count:
            return


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=20000)
    parser.add_argument("--keep", action="store_true", help="the part that the tests keep: short ones")
    arguments = parser.parse_args()
    writer = Writer(2026 if arguments.keep else arguments.seed)
    snippets = (writer.snippet() for _ in iter(int, 1))
    made = lines(snippets, arguments.count, 6000)
    if arguments.keep:
        made = lines(itertools.chain(BY_HAND, snippets), 1000, 240)
    print(json.dumps({"context": CONTEXT, "exceptions": EXCEPTIONS}, ensure_ascii=False))
    for line in made:
        print(json.dumps(line, ensure_ascii=False))


if __name__ == "__main__":
    main()
