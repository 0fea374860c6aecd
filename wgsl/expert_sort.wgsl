//! expert_sort: a counting sort of the pairs of row and part by the matrix that was chosen for them
//! chosen (rows, parts or more) f32: numbers of matrices | order: where each matrix's pairs begin, and the end; then row * parts + part
//! grid: one workgroup
//! use: lib/batch
//! source: tokens grouped by expert, MegaBlocks, Gale et al. 2022
struct Params {
    rows_at: u32,  // word of batch with the number of rows
    parts: u32,    // of a row
    stride: u32,   // elements from a row of chosen to the next
}
override WG: u32 = 256u;
override MATRICES: u32 = 8u;
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> batch: array<u32>;
@group(0) @binding(2) var<storage, read> chosen: array<f32>;
@group(0) @binding(3) var<storage, read_write> order: array<u32>;
var<workgroup> sh_ends: array<atomic<u32>, MATRICES>;  // pairs of a matrix; later, where its next pair goes
var<workgroup> sh_sums: array<u32, WG>;

fn matrix_of(pair: u32) -> u32 {
    let number = chosen[pair / params.parts * params.stride + pair % params.parts];
    return min(u32(max(number, 0.0)), MATRICES - 1u);
}

@compute @workgroup_size(WG)
fn expert_sort(@builtin(local_invocation_index) lid: u32) {
    let pairs = batch[params.rows_at] * params.parts;
    for (var m = lid; m < MATRICES; m += WG) {
        atomicStore(&sh_ends[m], 0u);
    }
    workgroupBarrier();
    for (var pair = lid; pair < pairs; pair += WG) {
        atomicAdd(&sh_ends[matrix_of(pair)], 1u);
    }
    workgroupBarrier();
    // A thread has consecutive matrices, whose pairs begin where those of the threads before it end.
    let share = (MATRICES + WG - 1u) / WG;
    let first = min(lid * share, MATRICES);
    let past = min(first + share, MATRICES);
    var sum = 0u;
    for (var m = first; m < past; m++) {
        sum += atomicLoad(&sh_ends[m]);
    }
    sh_sums[lid] = sum;
    workgroupBarrier();
    var start = 0u;
    for (var t = 0u; t < lid; t++) {
        start += sh_sums[t];
    }
    for (var m = first; m < past; m++) {
        order[m] = start;
        start += atomicExchange(&sh_ends[m], start);
    }
    if lid == 0u {
        order[MATRICES] = pairs;
    }
    workgroupBarrier();
    for (var pair = lid; pair < pairs; pair += WG) {
        order[MATRICES + 1u + atomicAdd(&sh_ends[matrix_of(pair)], 1u)] = pair;
    }
}
