"""Reads the GGUF file back and runs it in numpy, apart from the training code.

    python check.py ../../assets/tiny.gguf --run build \
        --reference ../../assets/tiny.reference.json --readme ../README.md

measures the held-out loss of the quantised file, writes what an engine can be
tested against (ids, greedy continuations, logits) and replaces the samples at
the end of the README.
"""

import argparse
import hashlib
import json
import os

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

import corpus

SAMPLE_SEED = 1234


def chat(*turns, system=None):
    head = [("system", system)] if system else []
    parts = [f"{corpus.IM_START}{role}\n{text}{corpus.IM_END}\n" for role, text in head + list(turns)]
    return "".join(parts) + f"{corpus.IM_START}assistant\n"


REFERENCE = [
    ("story", "Once upon a time"),
    ("chat", chat(("user", "Tell me a story about a small fox."))),
    ("json", '{"name":'),
]

TOKENIZED = ["Once upon a time", "Hello, world!", " two  spaces\n\nand a line", "It's 2026; they'll say \"no\".", "Grüße aus Köln: 你好 🙂", '{"name": "Mia", "age": 7}']

SAMPLES = ["Once upon a time"] * 6 + [
    "The", "Hello", "One day,", "In a", "My name is", "Dear Grandma,", "The fox", "Today",
    chat(("user", "Tell me a story about a brave mouse.")),
    chat(("user", "Hello! Who are you?")),
    chat(("user", "What is the opposite of hot?"), system="You are a helpful assistant."),
    chat(("user", "Write a JSON object for a cat named Tom that is 3 years old.")),
    '{"name":',
    "{",
]  # fmt: skip


class Gguf:
    """The model and the tokenizer, built from nothing but the file."""

    def __init__(self, path):
        r = GGUFReader(path)
        get = lambda key: r.get_field(key).contents()
        self.t = {t.name: dequantize(t.data, t.tensor_type).astype(np.float32) for t in r.tensors}
        self.params = sum(w.size for w in self.t.values())
        self.layers = get("llama.block_count")
        self.heads = get("llama.attention.head_count")
        self.kv_heads = get("llama.attention.head_count_kv")
        self.eps = np.float32(get("llama.attention.layer_norm_rms_epsilon"))
        self.context = get("llama.context_length")
        self.head_dim = get("llama.rope.dimension_count")
        inv = get("llama.rope.freq_base") ** (-np.arange(0, self.head_dim, 2) / self.head_dim)
        angle = np.outer(np.arange(self.context), inv)
        self.cos, self.sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)

        tokens, types = get("tokenizer.ggml.tokens"), get("tokenizer.ggml.token_type")
        vocab = {t: i for i, t in enumerate(tokens)}
        merges = [tuple(m.split(" ")) for m in get("tokenizer.ggml.merges")]
        self.tok = Tokenizer(models.BPE(vocab, merges))
        self.tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        self.tok.decoder = decoders.ByteLevel()
        self.tok.add_special_tokens([AddedToken(t, special=True) for t, kind in zip(tokens, types) if kind == 3])
        self.bos, self.eos, self.eot = (get(f"tokenizer.ggml.{n}_token_id") for n in ("bos", "eos", "eot"))

    def encode(self, text):
        return [self.bos] + self.tok.encode(text).ids

    def norm(self, x, weight):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * weight

    def rope(self, x, pos):
        cos, sin = self.cos[pos, None], self.sin[pos, None]
        out = np.empty_like(x)
        out[..., 0::2] = x[..., 0::2] * cos - x[..., 1::2] * sin
        out[..., 1::2] = x[..., 0::2] * sin + x[..., 1::2] * cos
        return out

    def forward(self, ids, cache):
        """Logits of all the given positions; `cache` holds keys and values of earlier ones."""
        t, n, past = self.t, len(ids), len(cache[0][0]) if cache else 0
        pos = np.arange(past, past + n)
        mask = np.where(np.arange(past + n)[None] > pos[:, None], np.float32(-1e30), np.float32(0))
        x = t["token_embd.weight"][ids]
        for i in range(self.layers):
            w = lambda name: t[f"blk.{i}.{name}.weight"]
            h = self.norm(x, w("attn_norm"))
            q, k, v = ((h @ w(name).T).reshape(n, -1, self.head_dim) for name in ("attn_q", "attn_k", "attn_v"))
            q, k = self.rope(q, pos), self.rope(k, pos)
            if len(cache) > i:
                k, v = np.concatenate((cache[i][0], k)), np.concatenate((cache[i][1], v))
                cache[i] = (k, v)
            else:
                cache.append((k, v))
            group = self.heads // self.kv_heads
            k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
            score = np.einsum("qhd,khd->hqk", q, k, optimize=True) / np.float32(np.sqrt(self.head_dim)) + mask
            score = np.exp(score - score.max(-1, keepdims=True))
            score /= score.sum(-1, keepdims=True)
            o = np.einsum("hqk,khd->qhd", score, v, optimize=True).reshape(n, -1)
            x = x + o @ w("attn_output").T
            h = self.norm(x, w("ffn_norm"))
            gate = h @ w("ffn_gate").T
            x = x + (gate / (1 + np.exp(-gate)) * (h @ w("ffn_up").T)) @ w("ffn_down").T
        return self.norm(x, t["output_norm.weight"]) @ t["token_embd.weight"].T

    def generate(self, ids, count, choose, stop=()):
        cache, out, feed = [], [], ids
        while len(out) < count:
            token = choose(self.forward(feed, cache)[-1])
            out.append(token)
            if token in stop:
                break
            feed = [token]
        return out

    def loss(self, rows):
        total = count = 0
        for row in map(np.array, rows):
            logits = self.forward(row[:-1], [])
            top = logits.max(-1, keepdims=True)
            lse = np.log(np.exp(logits - top).sum(-1)) + top[:, 0]
            total += (lse - logits[np.arange(len(row) - 1), row[1:]]).sum()
            count += len(row) - 1
        return total / count


