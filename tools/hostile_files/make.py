"""Makes tests/data/hostile: python3 tools/hostile_files/make.py [FOLDER]

Every file is a sound one with a single defect, except those whose names say `ok`. Nothing is downloaded, and a second
run gives the same bytes.
"""

import shutil
import sys
from pathlib import Path

import config_cases
import gguf_cases
import safetensors_cases
import split_cases
import template_cases
import tiny_llama
import tokenizer_cases
from case_list import CaseList

FOLDER = Path(__file__).resolve().parents[2] / "tests" / "data" / "hostile"
MOST_BYTES = 3_000_000


def all_cases():
    cases, weights = CaseList(), tiny_llama.Weights()
    gguf_cases.add_all(cases, weights)
    split_cases.add_all(cases, weights)
    safetensors_cases.add_all(cases, weights)
    config_cases.add_all(cases)
    tokenizer_cases.add_all(cases)
    template_cases.add_all(cases)
    return cases


def main(folder):
    cases = all_cases()
    cases.store("index.json", cases.index())
    # Line ends are part of the cases.
    cases.store(".gitattributes", "* -text\n")
    shutil.rmtree(folder, ignore_errors=True)
    for name, data in cases.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    size = sum(map(len, cases.files.values()))
    assert size <= MOST_BYTES, size
    print(f"{len(cases.cases)} cases, {len(cases.files)} files, {size} bytes in {folder}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
