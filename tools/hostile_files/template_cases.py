"""Chat templates that compute too long, grow too large, reach for what is not theirs, or do not parse."""

from case_list import text

TOO_MUCH = ["fuel", "limit", "range", "too", "large", "memory", "budget"]


def nested_loops(depth, rounds):
    opening = "".join(f"{{% for a{level} in range({rounds}) %}}" for level in range(depth))
    return opening + depth * "{% endfor %}"


def add_all(cases):
    def one(name, group, why, hint, data, expect="error", **more):
        file = f"j-{name}.jinja"
        cases.add(file, "template", group, why, expect, "render", hint, **more)
        if isinstance(data, list):
            cases.cases[-1]["pieces"] = data
        else:
            cases.store(file, data)

    baseline = (
        "{% for m in messages %}<|{{ m.role }}|>{{ m['content'] }}\n{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    rendered = "<|user|>hi\n<|assistant|>"
    one("ok-baseline", "ok-baseline", "sound template", [], baseline, "ok", output=rendered)
    loop = "{% for i in range(2000) %}x{% endfor %}"
    one("ok-loop", "ok-loop", "2000 rounds are within reason", [], loop, "ok", output=2000 * "x")

    one("loop-1e9", "loop", "a loop of 10^9", TOO_MUCH, "{% for i in range(10**9) %}x{% endfor %}")
    why = "a loop of 10^9 without output"
    one("loop-1e9-silent", "loop", why, TOO_MUCH, "{% for i in range(1000000000) %}{% endfor %}")
    for depth, rounds in ((3, 9999), (8, 100)):
        why = f"{depth} nested loops of {rounds}"
        one(f"nested-loops-{depth}", "nested-loops", why, TOO_MUCH, nested_loops(depth, rounds))
    doubled = (
        "{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(64) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}"
        "{{ ns.s | length }}"
    )
    one("string-growth-concat", "string-growth", "a string doubled 64 times", TOO_MUCH, doubled)
    hint = [*TOO_MUCH, "repeat", "unsupported", "operation", "invalid"]
    why = "a string repeated 10^10 times"
    one("string-growth-repeat", "string-growth", why, hint, "{{ 'a' * 10000000000 }}")
    hint = ["recursion", "stack", "fuel", "limit", "depth"]
    data = "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}"
    why = "a macro that calls itself for ever"
    one("macro-recursion-self", "macro-recursion", why, [*hint, "undefined"], data)
    data = "{% macro f(n) %}{% if n > 0 %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}"
    one("macro-recursion-fib", "macro-recursion", "2^60 macro calls at depth 60", hint, data)

    others = {
        "include": "{% include '/etc/passwd' %}",
        "import": "{% import '../../secret.jinja' as s %}{{ s.x }}",
        "extends": "{% extends 'config.json' %}",
    }
    for name, data in others.items():
        hint = ["include", "import", "template", "not found", "unknown", "loader", "extends", "support"]
        why = "reads another template or file; none may be opened"
        one(f"include-{name}", "include", why, hint, data)
    hint = ["attribute", "undefined", "method", "unknown", "unsafe"]
    probes = {
        "subclasses": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "globals": "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    }
    for name, data in probes.items():
        why, forbid = "the usual ways out of Python's Jinja", ["class ", "object", "root:", "uid="]
        one(f"attribute-probe-{name}", "attribute-probe", why, hint, data, forbid=forbid)
    data, forbid = "[{{ ''.__class__ }}]", ["class", "str"]
    one("attribute-probe-class", "attribute-probe", "refuse, or print []", hint, data, "either", forbid=forbid)
    data = "{% for i in range(90000) %}" + 1000 * "x" + "{% endfor %}"
    one("huge-output-loop", "huge-output", "90 MB of output", [*TOO_MUCH, "output"], data)

    undefined = {
        "function": "{{ no_such_function() }}",
        "method": "{{ messages.no_such_method() }}",
        "filter": "{{ 'a' | no_such_filter }}",
        "deep": "{{ a.b.c }}",
    }
    for name, data in undefined.items():
        hint = ["undefined", "unknown", "not callable", "call", "function", "filter", "test"]
        hint += ["undefined", "operation", "attribute", "type", "none"]
        one(f"undefined-{name}", "undefined", "uses something undefined", hint, data)
    syntax = {
        "unclosed-for": "{% for m in messages %}x",
        "unclosed-expr": "{{ messages",
        "unknown-tag": "{% evil %}",
        "bad-expr": "{{ 1 + * 2 }}",
    }
    for name, data in syntax.items():
        hint = ["syntax", "unexpected", "expected", "end of", "unclosed", "unknown"]
        one(f"syntax-{name}", "syntax", "syntax error", hint, data)
    deep = {
        "parens": [text("{{ "), text("(", 20000), text("1"), text(")", 20000), text(" }}")],
        "if": [text("{% if true %}", 5000), text("{% endif %}", 5000)],
    }
    for name, data in deep.items():
        why = "deep nesting in the parser (stack use): an error, or a result if the parser does not recurse"
        hint = ["recursion", "nest", "depth", "stack", "syntax", "deep"]
        one(f"parser-depth-{name}", "parser-depth", why, hint, data, "either")
