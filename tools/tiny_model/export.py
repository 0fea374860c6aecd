"""Writes the trained model as a Q8_0 GGUF file.

    python export.py --run build --to ../../assets/tiny.gguf
"""

import argparse
import json
import os

import gguf
import torch

import corpus

Q8_0, F32 = gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.F32

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def write(path, cfg, state, tokenizer):
    w = gguf.GGUFWriter(path, "llama")
    w.add_name("wgslm-tiny")
    w.add_license("MIT OR Apache-2.0")
    w.add_description("A very small model that tells short stories, trained on generated text")
    w.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    w.add_quantization_version(gguf.GGML_QUANT_VERSION)

    w.add_context_length(cfg["context"])
    w.add_embedding_length(cfg["dim"])
    w.add_block_count(cfg["layers"])
    w.add_feed_forward_length(cfg["ffn"])
    w.add_head_count(cfg["heads"])
    w.add_head_count_kv(cfg["kv_heads"])
    w.add_layer_norm_rms_eps(cfg["eps"])
    w.add_rope_freq_base(cfg["rope_base"])
    w.add_rope_dimension_count(cfg["dim"] // cfg["heads"])
    w.add_vocab_size(cfg["vocab"])

    ids = tokenizer["model"]["vocab"]
    tokens = sorted(ids, key=ids.get)
    control = {corpus.BOS, corpus.IM_START, corpus.IM_END}
    merges = [m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"]]
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("gpt-2")
    w.add_token_list(tokens)
    w.add_token_types([gguf.TokenType.CONTROL if t in control else gguf.TokenType.NORMAL for t in tokens])
    w.add_token_merges(merges)
    w.add_bos_token_id(ids[corpus.BOS])
    w.add_eos_token_id(ids[corpus.BOS])
    w.add_eot_token_id(ids[corpus.IM_END])
    w.add_add_bos_token(True)
    w.add_add_eos_token(False)
    w.add_chat_template(CHAT_TEMPLATE)

    # The parameters carry GGUF's names already.  The embedding is also the
    # output matrix, so the file has no `output.weight`.
    for name, tensor in state.items():
        data = tensor.float().numpy()
        if data.ndim == 1:
            w.add_tensor(name, data, raw_dtype=F32)
        else:
            assert data.shape[1] % 32 == 0, name
            w.add_tensor(name, gguf.quants.quantize(data, Q8_0), raw_dtype=Q8_0)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--run", default="build")
    ap.add_argument("--weights", default="model.pt")
    ap.add_argument("--to", default="../../assets/tiny.gguf")
    args = ap.parse_args()
    saved = torch.load(os.path.join(args.run, args.weights), weights_only=True)
    with open(os.path.join(args.run, "tokenizer.json")) as f:
        tokenizer = json.load(f)
    os.makedirs(os.path.dirname(os.path.abspath(args.to)), exist_ok=True)
    write(args.to, saved["config"], saved["state"], tokenizer)
    print(f"{args.to}: {os.path.getsize(args.to)} bytes")


if __name__ == "__main__":
    main()
