"""The config.json of a model folder, paired with sound weights."""

import json
import re

import tiny_llama as llama
from case_list import text

WEIGHTS = "d-ok-folder-baseline/model.safetensors"


def baseline():
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": llama.DIM,
        "intermediate_size": llama.FEED_FORWARD,
        "num_hidden_layers": llama.LAYERS,
        "num_attention_heads": llama.HEADS,
        "num_key_value_heads": llama.KV_HEADS,
        "max_position_embeddings": llama.CONTEXT,
        "vocab_size": llama.FULL,
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "attention_bias": False,
        "bos_token_id": llama.BOS,
        "eos_token_id": llama.EOS,
        "torch_dtype": "float16",
    }


def write(config):
    return json.dumps(config, indent=1)


def add_all(cases):
    sound = write(baseline())

    def one(name, group, why, hint, data, expect="error"):
        file = f"c-{name}.json"
        cases.add(file, "config", group, why, expect, "model", hint, weights=WEIGHTS)
        if isinstance(data, list):
            cases.cases[-1]["pieces"] = data
        else:
            cases.store(file, data)

    def changed(**fields):
        return write({**baseline(), **fields})

    def spelled(key, line):
        """The sound file with one line as it is given."""
        new, count = re.subn(rf'(?m)^ "{key}": .*$', lambda _: line, sound)
        assert count == 1, key
        return new

    one("ok-baseline", "ok-baseline", "sound config.json", [], sound, "ok")
    for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"):
        left = {name: field for name, field in baseline().items() if name != key}
        one(f"missing-{key}", "missing", f"no {key}", [key], write(left))
    types = {
        "string": ("hidden_size", str(llama.DIM)),
        "null": ("num_hidden_layers", None),
        "array": ("vocab_size", [llama.FULL]),
        "float": ("num_attention_heads", 2.5),
    }
    for name, (key, field) in types.items():
        one(f"type-{name}", "type", f"{key} = {json.dumps(field)}", [key, "type"], changed(**{key: field}))
    huge = {
        "layers": ("num_hidden_layers", 2**31),
        "hidden": ("hidden_size", 2**62),
        "over-u64": ("vocab_size", 10**30),
        "heads": ("num_attention_heads", 2**32),
    }
    for name, (key, field) in huge.items():
        hint = [key, "shape", "large", "range", "layer", "head"]
        one(f"huge-{name}", "huge", f"{key} = {field}", hint, changed(**{key: field}))
    negative = {"hidden_size": -16, "num_hidden_layers": -1, "rope_theta": -10000.0, "rms_norm_eps": -1e-05}
    for key, field in negative.items():
        hint = [key, "negative", "range", "type"]
        one(f"negative-{key}", "negative", f"{key} = {field}", hint, changed(**{key: field}))
    for key, hint in (("num_attention_heads",) * 2, ("hidden_size",) * 2, ("rope_theta", "rope")):
        one(f"zero-{key}", "zero", f"{key} = 0", [key, "zero", hint], changed(**{key: 0}))
    for name, number in (("nan", "NaN"), ("1e999", "1e999")):
        field = f'"rope_theta": {number}'
        hint = ["json", "number", "finite", "rope_theta", "rms_norm_eps", "range"]
        one(f"not-finite-{name}", "not-finite", field, hint, spelled("rope_theta", f" {field},"))
    for name, classes, kind in (("unknown", ["EvilForCausalLM"], "evil"), ("empty", [], "")):
        hint = ["architecture", "model_type", "unsupported"]
        why = f"architectures {classes}, model_type {kind!r}"
        one(f"architecture-{name}", "architecture", why, hint, changed(architectures=classes, model_type=kind))

    broken = {"empty": "", "array": "[]", "cut": json.dumps(baseline())[:100], "binary": bytes(range(256))}
    for name, data in broken.items():
        why = f"not a JSON object ({name})"
        one(f"json-{name}", "json", why, ["json", "expected", "parse"], data)
    depth = 100000
    start, end = sound.split(' "attention_bias": false,\n')
    nested = [text(start + ' "x": '), text("[", depth), text("]", depth), text(",\n" + end)]
    why = f"unknown field nested {depth} deep: refuse, or skip it without recursion"
    one(f"nesting-{depth}", "nesting", why, ["json", "recursion", "nest", "depth"], nested, "either")

    mismatch = {
        "vocab": ("vocab_size", llama.FULL + 1),
        "layers": ("num_hidden_layers", llama.LAYERS + 1),
        "heads": ("num_attention_heads", 3),
    }
    for name, (key, field) in mismatch.items():
        why = f"{json.dumps({key: field})} against the tensors present"
        hint = ["shape", "tensor", "missing", "head", "lm_head", key]
        one(f"mismatch-{name}", "mismatch", why, hint, changed(**{key: field}))
    why = f"{json.dumps({'bos_token_id': llama.FULL})}, vocabulary of {llama.FULL}"
    hint = ["token", "vocab", "range", "bos_token_id"]
    one("special-id-bos_token_id", "special-id", why, hint, changed(bos_token_id=llama.FULL))
    line = f' "num_hidden_layers": {llama.LAYERS}, "num_hidden_layers": 2000000,'
    hint = ["duplicate", "num_hidden_layers", "layer"]
    one("duplicate-key", "duplicate-key", "num_hidden_layers twice", hint, spelled("num_hidden_layers", line))
