//! sample_adjust: penalties and bias of a sample: x > 0 ? x / repeat : x * repeat, - count * frequency - presence, for tokens that were seen; + bias
//! logits (outs, vocab) f32 | sampled (slots, RING): the tokens sampled last | adjusted (samples): a map of the tokens with another logit, and these
//! grid: x one workgroup a sample
//! use: lib/sample
//! source: penalties of llama.cpp (repeat) and OpenAI's API (frequency, presence)
override WG: u32 = 64u;
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> samples: array<u32>;
@group(0) @binding(2) var<storage, read> logits: array<f32>;
@group(0) @binding(3) var<storage, read> sampled: array<u32>;
@group(0) @binding(4) var<storage, read_write> adjusted: array<atomic<u32>>;

// The token sampled j positions before this sample's.
fn sampled_before(d: u32, j: u32) -> u32 {
    return sampled[sample_word(d, SLOT) * RING + (sample_word(d, POS) - j) % RING];
}

fn penalised(d: u32, x: f32, count: u32) -> f32 {
    let scaled = x * sample_f32(d, REPEAT + u32(x > 0.0));
    return scaled - (f32(count) * sample_f32(d, FREQUENCY) + sample_f32(d, PRESENCE));
}

fn put(map: u32, token: u32, x: f32) {
    atomicStore(&adjusted[map + map_words() + token], bitcast<u32>(x));
    atomicOr(&adjusted[map + token / 32u], 1u << (token % 32u));
}

fn is_set(map: u32, token: u32) -> bool {
    return ((atomicLoad(&adjusted[map + token / 32u]) >> (token % 32u)) & 1u) != 0u;
}

@compute @workgroup_size(WG)
fn sample_adjust(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) group: vec3<u32>) {
    let d = group.x;
    if (sample_word(d, FLAGS) & ADJUSTED) == 0u {
        return;
    }
    let map = d * (map_words() + params.vocab);
    let row = sample_word(d, OUT) * params.stride;
    for (var i = lid; i < map_words(); i += WG) {
        atomicStore(&adjusted[map + i], 0u);
    }
    storageBarrier();
    let pending = min(sample_word(d, PENDING), RING);
    let counts = params.lists + sample_word(d, COUNTS);
    for (var i = lid; i < sample_word(d, COUNTS + 1u); i += WG) {
        let token = samples[counts + 2u * i];
        var count = samples[counts + 2u * i + 1u];
        for (var j = 1u; j <= pending; j++) {
            count += u32(sampled_before(d, j) == token);
        }
        put(map, token, penalised(d, logits[row + token], count));
    }
    storageBarrier();
    // Tokens that were sampled but are in no list yet; of equal ones, the thread of the last sampled acts for all.
    if lid < pending {
        let token = min(sampled_before(d, lid + 1u), params.vocab - 1u);
        var first = !is_set(map, token);
        var count = 0u;
        for (var j = 1u; j <= pending; j++) {
            let same = sampled_before(d, j) == token;
            count += u32(same);
            first = first && !(same && j <= lid);
        }
        if first {
            put(map, token, penalised(d, logits[row + token], count));
        }
    }
    storageBarrier();
    let bias = params.lists + sample_word(d, BIAS);
    for (var i = lid; i < sample_word(d, BIAS + 1u); i += WG) {
        let token = samples[bias + 2u * i];
        var x = logits[row + token];
        if is_set(map, token) {
            x = bitcast<f32>(atomicLoad(&adjusted[map + map_words() + token]));
        }
        put(map, token, x + bitcast<f32>(samples[bias + 2u * i + 1u]));
    }
}
