"""A model of architecture llama as transformers has it: its names, its order of rows, its arithmetic."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import gguf
import numpy as np
import torch
from gguf import GGUFReader
from transformers import LlamaConfig, LlamaForCausalLM


def rotate_half(weight, heads):
    """Rows of a head from neighbours (0, 1), (2, 3), .. to two halves, as transformers rotates."""
    rows, columns = weight.shape
    return weight.view(heads, rows // heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns)


def hf_state(state, config):
    """GGUF names and order to transformers'."""
    names = {
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
    heads = {"attn_q": config["heads"], "attn_k": config["kv_heads"]}
    out = {"model.embed_tokens.weight": state["token_embd.weight"], "model.norm.weight": state["output_norm.weight"]}
    for name, weight in state.items():
        if name.startswith("blk."):
            _, layer, part, _ = name.split(".")
            weight = rotate_half(weight, heads[part]) if part in heads else weight
            out[f"model.layers.{layer}.{names[part]}.weight"] = weight
    return {name: weight.contiguous().clone() for name, weight in out.items()}


def hf_config(config):
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": config["dim"],
        "intermediate_size": config["ffn"],
        "num_hidden_layers": config["layers"],
        "num_attention_heads": config["heads"],
        "num_key_value_heads": config["kv_heads"],
        "max_position_embeddings": config["context"],
        "vocab_size": config["vocab"],
        "rms_norm_eps": config["eps"],
        "rope_theta": config["rope_base"],
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "attention_bias": False,
        "bos_token_id": config.get("bos", 1),
        "eos_token_id": config.get("eos", 2),
    }


def dequantised(path):
    return {t.name: torch.from_numpy(gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32)) for t in GGUFReader(path).tensors}


def transformer(state, config):
    """transformers' model over these weights, in float32."""
    model = LlamaForCausalLM(LlamaConfig(**hf_config(config), attn_implementation="eager")).eval()
    missing, unexpected = model.load_state_dict(hf_state(state, config), strict=False)
    assert missing == ["lm_head.weight"] and not unexpected, (missing, unexpected)
    model.tie_weights()
    return model


@torch.no_grad()
def logits_of(model, ids):
    return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float()
