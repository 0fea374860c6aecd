"""Random configurations of every architecture: what we make of a folder against what transformers makes of it.

    pip install -r requirements.txt
    cargo build --bin wgslm
    python fuzz.py OUT                      40 configurations of each architecture, or one for each field if that is more
    python fuzz.py OUT --only NAME,..       some architectures
    python fuzz.py OUT --case NAME:SEED     one configuration again, with what it is
    python fuzz.py OUT --table              the table of the reports in OUT

A sample is a configuration as a person would write it (`fields.py`) and random weights in which every parameter matters.
transformers computes its logits in float64; `wgslm logits` must give the same from each form of config.json, or refuse
the file and name the field:

    given     the fields that were sampled, and no other: the rest is the class's business
    saved     as save_pretrained writes it
    full      every field of the class
    old       the names that published folders had before transformers 5, where they say the same
    gguf      what `wgslm convert` makes of the folder of the saved form

The same: KL divergence and squared relative error of the logits within 1e-9.  float32 alone must be 100 times better than
that in transformers, else the weights are sampled again.  A disagreement is shrunk to the fields that it needs.
"""
# ruff: noqa: E402 (the environment is set before torch is imported)

import argparse
import copy
import dataclasses
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tiny_models"))
import make  # sets the environment of torch
import numpy as np
import torch
import transformers
from transformers import AutoConfig

import fields

BOUND = 1e-9
NOISE = 1e-11
TOKENS = 47
FORMS = ("given", "saved", "full", "old", "gguf")


class Invalid(Exception):
    """transformers takes no such configuration."""


def kind(arch):
    return "embed" if arch in fields.ENCODERS else "causal"


def usual(arch):
    """The scale of embeddings and of the last norm with which a tiny model of the architecture has sound logits."""
    if not make.CASES:
        make.all_cases()
    found = next((c for c in make.CASES if c["arch"] == arch), {})
    return found.get("emb"), found.get("fin", 1.0)


class Case:
    """A configuration with weights, and its reference."""

    def __init__(self, arch, cfg, seed, folder):
        self.arch, self.cfg, self.seed, self.folder = arch, cfg, seed, folder
        self.spec = dict(arch=arch, kind=kind(arch), cfg=without_refused(cfg))
        self.cfg = {**ids_within(arch, cfg), **cfg}
        self.spec["cfg"] = {**ids_within(arch, cfg), **self.spec["cfg"]}
        try:
            self.config = make.build_config(self.spec)
            self.make_weights()
        except Invalid:
            raise
        except Exception as e:
            raise Invalid(f"{type(e).__name__}: {str(e)[:200]}") from e

    def make_weights(self):
        g = torch.Generator().manual_seed(self.seed)
        self.ids = torch.randint(4, self.config.get_text_config().vocab_size, (TOKENS,), generator=g)
        emb, fin = usual(self.arch)
        for attempt in range(6):
            model = make.set_eager(make.new_model(self.spec, self.config, attn_implementation="eager", dtype=torch.float32))
            make.randomise(model, self.seed + 7919 * attempt, emb, fin)
            model.float()
            shutil.rmtree(self.folder, ignore_errors=True)
            (self.folder / "saved").mkdir(parents=True)
            model.save_pretrained(self.folder / "saved")
            (self.folder / "saved" / "generation_config.json").unlink(missing_ok=True)
            # What is on disk is the truth.
            auto = make.auto_class(self.spec["kind"], self.arch)
            model = make.set_eager(auto.from_pretrained(self.folder / "saved", attn_implementation="eager", dtype=torch.float32))
            single = self.run(model)
            self.reference = self.run(copy.deepcopy(model).double())
            if not torch.isfinite(self.reference).all():
                raise Invalid("not finite")
            self.noise = self.distance(single.numpy())
            if self.noise <= NOISE:
                return
        raise Invalid(f"float32 is {self.noise:.0e} from float64")

    def run(self, model):
        if self.spec["kind"] == "causal":
            return make.forward(model, self.ids).logits[0].double()
        kw = {"token_type_ids": torch.zeros_like(self.ids)[None]} if self.arch in ("bert", "nomic_bert") else {}
        return make.forward(model, self.ids, **kw).last_hidden_state[0].double().mean(0, keepdim=True)

    def distance(self, got):
        """The worse of KL divergence and squared relative error, each the mean over positions."""
        got = torch.from_numpy(np.asarray(got, np.float64)).reshape(self.reference.shape)
        if not torch.isfinite(got).all():
            return float("inf")
        worst = 0.0
        if self.spec["kind"] == "causal":
            worst = float(make.kl(self.reference, got).mean())
            center = lambda x: x - x.mean(-1, keepdim=True)  # softmax does not see a constant
        else:
            center = lambda x: x
        error, size = (center(got) - center(self.reference)).square().sum(), center(self.reference).square().sum()
        return max(worst, float(error / size.clamp_min(1e-30)))

    def forms(self):
        """config.json in every form that transformers reads as the same."""
        saved = self.folder / "saved"
        named = {"model_type": self.arch, "architectures": json.loads((saved / "config.json").read_text())["architectures"]}
        texts = {
            "given": json.dumps({**named, **self.cfg}, indent=1),
            "saved": (saved / "config.json").read_text(),
            "full": self.config.to_json_string(use_diff=False),
        }
        try:
            old = make.hub_config(saved, self.config)
            texts["old"] = json.dumps(old, indent=1) if old else None
        except Exception:
            texts["old"] = None
        refused = {k: v for k, v in self.cfg.items() if k not in self.spec["cfg"]}
        same = read_config(saved)
        for form, text in texts.items():
            if text is None:
                continue
            folder = self.folder / form
            if form != "saved":
                folder.mkdir()
                os.link(saved / "model.safetensors", folder / "model.safetensors")
            (folder / "config.json").write_text(text)
            if read_config(folder, without=refused) != same:
                shutil.rmtree(folder)
                continue
            if refused:
                (folder / "config.json").write_text(json.dumps({**json.loads(text), **refused}))
            if self.spec["kind"] == "embed":
                (folder / "tokenizer.json").write_text(tokenizer(self.config.vocab_size))
            yield form, folder


