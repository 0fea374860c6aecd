//! kv_blocks: copies blocks of a cache onto others, or fills them with zeros
//! moves (count): from, to | kv (blocks, elements of a block), in elements of 32 or 128 bits
//! grid: x one thread for an element of a block, or for every `across`-th of a large one, y one move
//! use: <element>
//! source: copy_blocks of vLLM
//!
//! Moves of a dispatch write different blocks, and none reads what another writes: they run in no order.
struct Params {
    n: u32,       // elements of a block
    first: u32,   // the first move
    across: u32,  // threads of a move
}
override WG: u32 = 64u;
const ZEROS: u32 = 0xffffffffu;  // in place of a block to read: fill with zeros
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> moves: array<vec2<u32>>;
@group(0) @binding(2) var<storage, read_write> kv: array<elem>;

@compute @workgroup_size(WG)
fn kv_blocks(@builtin(global_invocation_id) id: vec3<u32>) {
    let move_ = moves[params.first + id.y];
    for (var i = id.x; i < params.n; i += params.across) {
        var v = elem();
        if move_.x != ZEROS {
            v = kv[move_.x * params.n + i];
        }
        kv[move_.y * params.n + i] = v;
    }
}