def reference(model, path):
    cases = []
    for name, text in REFERENCE:
        ids, margins = model.encode(text), []

        def choose(logits):
            a, b = np.argsort(-logits)[:2]
            margins.append(round(float(logits[a] - logits[b]), 4))
            return int(a)

        cases.append({"name": name, "prompt": text, "prompt_ids": ids, "greedy_ids": model.generate(ids, 64, choose), "margins": margins})
    logits = model.forward(cases[0]["prompt_ids"], [])[-1]
    with open(path, "rb") as f:
        digest = hashlib.sha256(f.read()).hexdigest()
    return {
        "about": "float32 results of the dequantised file; greedy ids go on past the end of text; margins are the lead of the best logit over the second",
        "sha256": digest,
        "tokenizer": [{"text": s, "ids": model.tok.encode(s).ids} for s in TOKENIZED],
        "cases": cases,
        "logits_after": cases[0]["name"],
        "logits": [round(float(v), 5) for v in logits],
    }


def dump(value):
    """One line for each list of numbers, so that a diff stays readable."""
    def text(v, indent):
        if isinstance(v, dict):
            pad = " " * (indent + 1)
            return "{\n" + ",\n".join(f"{pad}{json.dumps(k)}: {text(x, indent + 1)}" for k, x in v.items()) + "\n" + " " * indent + "}"
        if isinstance(v, list) and v and isinstance(v[0], dict):
            pad = " " * (indent + 1)
            return "[\n" + ",\n".join(pad + text(x, indent + 1) for x in v) + "\n" + " " * indent + "]"
        return json.dumps(v, ensure_ascii=True)

    return text(value, 0) + "\n"


def samples(model, temperature=0.8):
    rng = np.random.default_rng(SAMPLE_SEED)

    def choose(logits):
        p = np.exp((logits - logits.max()).astype(np.float64) / temperature)
        return int(rng.choice(len(p), p=p / p.sum()))

    out = []
    for i, prompt in enumerate(SAMPLES):
        ids = model.encode(prompt)
        new = model.generate(ids, model.context - len(ids), choose, stop=(model.eos, model.eot))
        ended = new[-1] in (model.eos, model.eot)
        text = model.tok.decode(new[:-1] if ended else new)
        end = "end of text" if ended else "length"
        out.append(f"**{i + 1}.** {len(new)} tokens, stopped by {end}, after the prompt\n`{json.dumps(prompt, ensure_ascii=False)}`:\n\n```text\n{text}\n```\n")
    return "\n".join(out)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("gguf")
    ap.add_argument("--run", help="folder of train.py, for the held-out text")
    ap.add_argument("--weights", default="model.pt")
    ap.add_argument("--reference")
    ap.add_argument("--readme")
    args = ap.parse_args()
    model = Gguf(args.gguf)
    print(f"{model.params} parameters, {os.path.getsize(args.gguf)} bytes")

    if args.run:
        import torch

        import train

        saved = torch.load(os.path.join(args.run, args.weights), weights_only=True)
        print("training:", json.dumps(saved["report"]))
        print(f"held-out loss of the file: {model.loss(saved['held_out']):.4f}")
        # The same logits from both implementations, but for the quantisation.
        net = train.Model(train.Config(**saved["config"]))
        net.load_state_dict({k: torch.from_numpy(v) for k, v in model.t.items()})
        ids = torch.tensor(saved["held_out"][0])
        with torch.no_grad():
            gap = np.abs(net(ids[None])[0].numpy() - model.forward(ids.numpy(), [])).max()
        print(f"largest difference to torch with the dequantised weights: {gap:.1e}")
        assert gap < 1e-2

    if args.reference:
        ref = reference(model, args.gguf)
        with open(args.reference, "w") as f:
            f.write(dump(ref))
        for case in ref["cases"]:
            print(f"--- {case['name']}, least margin {min(case['margins'])}\n{model.tok.decode(case['prompt_ids'] + case['greedy_ids'], skip_special_tokens=False)}")

    text = samples(model)
    if args.readme:
        with open(args.readme) as f:
            head, mark, _ = f.read().partition("<!-- samples -->\n")
        assert mark
        with open(args.readme, "w") as f:
            f.write(head + mark + "\n" + text)
    else:
        print(text)


if __name__ == "__main__":
    main()