def without_refused(cfg):
    """Without what transformers cannot run here, so that only a refusal is right."""
    return {k: v for k, v in cfg.items() if k != "quantization_config"}


def ids_within(arch, cfg):
    """Token ids for the defaults that a small vocabulary has not."""
    cls = fields.CONFIG_MAPPING[arch]
    made = cls()
    defaults = {f.name: getattr(made, f.name) for f in dataclasses.fields(cls) if f.name.endswith("_token_id")}
    beyond = lambda v: any(isinstance(x, int) and x >= 50 for x in (v if isinstance(v, (list, tuple)) else [v]))
    return {name: i for i, (name, value) in enumerate(sorted(defaults.items())) if beyond(value)}


def read_config(folder, without=()):
    try:
        config = AutoConfig.from_pretrained(folder).to_dict()
    except Exception as e:
        return f"{type(e).__name__}: {e}"
    skip = {"_name_or_path", "transformers_version", "dtype", "torch_dtype", "architectures", *without}
    return json.dumps({k: v for k, v in config.items() if k not in skip}, sort_keys=True, default=str)


def tokenizer(vocab):
    """Token 7 is the word `t7`."""
    words = {f"t{i}": i for i in range(vocab)}
    model = dict(type="WordPiece", vocab=words, unk_token="t0", continuing_subword_prefix="##", max_input_chars_per_word=100)
    normal = dict(type="BertNormalizer", clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=True)
    empty = dict(truncation=None, padding=None, added_tokens=[], post_processor=None, decoder=None)
    return json.dumps(dict(version="1.0", **empty, normalizer=normal, pre_tokenizer=dict(type="BertPreTokenizer"), model=model))


class Wgslm:
    """Our program, run once for each question."""

    def __init__(self, path):
        self.path = path

    def call(self, *args, text=None):
        done = subprocess.run([str(self.path), *map(str, args)], input=text, capture_output=True, text=True, timeout=120)
        message = done.stderr.strip().removeprefix("error: ")
        if done.returncode == 101 or "panicked" in message:
            return None, "PANIC " + message
        return (done.stdout, None) if done.returncode == 0 else (None, message)

    def outputs(self, case, model, to):
        if case.spec["kind"] == "causal":
            ids = ",".join(map(str, case.ids.tolist()))
            _, refusal = self.call("logits", "-m", model, "--ids", ids, "--device", "cpu", "--numerics", "exact", "-o", to)
            return (None, refusal) if refusal else (np.load(to), None)
        words = json.dumps(" ".join(f"t{i}" for i in case.ids.tolist()))
        out, refusal = self.call("embed", "-m", model, "--device", "cpu", "--pool", "mean", "--no-normalize", text=words + "\n")
        if refusal:
            return None, refusal
        found = json.loads(out.splitlines()[0])
        return np.array(found.get("embedding", found.get("vector"))), None


