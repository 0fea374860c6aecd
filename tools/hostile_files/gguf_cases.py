"""GGUF files: containers, models, and the vocabularies in them."""

import math
import struct

import tiny_llama as llama
from case_list import join, raw
from gguf_format import (
    ARRAY, F32, F64, GGML_F16, GGML_F32, GGML_Q4_0, GGML_Q4_K, I8, I16, I32, STRING, U8, U16, U32, U64,
    header, model_file, pad, pair, string, tensor_info, u32, u64,
)

MINI_FILE = "g-ok-mini-baseline.gguf"
FULL_FILE = "g-ok-full-baseline.gguf"
NAN, INF = math.nan, math.inf

ARCHITECTURE = ("general.architecture", STRING, "llama")
ONE_PAIR = pair(*ARCHITECTURE)
ONE_TENSOR = ("token_embd.weight", (4, 4), GGML_F32, 0)
ONE_DATA = struct.pack("<16f", *range(16))


def container(pairs=ONE_PAIR, n_pairs=1, infos=(ONE_TENSOR,), data=ONE_DATA, **head):
    """The smallest valid file, or one with a field that is not."""
    infos = [info if isinstance(info, bytes) else tensor_info(*info) for info in infos]
    return pad(pad(header(len(infos), n_pairs, **head) + pairs + b"".join(infos)) + data)


class Gguf:
    """Adds cases of the kind `gguf`."""

    def __init__(self, cases):
        self.cases = cases

    def case(self, name, group, why, expect, stage, hint, data, **more):
        file = f"g-{name}.gguf"
        self.cases.add(file, "gguf", group, why, expect, stage, hint, **more)
        if isinstance(data, list):
            self.cases.cases[-1]["pieces"] = data
        else:
            self.cases.store(file, data)

    def refuse(self, name, group, why, stage, hint, data, **more):
        self.case(name, group, why, "error", stage, hint, data, **more)


# --- the sound model, and how a case differs from it ---


def model_pairs(tokens):
    texts, scores, types = llama.vocabulary(tokens)
    return [
        ARCHITECTURE,
        ("general.name", STRING, "mini"),
        ("llama.context_length", U32, llama.CONTEXT),
        ("llama.embedding_length", U32, llama.DIM),
        ("llama.block_count", U32, llama.LAYERS),
        ("llama.feed_forward_length", U32, llama.FEED_FORWARD),
        ("llama.attention.head_count", U32, llama.HEADS),
        ("llama.attention.head_count_kv", U32, llama.KV_HEADS),
        ("llama.attention.layer_norm_rms_epsilon", F32, 1e-5),
        ("llama.rope.dimension_count", U32, llama.HEAD_DIM),
        ("llama.rope.freq_base", F32, 10000.0),
        ("llama.vocab_size", U32, tokens),
        ("tokenizer.ggml.model", STRING, "llama"),
        ("tokenizer.ggml.tokens", ARRAY, (STRING, texts)),
        ("tokenizer.ggml.scores", ARRAY, (F32, scores)),
        ("tokenizer.ggml.token_type", ARRAY, (I32, types)),
        ("tokenizer.ggml.bos_token_id", U32, llama.BOS),
        ("tokenizer.ggml.eos_token_id", U32, llama.EOS),
        ("tokenizer.ggml.unknown_token_id", U32, llama.UNKNOWN),
    ]


def model_tensors(tokens, weights):
    """Matrices in F16, norms in F32, dims with the shortest stride first."""
    tensors = []
    for name, (shape, values) in weights.for_vocabulary(tokens).items():
        type_, data = (GGML_F16, llama.f16(values)) if len(shape) == 2 else (GGML_F32, llama.f32(values))
        tensors.append((name, shape[::-1], type_, data))
    return tensors


def replaced(pairs, key, type_, content):
    assert any(pair[0] == key for pair in pairs), key
    return [(key, type_, content) if pair[0] == key else pair for pair in pairs]


def without(items, *names):
    assert all(any(item[0] == name for item in items) for name in names), names
    return [item for item in items if item[0] not in names]


def elements(pairs, key):
    """A copy of an array's elements."""
    return next(list(content[1]) for name, _, content in pairs if name == key)


# --- containers ---


