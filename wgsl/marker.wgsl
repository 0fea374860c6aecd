//! marker: mark[0] = number[0] ^ salt: the last dispatch of a submission, which shows that it ran
//! number (1) u32 | mark (1) u32
//! grid: one workgroup of one thread
//! source: our own
struct Params {
    salt: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> number: array<u32>;
@group(0) @binding(2) var<storage, read_write> mark: array<u32>;

@compute @workgroup_size(1)
fn marker() {
    mark[0] = number[0] ^ params.salt;
}
