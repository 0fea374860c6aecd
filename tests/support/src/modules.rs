//! Every module that there can be: each kernel with every choice of fragments.
use wgslm::gpu::compose::lib;
use wgslm::gpu::{Fragment, Kernel};
use wgslm::ops::KERNELS;
use wgslm::quant::BlockFormat;

/// The fragments that may fill a slot.
pub fn choices(slot: &str) -> Vec<Fragment> {
    match slot {
        "products" => vec![lib::MATVEC, lib::MATVEC_INT8],
        "weights" => BlockFormat::ALL.iter().map(decoder).collect(),
        "ints" => BlockFormat::ALL.iter().filter(|format| format.has_ints()).map(decoder).collect(),
        "cooperative" => vec![lib::COOPERATIVE],
        "matrices" => vec![lib::COOPERATIVE_16, lib::COOPERATIVE_8],
        "held" => vec![lib::TILE_F32, lib::TILE_F16],
        "reduce" => vec![lib::REDUCE, lib::REDUCE_SUBGROUP],
        "sums" => vec![lib::SUMS, lib::SUMS_SUBGROUP],
        "exchange" => vec![lib::EXCHANGE, lib::EXCHANGE_SUBGROUP],
        "kv" => vec![lib::KV_F32, lib::KV_F16, lib::KV_Q8, lib::KV_ROWS],
        "kv_cache" => vec![lib::KV_F32, lib::KV_F16, lib::KV_Q8],
        "kv_store" => vec![lib::KV_STORE_F32, lib::KV_STORE_F16],
        "head_store" => vec![lib::KV_STORE_F32, lib::KV_STORE_F16, lib::KV_STORE_Q8],
        "cache" => vec![lib::PAGED, lib::VECTORISED],
        "element" => vec![lib::SCALAR, lib::VEC4],
        "angles" => vec![lib::ANGLES_TABLE, lib::ANGLES_COMPUTED],
        other => panic!("a kernel has the slot <{other}>, which this test does not know"),
    }
}

fn decoder(format: &BlockFormat) -> Fragment {
    Fragment { name: format.info().name, source: format.info().wgsl }
}

pub fn all() -> Vec<Kernel> {
    let mut modules = Vec::new();
    for source in KERNELS {
        let mut filled: Vec<Vec<(&'static str, Fragment)>> = vec![Vec::new()];
        for slot in source.kernel().open_slots() {
            let with = |chosen: &Vec<_>, f| chosen.iter().copied().chain([(slot, f)]).collect::<Vec<_>>();
            filled = filled.iter().flat_map(|c| choices(slot).into_iter().map(move |f| with(c, f))).collect();
        }
        // Rows of a step have one layout.
        let no_cache = |c: &Vec<(_, Fragment)>| c.iter().any(|(_, f)| *f == lib::KV_ROWS);
        filled.retain(|c| !(no_cache(c) && c.iter().any(|(_, f)| *f == lib::VECTORISED)));
        // Floats are not rounded to integers.
        let no_ints: Vec<_> = BlockFormat::ALL.iter().filter(|format| !format.has_ints()).map(decoder).collect();
        let in_int8 = |c: &Vec<(_, Fragment)>| c.iter().any(|(_, f)| *f == lib::MATVEC_INT8);
        filled.retain(|c| !(in_int8(c) && c.iter().any(|(_, f)| no_ints.contains(f))));
        modules.extend(filled.into_iter().map(|slots| {
            let mut kernel = source.kernel();
            slots.into_iter().for_each(|(slot, fragment)| kernel.fill(slot, fragment));
            kernel
        }));
    }
    modules
}

/// Its kernel and fragments: `matvec Q8_0 lib/reduce`.
pub fn name(kernel: &Kernel) -> String {
    std::iter::once(kernel.name).chain(kernel.slots.iter().map(|(_, f)| f.name)).collect::<Vec<_>>().join(" ")
}

pub fn uses_subgroups(kernel: &Kernel) -> bool {
    kernel.slots.iter().any(|(_, f)| f.name.contains("subgroup"))
}

/// The side of its cooperative matrices, which no browser has.
pub fn cooperative(kernel: &Kernel) -> Option<u32> {
    let side = |(_, f): &(_, Fragment)| f.name.strip_prefix("lib/cooperative_")?.parse().ok();
    kernel.slots.iter().find_map(side)
}

/// Whether it has numbers of 16 bits, which not every device has.
pub fn uses_f16(kernel: &Kernel) -> bool {
    kernel.slots.iter().any(|(_, f)| f.source.contains("enable f16;"))
}