def containers(add, mini, mini_header):
    magic(add)
    truncated(add, mini, mini_header)
    counts_and_lengths(add)
    arrays(add)
    tensor_infos(add)
    offsets(add)
    alignments(add)
    hint = ["count", "n_kv", "tensor", "key", "metadata", "remaining"]
    old_counts = b"GGUF" + u32(2) + u32(1) + u32(1) + ONE_PAIR
    add.refuse("version-2-counts32", "version", "v2 number with v1's 32-bit counts", "container", hint, old_counts)


def magic(add):
    hint = ["magic", "not a gguf"]
    for wrong in (b"ggml", b"GGLA", b"FUGG"):
        name = f"magic-{wrong.decode().lower()}"
        add.refuse(name, "magic", f"magic is {wrong!r}", "container", hint, container(magic=wrong))
    page = b"<!DOCTYPE html><html>404 Not Found</html>\n"
    add.refuse("magic-text", "magic", "an HTML error page saved as a model", "container", hint, page)
    for version in (0, 1, 99):
        data = container(version=version)
        add.refuse(f"version-{version}", "version", f"version {version}", "container", ["version"], data)
    key, text = b"general.architecture", b"llama"
    swapped = b"GGUF" + struct.pack(">IQQQ", 3, 0, 1, len(key)) + key + struct.pack(">IQ", STRING, len(text)) + text
    why = "a v3 file in big-endian byte order"
    add.refuse("big-endian-v3", "big-endian", why, "container", ["endian", "version"], swapped)


