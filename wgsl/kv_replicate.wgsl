//! kv_replicate: out[r, h, i] = x[r, h / GROUP, i], of keys and values at once or of one of them
//! x (rows, kv_heads, N) | out (rows, kv_heads * GROUP, N), in elements of 32 or 128 bits, whatever they hold
//! grid: x and y one thread for an element of the result, `across` threads in a row of the grid
//! use: <element>
//! source: ROCmForge, mqa_kv_replicate_k, mqa_kv_replicate_v, mqa_kv_replicate_fused
//! bench only: the attention kernels share the load of a KV head among its query heads instead.
struct Params {
    total: u32,   // elements of a result
    across: u32,
}
override WG: u32 = 64u;
override N: u32 = 1u;          // elements of a head
override GROUP: u32 = 1u;      // query heads per KV head
override BOTH: bool = false;   // also y to out_y
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<elem>;
@group(0) @binding(2) var<storage, read> y: array<elem>;
@group(0) @binding(3) var<storage, read_write> out: array<elem>;
@group(0) @binding(4) var<storage, read_write> out_y: array<elem>;

@compute @workgroup_size(WG)
fn kv_replicate(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.y * params.across + id.x;
    if i >= params.total {
        return;
    }
    // Heads of a row are contiguous, so (r, h) divided by GROUP is the head of x among all rows'.
    let source = i / (N * GROUP) * N + i % N;
    out[i] = x[source];
    if BOTH {
        out_y[i] = y[source];
    }
}
