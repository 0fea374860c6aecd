"""Trains the tokenizer and the weights of the embedded default model.

    python train.py --out build --hold 2000 --cool 1000

writes `build/tokenizer.json` and `build/model.pt`.  Everything is seeded; the
text comes from corpus.py and is used once, without repetition.
"""

import argparse
import copy
import json
import os
import time
from dataclasses import asdict, dataclass

# Threads that spin while they wait cost a busy machine more than they gain.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import corpus

# One seed for each use of the generator, so that no two of them overlap.
TOKENIZER_SEED, TRAIN_SEED, HELD_OUT_SEED = 10, 20, 30
SPECIAL = [corpus.BOS, corpus.IM_START, corpus.IM_END]


@dataclass
class Config:
    vocab: int = 2048
    context: int = 512
    dim: int = 192
    layers: int = 4
    heads: int = 6
    kv_heads: int = 2
    ffn: int = 448
    eps: float = 1e-5
    rope_base: float = 10000.0

    @property
    def head_dim(self):
        return self.dim // self.heads


# --------------------------------------------------------------------------
# Model: the "llama" architecture as GGUF names it


def rope_table(cfg, length):
    inv = cfg.rope_base ** (-torch.arange(0, cfg.head_dim, 2).float() / cfg.head_dim)
    angle = torch.outer(torch.arange(length).float(), inv)
    return angle.cos(), angle.sin()


def rope(x, cos, sin):
    """Rotates neighbours (2i, 2i+1), which is GGUF's order: export needs no permutation."""
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


