"""Blocks of every format that the engine reads, and what gguf-py makes of them.

    pip install -r requirements.txt
    python make.py ../../tests/data/dequant

`quant-types.gguf` has a 4 x 512 tensor `q.TYPE` of each block format, and
`t.f16` and `t.f32`.  `TYPE.f32` holds its values as gguf-py dequantises them,
`TYPE.vec.f32` a vector of 512, and `index.json` the four products in float64.
The bytes of blocks are random; their scales are random numbers of usual size.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGUFWriter
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize

ROWS, COLUMNS, SEED = 4, 512, 18
# Where a block has numbers in float16: any bytes there would give NaN and huge values.
SCALES = {
    Type.Q4_0: [0],
    Type.Q4_1: [0, 2],
    Type.Q5_0: [0],
    Type.Q5_1: [0, 2],
    Type.Q8_0: [0],
    Type.Q2_K: [80, 82],
    Type.Q3_K: [108],
    Type.Q4_K: [0, 2],
    Type.Q5_K: [0, 2],
    Type.Q6_K: [208],
    Type.IQ4_NL: [0],
    Type.IQ4_XS: [0],
    Type.MXFP4: [],  # one byte: an exponent
}


def blocks(form, rng):
    weights, size = GGML_QUANT_SIZES[form]
    out = rng.integers(0, 256, (ROWS * COLUMNS // weights, size), dtype=np.uint8)
    for at in SCALES[form]:
        scales = rng.normal(0, 0.01, len(out)).astype(np.float16)
        out[:, at : at + 2] = scales.view(np.uint8).reshape(-1, 2)
    if form == Type.MXFP4:
        out[:, 0] = rng.integers(118, 128, len(out))  # from 2^-10 on
    return out.reshape(ROWS, -1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("to", type=Path)
    to = ap.parse_args().to
    to.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(SEED)
    file = GGUFWriter(to / "quant-types.gguf", "llama")
    index = []
    for form, (weights, size) in ((form, GGML_QUANT_SIZES[form]) for form in SCALES):
        name = form.name.lower()
        data = blocks(form, rng)
        values = dequantize(data, form).astype("<f4")
        vector = rng.normal(0, 1, COLUMNS).astype("<f4")
        assert values.shape == (ROWS, COLUMNS) and np.isfinite(values).all()
        file.add_tensor(f"q.{name}", data, raw_dtype=form)
        values.tofile(to / f"{name}.f32")
        vector.tofile(to / f"{name}.vec.f32")
        index.append(
            {
                "type": form.name,
                "ggml_type": int(form),
                "rows": ROWS,
                "cols": COLUMNS,
                "block": weights,
                "block_bytes": size,
                "tensor": f"q.{name}",
                "f32": f"{name}.f32",
                "vec": f"{name}.vec.f32",
                "matvec_f64": (values.astype(np.float64) @ vector.astype(np.float64)).tolist(),
            }
        )
    plain = rng.normal(0, 1, (ROWS, COLUMNS))
    file.add_tensor("t.f16", plain.astype(np.float16))
    file.add_tensor("t.f32", plain.astype(np.float32))
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()
    (to / "index.json").write_text(json.dumps(index, indent=1) + "\n")


if __name__ == "__main__":
    main()
