"""A GGUF file that makes llama.cpp compile the kernels to compare ours with: a layer of each type of weights, all of them 0."""
import struct
from pathlib import Path

# ggml's number of a type, weights in a block, bytes of a block, by our name of it.
TYPES = {"F16": (1, 1, 2), "Q4_0": (2, 32, 18), "Q8_0": (8, 32, 34), "Q4_K": (12, 256, 144), "Q6_K": (14, 256, 210)}
# Below 2,048 columns llama.cpp takes other kernels than for models that people run.
WIDTH = 4096
HEADS, KV_HEADS, HEAD_DIM = 48, 16, 64
WORDS = 32
ALIGNMENT = 32


def text(value):
    return struct.pack("<Q", len(value)) + value.encode()


def key(name, value):
    kind = {int: (4, "<I"), float: (6, "<f")}.get(type(value))
    return text(name) + (struct.pack("<I", kind[0]) + struct.pack(kind[1], value) if kind else struct.pack("<I", 8) + text(value))


def keys():
    return {
        "general.architecture": "llama",
        "general.alignment": ALIGNMENT,
        "tokenizer.ggml.model": "no_vocab",
        "llama.vocab_size": WORDS,
        "llama.context_length": 4096,
        "llama.embedding_length": WIDTH,
        "llama.block_count": len(TYPES),
        "llama.feed_forward_length": WIDTH,
        "llama.rope.dimension_count": HEAD_DIM,
        "llama.rope.freq_base": 10000.0,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.attention.key_length": HEAD_DIM,
        "llama.attention.value_length": HEAD_DIM,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
    }


def tensors():
    """Name, type and shape (columns first) of each."""
    yield "token_embd.weight", "F16", (WIDTH, WORDS)
    yield "output_norm.weight", "F32", (WIDTH,)
    for layer, kind in enumerate(TYPES):
        matrices = {
            "attn_q": (WIDTH, HEADS * HEAD_DIM),
            "attn_k": (WIDTH, KV_HEADS * HEAD_DIM),
            "attn_v": (WIDTH, KV_HEADS * HEAD_DIM),
            "attn_output": (HEADS * HEAD_DIM, WIDTH),
            "ffn_gate": (WIDTH, WIDTH),
            "ffn_up": (WIDTH, WIDTH),
            "ffn_down": (WIDTH, WIDTH),
        }
        for name, shape in matrices.items():
            yield f"blk.{layer}.{name}.weight", kind, shape
        for name in ("attn_norm", "ffn_norm"):
            yield f"blk.{layer}.{name}.weight", "F32", (WIDTH,)


def write(path):
    place, entries = 0, b""
    for name, kind, shape in tensors():
        number, weights, size = TYPES.get(kind, (0, 1, 4))
        count = 1
        for length in shape:
            count *= length
        entries += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, number, place)
        place += -(-count // weights * size // ALIGNMENT) * ALIGNMENT
    head = b"GGUF" + struct.pack("<IQQ", 3, len(list(tensors())), len(keys()))
    head += b"".join(key(name, value) for name, value in keys().items()) + entries
    head += bytes(-len(head) % ALIGNMENT)
    with Path(path).open("wb") as file:
        file.write(head)
        file.truncate(len(head) + place)  # a hole: it takes no space on the disk