class Block(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        kv = cfg.kv_heads * cfg.head_dim
        self.attn_norm = nn.RMSNorm(cfg.dim, cfg.eps)
        self.attn_q = nn.Linear(cfg.dim, cfg.dim, bias=False)
        self.attn_k = nn.Linear(cfg.dim, kv, bias=False)
        self.attn_v = nn.Linear(cfg.dim, kv, bias=False)
        self.attn_output = nn.Linear(cfg.dim, cfg.dim, bias=False)
        self.ffn_norm = nn.RMSNorm(cfg.dim, cfg.eps)
        self.ffn_gate = nn.Linear(cfg.dim, cfg.ffn, bias=False)
        self.ffn_up = nn.Linear(cfg.dim, cfg.ffn, bias=False)
        self.ffn_down = nn.Linear(cfg.ffn, cfg.dim, bias=False)

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        h = self.attn_norm(x)
        q, k, v = (f(h).view(b, t, -1, self.cfg.head_dim).transpose(1, 2) for f in (self.attn_q, self.attn_k, self.attn_v))
        q, k = rope(q, cos, sin), rope(k, cos, sin)
        group = self.cfg.heads // self.cfg.kv_heads
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn_output(o.transpose(1, 2).reshape(b, t, -1))
        h = self.ffn_norm(x)
        return x + self.ffn_down(F.silu(self.ffn_gate(h)) * self.ffn_up(h))


class Model(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.token_embd = nn.Embedding(cfg.vocab, cfg.dim)
        self.blk = nn.ModuleList(Block(cfg) for _ in range(cfg.layers))
        self.output_norm = nn.RMSNorm(cfg.dim, cfg.eps)
        cos, sin = rope_table(cfg, cfg.context)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02 if "embd" in name else p.shape[1] ** -0.5)
            if name.endswith(("attn_output.weight", "ffn_down.weight")):
                nn.init.zeros_(p)

    def forward(self, ids, targets=None):
        t = ids.shape[1]
        x = self.token_embd(ids)
        for blk in self.blk:
            x = blk(x, self.cos[:t], self.sin[:t])
        logits = F.linear(self.output_norm(x), self.token_embd.weight)
        if targets is None:
            return logits
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


# --------------------------------------------------------------------------
# Data


def take(seed, count):
    stream = corpus.documents(seed)
    return [next(stream) for _ in range(count)]


def train_tokenizer(cfg, docs=30000):
    tok = Tokenizer(models.BPE())
    # The ByteLevel pre-tokenizer splits with GPT-2's regular expression.
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=cfg.vocab, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tok.train_from_iterator(take(TOKENIZER_SEED, docs), trainer)
    assert tok.get_vocab_size() == cfg.vocab
    return tok


def windows(tok, docs, context):
    """Packs whole documents into rows; only the last one of a row is cut off.

    Every row starts where a document starts, as every prompt will.  One row in
    ten lacks the leading BOS, for callers that do not add one.
    """
    bos = tok.token_to_id(corpus.BOS)
    rows, row = [], []
    for enc in tok.encode_batch(docs):
        row += [bos] + enc.ids
        skip = 1 if len(rows) % 10 == 9 else 0
        if len(row) > context + skip:
            rows.append(np.array(row[skip : context + 1 + skip], dtype=np.int64))
            row = []
    return torch.from_numpy(np.stack(rows))


def batches(tok, cfg, size, seen):
    """Endless batches; `seen` gathers the hashes of the documents they come from."""
    stream = corpus.documents(TRAIN_SEED)
    while True:
        docs = [next(stream) for _ in range(4000)]
        seen.update(map(hash, docs))
        rows = windows(tok, docs, cfg.context)
        for i in range(0, len(rows) - size + 1, size):
            yield rows[i : i + size]


@torch.no_grad()
def loss_of(model, rows, batch=16):
    total = 0.0
    for i in range(0, len(rows), batch):
        r = rows[i : i + batch]
        total += model(r[:, :-1], r[:, 1:]).item() * len(r)
    return total / len(rows)


# --------------------------------------------------------------------------


class Threads:
    """Picks one thread or all of them, whichever the load of the machine favours."""

    def __init__(self, most):
        self.choices, self.seconds = (1, most), [1.0, 2.0]

    def before(self, step):
        probe = step % 80 - 1
        self.now = probe if probe in (0, 1) else self.seconds.index(min(self.seconds))
        torch.set_num_threads(self.choices[self.now])

    def after(self, step, seconds):
        if step % 80 in (1, 2):
            self.seconds[self.now] = seconds


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", default="build")
    ap.add_argument("--hold", type=int, default=2000, help="steps before the learning rate goes down; a file named `cool` in the output folder ends them early")
    ap.add_argument("--cool", type=int, default=1000, help="steps in which it goes down to zero")
    ap.add_argument("--batch", type=int, default=8)
    ap.add_argument("--lr", type=float, default=0.02, help="of the matrices (Muon)")
    ap.add_argument("--embed-lr", type=float, default=0.004, help="of the embedding and the norms (AdamW)")
    ap.add_argument("--seed", type=int, default=1)
    args = ap.parse_args()
    os.makedirs(args.out, exist_ok=True)
    torch.manual_seed(args.seed)
    cfg = Config()
    start = time.time()
    elapsed = lambda: f"{time.time() - start:.0f} s"

    tok = train_tokenizer(cfg)
    tok.save(os.path.join(args.out, "tokenizer.json"))
    seen = set()
    stream = batches(tok, cfg, args.batch, seen)
    candidates = take(HELD_OUT_SEED, 2500)
    glance = windows(tok, candidates, cfg.context)[:64]

    model = Model(cfg)
    # The average stands in for the model while the learning rate is still high.
    average = copy.deepcopy(model)
    params = sum(p.numel() for p in model.parameters())
    print(f"{params} parameters, {elapsed()}", flush=True)

    matrices = [p for n, p in model.named_parameters() if p.dim() == 2 and "embd" not in n]
    others = [p for n, p in model.named_parameters() if p.dim() != 2 or "embd" in n]
    opts = [
        torch.optim.Muon(matrices, lr=args.lr, momentum=0.95, weight_decay=0.01),
        torch.optim.AdamW(others, lr=args.embed_lr, betas=(0.9, 0.98), weight_decay=0.0),
    ]
    base = (args.lr, args.embed_lr)
    threads = Threads(os.cpu_count())
    hold, smooth, recent = args.hold, None, []

    def save(name, net, **more):
        torch.save({"config": asdict(cfg), "state": net.state_dict(), **more}, os.path.join(args.out, name))

    step = 0
    while step < hold + args.cool:
        if step < hold and step % 50 == 0 and os.path.exists(os.path.join(args.out, "cool")):
            hold = step
        scale = min(1.0, (step + 1) / 100, (hold + args.cool - step) / args.cool)
        for opt, lr in zip(opts, base):
            for group in opt.param_groups:
                group["lr"] = lr * scale
        r = next(stream)
        t = time.time()
        threads.before(step)
        loss = model(r[:, :-1], r[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for opt in opts:
            opt.step()
            opt.zero_grad(set_to_none=True)
        with torch.no_grad():
            keep = min(0.99, step / (step + 10))
            for p, q in zip(average.parameters(), model.parameters()):
                p.lerp_(q, 1 - keep)
        threads.after(step, time.time() - t)
        smooth = loss.item() if smooth is None else 0.95 * smooth + 0.05 * loss.item()
        recent = recent[-15:] + [r]
        if step % 25 == 0:
            print(f"step {step} loss {smooth:.4f} lr {scale:.2f} threads {threads.choices[threads.now]}, {elapsed()}", flush=True)
        step += 1
        if step % 250 == 0:
            print(f"step {step} held out {loss_of(average, glance):.4f} (average), {loss_of(model, glance):.4f}", flush=True)
            save("partial.pt", average, report={"steps": step}, held_out=glance)

    # Held out: another seed, less the documents that the training text had word for word.
    test = windows(tok, [d for d in candidates if hash(d) not in seen], cfg.context)
    report = {
        "parameters": params, "hold": hold, "cool": args.cool, "batch": args.batch, "context": cfg.context, "seed": args.seed,
        "training_tokens": step * args.batch * cfg.context, "seconds": round(time.time() - start),
        "train_loss": round(loss_of(model, torch.cat(recent)), 4), "held_out_loss": round(loss_of(model, test), 4), "held_out_tokens": test[:, 1:].numel(),
    }
    save("model.pt", model, report=report, held_out=test)
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
