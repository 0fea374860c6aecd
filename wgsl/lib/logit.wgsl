//! logit: a token's logit, after penalties and bias
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> samples: array<u32>;
@group(0) @binding(2) var<storage, read> logits: array<f32>;    // (outs, vocab)
@group(0) @binding(3) var<storage, read> adjusted: array<u32>;  // (samples): a map of tokens with another logit, and these logits

fn allowed(d: u32, flags: u32, i: u32) -> bool {
    if (flags & MASKED) == 0u {
        return true;
    }
    return ((samples[params.lists + sample_word(d, ALLOWED) + i / 32u] >> (i % 32u)) & 1u) != 0u;
}

// The logit of token i for a sample from row o.
fn logit_of(d: u32, o: u32, flags: u32, i: u32) -> f32 {
    if (flags & ADJUSTED) != 0u {
        let at = d * (map_words() + params.vocab);
        if ((adjusted[at + i / 32u] >> (i % 32u)) & 1u) != 0u {
            return bitcast<f32>(adjusted[at + map_words() + i]);
        }
    }
    return logits[o * params.stride + i];
}
