"""Writes the small test model in every form that the tests open, and what transformers makes of it.

    python export.py --run build --to ../../tests/data/stories

GGUF files are written by gguf-py, safetensors folders by safetensors.  All
references come from transformers' LlamaForCausalLM, over the weights as they
are stored: it shares no code with the engine nor with the training.  Greedy
tokens are found by running the whole text again for each, without a cache.
"""

import argparse
import json
import sys
from pathlib import Path

import gguf
import numpy as np
import sentencepiece
import torch
from gguf import GGMLQuantizationType as Type
from safetensors.torch import save_file
from transformers import LlamaForCausalLM

sys.path.insert(0, str(Path(__file__).parents[1] / "tiny_model"))
import fit
from check import dump
from hf import dequantised, hf_config, hf_state, logits_of, transformer

NAME = "stories"
FORMS = {"": Type.F32, "-f16": Type.F16, "-q8_0": Type.Q8_0, "-q4_0": Type.Q4_0, "-q5_1": Type.Q5_1}
PROMPTS = ["", "Once upon a time", "Emma and Tom", "The dog"]
LENGTH, QUANT_LENGTH = 200, 64  # greedy tokens after a prompt
LEAST_MARGIN = 0.001  # between the best logit and the second, in float32

# What a vocabulary can be got wrong by: spaces, lines, bytes for characters that it lacks, names of control tokens.
TEXTS = [
    "",
    " ",
    "   ",
    "a",
    " a",
    "a ",
    "Once upon a time",
    " Once upon a time",
    "Once  upon   a time",
    "Once upon\na time\n",
    "\n\n\nOnce",
    "\tOnce\r\nupon",
    "Once upon a time 🦀",
    "Grüße aus Köln: 你好, Ωmega, naïve café",
    "zero\u200bwidth, no\u00a0break, e\u0301",
    "<s>Once</s> <unk> <0x41>",
    "▁Once▁upon",
    "1234567890 + 12.5 = 3e8",
    'if (x > 0) { return "ok"; } // #1 & [2] @home ~ $5 % ^ | \\ `',
    "friendfriendfriend mother grandmother everybodybody",
    "hehehehehehehehehehehe",
    "THE DOG. the dog! The Dog?",
    "\x00\x01\x7f",
    "é" * 9 + "a" * 17 + " " * 33,
]
OTHER_TEXT = (
    "Grüße aus Köln! Am Montag fährt der Zug um 12:45 Uhr über Österreich nach Süden. "
    'fn main() {\n    let x = [1, 2, 3];\n    println!("{:?} & {}", x, x.len());\n}\n'
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. 3 + 4 = 7; 50 % of $80 is $40."
)


def write_folder(folder, state, config, dtype):
    folder.mkdir(exist_ok=True)
    save_file({n: w.to(dtype) for n, w in hf_state(state, config).items()}, folder / "model.safetensors", {"format": "pt"})
    about = {**hf_config(config), "torch_dtype": str(dtype).removeprefix("torch.")}
    (folder / "config.json").write_text(json.dumps(about, indent=1) + "\n")


