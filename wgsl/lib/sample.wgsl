//! sample: what the sampling kernels share: settings, in `samples: array<u32>` as ops/sample lays them out, and integer weights
struct Params {
    vocab: u32,
    stride: u32,  // elements from a row of logits to the next
    parts: u32,   // of a row of logits
    lists: u32,   // word of samples where the lists begin, after the settings
    slots: u32,
}
// Words of a sample's settings.
const SAMPLE_WORDS: u32 = 24u;
const OUT: u32 = 0u;              // the row of logits
const SLOT: u32 = 1u;
const POS: u32 = 2u;              // of the token that is sampled
const FLAGS: u32 = 3u;
const SEED: u32 = 4u;             // two words
const INV_TEMPERATURE: u32 = 6u;  // f32; 0 samples greedily
const DEPTH_SCALE: u32 = 7u;      // f32: log2(e) / temperature, in units of 2^-16
const TOP_K: u32 = 8u;            // 0 keeps all
const TOP_P: u32 = 9u;            // in units of 2^-16; 65536 keeps all
const DEEPEST: u32 = 10u;         // the largest depth that min-p keeps
const REPEAT: u32 = 11u;          // f32, and its reciprocal
const PRESENCE: u32 = 13u;        // f32
const FREQUENCY: u32 = 14u;       // f32
const PENDING: u32 = 15u;         // tokens sampled on the device that penalties count and the lists still lack
const COUNTS: u32 = 16u;          // where in the lists (token, count) begin, and how many
const BIAS: u32 = 18u;            // where (token, f32) begin, and how many
const ALLOWED: u32 = 20u;         // where the bits of the allowed tokens begin
const STOPS: u32 = 21u;           // where the stop tokens begin, after which nothing is sampled, and how many
const TOP: u32 = 23u;             // tokens whose probability is reported, the sampled one included

// Flags.
const FILTERED: u32 = 1u;  // top-k, top-p or min-p
const BINNED: u32 = 2u;    // top-k or top-p
const ADJUSTED: u32 = 4u;  // penalties or bias
const MASKED: u32 = 8u;    // some tokens are not allowed

const RING: u32 = 16u;    // tokens sampled last that a slot keeps, by position
const TOPS: u32 = 21u;    // at most so many tokens' probabilities are reported
const BINS: u32 = 1024u;  // of depths, 32 per halving of the weight
const BIN_WORDS: u32 = 2052u;  // of a sample: tokens kept, order of the largest logit, -, -; the bins' lower and upper sums

fn sample_word(d: u32, i: u32) -> u32 {
    return samples[SAMPLE_WORDS * d + i];
}

fn sample_f32(d: u32, i: u32) -> f32 {
    return bitcast<f32>(sample_word(d, i));
}

// Words of a bitmap of the vocabulary.
fn map_words() -> u32 {
    return (params.vocab + 31u) / 32u;
}

// A float as an integer of the same order. Both zeros give the same integer; no finite float gives 0.
fn order(x: f32) -> u32 {
    let bits = select(bitcast<u32>(x), 0u, x == 0.0);
    return select(bits | 0x80000000u, ~bits, (bits & 0x80000000u) != 0u);
}

fn unorder(key: u32) -> f32 {
    return bitcast<f32>(select(~key, key & 0x7fffffffu, (key & 0x80000000u) != 0u));
}

// How far a logit lies below the largest: halvings of its weight, in units of 2^-16, below 32.
fn depth(largest: f32, x: f32, scale: f32) -> u32 {
    return min(u32(min((largest - x) * scale, 2097151.0)), 0x1fffffu);
}

// The weight at a depth, 2^26 * 2^-depth, to a relative 2^-14: an integer: devices agree, whatever the reduction order.
fn weight(e: u32) -> u32 {
    let f = e & 0xffffu;
    var m = 62u;
    m = 604u - ((f * m + 0x8000u) >> 16u);
    m = 3624u - ((f * m + 0x8000u) >> 16u);
    m = 15740u - ((f * m + 0x8000u) >> 16u);
    m = 45426u - ((f * m + 0x8000u) >> 16u);
    m = 65536u - ((f * m + 0x8000u) >> 16u);
    return (m << 10u) >> (e >> 16u);
}

// Weights are added in two sums, of their lower 13 bits and of the rest: neither overflows below 2^19 tokens.
const LOWER_BITS: u32 = 13u;
const LOWER: u32 = 0x1fffu;

// 64-bit sums, low word first.
fn wide(lower: u32, upper: u32) -> vec2<u32> {
    return add(vec2<u32>(lower, 0u), vec2<u32>(upper << LOWER_BITS, upper >> (32u - LOWER_BITS)));
}

fn add(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let low = a.x + b.x;
    return vec2<u32>(low, a.y + b.y + u32(low < a.x));
}

fn sub(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return vec2<u32>(a.x - b.x, a.y - b.y - u32(a.x < b.x));
}

fn less(a: vec2<u32>, b: vec2<u32>) -> bool {
    return a.y < b.y || (a.y == b.y && a.x < b.x);
}

// total * p / 2^16, rounded up; p is below 2^16.
fn share(total: vec2<u32>, p: u32) -> vec2<u32> {
    let r0 = (total.x & 0xffffu) * p;
    let r1 = (total.x >> 16u) * p + (r0 >> 16u);
    let r2 = (total.y & 0xffffu) * p + (r1 >> 16u);
    let r3 = (total.y >> 16u) * p + (r2 >> 16u);
    let whole = vec2<u32>((r1 & 0xffffu) | (r2 << 16u), r3);
    return add(whole, vec2<u32>(u32((r0 & 0xffffu) != 0u), 0u));
}
