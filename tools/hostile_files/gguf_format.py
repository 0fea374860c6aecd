"""GGUF files, written field by field, so that a case can give any field any value."""

import struct

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
CODES = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "?", U64: "Q", I64: "q", F64: "d"}
GGML_F32, GGML_F16, GGML_Q4_0, GGML_Q4_K = 0, 1, 2, 12
ALIGNMENT = 32


def u32(number):
    return struct.pack("<I", number)


def u64(number):
    return struct.pack("<Q", number)


def string(data):
    data = data if isinstance(data, bytes) else data.encode()
    return u64(len(data)) + data


def value(type_, content):
    """A value. That of an array is (type of its elements, elements)."""
    if type_ == STRING:
        return string(content)
    if type_ == ARRAY:
        inner, elements = content
        return u32(inner) + u64(len(elements)) + b"".join(value(inner, element) for element in elements)
    return struct.pack("<" + CODES[type_], content)


def pair(key, type_, content):
    return string(key) + u32(type_) + value(type_, content)


def header(tensors, pairs, version=3, magic=b"GGUF"):
    return magic + u32(version) + u64(tensors) + u64(pairs)


def tensor_info(name, dims, type_, offset):
    """`dims` are as GGUF has them: the shortest stride first."""
    return string(name) + u32(len(dims)) + b"".join(map(u64, dims)) + u32(type_) + u64(offset)


def pad(data, alignment=ALIGNMENT):
    return data + bytes(-len(data) % alignment)


def model_file(pairs, tensors, version=3, alignment=ALIGNMENT, gap=0):
    """A whole file of `pairs` (key, type, value) and `tensors` (name, dims, type, data).

    `gap` bytes follow the data of each tensor.
    """
    head = header(len(tensors), len(pairs), version) + b"".join(pair(*p) for p in pairs)
    infos, data = b"", b""
    for name, dims, type_, content in tensors:
        infos += tensor_info(name, dims, type_, len(data))
        data = pad(data + content + bytes(gap), alignment)
    return pad(head + infos, alignment) + data
