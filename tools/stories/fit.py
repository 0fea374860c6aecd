"""Trains the SentencePiece vocabulary and the weights of the small test model.

    python fit.py --out build

writes `build/tokenizer.model` and `build/model.pt`.  The text is that of the
embedded model, less its dialogues and JSON objects.  Everything is seeded and
runs on one thread.  Another CPU may still round differently.
"""

import argparse
import io
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

import sentencepiece
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1] / "tiny_model"))
import corpus
from train import Config, Model

# One seed for each use of the generator, so that no two of them overlap.
TOKENIZER_SEED, TRAIN_SEED, HELD_OUT_SEED = 510, 520, 530
ROW = 256  # half the context: attention over all of it is most of the work
CONFIG = Config(vocab=512, context=512, dim=64, layers=5, heads=8, kv_heads=4, ffn=172)


def stories(seed):
    """Documents without control tokens and JSON: this vocabulary has neither."""
    return (d for d in corpus.documents(seed) if corpus.IM_START not in d and not d.startswith(("{", "[")))


def take(seed, count):
    stream = stories(seed)
    return [next(stream) for _ in range(count)]


def train_tokenizer(docs):
    """Merges by rank, with a byte for every character that the text lacks, as Llama 2 has it."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(line for d in docs for line in d.split("\n") if line),
        model_writer=model,
        model_type="bpe",
        vocab_size=CONFIG.vocab,
        byte_fallback=True,
        character_coverage=1.0,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        split_digits=True,
        num_threads=1,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def rows(tok, docs):
    """Documents one after the other, a BOS before each, cut into rows of one length."""
    ids = [i for d in docs for i in [tok.bos_id(), *tok.encode(d)]]
    return torch.tensor(ids[: len(ids) // (ROW + 1) * (ROW + 1)]).view(-1, ROW + 1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", type=Path, default="build")
    ap.add_argument("--steps", type=int, default=700)
    ap.add_argument("--cool", type=int, default=300, help="last steps, in which the learning rate goes down to zero")
    ap.add_argument("--batch", type=int, default=6, help="rows in a step")
    ap.add_argument("--lr", type=float, default=0.02, help="of the matrices (Muon)")
    ap.add_argument("--embed-lr", type=float, default=0.006, help="of the embedding and the norms (AdamW)")
    args = ap.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    torch.manual_seed(1)
    start = time.time()

    tok = train_tokenizer(take(TOKENIZER_SEED, 3000))
    (args.out / "tokenizer.model").write_bytes(tok.serialized_model_proto())
    print([tok.id_to_piece(i) for i in range(259, CONFIG.vocab)], f"{time.time() - start:.0f} s", flush=True)

    model = Model(CONFIG)
    matrices = [p for n, p in model.named_parameters() if p.dim() == 2 and "embd" not in n]
    others = [p for n, p in model.named_parameters() if p.dim() != 2 or "embd" in n]
    opts = [
        torch.optim.Muon(matrices, lr=args.lr, momentum=0.95, weight_decay=0.01),
        torch.optim.AdamW(others, lr=args.embed_lr, betas=(0.9, 0.98), weight_decay=0.0),
    ]
    print(f"{sum(p.numel() for p in model.parameters())} parameters", flush=True)

    stream, pool, smooth = stories(TRAIN_SEED), [], None
    for step in range(args.steps):
        scale = min(1.0, (step + 1) / 40, (args.steps - step) / args.cool)
        for opt, lr in zip(opts, (args.lr, args.embed_lr)):
            for group in opt.param_groups:
                group["lr"] = lr * scale
        if len(pool) < args.batch:
            pool = list(rows(tok, [next(stream) for _ in range(500)]))
        batch = torch.stack([pool.pop() for _ in range(args.batch)])
        loss = model(batch[:, :-1], batch[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for opt in opts:
            opt.step()
            opt.zero_grad(set_to_none=True)
        smooth = loss.item() if smooth is None else 0.95 * smooth + 0.05 * loss.item()
        if step % 25 == 0:
            print(f"step {step} loss {smooth:.4f}, {time.time() - start:.0f} s", flush=True)

    with torch.no_grad():
        held_out = rows(tok, take(HELD_OUT_SEED, 60))
        report = {
            "training_tokens": args.steps * args.batch * ROW,
            "seconds": round(time.time() - start),
            "train_loss": round(smooth, 4),
            "held_out_loss": round(model(held_out[:, :-1], held_out[:, 1:]).item(), 4),
            "held_out_tokens": held_out.numel(),
        }
    torch.save({"config": asdict(CONFIG), "state": model.state_dict(), "report": report}, args.out / "model.pt")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
