"""GGUF models that are split in several files."""

import tiny_llama as llama
from gguf_cases import FULL_FILE, MINI_FILE, model_pairs, model_tensors
from gguf_format import I32, U16, model_file


def parts(pairs, tensors, count):
    """The first part has the pairs of the whole model, each has those about the split."""
    size = -(-len(tensors) // count)
    for number in range(count):
        about = [("split.no", U16, number), ("split.count", U16, count), ("split.tensors.count", I32, len(tensors))]
        yield model_file([*(pairs if number == 0 else []), *about], tensors[number * size : (number + 1) * size])


def add_all(cases, weights):
    for count, tokens, whole in ((3, llama.FULL, FULL_FILE), (2, llama.MINI, MINI_FILE)):
        files = [f"g-ok-split{count}-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1)]
        why = f"model split in {count} parts; open the first"
        cases.add(files[0], "gguf", "ok-split", why, "ok", "model", [], parts=files, same_as=whole)
        for file, data in zip(files, parts(model_pairs(tokens), model_tensors(tokens, weights), count)):
            cases.store(file, data)
