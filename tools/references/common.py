"""What the scripts of this folder share: paths, fetched files, and tokenizers of other makers over a GGUF file's vocabulary."""
import json
import os
from pathlib import Path

DATA = Path(__file__).resolve().parents[2] / "tests/data"


def fetched(name):
    """A file that scripts/fetch-test-data fetched."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    root = Path(os.environ.get("WGSLM_TEST_DATA") or caches / "wgslm-test-data").expanduser()
    path = root / name
    if not path.exists():
        raise SystemExit(f"{path} is not there; run scripts/fetch-test-data")
    return path


def write_json(path, items):
    """A list or an object, one item a line: differences can be read."""
    dump = lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    lines = [f"{dump(key)}:{dump(items[key])}" for key in items] if isinstance(items, dict) else [dump(i) for i in items]
    first, last = "{}" if isinstance(items, dict) else "[]"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(first + "\n" + ",\n".join(lines) + "\n" + last + "\n", encoding="utf-8")


class Vocabulary:
    """The tokens of a GGUF file."""

    def __init__(self, path):
        from gguf import GGUFReader

        fields = GGUFReader(path).fields
        field = lambda key: fields[f"tokenizer.ggml.{key}"].contents() if f"tokenizer.ggml.{key}" in fields else None
        self.tokens, self.types, self.scores, self.merges = (
            field(key) for key in ("tokens", "token_type", "scores", "merges"))
        self.unknown = field("unknown_token_id")
        self.bos = field("bos_token_id")

    def controls(self):
        """Ids of control tokens."""
        return [i for i, kind in enumerate(self.types) if kind == 3]


def byte_level(vocabulary, pretokenizer):
    """Hugging Face's tokenizer over a vocabulary of byte-level BPE."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers

    ids = {token: i for i, token in enumerate(vocabulary.tokens)}
    merges = [tuple(merge.split(" ")) for merge in vocabulary.merges]
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=ids, merges=merges))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*pretokenizer, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([
        tokenizers.AddedToken(vocabulary.tokens[i], normalized=False, special=True) for i in vocabulary.controls()])
    return tokenizer


def smollm2(vocabulary):
    """SmolLM2's: digits one by one."""
    from tokenizers import pre_tokenizers

    return byte_level(vocabulary, [pre_tokenizers.Digits(individual_digits=True)])


def varint(n):
    out = bytearray()
    while n > 0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)


def message(number, body):
    return varint(number << 3 | 2) + varint(len(body)) + body


def sentencepiece_bpe(vocabulary):
    """Google's SentencePiece over a vocabulary of its BPE, with bytes for what it lacks and no space put before a text."""
    import struct

    import sentencepiece

    integer = lambda number, value: varint(number << 3) + varint(value)
    model = bytearray()
    for token, score, kind in zip(vocabulary.tokens, vocabulary.scores, vocabulary.types):
        # Tokens that users define stand in GGUF files as they are written, with blanks.
        piece = message(1, token.replace(" ", "\u2581").encode()) + varint(2 << 3 | 5) + struct.pack("<f", score) + integer(3, kind)
        model += message(1, piece)
    # TrainerSpec: model_type BPE, vocab_size, byte_fallback. NormalizerSpec: identity, without the changes of spaces.
    pad = vocabulary.tokens.index("<pad>")
    trainer = integer(3, 2) + integer(4, len(vocabulary.tokens)) + integer(35, 1)
    trainer += integer(40, vocabulary.unknown) + integer(41, vocabulary.bos) + integer(42, 1) + integer(43, pad)
    normalizer = message(1, b"identity") + integer(3, 0) + integer(4, 0) + integer(5, 1)
    model += message(2, trainer) + message(3, normalizer)
    return sentencepiece.SentencePieceProcessor(model_proto=bytes(model))


def sentencepiece_ids(processor, vocabulary, text, special):
    """Ids of a text; control tokens are text, or are themselves with `special`."""
    import re

    if not special:
        return processor.encode(text)
    names = sorted((vocabulary.tokens[i] for i in vocabulary.controls()), key=len, reverse=True)
    ids = []
    for part in re.split("(" + "|".join(map(re.escape, names)) + ")", text):
        ids += [vocabulary.tokens.index(part)] if part in names else processor.encode(part)
    return ids


def bert(vocabulary):
    """Hugging Face's tokenizer over BERT's vocabulary. GGUF files mark the beginnings of words, its own files the rest."""
    import tokenizers
    from tokenizers import models, normalizers, pre_tokenizers

    ids = {}
    for i, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.types)):
        word = token[1:] if token.startswith("\u2581") else token if kind == 3 or token.startswith("[") else "##" + token
        ids.setdefault(word, i)
    tokenizer = tokenizers.Tokenizer(models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens([
        tokenizers.AddedToken(token, normalized=False, special=True)
        for token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")])
    return tokenizer
