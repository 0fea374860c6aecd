"""The jobs by which our kernels and llama.cpp's are compared: who takes which kernel for them, and what their loops cost."""
import re

from reports import COLUMNS

TYPES = ["Q4_K", "Q6_K", "Q4_0", "Q8_0", "F16"]
MATVEC, MATVEC_INT8 = ["matvec lib/matvec"], ["matvec lib/matvec_int8"]
# Kernels and texts for one job, the first choice of a device first.
MATMUL = ["matmul_cooperative", "matmul_dot", "matmul lib/tile_f16", "matmul lib/tile_f32"]
ATTEND_TILED = ["attend_cooperative", "attend_tiled"]


def cell(row, column):
    return row[COLUMNS.index(column)]


def number(row, column):
    return int(cell(row, column) or 0)


def jobs():
    """(title, our kernels, type, rows of x if it is matvec, llama.cpp's rows and pattern)."""
    for title, rows_of_x in (("1 row", 1), ("8 rows", 8)):
        for kind in TYPES:
            yield f"{kind}, {title}", MATVEC, kind, rows_of_x, title, f"(mul_mat_vec|matmul)_{kind.lower()}_"
            if kind != "F16":
                yield f"{kind}, {title}, x in int8", MATVEC_INT8, kind, rows_of_x, None, ""
    for kind in TYPES:
        yield f"{kind}, 512 rows", MATMUL, kind, None, "512 rows", f"matmul_{kind.lower()}_"
    yield "attention, 1 row", ["attend"], "", None, "1 row", "flash_attn"
    yield "attention, 512 rows", ATTEND_TILED, "", None, "512 rows", "flash_attn"


def ours(rows, kernels, kind="", rows_of_x=None):
    """Our kernel for a job, (name, row): of the default forms, the first choice, without norm, with the largest tile. Mat-vec
    in int8 is no default."""
    found = []
    for name, row in rows.items():
        words = name.split()
        value = lambda key: int(next((word.partition("=")[2] for word in words if word.startswith(key + "=")), 0))
        choice = next((i for i, start in enumerate(kernels) if f"{name} ".startswith(start + " ")), None)
        if choice is None or (kind and kind not in words) or (cell(row, "tuning") not in ("default", "") and kernels != MATVEC_INT8):
            continue
        columns = value("COLS")
        if rows_of_x and (columns == 1) != (rows_of_x == 1):
            continue
        cooperative = value("PARTS") * value("ACROSS") * value("DOWN")
        tile = (-cooperative, -value("THREADS_M"), -value("ROWS_X"), -columns)
        # Q6_K has no gated form; the residual's is there for all.
        order = (choice, value("NORM"), value("EPI") != 1, "lib/kv_f32" in words, *tile, name)
        found.append((order, name, row))
    return min(found)[1:] if found else None


def theirs(rows, job, pattern):
    return next(((name.partition(": ")[2], row) for name, row in rows.items() if re.match(f"{job}: ({pattern})", name)), None)


def weights_in_turn(name, row, rows_of_x):
    """Weights for which a thread's turn of the main loop is the work; of llama.cpp's kernels, from the products."""
    vec4s = re.search(r"ROW_VEC4S=(\d+)", name)
    if name.startswith("matvec"):
        return 32 * 4 * int(vec4s[1] if vec4s else 1)
    return (4 * number(row, "loop dot4") or number(row, "loop fma")) / rows_of_x


def loop_cells(name, row, rows_of_x):
    """VALU a weight of matvec, instructions a product of matmul and attention."""
    if not cell(row, "loop"):
        return ["", ""]
    if rows_of_x:
        return [f"{number(row, 'loop VALU') / max(weights_in_turn(name, row, rows_of_x), 1):.1f}", ""]
    # A few multiply-adds beside WMMAs, or beside dot products, are not the work.
    for column, unit in (("loop WMMA", "WMMA"), ("loop dot4", "dot4"), ("loop fma", "fma")):
        if number(row, column):
            return ["", f"{number(row, 'loop') / number(row, column):.1f} a {unit}"]
    return ["", ""]