def names_of(case):
    """What a refusal may name: fields, in the class's words or the file's, and tensors."""
    names = set(case.cfg) | set(fields.declared(case.arch)) | {"max_position_embeddings", "model_type"}
    names |= set(json.loads((case.folder / "saved" / "config.json").read_text()))
    # What older classes had as fields of their own.
    names |= {"partial_rotary_factor", "rotary_pct", "rope_type"}
    for value in list(case.cfg.values()):
        if isinstance(value, dict):
            names |= set(value)
            for inner in value.values():
                names |= set(inner) if isinstance(inner, dict) else set()
    return sorted((n for n in names if len(n) > 4), key=len, reverse=True)


def named(case, message):
    # Such a model gives vectors: the message says which command does that.
    if case.cfg.get("use_bidirectional_attention") and "wgslm embed" in message:
        return "use_bidirectional_attention"
    return next((name for name in names_of(case) if name in message), None)


def judge(case, wgslm, expect_refusal):
    """form: (outcome, detail); the outcomes are agreed, refused, disagreed, unnamed."""
    outcomes = {}

    def outcome(got, refusal):
        if refusal:
            name = None if refusal.startswith("PANIC") else named(case, refusal)
            return ("refused", name, refusal) if name else ("unnamed", None, refusal)
        distance = case.distance(got)
        if expect_refusal or distance > BOUND:
            return ("disagreed", None, f"{distance:.1e}" + (" and should be refused" if expect_refusal else ""))
        return ("agreed", None, f"{distance:.1e}")

    npy = case.folder / "out.npy"
    for form, folder in case.forms():
        outcomes[form] = outcome(*wgslm.outputs(case, folder, npy))
    if outcomes.get("saved", ("",))[0] == "agreed":
        gguf = case.folder / "model.gguf"
        _, refusal = wgslm.call("convert", case.folder / "saved", "-t", "F32", "-f", "-o", gguf)
        if refusal:
            outcomes["gguf"] = outcome(None, refusal)
        elif case.spec["kind"] == "causal":
            outcomes["gguf"] = outcome(*wgslm.outputs(case, gguf, npy))
    return outcomes


def bad(outcomes):
    return {form: v for form, v in outcomes.items() if v[0] in ("disagreed", "unnamed")}


def attempt(arch, cfg, seed, folder, wgslm):
    case = Case(arch, cfg, seed, folder)
    return case, judge(case, wgslm, expect_refusal=bool(set(cfg) - set(case.spec["cfg"])))


def shrink(arch, cfg, seed, folder, wgslm, forms):
    """Without the fields that are not needed for the same fault."""
    base = set(fields.sizes(arch, random.Random(0)))
    for name in [n for n in cfg if n not in base]:
        less = {k: v for k, v in cfg.items() if k != name}
        try:
            _, outcomes = attempt(arch, less, seed, folder, wgslm)
        except Invalid:
            continue
        if set(bad(outcomes)) & forms:
            cfg = less
    return cfg


def one(arch, seed, must, out, wgslm):
    """A sample, and the samples that are left of it when what was refused is removed."""
    r = random.Random(f"{arch}:{seed}")
    folder = Path(tempfile.mkdtemp(prefix=f"{arch}-{seed}-", dir=out))
    reports = []
    try:
        for _ in range(40):
            cfg = fields.sample(arch, r, must)
            try:
                case, outcomes = attempt(arch, cfg, seed, folder, wgslm)
                break
            except Invalid as e:
                reason = str(e)
        else:
            return [dict(arch=arch, seed=seed, must=must, invalid=reason, cfg=cfg)]
        for step in range(6):
            wrong = bad(outcomes)
            report = dict(arch=arch, seed=seed, step=step, must=must, cfg=cfg, noise=case.noise, outcomes=outcomes)
            if wrong:
                report["smallest"] = shrink(arch, cfg, seed, folder, wgslm, set(wrong))
            reports.append(report)
            # What was refused hides the rest: again without it.
            refused = [v[1] for form, v in outcomes.items() if v[0] == "refused" and form != "gguf"]
            base = set(fields.sizes(arch, random.Random(0)))
            drop = [n for n in cfg if n not in base and any(x == n or isinstance(cfg[n], dict) and x in json.dumps(cfg[n]) for x in refused)]
            if not drop or outcomes.get("saved", ("",))[0] != "refused":
                break
            cfg = {k: v for k, v in cfg.items() if k not in drop}
            try:
                case, outcomes = attempt(arch, cfg, seed, folder, wgslm)
            except Invalid:
                break
        return reports
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def table(reports):
    """Markdown: a row an architecture."""
    rows = ["| architecture | sampled | agreed | refused, by field | disagreed | GGUF agreed | GGUF refused |", "| --- | ---: | ---: | --- | ---: | ---: | ---: |"]
    total = [0] * 5
    for arch in fields.CAUSAL + fields.ENCODERS:
        mine = [r for r in reports if r["arch"] == arch and "outcomes" in r]
        if not mine:
            continue
        own = lambda r: [v for form, v in r["outcomes"].items() if form != "gguf"]
        wrong = sum(bool(bad(r["outcomes"])) for r in mine)
        agreed = sum(not bad(r["outcomes"]) and any(v[0] == "agreed" for v in own(r)) for r in mine)
        by = {}
        for r in mine:
            for name in {v[1] for v in own(r) if v[0] == "refused"}:
                by[name] = by.get(name, 0) + 1
        gguf = [r["outcomes"]["gguf"][0] for r in mine if "gguf" in r["outcomes"]]
        counts = [len(mine), agreed, wrong, gguf.count("agreed"), gguf.count("refused")]
        total = [a + b for a, b in zip(total, counts)]
        listed = ", ".join(f"{name} {n}" for name, n in sorted(by.items(), key=lambda x: -x[1])) or "–"
        rows.append(f"| {arch} | {counts[0]} | {counts[1]} | {listed} | {counts[2]} | {counts[3]} | {counts[4]} |")
    rows.append(f"| all | {total[0]} | {total[1]} | | {total[2]} | {total[3]} | {total[4]} |")
    return "\n".join(rows)


