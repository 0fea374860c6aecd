"""sentence-transformers over lines of text: MODEL THREADS FILE. Prints texts a second, without loading and after a first batch."""

import json
import sys
import time

import sentence_transformers
import torch

model, threads, file = sys.argv[1:]
torch.set_num_threads(int(threads))
encoder = sentence_transformers.SentenceTransformer(model, device="cpu")
with open(file, encoding="utf-8") as lines:
    texts = lines.read().splitlines()
encoder.encode(texts[:32])
started = time.perf_counter()
encoder.encode(texts)
rate = len(texts) / (time.perf_counter() - started)
version = f"sentence-transformers {sentence_transformers.__version__}, PyTorch {torch.__version__}"
print(json.dumps([{"test": f"{len(texts)} texts", "samples_ts": [rate], "version": version}]))
