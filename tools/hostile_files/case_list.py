"""The list of cases: what each file is, what a loader owes it, and the bytes themselves."""

import json

ABOUT = (
    "Fields: file (or, for split models and folders, the file to open; parts lists all), kind, class, why, "
    "expect: error = typed error; ok = loads; nan = loads, generation from BOS ends in a numerical error "
    "(a typed error at load will do too); either = typed error or success, but within the limits and without crash, "
    "hint = lower-case words of which the error text should contain at least one, "
    "stage = the layer that must refuse at the latest (container: the file parser alone; model: config and tensor "
    "checks; tokenizer; generate; render), same_as = must give the same logits as that file, "
    "weights = the tensors to pair a config with, probe = text (repeated, plus suffix) to encode within the limits, "
    "output = exact rendering, forbid = strings no output or error may contain, "
    "setup = what the test has to make first, render = outcome of rendering the chat template inside the model, "
    "pieces = the file is not stored: the test joins these pieces, each a text or hexadecimal bytes and how often."
)
LIMITS = {"load_ms": 100, "rss_mib_beyond_file": 64, "render_ms": 50, "render_mib": 32, "probe_ms": 1000}
TEMPLATE_CONTEXT = {
    "messages": [{"role": "user", "content": "hi"}],
    "add_generation_prompt": True,
    "bos_token": "<s>",
    "eos_token": "</s>",
}


def join(pieces):
    """The bytes of a file that is stored as pieces."""
    whole = b""
    for piece in pieces:
        unit = bytes.fromhex(piece["hex"]) if "hex" in piece else piece["text"].encode()
        whole += unit * piece["times"]
    return whole


def text(unit, times=1):
    return {"text": unit, "times": times}


def raw(unit, times=1):
    return {"hex": unit.hex(), "times": times}


class CaseList:
    """Cases in the order of the index, and the files that they need."""

    def __init__(self):
        self.cases = []
        self.files = {}

    def add(self, file, kind, name, why, expect, stage, hint, **more):
        """One case. `more` holds the optional fields of the index."""
        assert all(case["file"] != file for case in self.cases), file
        case = {"file": file, "kind": kind, "class": name, "why": why, "expect": expect, "stage": stage}
        self.cases.append({**case, "hint": hint, **more})

    def store(self, file, data):
        """A file of a case, or one of several."""
        assert file not in self.files, file
        self.files[file] = data if isinstance(data, bytes) else data.encode()

    def index(self):
        lines = ",\n".join("  " + json.dumps(case) for case in self.cases)
        head = {"about": ABOUT, "limits": LIMITS, "template_context": TEMPLATE_CONTEXT}
        return json.dumps(head, indent=1)[:-2] + ',\n "cases": [\n' + lines + "\n ]\n}\n"
