"""Writes what transformers' configuration classes say where a folder says nothing: src/model/config/defaults.json.

    python defaults.py > ../../src/model/config/defaults.json

A line an architecture, in the form of config.json.  `without rope_parameters` holds for folders that have none at all.
hidden_size is left out: every folder has it, and one that has not is broken.
"""

import contextlib
import dataclasses
import json
import sys

import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import fields

ROPE = "rope_parameters"


def rope(cls):
    """Defaults of single rotary parameters, and of all of them."""
    theta = cls.default_theta
    if isinstance(theta, dict):
        kinds = {"full_attention": theta["global"], "sliding_attention": theta["local"]}
        return {kind: {"rope_theta": value} for kind, value in kinds.items()}, {}
    whole = getattr(cls(), ROPE)
    if any(isinstance(value, dict) for value in whole.values()):
        kinds = [kind for kind in whole if kind in ("full_attention", "sliding_attention")]
        single = {} if "proportional" in json.dumps(whole) else {kind: {"rope_theta": theta} for kind in kinds}
        return single, ({} if single else whole)
    single = {"rope_theta": theta}
    if "partial_rotary_factor" in whole:
        single["partial_rotary_factor"] = whole["partial_rotary_factor"]
    rest = {k: v for k, v in whole.items() if single.get(k) != v and k != "type"}
    return single, ({} if rest.get("rope_type") == "default" else rest)


def defaults(arch):
    cls = CONFIG_MAPPING[arch]
    base = {f.name for f in dataclasses.fields(transformers.PretrainedConfig)}
    found = {}
    for field in dataclasses.fields(cls):
        value = field.default if field.default is not dataclasses.MISSING else None
        if field.name not in base and field.name not in fields.HARMLESS and field.name not in (ROPE, "hidden_size") and value is not None:
            found[field.name] = list(value) if isinstance(value, tuple) else value
    if arch == "nemotron_h":  # where no pattern says it
        found["layers_block_type"] = cls().layers_block_type
    if ROPE in {f.name for f in dataclasses.fields(cls)}:
        single, whole = rope(cls)
        found.update({name: part for name, part in ((ROPE, single), ("without " + ROPE, whole)) if part})
    return found


def main():
    with contextlib.redirect_stdout(sys.stderr):
        transformers.utils.logging.set_verbosity_error()
        lines = {arch: json.dumps(defaults(arch), sort_keys=True) for arch in sorted(fields.CAUSAL + fields.ENCODERS)}
    body = ",\n".join(f"{json.dumps(arch)}: {line}" for arch, line in lines.items())
    sys.stdout.write("{\n" + body.replace("Infinity", '{"__float__": "Infinity"}') + "\n}\n")


if __name__ == "__main__":
    main()
