//! sums: many sums over a workgroup of WG threads (a multiple of 4), through workgroup memory at one barrier, however many there
//! are: barriers are expensive where there is no hardware for them, and slow to compile where values live across them.
override WG: u32 = 32u;     // threads of a workgroup
override PARTIALS: u32 = 32u;  // WG times the sums; set by the host, since naga 30 panics at such a product as a length
var<workgroup> sh_partials: array<vec4<f32>, PARTIALS>;  // (sums, WG)

// Called before put_partial: nothing to clear, each thread fills its own slot.
fn clear_partials(lid: u32) {}

// Stores a thread's part of sum i.
fn put_partial(i: u32, partial: vec4<f32>, lid: u32) {
    sh_partials[i * WG + lid] = partial;
}

// After a barrier: the sum, in the order of the threads.
fn sum_of(i: u32) -> vec4<f32> {
    var sum = vec4<f32>(0.0);
    for (var t = i * WG; t < (i + 1u) * WG; t += 4u) {
        sum += (sh_partials[t] + sh_partials[t + 1u]) + (sh_partials[t + 2u] + sh_partials[t + 3u]);
    }
    return sum;
}
