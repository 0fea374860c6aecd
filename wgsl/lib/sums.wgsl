//! sums: many sums over a workgroup of WG threads (a multiple of 4), through workgroup memory at one barrier, however many there
//! are: barriers are dear where there is no hardware for them, and slow to compile where values live across them.
override WG: u32 = 32u;     // threads of a workgroup
override PARTS: u32 = 32u;  // WG times the sums; given, since naga 30 panics at such a product as a length
var<workgroup> parts: array<vec4<f32>, PARTS>;  // (sums, WG)

// Before the parts: each thread fills its own.
fn clear_parts(lid: u32) {}

// A thread's part of sum i.
fn put_part(i: u32, part: vec4<f32>, lid: u32) {
    parts[i * WG + lid] = part;
}

// Behind a barrier: the sum, in the order of the threads.
fn sum_of(i: u32) -> vec4<f32> {
    var sum = vec4<f32>(0.0);
    for (var t = i * WG; t < (i + 1u) * WG; t += 4u) {
        sum += (parts[t] + parts[t + 1u]) + (parts[t + 2u] + parts[t + 3u]);
    }
    return sum;
}
