"""What drivers said of pipelines: reads it, and keeps it in statistics/."""
import json
import re
from pathlib import Path

import loops

HERE = Path(__file__).resolve().parent
STORE = HERE / "statistics"
# Their driver has a version of its own, for reasons that `intel` gives.
INTEL = ["dg2", "lnl", "tgl", "mtl"]
# Our columns, by the names that drivers give them; the first that there is counts.
NAMES = {
    "registers": ["VGPRs", "Number of GPRs", "GPRs", "Registers used", "Max live registers"],
    "live": ["Pre-Sched VGPRs"],
    "occupancy": ["Subgroups per SIMD", "Max warps/SM", "Threads", "Max Waves Per Core", "Max dispatch width"],
    "subgroup": ["Subgroup size"],
    "spills": ["Spilled VGPRs", "Spills to memory", "Spills", "STP Count", "Spill Count"],
    "scratch": ["Scratch size", "SLM size", "Scratch", "Private memory size", "Scratch Memory Size"],
    "shared": ["LDS size", "Workgroup Memory Size"],
    "instructions": ["Instructions", "Instruction count", "Instruction Count"],
    "VALU": ["VALU", "ALU"],
    "latency": ["Latency", "Static cycle count", "Cycle Count"],
    "throughput": ["Inverse Throughput"],
}
# `tuning` is the text of the first tuning that takes the pipeline: "default" is none.
COLUMNS = [*NAMES, *loops.COLUMNS, "tuning"]
# Where things lie in buffers: numbers in the text of a kernel that say nothing of its form.
PLACES = re.compile(r" (BATCH_\w+|PAGE_\w+|POS_IDS|ROPE_\w+|POW|EPS|SCALE)=\S+")


def pipelines(out, tuning=""):
    """(name, row) of what a driver said of each pipeline, in the order in which they were made, from what the layer wrote."""
    path = out / "pipelines.jsonl"
    latest = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        line = json.loads(line)
        if "name" not in line:
            latest[line["pipeline"]] = line
            continue
        made = latest.pop(line["pipeline"], None)  # a program may name one twice
        if made is None or not made["executables"]:
            continue
        said = made["executables"][0]
        first = lambda keys: str(next((said[key] for key in keys if key in said), ""))
        text = out / f"{made['number']}.txt"
        in_loop = loops.counts(text.read_text(errors="replace") if text.exists() else "")
        yield PLACES.sub("", line["name"]), [*map(first, NAMES.values()), *in_loop, tuning or "default"]


def stored(gpu, peer=None):
    """The rows of statistics/GPU.tsv, or those of another program."""
    path = STORE / (peer or "") / f"{gpu}.tsv"
    lines = path.read_text().splitlines() if path.exists() else []
    header = lines[0].split("\t")[1:] if lines else []
    rows = {}
    for line in lines[1:]:
        name, *cells = line.split("\t")
        by_column = dict(zip(header, cells))
        rows[name] = [by_column.get(column, "") for column in COLUMNS]
    return rows


def write(gpu, rows, peer=None):
    path = STORE / (peer or "") / f"{gpu}.tsv"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ["\t".join(["pipeline", *COLUMNS]), *("\t".join([name, *row]) for name, row in sorted(rows.items()))]
    path.write_text("\n".join(lines) + "\n")


def versions(peer=None):
    """Of each GPU: the day of its rows, Mesa's version, the other program's version."""
    path = STORE / (peer or "") / "versions.tsv"
    lines = path.read_text().splitlines()[1:] if path.exists() else []
    return {line.split("\t")[0]: line.split("\t")[1:] for line in lines}


def write_version(gpu, cells, peer=None):
    rows = {**versions(peer), gpu: cells}
    lines = ["GPU\tcompiled\tMesa\tllama.cpp's ggml", *("\t".join([name, *row]) for name, row in sorted(rows.items()))]
    (STORE / (peer or "") / "versions.tsv").write_text("\n".join(lines) + "\n")