def truncated(add, mini, head):
    """The model, cut inside each part of the header and of the data."""
    hint = ["truncat", "end of file", "eof", "beyond", "too short", "remaining"]
    cuts = [0, 3, 4, 8, 16, 23, 24, 40, head // 3, head - 400, head - 33, head, head + 100, len(mini) - 1]
    for cut in cuts:
        why = f"the mini model cut after {cut} of {len(mini)} bytes (header ends at {head})"
        add.refuse(f"truncated-{cut:05}", "truncated", why, "container", hint, mini[:cut])


def counts_and_lengths(add):
    info = tensor_info(*ONE_TENSOR)
    for number in (2**63, 2**32, 2):
        data = pad(header(number, 1) + ONE_PAIR + info) + ONE_DATA
        hint = ["tensor count", "n_tensors", "tensor", "remaining"]
        why = f"n_tensors {number} with one tensor in the file"
        add.refuse(f"n-tensors-{number}", "n-tensors", why, "container", hint, data)
    for number in (2**63, 2**32, 3):
        hint = ["metadata", "n_kv", "kv", "key", "remaining"]
        why = f"n_kv {number} with one key in the file"
        add.refuse(f"n-kv-{number}", "n-kv", why, "container", hint, container(n_pairs=number))

    key, text = string("general.architecture"), string("llama")
    for number in (2**63, 2**64 - 1, 1000):
        data = header(0, 1) + u64(number) + key[8:] + u32(STRING) + text
        hint = ["length", "string", "key", "remaining"]
        add.refuse(f"string-length-key-{number}", "string-length", f"key length {number}", "container", hint, data)
    for number in (2**63, 6):
        data = header(0, 1) + key + u32(STRING) + u64(number) + text[8:]
        why = f"string value length {number} with 5 bytes left"
        hint = ["length", "string", "remaining"]
        add.refuse(f"string-length-val-{number}", "string-length", why, "container", hint, data)
    data = container(infos=[u64(2**62) + info[8:]])
    hint = ["length", "name", "string", "remaining"]
    add.refuse("string-length-tensor-name", "string-length", "tensor name length 2^62", "container", hint, data)

    hint = ["utf-8", "utf8"]
    for name, key in (("ff", b"general.\xff\xfe"), ("overlong", b"gen\xc0\xafral")):
        data = header(0, 2) + pair(key, U32, 1) + ONE_PAIR
        add.refuse(f"utf8-key-{name}", "utf8-key", f"key {key!r} is not UTF-8", "container", hint, data)
    data = container(infos=[(b"blk.\xff.weight", (4, 4), GGML_F32, 0)])
    add.refuse("utf8-tensor-name", "utf8-tensor-name", "tensor name is not UTF-8", "container", hint, data)


def arrays(add):
    start = header(0, 2) + ONE_PAIR + string("x.a")  # the value of a second pair follows

    for type_, count in ((U8, 2**63), (U64, 2**61), (STRING, 2**32), (F32, 2**62 + 1)):
        data = start + u32(ARRAY) + u32(type_) + u64(count) + bytes(32)
        why = f"array of type {type_} with count {count}, 32 bytes left (count x size may wrap to a small number)"
        hint = ["array", "count", "length", "remaining"]
        add.refuse(f"array-count-t{type_}-{count}", "array-count", why, "container", hint, data)
    for depth in (64, 50000):
        levels = [raw(start + u32(ARRAY)), raw(u32(ARRAY) + u64(1), depth), raw(u32(U8) + u64(0))]
        data = levels if depth > 1000 else join(levels)
        why = f"arrays nested {depth} deep (stack use)"
        add.refuse(f"array-nesting-{depth}", "array-nesting", why, "container", ["nest", "array", "depth"], data)
    data = start + u32(ARRAY) + u32(ARRAY) + u64(2**60) + 4 * (u32(U8) + u64(0))
    hint = ["array", "nest", "count", "remaining"]
    why = "2^60 empty inner arrays claimed, 4 present"
    add.refuse("array-of-array-wide", "array-of-array", why, "container", hint, data)
    data = container(ONE_PAIR + pair("x.a", ARRAY, (ARRAY, [(U8, [1]), (STRING, ["a"])])), 2)
    why = "well-formed array of 2 arrays of different types: the specification allows it; read it or refuse it by type"
    add.case("array-of-array-legal-2", "array-of-array", why, "either", "container", ["array", "nest"], data)

    for type_ in (13, 2**32 - 1):
        data = start + u32(ARRAY) + u32(type_) + u64(4) + bytes(32)
        why = f"array of unknown element type {type_}"
        add.refuse(f"array-type-{type_}", "array-type", why, "container", ["type"], data)
        data = start + u32(type_) + bytes(8)
        add.refuse(f"kv-type-{type_}", "kv-type", f"value of unknown type {type_}", "container", ["type"], data)
    data = start + u32(ARRAY) + u32(77) + u64(0)
    why = "empty array of unknown element type 77"
    add.refuse("array-type-empty-13", "array-type", why, "container", ["type"], data)


def tensor_infos(add):
    def one(name, group, why, hint, dims, type_=GGML_F32, data=ONE_DATA):
        infos = [(ONE_TENSOR[0], dims, type_, 0)]
        add.refuse(name, group, why, "container", hint, container(infos=infos, data=data))

    why = "general.architecture twice, equal values"
    add.refuse("duplicate-key-arch", "duplicate-key", why, "container", ["duplicate"], container(2 * ONE_PAIR, 2))
    infos = [ONE_TENSOR, (*ONE_TENSOR[:3], len(ONE_DATA))]
    data = container(infos=infos, data=2 * ONE_DATA)
    add.refuse("duplicate-tensor", "duplicate-tensor", "two tensors of one name", "container", ["duplicate"], data)

    hint = ["dimension", "n_dims", "rank"]
    one("n-dims-0", "n-dims", "tensor with 0 dimensions", hint, ())
    one("n-dims-5", "n-dims", "tensor with 5 dimensions", hint, (4, 4, 1, 1, 1))
    info = tensor_info(*ONE_TENSOR)
    at = len(string(ONE_TENSOR[0]))
    data = container(infos=[info[:at] + u32(2**32 - 1) + info[at + 4 :]])
    add.refuse("n-dims-2e32", "n-dims", "n_dims 2^32-1", "container", hint, data)
    one("dim-zero-first", "dim-zero", "first dimension 0", ["zero", "dimension", "shape"], (0, 4))

    hint = ["overflow", "shape", "dimension", "too large", "beyond"]
    shapes = {"2e64": (2**32, 2**32), "2e63x2": (2**63, 2), "wraps-to-16": (2**60 + 1, 16), "max": (2**64 - 1,)}
    for name, dims in shapes.items():
        why = f"dimensions {dims}: element count overflows u64 or, as i64, goes negative"
        one(f"shape-overflow-{name}", "shape-overflow", why, hint, dims)
    why = f"element count {2**62} fits, count x 4 bytes wraps to a small number in 64 bits"
    one("byte-size-overflow-bytes-2e64", "byte-size-overflow", why, hint, (2**62, 1))

    hint = ["block", "multiple", "row"]
    for name, row, type_ in (("q4_0", 33, GGML_Q4_0), ("q4_k", 172, GGML_Q4_K)):
        why = f"row of {row} elements of block type {name}"
        one(f"row-block-{name}", "row-block", why, hint, (row, 2), type_, bytes(1024))
    for type_ in (40000, 2**32 - 1):
        one(f"tensor-type-{type_}", "tensor-type", f"unknown tensor type {type_}", ["type"], (4, 4), type_)
    for type_ in (4, 31):
        why = f"tensor type {type_} was removed from ggml"
        one(f"tensor-type-removed-{type_}", "tensor-type-removed", why, ["type"], (32, 4), type_, bytes(128))


def offsets(add):
    def one(name, group, why, hint, offset, data=ONE_DATA):
        add.refuse(name, group, why, "container", hint, container(infos=[(*ONE_TENSOR[:3], offset)], data=data))

    for offset in (1, 16):
        why = f"tensor offset {offset} with alignment 32"
        one(f"offset-unaligned-{offset}", "offset-unaligned", why, ["align", "offset"], offset, ONE_DATA + bytes(64))
    hint = ["offset", "beyond", "end of file", "range", "bounds"]
    for offset in (64, 2**40):
        one(f"offset-eof-{offset}", "offset-eof", f"tensor offset {offset}, 64 data bytes in the file", hint, offset)
    hint = ["overflow", "offset", "beyond", "range", "bounds"]
    for offset in (2**64 - 32, 2**64 - 64):
        why = f"offset {offset} + size (or + data start) overflows"
        one(f"offset-overflow-{offset}", "offset-overflow", why, hint, offset)

    for name, offset, why in (("same", 0, "two tensors at offset 0"), ("tail", 32, "second tensor inside the first")):
        infos = [ONE_TENSOR, ("output_norm.weight", (4,), GGML_F32, offset)]
        data = container(infos=infos, data=ONE_DATA + struct.pack("<4f", 1, 1, 1, 1))
        add.refuse(f"overlap-{name}", "overlap", why, "container", ["overlap"], data)

    hint = ["beyond", "end of file", "size", "truncat", "bounds"]
    large = {
        "1g": ((4, 2**26), "1 GiB tensor in a small file (memory disclosure class, CVE-2026-7482)"),
        "1row": ((4, 5), "tensor one row longer than the data"),
    }
    for name, (dims, why) in large.items():
        data = container(infos=[(ONE_TENSOR[0], dims, GGML_F32, 0)])
        add.refuse(f"tensor-larger-than-file-{name}", "tensor-larger-than-file", why, "container", hint, data)


def alignments(add):
    key = "general.alignment"
    for number in (0, 3, 2**31):
        why = f"general.alignment {number} (rule: power of two, at most 64 KiB)"
        data = container(ONE_PAIR + pair(key, U32, number), 2)
        add.refuse(f"alignment-{number}", "alignment", why, "container", ["align"], data)
    data = container(ONE_PAIR + pair(key, STRING, "32"), 2)
    why = "general.alignment is a string"
    add.refuse("alignment-type-string", "alignment-type", why, "container", ["align", "type"], data)


# --- models ---


def configurations(add, pairs, tensors):
    """Pairs that contradict the tensors, or that no model can have."""
    L = "llama."

    def one(name, group, why, hint, key, type_, content):
        data = model_file(replaced(pairs, key, type_, content), tensors)
        add.refuse(name, group, why, "model", hint, data)

    def more(name, group, why, hint, extra):
        add.refuse(name, group, why, "model", hint, model_file(pairs + extra, tensors))

    hint = ["block_count", "layer"]
    wrong = {
        "0": (U32, 0),
        "2e31": (U32, 2**31),
        "3": (U32, 3),
        "neg": (I32, -1),
        "string": (STRING, "2"),
        "float": (F32, 2.0),
    }
    for name, (type_, content) in wrong.items():
        why = f"llama.block_count = {content!r} (type {type_}) with tensors of 2 layers"
        one(f"block-count-{name}", "block-count", why, hint, L + "block_count", type_, content)
    required = [
        L + "block_count", L + "embedding_length", L + "attention.head_count", "general.architecture",
        L + "attention.layer_norm_rms_epsilon",
    ]
    for key in required:
        last, why = key.split(".")[-1], f"required key {key} is missing"
        data = model_file(without(pairs, key), tensors)
        add.refuse(f"missing-key-{last}", "missing-key", why, "model", [last, key], data)
    for name in ("blk.1.ffn_up", "token_embd", "output_norm"):
        tensor, file = name + ".weight", "missing-tensor-" + name.replace(".", "_")
        data = model_file(pairs, without(tensors, tensor))
        add.refuse(file, "missing-tensor", f"tensor {tensor} is missing", "model", [tensor], data)

    hint = ["head_count", "head"]
    for name, number in (("0", 0), ("3", 3), ("2e31", 2**31)):
        why = f"head_count {number}, embedding_length {llama.DIM}"
        one(f"head-count-{name}", "head-count", why, hint, L + "attention.head_count", U32, number)
    for name, number in (("0", 0), ("not-dividing", 3)):
        why = f"head_count_kv {number} with {llama.HEADS} heads"
        one(f"head-count-kv-{name}", "head-count-kv", why, hint, L + "attention.head_count_kv", U32, number)
    hint = ["embedding_length", "shape", "embd", "dimension", "head"]
    for name, number in (("0", 0), ("32", 32), ("2e31", 2**31)):
        why = f"embedding_length {number}, tensors have {llama.DIM}"
        one(f"embedding-length-{name}", "embedding-length", why, hint, L + "embedding_length", U32, number)
    hint = ["key_length", "head_dim", "head dim", "shape", "rope", "head"]
    for name, number in (("0", 0), ("2e31", 2**31)):
        why = f"key_length = value_length = {number}, tensors have {llama.HEAD_DIM}"
        lengths = [(L + f"attention.{what}_length", U32, number) for what in ("key", "value")]
        more(f"head-dim-{name}", "head-dim", why, hint, lengths)
    hint = ["feed_forward_length", "ffn", "shape", "dimension"]
    for number in (0, 21):
        why = f"feed_forward_length {number}, tensors have {llama.FEED_FORWARD}"
        name = f"feed-forward-length-{number}"
        one(name, "feed-forward-length", why, hint, L + "feed_forward_length", U32, number)
    for name, type_, number in (("0", U32, 0), ("2e63", U64, 2**63)):
        hint = ["context_length", "context"]
        why = f"context_length {number}"
        one(f"context-length-{name}", "context-length", why, hint, L + "context_length", type_, number)

    for name, number in (("odd", 7), ("gt-head-dim", 16)):
        why = f"rope.dimension_count {number} with head dimension {llama.HEAD_DIM}"
        one(f"rope-dimension-{name}", "rope-dimension", why, ["rope"], L + "rope.dimension_count", U32, number)
    for name, number in (("0", 0.0), ("nan", NAN), ("inf", INF), ("neg", -10000.0)):
        hint = ["freq_base", "rope"]
        why = f"rope.freq_base {number}"
        one(f"rope-freq-base-{name}", "rope-freq-base", why, hint, L + "rope.freq_base", F32, number)
    for name, number in (("nan", NAN), ("neg", -1e-5)):
        key, hint = L + "attention.layer_norm_rms_epsilon", ["epsilon", "eps"]
        one(f"rms-eps-{name}", "rms-eps", f"rms epsilon {number}", hint, key, F32, number)
    for name, number in (("minus-1", llama.MINI - 1), ("2e31", 2**31)):
        why = f"vocab_size {number}, {llama.MINI} tokens and embedding rows"
        one(f"vocab-size-{name}", "vocab-size", why, ["vocab"], L + "vocab_size", U32, number)
    for name, count, used in (("huge", 2**31, 2), ("used-gt-count", 8, 9), ("no-tensors", 8, 2)):
        why = f"expert_count {count}, expert_used_count {used}, dense tensors"
        extra = [(L + "expert_count", U32, count), (L + "expert_used_count", U32, used)]
        more(f"experts-{name}", "experts", why, ["expert"], extra)

    per_layer = {
        "kv-1": ("attention.head_count_kv", [1]),
        "kv-3": ("attention.head_count_kv", [1, 1, 1]),
        "ffn-0": ("feed_forward_length", []),
    }
    for name, (key, numbers) in per_layer.items():
        hint = ["array", "length", "layer", "per-layer", key.split(".")[-1]]
        why = f"llama.{key} is an array {numbers}, block_count {llama.LAYERS}"
        one(f"per-layer-array-{name}", "per-layer-array", why, hint, L + key, ARRAY, (U32, numbers))

    key, hint = "general.architecture", ["architecture"]
    one("architecture-unknown", "architecture", f"{key} 'llamba'", hint, key, STRING, "llamba")
    one("architecture-empty", "architecture", f"{key} ''", hint, key, STRING, "")
    one("architecture-type", "architecture", f"{key} is a number", [*hint, "type"], key, U32, 1)


def not_finite(add, pairs, tensors):
    """Files that are sound, with one weight that is not finite."""
    row_of_bos = llama.BOS * llama.DIM
    broken = {
        "nan-embd": ("token_embd.weight", row_of_bos, NAN, "nan in token_embd.weight (row of BOS)"),
        "nan-output-norm": ("output_norm.weight", 3, NAN, "nan in output_norm.weight"),
        "inf-ffn-down": ("blk.1.ffn_down.weight", 3, INF, "inf in blk.1.ffn_down.weight"),
    }
    for name, (tensor, index, number, what) in broken.items():
        why = (
            f"{what}; the file is sound, so it may load; generation from BOS must end in a numerical error "
            "(refusing at load is also fine)"
        )
        changed = []
        for entry in tensors:
            if entry[0] == tensor:
                size, packed = (2, llama.f16([number])) if entry[2] == GGML_F16 else (4, llama.f32([number]))
                data = entry[3][: index * size] + packed + entry[3][(index + 1) * size :]
                entry = (*entry[:3], data)
            changed.append(entry)
        hint = ["numerical", "nan", "non-finite", "inf"]
        add.case(f"nan-weights-{name}", "nan-weights", why, "nan", "generate", hint, model_file(pairs, changed))


# --- vocabularies ---


def vocabularies(add, pairs, tensors):
    T = "tokenizer.ggml."
    count, odd = llama.MINI, 270  # the token that a case replaces
    texts, scores, types = (elements(pairs, T + key) for key in ("tokens", "scores", "token_type"))

    def one(name, group, why, hint, changes, expect="error", left_out=(), **more):
        changed = without(pairs, *left_out)
        for key, type_, content in changes:
            changed = replaced(changed, T + key, type_, content)
        add.case(name, group, why, expect, "tokenizer", hint, model_file(changed, tensors), **more)

    def array(key, type_, content):
        return (key, ARRAY, (type_, content))

    def with_token(token):
        return array("tokens", STRING, texts[:odd] + [token] + texts[odd + 1 :])

    def with_type(type_):
        return array("token_type", I32, types[:odd] + [type_] + types[odd + 1 :])

    fewer = [array("tokens", STRING, texts[:-1])]
    fewer += [array("scores", F32, scores[:-1]), array("token_type", I32, types[:-1])]
    why = "one token fewer than embedding rows"
    one("token-count-fewer", "token-count", why, ["vocab", "token"], fewer, left_out=["llama.vocab_size"])
    why = f"10 scores for {count} tokens"
    one("scores-length-short", "scores-length", why, ["score"], [array("scores", F32, scores[:10])])
    why = f"3 token types for {count} tokens"
    one("types-length-short", "types-length", why, ["type"], [array("token_type", I32, types[:3])])
    nan = array("scores", F32, scores[:272] + [NAN] + scores[273:])
    one("scores-value-nan", "scores-value", "a score is NaN", ["score", "finite", "nan"], [nan])
    strings = array("scores", STRING, count * ["0"])
    one("scores-value-strings", "scores-value", "scores are strings", ["score", "type"], [strings])
    for type_ in (7, -1):
        why = f"token type {type_}"
        one(f"token-type-range-{type_}", "token-type-range", why, ["type"], [with_type(type_)])
    why = "a token is the empty string (some real files have one): refuse it, or keep it from ever matching"
    one("token-empty", "token-empty", why, ["empty", "token"], [with_token(b"")], "either")
    why = "two equal normal tokens"
    one("token-duplicate", "token-duplicate", why, ["duplicate"], [with_token(texts[odd + 1])])
    one("token-utf8", "token-utf8", "a token is not UTF-8", ["utf-8", "utf8"], [with_token(b"\xff\xfe")])
    for name, spelled in (("minus1", "<0x-1>"), ("gg", "<0xGG>"), ("short", "<0x1>")):
        why = f"byte token spelled {spelled!r}"
        changes = [with_token(spelled), with_type(llama.BYTE_TYPE)]
        one(f"byte-token-{name}", "byte-token", why, ["byte", "token"], changes)

    for what, number in (("bos", count), ("eos", 2**32 - 1), ("unknown", count)):
        hint = [what, "token id", "token_id", "vocab", "range"]
        why = f"{what}_token_id {number}, vocabulary of {count} (embedding read past the end)"
        one(f"special-id-{what}-{number}", "special-id", why, hint, [(f"{what}_token_id", U32, number)])
    hint = ["bos", "token id", "token_id", "range", "type", "negative"]
    why = "bos_token_id -1 as i32"
    one("special-id-bos-negative", "special-id", why, hint, [("bos_token_id", I32, -1)])

    why = "a token of 64 KiB: refuse or load; encoding must stay fast"
    probe = {"text": "a", "repeat": 5000, "suffix": "!"}
    hint = ["token", "long", "length"]
    one("token-long-64k", "token-long", why, hint, [with_token(b"a" * 65536)], "either", probe=probe)
    none = [array("tokens", STRING, []), array("scores", F32, []), array("token_type", I32, [])]
    hint = ["vocab", "token", "empty"]
    one("vocab-zero", "vocab-zero", "vocabulary of zero tokens", hint, none, left_out=["llama.vocab_size"])
    numbers = array("tokens", U32, list(range(count)))
    one("tokens-type-u32", "tokens-type", "tokens are integers", ["token", "type"], [numbers])
    why = "tokenizer.ggml.model 'xyz-not-real'"
    model = ("model", STRING, "xyz-not-real")
    one("tokenizer-model-xyz-not-real", "tokenizer-model", why, ["tokenizer", "model"], [model])


def byte_alphabet():
    """The characters that byte-level BPE writes bytes with, in the order of the bytes."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    odd = [byte for byte in range(256) if byte not in plain]
    return [chr(byte) if byte in plain else chr(256 + odd.index(byte)) for byte in range(256)]


def merges(add):
    """Byte-level BPE. These files have a vocabulary and no tensors."""
    sound_merges = ["t h", "th e", "a n", "an d", "Ġ the"]

    def vocabulary(merges=sound_merges, extra=(), merges_type=STRING, pre="gpt-2"):
        texts = byte_alphabet() + ["th", "the", "an", "and", "Ġthe", *extra, "<|end|>"]
        types = (len(texts) - 1) * [llama.NORMAL_TYPE] + [llama.CONTROL_TYPE]
        pairs = [
            ("general.architecture", STRING, "gpt2"),
            ("tokenizer.ggml.model", STRING, "gpt2"),
            ("tokenizer.ggml.pre", STRING, pre),
            ("tokenizer.ggml.tokens", ARRAY, (STRING, texts)),
            ("tokenizer.ggml.token_type", ARRAY, (I32, types)),
            ("tokenizer.ggml.merges", ARRAY, (merges_type, merges)),
            ("tokenizer.ggml.eos_token_id", U32, len(texts) - 1),
        ]
        return header(0, len(pairs)) + b"".join(pair(*p) for p in pairs)

    why = "sound byte-level BPE vocabulary without tensors, from which the merge files are made"
    add.case("ok-bpe-baseline", "ok-bpe", why, "ok", "tokenizer", [], vocabulary())
    data = vocabulary([*sound_merges, "the ж"], ["theж"])
    why = "a merge's right part is not in the vocabulary"
    add.refuse("merges-unknown-part", "merges-unknown", why, "tokenizer", ["merge"], data)
    data = vocabulary([*sound_merges, "theand"])
    add.refuse("merges-no-space", "merges-no-space", "a merge without a space", "tokenizer", ["merge"], data)
    why = "merge of '' and 'a' gives 'a' again (endless loop)"
    data = vocabulary([*sound_merges, " a"])
    add.refuse("merges-cyclic-left", "merges-cyclic", why, "tokenizer", ["merge"], data)
    data = vocabulary([1, 2], merges_type=U32)
    add.refuse("merges-type", "merges-type", "merges are integers", "tokenizer", ["merge", "type"], data)
    why = "unknown tokenizer.ggml.pre: an error or a documented fallback with a warning"
    data = vocabulary(pre="no-such-pre")
    add.case("pre-tokenizer-unknown", "pre-tokenizer", why, "either", "tokenizer", ["pre"], data)


# --- unusual, but sound ---


def short_key(number):
    """A key of 4 bytes."""
    digits = "0123456789abcdefghijklmnopqrstuvwxyz"
    return "k" + digits[number // 36**2] + digits[number // 36 % 36] + digits[number % 36]


def unusual(add, pairs, tensors):
    def one(name, why, pairs=pairs, tensors=tensors, **form):
        data = model_file(pairs, tensors, **form)
        add.case(f"ok-{name}", f"ok-{name}", why, "ok", "model", [], data, same_as=FULL_FILE)

    empty = [("x.none", ARRAY, (U32, [])), ("general.tags", ARRAY, (STRING, [])), ("x.f", ARRAY, (F64, []))]
    one("empty-arrays", "empty metadata arrays of three types", pairs + empty)
    unknown = [("zz.first", I8, -5), ("x.y", F64, 1e300), ("a", I16, -1), ("wgslm.future.key", U64, 2**64 - 1)]
    one("unknown-keys", "unknown keys of many types before general.architecture", unknown + pairs)
    one("align-64", "alignment 64", [*pairs, ("general.alignment", U32, 64)], alignment=64)
    one("order-reversed", "tensors in reversed order", tensors=tensors[::-1])
    one("gaps", "96 bytes of padding between tensors", gap=96)
    one("version-2", "GGUF v2", version=2)
    narrow = []
    for name, dims, type_, data in tensors:
        if type_ == GGML_F32:
            type_, data = GGML_F16, llama.f16(struct.unpack(f"<{dims[0]}f", data))
        narrow.append((name, dims, type_, data))
    one("f16-norms", "norm weights in F16", tensors=narrow)
    named = replaced(pairs, "general.name", STRING, "naïve 🐍 ../x\ty")
    extra = [*tensors, ("x-extra tensor.é/..", (1, 1, 1, 3), GGML_F32, llama.f32([1, 2, 3]))]
    one("names", "an unused tensor with an unusual legal name and 4 dimensions; odd general.name", named, extra)
    many = [(short_key(number), U8, number % 256) for number in range(20000)]
    one("many-keys", "20000 unknown keys: duplicate checks must not be quadratic", pairs + many)


def baselines(add, mini, full):
    why = "smallest valid container: one key, one tensor (not a model)"
    add.case("ok-container", "ok-container", why, "ok", "container", [], container())
    why = (
        f"the sound model that every single-defect file below is made from ({llama.MINI} tokens); "
        "if it does not load, those prove nothing"
    )
    add.case("ok-mini-baseline", "ok-mini", why, "ok", "model", [], mini)
    why = f"the sound model ({llama.FULL} tokens) that the other ok-* files must agree with"
    add.case("ok-full-baseline", "ok-full", why, "ok", "model", [], full)


def add_all(cases, weights):
    add = Gguf(cases)
    mini = model_pairs(llama.MINI), model_tensors(llama.MINI, weights)
    full = model_pairs(llama.FULL), model_tensors(llama.FULL, weights)
    mini_file = model_file(*mini)
    mini_header = len(mini_file) - sum(len(pad(data)) for *_, data in mini[1])
    baselines(add, mini_file, model_file(*full))
    containers(add, mini_file, mini_header)
    configurations(add, *mini)
    not_finite(add, *mini)
    vocabularies(add, *mini)
    merges(add)
    unusual(add, *full)
