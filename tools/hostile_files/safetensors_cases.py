"""Safetensors files, and model folders."""

import json

import tiny_llama as llama
from case_list import join, raw, text
from config_cases import baseline as baseline_config
from config_cases import write as write_config
from gguf_cases import FULL_FILE

FOLDER = "d-ok-folder-baseline"


def entry(shape=(2, 2), offsets=(0, 16), dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def dumps(value):
    return json.dumps(value, separators=(",", ":"))


def container(header, data=bytes(16), length=None):
    """`header` as a value or as text, padded to a multiple of 8 bytes."""
    header = header if isinstance(header, bytes) else (header if isinstance(header, str) else dumps(header)).encode()
    header += b" " * (-len(header) % 8)
    return (len(header) if length is None else length).to_bytes(8, "little") + header + data


class Safetensors:
    """Adds cases of the kind `safetensors`."""

    def __init__(self, cases):
        self.cases = cases

    def case(self, name, group, why, expect, hint, data):
        file = f"s-{name}.safetensors"
        self.cases.add(file, "safetensors", group, why, expect, "container", hint)
        if isinstance(data, list):
            self.cases.cases[-1]["pieces"] = data
        else:
            self.cases.store(file, data)

    def refuse(self, name, group, why, hint, data):
        self.case(name, group, why, "error", hint, data)

    def folder(self, name, group, why, expect, stage, hint, files, **more):
        folder = f"d-{name}"
        first = "model.safetensors.index.json" if "model.safetensors.index.json" in files else "model.safetensors"
        stored = {"config.json": write_config(baseline_config()), **files}
        for file, data in stored.items():
            self.cases.store(f"{folder}/{file}", data)
        parts = [f"{folder}/{file}" for file in stored]
        self.cases.add(f"{folder}/{first}", "safetensors", group, why, expect, stage, hint, parts=parts, **more)


# --- containers ---


def containers(add):
    two = {"a": entry(), "b": entry((4,), (16, 32))}
    why = "smallest valid container (not a model)"
    data = container({"__metadata__": {"format": "pt"}, **two}, bytes(32))
    add.case("ok-container", "ok-container", why, "ok", [], data)

    hint = ["header", "length", "json"]
    for length in (2**63, 0, 1000):
        why = f"header length {length}"
        add.refuse(f"header-length-{length}", "header-length", why, hint, container({"a": entry()}, length=length))
    hint = ["header", "truncat", "short", "eof"]
    whole = container(two, bytes(32))
    for cut in (0, 7, 8, 30):
        add.refuse(f"truncated-{cut}", "truncated", f"cut after {cut} bytes", hint, whole[:cut])
    hint = ["data", "offset", "size", "truncat", "beyond"]
    add.refuse("truncated-data", "truncated", "last data byte missing", hint, whole[:-1])

    headers = {"text": "hello world, no json", "array": "[1,2,3]", "cut": '{"a":', "latin1": b'{"\xff":1}'}
    for name, header in headers.items():
        why = f"header is not a JSON object: {header!r}"
        add.refuse(f"header-json-{name}", "header-json", why, ["header", "json"], container(header, bytes(32)))
    for depth in (100, 100000):
        start, end = '{"__metadata__":', "}"
        length = len(start) + 2 * depth + len(end)
        fill = -length % 8
        size = raw((length + fill).to_bytes(8, "little"))
        data = [size, text(start), text("[", depth), text("]", depth), text(end + fill * " "), raw(b"\0", 32)]
        data = data if depth > 1000 else join(data)
        hint = ["header", "json", "recursion", "nest", "metadata"]
        add.refuse(f"nesting-{depth}", "nesting", f"JSON nested {depth} deep (stack use)", hint, data)

    header = '{"a":%s,"a":%s}' % (dumps(entry()), dumps(entry(offsets=(16, 32))))
    add.refuse("duplicate-name", "duplicate-name", "one tensor name twice", ["duplicate"], container(header, bytes(32)))
    entries(add)

    why = "a tensor with a dimension 0 and a scalar: allowed"
    data = container({"a": entry(), "z": entry((0, 5), (16, 16)), "s": entry((), (16, 20))}, bytes(20))
    add.case("ok-zero-size", "ok-zero-size", why, "ok", [], data)
    why = "white space, entries not in offset order, 500 spaces of padding"
    header = '{ "b" : %s ,\n "a" : %s }' % (dumps(entry(offsets=(16, 32))), dumps(entry()))
    add.case("ok-spaces", "ok-spaces", why, "ok", [], container(header + 500 * " ", bytes(32)))


def entries(add):
    """Offsets, types and shapes of single tensors."""
    common = ["offset", "overlap", "gap", "range", "hole", "contiguous", "json", "invalid"]
    pairs = {
        "overlap": ([0, 16], [8, 24], 24),
        "same": ([0, 16], [0, 16], 16),
        "reversed": ([16, 0], [16, 32], 32),
        "out-of-range": ([0, 16], [16, 4096], 32),
        "gap": ([0, 16], [24, 40], 40),
        "start": ([8, 24], [24, 40], 40),
    }
    for name, (a, b, size) in pairs.items():
        why = f"data_offsets a={dumps(a)} b={dumps(b)}, {size} data bytes"
        data = container({"a": entry(offsets=a), "b": entry(offsets=b)}, bytes(size))
        add.refuse(f"offsets-{name}", "offsets", why, [*common, "size"], data)
    data = container({"a": entry(offsets=(0, 8, 16))})
    add.refuse("offsets-form-three", "offsets-form", "three offsets", [*common, "length"], data)
    for dtype in ("F33", "f32"):
        hint = ["dtype", "type", "variant"]
        add.refuse(f"dtype-{dtype}", "dtype", f"dtype {dtype!r}", hint, container({"a": entry(dtype=dtype)}))

    shapes = {"2e64": [2**32, 2**32], "wraps": [2**62 + 4], "2e65": [2**65]}
    for name, shape in shapes.items():
        hint = ["shape", "overflow", "size", "json", "invalid"]
        why = f"shape {dumps(shape)} with 16 bytes of data"
        add.refuse(f"shape-overflow-{name}", "shape-overflow", why, hint, container({"a": entry(shape)}))
    for name, shape in (("small", [2, 1]), ("large", [2, 3]), ("empty", [0])):
        hint = ["shape", "size", "offset"]
        why = f"shape {dumps(shape)} of F32 with 16 bytes of data"
        add.refuse(f"shape-size-{name}", "shape-size", why, hint, container({"a": entry(shape)}))
    for name, shape in (("negative", [-2, -2]), ("string", "2x2")):
        hint = ["shape", "json", "invalid", "type"]
        why = f"shape is {dumps(shape)}"
        add.refuse(f"shape-form-{name}", "shape-form", why, hint, container({"a": entry(shape)}))
    data = container({"a": {"shape": [2, 2], "data_offsets": [0, 16]}})
    add.refuse("entry-form-missing-dtype", "entry-form", "entry without dtype", ["dtype", "missing"], data)
    why = "24 bytes after the last tensor (official reader refuses)"
    hint = ["data", "offset", "size", "trailing", "buffer"]
    add.refuse("trailing-data", "trailing-data", why, hint, container({"a": entry()}, bytes(16) + 24 * b"x"))


# --- model folders ---


def model_file(tensors, metadata=True):
    """`tensors` by name: (shape, dtype, data)."""
    header, data = {"__metadata__": {"format": "pt"}} if metadata else {}, b""
    for name, (shape, dtype, content) in tensors.items():
        header[name] = entry(shape, (len(data), len(data) + len(content)), dtype)
        data += content
    return container(header, data)


def shard_index(weight_map, **metadata):
    return json.dumps({"metadata": metadata, "weight_map": weight_map}, indent=1)


def folders(add, weights):
    named = llama.folder_tensors(weights.for_vocabulary(llama.FULL))
    tensors = {name: (shape, "F16", llama.f16(values)) for name, (shape, values) in named.items()}
    sound = {"model.safetensors": model_file(tensors)}
    index_name = "model.safetensors.index.json"
    size = sum(len(data) for _, _, data in tensors.values())

    why = f"sound model folder; same weights as {FULL_FILE}"
    add.folder(FOLDER[2:], "ok-folder", why, "ok", "model", [], sound, same_as=FULL_FILE)
    names = list(tensors)
    halves = names[:9], names[9:]
    files = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    shards = {file: model_file({name: tensors[name] for name in half}) for file, half in zip(files, halves)}

    def sharded(order):
        where = {name: file for file, half in zip(order, halves) for name in half}
        return {index_name: shard_index(where, total_size=size), **shards}

    add.folder("ok-shards-two", "ok-shards", "two shards", "ok", "model", [], sharded(files), same_as=FULL_FILE)
    frequencies = llama.f32([10000 ** (-i / 4) for i in range(llama.HEAD_DIM // 2)])
    legacy = {**tensors, "model.layers.0.self_attn.rotary_emb.inv_freq": ((4,), "F32", frequencies)}
    why = "legacy extra tensor rotary_emb.inv_freq: to be ignored"
    files_of = {"model.safetensors": model_file(legacy, metadata=False)}
    add.folder("ok-extra-inv-freq", "ok-extra", why, "ok", "model", [], files_of, same_as=FULL_FILE)

    paths = {
        "dotdot": "../../etc/passwd",
        "absolute": "/etc/passwd",
        "missing": "model-00009-of-00009.safetensors",
        "backslash": "..\\..\\secret.safetensors",
    }
    hint = ["path", "shard", "outside", "file name", "not found", "no such file"]
    for name, path in paths.items():
        why = (
            f"weight_map points to {path!r}; nothing outside the folder may be opened, "
            "and no content or existence reported"
        )
        index = shard_index({names[0]: path, names[-1]: path})
        add.folder(f"shard-path-{name}", "shard-path", why, "error", "model", hint, {index_name: index})
    why = (
        "link.safetensors is to be a symlink out of the folder (made by the test: see setup); "
        "refuse, or follow only to a regular file that checks out"
    )
    index = shard_index({name: "link.safetensors" for name in names}, total_size=size)
    setup = {"symlink": {"path": "link.safetensors", "target": "/etc/passwd"}}
    add.folder("shard-symlink", "shard-symlink", why, "either", "model", hint, {index_name: index}, setup=setup)
    why = "weight_map names the wrong shard for every tensor"
    hint = ["shard", "missing", "tensor", "not found"]
    add.folder("shard-map-wrong-shard", "shard-map", why, "error", "model", hint, sharded(files[::-1]))
    index = json.dumps({"weight_map": {"model.norm.weight": 7}}, indent=1)
    hint = ["weight_map", "type", "json", "invalid"]
    why = "weight_map value is a number"
    add.folder("shard-map-number", "shard-map", why, "error", "model", hint, {index_name: index})

    def with_norm(shape, data):
        return {"model.safetensors": model_file({**tensors, names[-1]: (shape, "F16", data)}, metadata=False)}

    files_of = with_norm((4, 4), bytes(32))
    hint = ["shape", "model.norm"]
    add.folder("role-shape", "role-shape", "model.norm.weight is 4 x 4", "error", "model", hint, files_of)
    files_of = with_norm((llama.DIM,), llama.f16(llama.DIM * [float("nan")]))
    hint = ["numerical", "nan", "non-finite", "inf"]
    why = "model.norm.weight all NaN: generation must end in a numerical error"
    add.folder("nan-weights-st", "nan-weights", why, "nan", "generate", hint, files_of)


def add_all(cases, weights):
    add = Safetensors(cases)
    containers(add)
    folders(add, weights)