def write_gguf(path, state, config, tok, form):
    w = gguf.GGUFWriter(path, "llama")
    w.add_name(NAME)
    w.add_license("MIT OR Apache-2.0")
    w.add_file_type(getattr(gguf.LlamaFileType, "ALL_F32" if form == Type.F32 else f"MOSTLY_{form.name}"))
    w.add_context_length(config["context"])
    w.add_embedding_length(config["dim"])
    w.add_block_count(config["layers"])
    w.add_feed_forward_length(config["ffn"])
    w.add_head_count(config["heads"])
    w.add_head_count_kv(config["kv_heads"])
    w.add_layer_norm_rms_eps(config["eps"])
    w.add_rope_freq_base(config["rope_base"])
    w.add_rope_dimension_count(config["dim"] // config["heads"])
    w.add_vocab_size(config["vocab"])

    kinds = gguf.TokenType
    ids = range(config["vocab"])

    def kind(i):
        return (
            kinds.UNKNOWN if tok.is_unknown(i) else kinds.CONTROL if tok.is_control(i) else kinds.BYTE if tok.is_byte(i) else kinds.NORMAL
        )

    w.add_tokenizer_model("llama")
    w.add_token_list([tok.id_to_piece(i) for i in ids])
    w.add_token_scores([tok.get_score(i) for i in ids])
    w.add_token_types([kind(i) for i in ids])
    w.add_bos_token_id(tok.bos_id())
    w.add_eos_token_id(tok.eos_id())
    w.add_unk_token_id(tok.unk_id())
    w.add_add_bos_token(True)
    w.add_add_eos_token(False)
    w.add_add_space_prefix(True)

    for name, tensor in state.items():
        data = tensor.numpy()
        # Rows of 172 are not a multiple of a block's 32 weights: they stay in float16.
        block = gguf.GGML_QUANT_SIZES[form][0]
        used = Type.F32 if data.ndim == 1 else form if data.shape[1] % block == 0 else Type.F16
        w.add_tensor(name, gguf.quants.quantize(data, used), raw_dtype=used)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def greedy(model, ids, count):
    ids, margins = list(ids), []
    for _ in range(count):
        best = torch.topk(logits_of(model, ids)[-1], 2)
        ids.append(int(best.indices[0]))
        margins.append(float(best.values[0] - best.values[1]))
    return ids, min(margins)


def text_of(tok, ids):
    """A BOS begins a text: the space before its first word is none of the text's."""
    texts, text = [], []
    for i in [*ids, tok.bos_id()]:
        if i == tok.bos_id():
            texts.append(tok.decode(text))
            text = []
        else:
            text.append(i)
    return "".join(texts)


def run_of(model, tok, prompt, count, **more):
    prompt_ids = [tok.bos_id(), *tok.encode(prompt)]
    ids, margin = greedy(model, prompt_ids, count)
    print(f"{more or ''} {prompt!r}, least margin {margin:.4f}: {text_of(tok, ids)!r}", flush=True)
    return {**more, "prompt": prompt, "prompt_ids": prompt_ids, "ids": ids, "text": text_of(tok, ids), "least_margin": round(margin, 6)}


def nll_of(model, tok, name, text):
    ids = [tok.bos_id(), *tok.encode(text)]
    logp = torch.log_softmax(logits_of(model, ids).double(), -1)
    nll = [-float(logp[i, token]) for i, token in enumerate(ids[1:])]
    return {"name": name, "text": text, "ids": ids, "nll": [round(x, 6) for x in nll]}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--run", type=Path, default="build", help="folder of fit.py")
    ap.add_argument("--to", type=Path, default="../../tests/data/stories")
    ap.add_argument("--prompts", nargs="*", default=PROMPTS)
    args = ap.parse_args()
    args.to.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    saved = torch.load(args.run / "model.pt", weights_only=True)
    config, state = saved["config"], saved["state"]
    tok = sentencepiece.SentencePieceProcessor(model_file=str(args.run / "tokenizer.model"))
    print(json.dumps(saved["report"]))

    write_folder(args.to / "hf-float32", state, config, torch.float32)
    write_folder(args.to / "hf-bfloat16", state, config, torch.bfloat16)
    for suffix, form in FORMS.items():
        write_gguf(args.to / f"{NAME}{suffix}.gguf", state, config, tok, form)

    def write(name, value):
        (args.to / name).write_text(dump(value))

    model = LlamaForCausalLM.from_pretrained(args.to / "hf-float32", attn_implementation="eager", dtype=torch.float32).eval()
    with torch.no_grad():  # the training's own arithmetic, which is in GGUF's order
        net = fit.Model(fit.CONFIG)
        net.load_state_dict(state)
        ids = list(range(3, 203))
        gap = (net(torch.tensor([ids]))[0] - logits_of(model, ids)).abs().max()
        assert gap < 1e-3, gap

    runs = [run_of(model, tok, prompt, LENGTH) for prompt in args.prompts]
    write("reference.json", {"runs": runs})
    ids = runs[0]["ids"]
    logits = logits_of(model, ids[:-1]).numpy()
    np.savez_compressed(args.to / "reference.npz", ids=np.array(ids, np.int32), logits=logits)

    quantised = []
    for suffix, form in FORMS.items():
        if form not in (Type.F32, Type.F16):
            file = f"{NAME}{suffix}.gguf"
            model_of_form = transformer(dequantised(args.to / file), config)
            run = run_of(model_of_form, tok, PROMPTS[1], QUANT_LENGTH, file=file, type=form.name)
            last = logits_of(model_of_form, run["prompt_ids"])[-1]
            quantised.append({**run, "last_logits": [round(float(x), 5) for x in last]})
    write("reference-quant.json", {"runs": quantised})

    story = fit.take(fit.HELD_OUT_SEED, 1)[0]
    write("nll.json", [nll_of(model, tok, "story", story), nll_of(model, tok, "other", OTHER_TEXT)])
    write("tokens.json", [{"text": text, "ids": tok.encode(text), "decoded": tok.decode(tok.encode(text))} for text in TEXTS])
    least = min(run["least_margin"] for run in runs + quantised)
    assert least >= LEAST_MARGIN, f"a margin of {least}: choose another prompt"


if __name__ == "__main__":
    main()
