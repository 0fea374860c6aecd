"""tokenizer.json files: byte-level BPE with 35 tokens."""

import json

from case_list import join, text


def baseline():
    specials = ["<unk>", "<s>", "</s>"]
    vocab = specials + list("abcdefghijklmnopqrstuvwxyz") + ["Ġ", "th", "the", "an", "and", "Ġthe"]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [added(id, content) for id, content in enumerate(specials)],
        "normalizer": None,
        "pre_tokenizer": byte_level(add_prefix_space=False, use_regex=True),
        "post_processor": None,
        "decoder": byte_level(add_prefix_space=True, use_regex=True),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": "<unk>",
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {token: id for id, token in enumerate(vocab)},
            "merges": ["t h", "th e", "a n", "an d", "Ġ the"],
        },
    }


def added(id, content):
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": id, "content": content, **flags}


def byte_level(add_prefix_space, use_regex):
    form = {"add_prefix_space": add_prefix_space, "trim_offsets": True, "use_regex": use_regex}
    return {"type": "ByteLevel", **form}


def write(tokenizer):
    return json.dumps(tokenizer, separators=(",", ":"))


def add_all(cases):
    def one(name, group, why, hint, data, expect="error", **more):
        file = f"t-{name}.tokenizer.json"
        cases.add(file, "tokenizer", group, why, expect, "tokenizer", hint, **more)
        if isinstance(data, list):
            cases.cases[-1]["pieces"] = data
        else:
            cases.store(file, data if isinstance(data, (str, bytes)) else write(data))

    def with_model(**fields):
        sound = baseline()
        return {**sound, "model": {**sound["model"], **fields}}

    def with_token(id):
        return with_model(vocab={**baseline()["model"]["vocab"], "zz": id})

    one("ok-baseline", "ok-baseline", "sound small byte-level BPE (not all bytes)", [], baseline(), "ok")

    probe = {"text": "a", "repeat": 30000, "suffix": "!"}

    def split(pattern):
        parts = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        rest = byte_level(add_prefix_space=False, use_regex=False)
        return {**baseline(), "pre_tokenizer": {"type": "Sequence", "pretokenizers": [parts, rest]}}

    slow = {"nested-plus": "(a+)+$", "alternation": "(a|aa)+$", "backref": "(a*)*\\1b"}
    for name, pattern in slow.items():
        why = f"pattern {pattern} with catastrophic backtracking: refuse, or encode the probe within the limit"
        hint = ["regex", "pattern", "backtrack"]
        one(f"regex-{name}", "regex", why, hint, split(pattern), "either", probe=probe)
    for name, pattern in (("unclosed", "(a"), ("huge-repeat", "a{1000000000}")):
        why = f"pattern {pattern}: must not compile at great cost"
        hint = ["regex", "pattern"]
        one(f"regex-compile-{name}", "regex-compile", why, hint, split(pattern), probe=probe)

    for depth in (1000, 20000):
        start, end = write({**baseline(), "pre_tokenizer": "NESTED"}).split('"NESTED"')
        level = '{"type":"Sequence","pretokenizers":['
        data = [text(start), text(level, depth), text("]}", depth), text(end)]
        why = f"pre_tokenizer sequences nested {depth} deep"
        hint = ["recursion", "nest", "depth", "json"]
        one(f"recursion-{depth}", "recursion", why, hint, data if depth > 1000 else join(data))

    for id in (2**32 - 1, 10**12):
        size = len(baseline()["model"]["vocab"])
        why = f"vocabulary id {id} in a table of {size}: nothing of that size may be allocated"
        one(f"huge-id-{id}", "huge-id", why, ["id", "vocab", "range", "number", "large"], with_token(id))
    hint = ["id", "vocab", "negative", "range", "invalid"]
    one("negative-id--1", "negative-id", "vocabulary id -1", hint, with_token(-1))
    sound, id = baseline(), 2**32 - 1
    data = {**sound, "added_tokens": [*sound["added_tokens"], added(id, "<x>")]}
    one(f"added-id-{id}", "added-id", f"added token id {id}", ["id", "added", "range", "invalid"], data)
    hint = ["id", "vocab", "type", "invalid"]
    one("id-type-string", "id-type", "vocabulary id is a string", hint, with_token("7"))
    one("duplicate-id", "duplicate-id", "two tokens with one id", ["duplicate", "id"], with_token(5))

    for name, merges in (("unknown", ["t h", "q ж"]), ("no-space", ["th"]), ("empty-part", [" a"])):
        why = f"merges {json.dumps(merges)}"
        one(f"merges-{name}", "merges", why, ["merge"], with_model(merges=merges))

    sound = baseline()
    no_model = {key: field for key, field in sound.items() if key != "model"}
    structures = {
        "unknown-model": with_model(type="Evil"),
        "no-model": no_model,
        "empty-vocab": with_model(vocab={}, merges=[]),
    }
    for name, data in structures.items():
        hint = ["model", "vocab", "type", "unk", "token", "missing", "pre_tokenizer"]
        one(f"structure-{name}", "structure", f"tokenizer.json: {name}", hint, data)
    for name, data in (("empty", ""), ("cut", json.dumps(sound)[:700])):
        hint = ["json", "expected", "parse", "utf-8"]
        one(f"json-{name}", "json", f"not a JSON object ({name})", hint, data)

    doubling = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
    data = {**sound, "normalizer": {"type": "Sequence", "normalizers": 24 * [doubling]}}
    why = "24 replacements that each double the text (16 Mi letters from one)"
    hint = ["normalizer", "limit", "long", "grow"]
    probe = {"text": "a", "repeat": 16, "suffix": ""}
    one("normalizer-growth", "normalizer-growth", why, hint, data, "either", probe=probe)
