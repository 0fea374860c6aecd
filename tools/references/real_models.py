"""Reference values of the real models that scripts/fetch-test-data fetches, computed by transformers in float32.

    python real_models.py [smollm2] [gemma3] [minilm]

Writes tests/data/real-models/MODEL/. transformers reads the GGUF files itself and decodes their blocks with gguf-py.
"""
import argparse

import numpy as np
import torch

import common
from common import DATA, fetched, write_json

OUT = DATA / "real-models"
FILES = {"smollm2": "SmolLM2-135M-Instruct.Q4_1.gguf", "gemma3": "gemma-3-270m-q4_k_m.gguf"}
BEST, GREEDY, STRIDE, WINDOW = 32, 64, 8, 512

CHAT = """<|im_start|>system
You are a careful assistant. Answer in one short paragraph.<|im_end|>
<|im_start|>user
Why does bread rise when you add yeast?<|im_end|>
<|im_start|>assistant
"""
CODE = '''def merge_sorted(a: list[int], b: list[int]) -> list[int]:
    """Merge two sorted lists into one sorted list."""
    out = []
    i = j = 0
    while i < len(a) and j < len(b):
'''


def prompts(name):
    stories = (DATA / "text/stories.txt").read_text()
    yield "english", "The lighthouse keeper climbed the spiral stairs every evening at dusk, because"
    yield "code", CODE
    if name == "smollm2":
        yield "chat", CHAT
    else:
        yield "question", "Question: Why does bread rise when you add yeast?\nAnswer:"
    yield "french", ("La bibliothèque municipale ouvre à neuf heures. Les étudiants qui préparent leurs examens "
                     "arrivent très tôt pour")
    yield "mixed-script", ("Tea in many languages: English tea, Deutsch Tee, русский чай, Türkçe çay, 中文 茶, "
                           "日本語 お茶, हिन्दी चाय, العربية شاي, עברית")
    yield "numbers", ("Monday: 17 loaves, 4 cakes\nTuesday: 23 loaves, 6 cakes\nWednesday: 29 loaves, 8 cakes\n"
                      "Thursday: 35 loaves,")
    # Past Gemma's window of 512 and past what one submission of prefill takes.
    yield "long-1500", stories[8000:14200]


class Decoder:
    def __init__(self, name):
        from transformers import AutoModelForCausalLM

        path = fetched(f"models/{FILES[name]}")
        self.model = AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager").eval()
        vocabulary = common.Vocabulary(path)
        if name == "smollm2":
            tokenizer = common.smollm2(vocabulary)
            self.encode = lambda text: tokenizer.encode(text, add_special_tokens=False).ids
            self.bos = []
        else:
            processor = common.sentencepiece_bpe(vocabulary)
            self.encode = lambda text: common.sentencepiece_ids(processor, vocabulary, text, False)
            self.bos = [vocabulary.bos]

    def logits(self, ids):
        return self.model(torch.tensor([ids]), use_cache=False).logits[0]

    def greedy(self, ids):
        """The likeliest tokens after `ids`, and how far the second is behind."""
        tokens, margins = [], []
        out = self.model(torch.tensor([ids]), use_cache=True)
        for _ in range(GREEDY):
            values, best = out.logits[0, -1].topk(2)
            tokens.append(int(best[0]))
            margins.append(float(values[0] - values[1]))
            out = self.model(torch.tensor([[tokens[-1]]]), past_key_values=out.past_key_values, use_cache=True)
        return tokens, margins


