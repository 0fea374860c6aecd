"""Writes tests/data/text/stories.txt: prose of the generator of tools/tiny_model, to be read by models and tokenizers.

    python text.py
"""
import sys
from pathlib import Path

from common import DATA

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tiny_model"))
import corpus  # noqa: E402

SEED, SIZE = 4711, 24_000

parts, size = [], 0
for document in corpus.documents(SEED):
    document = document.strip()
    if document.startswith(("<|", "{", "[")) or len(document) < 200:
        continue  # dialogues and JSON
    parts.append(document)
    size += len(document) + 2
    if size > SIZE:
        break
path = DATA / "text/stories.txt"
path.parent.mkdir(parents=True, exist_ok=True)
path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
print(path, path.stat().st_size)