def show(report):
    for form, v in report["outcomes"].items():
        print(f"    {form:6} {v[0]:9} {v[2][:300]}")


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("out", type=Path)
    ap.add_argument("--wgslm", type=Path, default=HERE.parents[1] / "target/debug/wgslm")
    ap.add_argument("--only", default="")
    ap.add_argument("--samples", type=int, default=0, help="by default 40, or one for each field if that is more")
    ap.add_argument("--first", type=int, default=0, help="the first seed")
    ap.add_argument("--case", default=None)
    ap.add_argument("--keep", type=Path, default=None, help="with --case: leaves the folder of the configuration there")
    ap.add_argument("--cfg", default=None, help="with --case: this configuration, in JSON")
    ap.add_argument("--table", action="store_true")
    a = ap.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    a.out.mkdir(parents=True, exist_ok=True)
    wgslm = Wgslm(a.wgslm)
    if a.case:
        arch, seed = a.case.split(":")
        if a.cfg:
            folder = a.keep or Path(tempfile.mkdtemp(dir=a.out))
            case, outcomes = attempt(arch, json.loads(a.cfg), int(seed), folder, wgslm)
            print(json.dumps(case.cfg), f"noise {case.noise:.0e}")
            show(dict(outcomes=outcomes))
            return
        for report in one(arch, int(seed), must_of(arch, int(seed)), a.out, wgslm):
            print(json.dumps(report.get("cfg")), report.get("invalid", ""))
            print("    smallest", json.dumps(report.get("smallest")))
            show(report)
        return
    only = [n for n in a.only.split(",") if n] or fields.CAUSAL + fields.ENCODERS
    if a.table:
        print(table([r for arch in only for r in read(a.out / f"{arch}.jsonl")]))
        return
    failed = 0
    for arch in only:
        start, reports = time.time(), []
        samples = a.samples or max(40, len(fields.candidates(arch)))
        for seed in range(a.first, a.first + samples):
            reports += one(arch, seed, must_of(arch, seed), a.out, wgslm)
            for report in reports[-1:]:
                if bad(report.get("outcomes", {})):
                    print(f"{arch}:{seed} {json.dumps(report['smallest'])}", flush=True)
                    show(dict(outcomes=bad(report["outcomes"])))
        (a.out / f"{arch}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in reports))
        wrong = sum(bool(bad(r.get("outcomes", {}))) for r in reports)
        invalid = sum("invalid" in r for r in reports)
        failed += wrong
        print(f"{arch:20} {samples} samples, {len(reports)} reports, {invalid} impossible, {wrong} wrong, {time.time() - start:.0f} s", flush=True)
    print(table([r for arch in only for r in read(a.out / f"{arch}.jsonl")]))
    sys.exit(1 if failed else 0)


def must_of(arch, seed):
    """Each field once, then none in particular."""
    names = sorted(fields.candidates(arch))
    return names[seed] if seed < len(names) else None


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


if __name__ == "__main__":
    main()