def decoder(name):
    of = Decoder(name)
    golden, last, about = {}, {}, []
    for i, (prompt, text) in enumerate(prompts(name)):
        ids = of.bos + of.encode(text)
        logits = of.logits(ids)
        values, best = logits.topk(BEST)
        tokens, margins = of.greedy(ids)
        golden |= {
            f"ids_{i}": np.array(ids, np.int32),
            f"top_ids_{i}": best.numpy().astype(np.int32),
            f"top_logits_{i}": values.numpy(),
            f"greedy_{i}": np.array(tokens, np.int32),
            f"greedy_margin_{i}": np.array(margins),
        }
        # All of them once; elsewhere every eighth, for size.
        row = logits[-1].numpy()
        last |= {f"logits_{i}": row} if i == 0 else {f"logits_every_{STRIDE}_{i}": row[::STRIDE].copy()}
        entry = {"name": prompt, "tokens": len(ids), "smallest_margin": round(min(margins), 6)}
        about.append(entry if prompt.startswith("long") else entry | {"text": text})
        print(name, entry, flush=True)

    # The likelihood of each token of a window of a text, after BOS where the model wants one.
    ids = of.bos + of.encode((DATA / "text/stories.txt").read_text()[:4096])[:WINDOW]
    assert len(ids) == len(of.bos) + WINDOW
    likelihoods = torch.log_softmax(of.logits(ids[:-1]).double(), -1)
    nll = -likelihoods[torch.arange(len(ids) - 1), torch.tensor(ids[1:])].numpy()
    print(name, "mean NLL", nll.mean(), "perplexity", np.exp(nll.mean()))

    folder = OUT / name
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(folder / "golden.npz", **golden)
    np.savez_compressed(folder / "last_logits.npz", **last)
    np.savez_compressed(folder / "nll.npz", nll=nll)
    write_json(folder / "prompts.json", about)


SENTENCES = [
    "A cat sits on the warm stove.",
    "The kitten is lying next to the heater.",
    "Interest rates were raised by a quarter of a percent.",
    "Le chat dort près du poêle.",
    "Die Katze schläft neben dem Ofen.",
    "Hello",
    "hello",
    "Wie spät ist es? Halb acht.",
    "What time is it? Half past seven.",
    "x",
    "",
    "...!?",
    "ÅNGSTRÖM, naïve café, Straße and coöperation",
    "e\u0301 is e with an accent; \u00e9 is the same letter",
    "日本語のテキスト and 中文字符测试 and 한국어",
    "Привет, мир! Как дела?",
    "🙂🙃 emoji 👩‍🚀 in a sentence",
    "def f(x): return x ** 2  # a square",
    "https://example.com/path?q=1&r=2#fragment",
    "antidisestablishmentarianism supercalifragilisticexpialidocious",
    "1234567890 3.14159 1,000,000 2025-07-10",
    "tab\there, newline\nthere, and\u00a0no\u2028ordinary spaces",
    "[CLS] is written out [SEP] in this text [MASK]",
    "The miller counted his sacks and then counted them once more. " * 26,
]


def minilm(name):
    from tokenizers import Tokenizer
    from transformers import AutoModel

    folder = fetched("models/all-MiniLM-L6-v2")
    model = AutoModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True  # texts are data: "[CLS]" in one is no special token
    sentences, vectors, arrays = [], [], {}
    for i, text in enumerate(SENTENCES):
        tokenizer.no_truncation()
        length = len(tokenizer.encode(text).ids)
        tokenizer.enable_truncation(256)  # as sentence_bert_config.json says
        ids = tokenizer.encode(text).ids
        sentences.append({"text": text, "ids": ids, "tokens_before_truncation": length})
        out = model(input_ids=torch.tensor([ids]), output_hidden_states=True)
        vector = out.last_hidden_state[0].mean(0)
        vectors.append((vector / vector.norm()).numpy())
        if i == 7:
            arrays = {f"hidden_{layer}": hidden[0].numpy() for layer, hidden in enumerate(out.hidden_states)}
            arrays["hidden_ids"] = np.array(ids, np.int32)
    (OUT / name).mkdir(parents=True, exist_ok=True)
    np.savez_compressed(OUT / name / "embeddings.npz", embeddings=np.stack(vectors), **arrays)
    write_json(OUT / name / "sentences.json", sentences)
    print(name, len(sentences), "sentences, the longest of", max(s["tokens_before_truncation"] for s in sentences))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("models", nargs="*", default=["smollm2", "gemma3", "minilm"])
    torch.set_num_threads(1)  # the same bits whatever the machine
    with torch.no_grad():
        for name in parser.parse_args().models:
            (minilm if name == "minilm" else decoder)(name)


main()
