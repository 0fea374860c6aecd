"""The sound model that the cases are made from: a random Llama of 2 layers, with a vocabulary of our own."""

import struct

SEED = 18
DIM, FEED_FORWARD, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 16, 20, 2, 2, 1, 8
CONTEXT = 64
MINI, FULL = 312, 320  # tokens of the two vocabularies
BOS, EOS, UNKNOWN = 1, 2, 0

UNKNOWN_TYPE, CONTROL_TYPE, BYTE_TYPE, NORMAL_TYPE = 2, 3, 6, 1

# Pieces of SentencePiece's kind. The first are merges of the single characters after them.
PIECES = ["▁t", "in", "▁a", "▁s", "▁w", "er", "▁ton", "on", "▁in", "▁b", "▁c", "▁d", "▁m"]
PIECES += list("▁abcdefghijklmnopqrstuvwxyz") + list("éñöüßø–—€…”,!")
MORE_PIECES = ["▁ten", "en", "▁we", "▁be", "▁no", "at", "▁at", "it"]


class Random:
    """SplitMix64: the same numbers with every version of Python."""

    def __init__(self, seed):
        self.state = seed

    def signed(self):
        """A number from -1 to 1."""
        mask = (1 << 64) - 1
        self.state = (self.state + 0x9E3779B97F4A7C15) & mask
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return ((z ^ (z >> 31)) >> 11) / (1 << 52) - 1


def f16(values):
    return struct.pack(f"<{len(values)}e", *values)


def f32(values):
    return struct.pack(f"<{len(values)}f", *values)


def rounded(values):
    """Values that F16 holds, so that every form of the model has the same numbers."""
    return list(struct.unpack(f"<{len(values)}e", f16(values)))


class Weights:
    """The tensors by GGUF's names: (shape with the rows first, values)."""

    def __init__(self):
        random = Random(SEED)
        self.tensors = {}

        def matrix(name, rows, columns, scale):
            values = [scale * random.signed() for _ in range(rows * columns)]
            self.tensors[name] = ((rows, columns), rounded(values))

        def norm(name):
            self.tensors[name] = ((DIM,), rounded([1 + random.signed() / 4 for _ in range(DIM)]))

        kv_dim = KV_HEADS * HEAD_DIM
        matrix("token_embd.weight", FULL, DIM, 1)
        for layer in range(LAYERS):
            block = f"blk.{layer}."
            norm(block + "attn_norm.weight")
            matrix(block + "attn_q.weight", DIM, DIM, 0.5)
            matrix(block + "attn_k.weight", kv_dim, DIM, 0.5)
            matrix(block + "attn_v.weight", kv_dim, DIM, 0.5)
            matrix(block + "attn_output.weight", DIM, DIM, 0.5)
            norm(block + "ffn_norm.weight")
            matrix(block + "ffn_gate.weight", FEED_FORWARD, DIM, 0.5)
            matrix(block + "ffn_down.weight", DIM, FEED_FORWARD, 0.5)
            matrix(block + "ffn_up.weight", FEED_FORWARD, DIM, 0.5)
        norm("output_norm.weight")

    def for_vocabulary(self, tokens):
        """The tensors of the model with the first `tokens` rows of the embedding."""
        tensors = dict(self.tensors)
        (_, columns), values = tensors["token_embd.weight"]
        tensors["token_embd.weight"] = ((tokens, columns), values[: tokens * columns])
        return tensors


def vocabulary(tokens):
    """Tokens, scores and types of SentencePiece's kind."""
    texts = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)] + PIECES + MORE_PIECES
    texts = texts[:tokens]
    pieces = range(3 + 256, tokens)
    scores = [0.0] * (3 + 256) + [float(pieces.start - id) for id in pieces]
    types = [UNKNOWN_TYPE, CONTROL_TYPE, CONTROL_TYPE] + [BYTE_TYPE] * 256 + [NORMAL_TYPE] * len(pieces)
    assert len(texts) == len(set(texts)) == tokens
    return [text.encode() for text in texts], scores, types


def gguf_rows(rows, heads):
    """Where a row of a query or key matrix of a safetensors file stands in GGUF's.

    A folder's files pair dimension i with i + half of the head, GGUF's `llama` pairs 2i with 2i + 1.
    """
    half = HEAD_DIM // 2
    assert rows == heads * HEAD_DIM
    return [head * HEAD_DIM + 2 * i + part for head in range(heads) for part in (0, 1) for i in range(half)]


FOLDER_NAMES = {
    "token_embd": "embed_tokens",
    "output_norm": "norm",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_up": "mlp.up_proj",
}


def folder_tensors(tensors):
    """The tensors under the names and in the row order of a model folder."""
    out = {}
    for name, (shape, values) in tensors.items():
        *block, role, _ = name.split(".")
        prefix = f"model.layers.{block[1]}." if block else "model."
        if role in ("attn_q", "attn_k"):
            order = gguf_rows(shape[0], HEADS if role == "attn_q" else KV_HEADS)
            values = [values[row * shape[1] + column] for row in order for column in range(shape[1])]
        out[f"{prefix}{FOLDER_NAMES[role]}.weight"] = (shape, values)
    return out
