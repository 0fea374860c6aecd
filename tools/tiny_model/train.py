"""Trains the tokenizer and the weights of the embedded default model.

    python train.py --out build --hold 3000 --cool 1000

writes `build/tokenizer.json` and `build/model.pt`.  Everything is seeded; the
text comes from corpus.py and is used once, without repetition.
"""

import argparse
import copy
import json
import os
import random
import time
from dataclasses import asdict, dataclass

# Threads that spin while they wait cost a busy machine more than they gain.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
import torch.nn as nn
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import corpus

# One seed for each use of the generator, so that no two of them overlap.
TOKENIZER_SEED, TRAIN_SEED, HELD_OUT_SEED = 10, 20, 30  # --seed is added to the second
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

    def forward(self, ids, targets=None, weight=None):
        t = ids.shape[1]
        x = self.token_embd(ids)
        for blk in self.blk:
            x = blk(x, self.cos[:t], self.sin[:t])
        logits = F.linear(self.output_norm(x), self.token_embd.weight)
        if targets is None:
            return logits
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), weight, ignore_index=-100)


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


def rows(tok, docs, context, least):
    """Token ids: documents are joined to rows of at least `least` tokens.

    Rows that fill the context teach the most words in a second.  With 120 a
    story has a row of its own: names in other stories would distract the model
    from learning to copy those in this one.  One row in ten lacks the leading
    BOS, for callers that do not add one.
    """
    bos = tok.token_to_id(corpus.BOS)
    out, row = [], []
    for enc in tok.encode_batch(docs):
        row += [bos] + enc.ids
        if len(row) >= least:
            # The last token says that the document is over.
            out.append((row + [bos])[1 if len(out) % 10 == 9 else 0 :][: context + 1])
            row = []
    return out


def padded(group):
    """Inputs and targets of rows of about the same length; -100 is ignored."""
    width = max(map(len, group)) - 1
    x = torch.zeros(len(group), width, dtype=torch.long)
    y = torch.full((len(group), width), -100)
    for i, row in enumerate(group):
        ids = torch.tensor(row)
        x[i, : len(row) - 1], y[i, : len(row) - 1] = ids[:-1], ids[1:]
    return x, y


def groups(rows, tokens):
    """Rows sorted by length and cut into batches of about `tokens` tokens."""
    out, group = [], []
    for row in sorted(rows, key=len):
        group.append(row)
        if len(group) * len(row) >= tokens:
            out.append(group)
            group = []
    return out + [group] if group else out


def batches(tok, cfg, least, tokens, seen, rng, seed):
    """Endless batches; `seen` gathers the hashes of the documents they come from."""
    stream = corpus.documents(seed)
    while True:
        docs = [next(stream) for _ in range(4000)]
        seen.update(map(hash, docs))
        pool = groups(rows(tok, docs, cfg.context, least), tokens)[:-1]
        rng.shuffle(pool)
        yield from map(padded, pool)


def name_weights(tok, cfg, weight):
    """Loss weights of the tokens: to copy a name is the hardest thing to learn here."""
    out = torch.ones(cfg.vocab)
    for name in corpus.GIRLS + corpus.BOYS + corpus.PETS:
        i = tok.token_to_id("Ġ" + name)
        if i is not None:
            out[i] = weight
    return out


@torch.no_grad()
def loss_of(model, test):
    total = count = 0
    for x, y in map(padded, groups(test, 8192)):
        n = (y >= 0).sum().item()
        total, count = total + model(x, y).item() * n, count + n
    return total / count


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
    ap.add_argument("--cool", type=int, default=1000, help="steps in which it goes down to zero; with none, the average of the weights is saved")
    ap.add_argument("--batch", type=int, default=4096, help="tokens in a step, about")
    ap.add_argument("--lr", type=float, default=0.02, help="of the matrices (Muon)")
    ap.add_argument("--embed-lr", type=float, default=0.004, help="of the embedding and the norms (AdamW)")
    ap.add_argument("--row", type=int, default=120, help="least tokens in a row")
    ap.add_argument("--name-weight", type=float, default=5.0, help="of names in the loss while the learning rate is held")
    ap.add_argument("--init", help="folder of an earlier run to go on from")
    ap.add_argument("--seed", type=int, default=1, help="of the weights; another one also reads other text")
    args = ap.parse_args()
    os.makedirs(args.out, exist_ok=True)
    torch.manual_seed(args.seed)
    cfg = Config()
    start = time.time()
    elapsed = lambda: f"{time.time() - start:.0f} s"

    tok = Tokenizer.from_file(os.path.join(args.init, "tokenizer.json")) if args.init else train_tokenizer(cfg)
    tok.save(os.path.join(args.out, "tokenizer.json"))
    weights = name_weights(tok, cfg, args.name_weight)
    seen = set()
    stream = batches(tok, cfg, args.row, args.batch, seen, random.Random(args.seed), TRAIN_SEED + args.seed)
    candidates = take(HELD_OUT_SEED, 2500)
    glance = rows(tok, candidates[:400], cfg.context, 120)

    model = Model(cfg)
    if args.init:
        model.load_state_dict(torch.load(os.path.join(args.init, "model.pt"), weights_only=True)["state"])
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
    hold, smooth, used = args.hold, None, 0

    def save(name, net, **more):
        torch.save({"config": asdict(cfg), "state": net.state_dict(), **more}, os.path.join(args.out, name))

    step = 0
    while step < hold + args.cool:
        if step < hold and step % 50 == 0 and os.path.exists(os.path.join(args.out, "cool")):
            hold = step
        scale = min(1.0, (step + 1) / 40, (hold + args.cool - step) / max(args.cool, 1))
        for opt, lr in zip(opts, base):
            for group in opt.param_groups:
                group["lr"] = lr * scale
        x, y = next(stream)
        t = time.time()
        threads.before(step)
        loss = model(x, y, weights if step < hold else None)
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
        used += (y >= 0).sum().item()
        if step % 25 == 0:
            print(f"step {step} loss {smooth:.4f} lr {scale:.2f} threads {threads.choices[threads.now]}, {elapsed()}", flush=True)
        step += 1
        if step % 250 == 0:
            print(f"step {step} held out {loss_of(average, glance):.4f} (average), {loss_of(model, glance):.4f}", flush=True)
            save("partial.pt", average, report={"steps": step}, held_out=glance)

    if not args.cool:
        model = average
    # Held out: another seed, less the documents that the training text had word for word.
    test = rows(tok, [d for d in candidates if hash(d) not in seen], cfg.context, 120)
    report = {
        "parameters": params, "hold": hold, "cool": args.cool, "row": args.row, "name_weight": args.name_weight, "batch": args.batch, "seed": args.seed,
        "training_tokens": used, "seconds": round(time.time() - start),
        "train_loss": round(loss_of(model, rows(tok, take(TRAIN_SEED + args.seed, 2500), cfg.context, 120)), 4), "held_out_loss": round(loss_of(model, test), 4), "held_out_tokens": sum(map(len, test)) - len(test),
    }
    save("model.pt", model, report=report, held_out=test)
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
