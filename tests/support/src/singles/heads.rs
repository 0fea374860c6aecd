//! Rotation and KV writes of heads in every layout and storage type.

use super::*;

/// A rotation and a write of keys and values.
#[derive(Clone, Copy, Debug)]
pub struct Heads {
    pub heads: u32,
    pub kv_heads: u32,
    pub k_dim: u32,
    pub v_dim: u32,
    /// Positions in a block.
    pub slots: u32,
    pub storage: KvStorage,
    pub layout: KvLayout,
    /// None: q and k are not rotated; without queries the op is a `KvWrite`.
    pub rotation: Option<HeadRotation>,
    pub normed: bool,
    /// q | k | v in one value.
    pub together: bool,
    pub stand: Stand,
    /// A NaN, an infinity and a huge number are among the inputs.
    pub extreme: bool,
    /// The inputs are any f32, which f16 must round.
    pub fine: bool,
}

const EPS: f32 = 1e-5;

impl Heads {
    fn shape(&self) -> CacheShape {
        let Self { kv_heads, k_dim, v_dim, storage, layout, .. } = *self;
        let (slots, blocks) = if layout == KvLayout::Contiguous { (40, 3) } else { (self.slots, 12) };
        CacheShape { kv_heads, k_dim, v_dim, slots, blocks, storage, layout }
    }

    pub(super) async fn distance(&self, device: &Device, pipelines: &mut Pipelines) -> f64 {
        let mut rng = Rng(2);
        let shape = self.shape();
        let places = self.stand.places();
        let rows = places.len();
        let mut blocks: Vec<u32> = (0..shape.blocks).collect();
        rng.shuffle(&mut blocks);
        let tables: Vec<Vec<u32>> = match self.layout {
            KvLayout::Contiguous => Vec::new(),
            _ => blocks.chunks(4).map(<[u32]>::to_vec).collect(),
        };
        let seqs = if self.stand == Stand::Ids { 3 } else { 1 };
        let (step, counts) = self.stand.step(device, &tables[..tables.len().min(seqs)]);
        let mut single = Single::new(pipelines, &step);
        let cache_buffer = Buffer::new(device, "kv", shape.bytes()).unwrap();
        let before: Vec<u32> = (0..shape.bytes() / 4).map(|_| rng.word() as u32).collect();
        cache_buffer.write(device, 0, &before);
        let cache = single.cache(&cache_buffer, shape).unwrap();

        // q, k and v: columns of one value or of three.
        let Self { heads, kv_heads, k_dim, v_dim, .. } = *self;
        let widths = [heads * k_dim, kv_heads * k_dim, kv_heads * v_dim];
        let mut parts: Vec<Vec<f64>> = Vec::new(); // of q, k and v, row by row
        let mut views = Vec::new();
        let sources: Vec<u32> = if self.together { vec![widths.iter().sum()] } else { widths.to_vec() };
        let mut loaded = Vec::new();
        for (source, &width) in sources.iter().map(|w| w.max(&1)).enumerate() {
            let (id, buffer, mut values) = value(device, &mut single, rows, width, &mut rng);
            let stride = width.next_multiple_of(4) as usize;
            if self.fine {
                let all = values.chunks_mut(stride).flat_map(|row| &mut row[..width as usize]);
                all.for_each(|x| *x = rng.normal());
            }
            if self.extreme {
                for (row, x) in [(1, f32::NAN), (3, f32::NEG_INFINITY), (4, 1e38)] {
                    values[row * stride + source] = x;
                }
            }
            buffer.write(device, 0, &values);
            loaded.push((id, width, values));
        }
        for (i, width) in widths.into_iter().enumerate() {
            let (id, all, values) = &loaded[if self.together { 0 } else { i }];
            let at = if self.together { widths[..i].iter().sum() } else { 0 };
            let stride = all.next_multiple_of(4) as usize;
            let row = |row: &[f32]| row[at as usize..(at + width) as usize].iter().copied().map(f64::from).collect();
            parts.extend([values.chunks(stride).map(row).collect::<Vec<Vec<f64>>>().concat()]);
            views.push(View { value: *id, width: *all, at });
        }

        let weights =
            rng.normals(2 * k_dim.next_multiple_of(4) as usize, 0.3).iter().map(|x| 1.0 + x).collect::<Vec<f32>>();
        let vectors = Buffer::new(device, "vectors", weights.len() as u64 * 4).unwrap();
        vectors.write(device, 0, &weights);
        let ids = single.vectors(&vectors, &[k_dim, k_dim]).unwrap();
        let norm = |i: usize| {
            let spec = NormSpec { kind: NormKind::Rms, n: k_dim, weight: Some(ids[i]), bias: None, eps: EPS };
            self.normed.then_some(spec)
        };
        let out_buffer =
            Buffer::new(device, "out", ROWS * u64::from(widths[0].next_multiple_of(4).max(4)) * 4).unwrap();
        out_buffer.write(device, 0, &vec![CANARY; out_buffer.size() as usize / 4]);
        let positions: Vec<u32> = places.iter().map(|p| p.pos).collect();
        let rope = self.rotation.map(|rotation| rotation.add(device, &mut single, &positions));
        let op = if heads == 0 {
            Op::KvWrite(KvWrite { k: views[1].value, v: Some(views[2].value), cache, kv_heads, k_dim, v_dim })
        } else {
            let out = single.value(&out_buffer, widths[0]).unwrap();
            let (q_norm, k_norm) = (norm(0), norm(1));
            let (q, k, v) = (views[0], views[1], views[2]);
            let spec = RopeKvSpec { heads, kv_heads, head_dim: k_dim, rope, cache };
            Op::RopeKv(RopeKv { q, k, v, q_norm, k_norm, spec, out })
        };
        single.add(op).unwrap();
        single.finish().unwrap().submit(device, counts);

        // In f64.
        for (part, heads) in [(0, heads), (1, kv_heads)] {
            let all = &mut parts[part];
            for (i, head) in all.chunks_mut(k_dim as usize).enumerate() {
                if self.normed && head.iter().any(|x| x.abs() > 1e18) {
                    head.fill(LOST); // its squares overflow
                    continue;
                }
                if self.normed {
                    let mean = head.iter().map(|x| x * x).sum::<f64>() / f64::from(k_dim);
                    let scale = 1.0 / (mean + f64::from(EPS)).sqrt();
                    let from = part * k_dim.next_multiple_of(4) as usize;
                    head.iter_mut().zip(&weights[from..]).for_each(|(x, w)| *x *= scale * f64::from(*w));
                }
                if let Some(rotation) = self.rotation {
                    rotation.rotated(head, places[i / heads as usize].pos);
                }
            }
        }

        let mut worst = 0f64;
        if heads > 0 {
            let Some(got) = rows_of(device, &out_buffer, rows, widths[0]).await else { return WRONG };
            let q = distance(&got, &parts[0]);
            if q > POWER || q.is_nan() {
                return WRONG; // q is f32 whatever the cache is
            }
            worst = q;
        }
        let after: Vec<u32> = cache_buffer.read(device, 0..shape.bytes() / 4).await.unwrap();
        // WGSL lets a device round to either neighbour; these adapters are known to round to the nearest.
        let name = device.caps().name.to_lowercase();
        let nearest = name.contains("llvmpipe") || name.contains("swiftshader");
        self.cache_distance([&before, &after], &places, &tables, &parts, nearest).max(worst)
    }

    /// Compares the cache: what was written with f64, all else with what was there. `nearest`: numbers are rounded to the nearest f16.
    fn cache_distance(
        &self,
        [before, after]: [&[u32]; 2],
        places: &[RowPos],
        tables: &[Vec<u32>],
        parts: &[Vec<f64>],
        nearest: bool,
    ) -> f64 {
        let shape = self.shape();
        let lanes = u64::from(shape.storage.lanes());
        let bits = 32 / lanes;
        let lane =
            |words: &[u32], e: u64| (words[(e / lanes) as usize] >> (e % lanes * bits)) as u64 & ((1u64 << bits) - 1);
        let mut touched = vec![false; before.len() * lanes as usize];
        let (mut got, mut wanted) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
        for (r, place) in places.iter().enumerate() {
            let (block, slot) = match self.layout {
                KvLayout::Contiguous => (place.seq, place.pos),
                _ => (tables[place.seq as usize][(place.pos / shape.slots) as usize], place.pos % shape.slots),
            };
            for head in 0..self.kv_heads {
                for (part, dim, len) in [(0, self.k_dim, shape.padded_k()), (1, self.v_dim, shape.padded_v())] {
                    let scale = match shape.storage {
                        KvStorage::Q8 => {
                            let word = shape.scale_word(block, head, slot, part == 1);
                            (0..lanes).for_each(|j| touched[(word * lanes + j) as usize] = true);
                            f32::from_bits(after[word as usize])
                        }
                        _ => 1.0,
                    };
                    let at = ((r as u32 * self.kv_heads + head) * dim) as usize;
                    let vector = &parts[1 + part][at..at + dim as usize];
                    // Values, and keys that nothing changes, are stored as exactly as the type can.
                    let copied = part == 1 || (self.rotation.is_none() && !self.normed);
                    let largest = match vector.iter().all(|x| x.is_finite()) {
                        true => vector.iter().fold(0f64, |most, x| most.max(x.abs())),
                        false => f64::NAN,
                    };
                    if copied && shape.storage == KvStorage::Q8 && !is_scale(scale, largest) {
                        return WRONG;
                    }
                    for i in 0..len {
                        let e = match part {
                            0 => shape.k_element(block, head, slot, i),
                            _ => shape.v_element(block, head, slot, i),
                        };
                        assert!(!touched[e as usize], "two elements have one place");
                        touched[e as usize] = true;
                        let raw = lane(after, e);
                        let x = match shape.storage {
                            KvStorage::F32 => f32::from_bits(raw as u32),
                            KvStorage::F16 => half(raw as u32),
                            KvStorage::Q8 => f32::from(raw as u8 as i8) * scale,
                        };
                        if i >= dim {
                            if raw != 0 && !scale.is_nan() {
                                return WRONG; // padding
                            }
                            continue;
                        }
                        let own = vector[i as usize];
                        if copied && !is_stored(shape.storage, raw as u32, own, largest, nearest) {
                            return WRONG;
                        }
                        got[part].push(x);
                        wanted[part].push(own);
                    }
                    // A vector of 8 bits that holds something that is not finite is lost as a whole.
                    let n = got[part].len() - dim as usize;
                    if shape.storage == KvStorage::Q8 && wanted[part][n..].iter().any(|x| !x.is_finite()) {
                        wanted[part][n..].fill(f64::NAN);
                    } else if shape.storage == KvStorage::Q8 && wanted[part][n..].iter().any(|x| x.abs() > 1e30) {
                        // A huge number leaves nothing of the others.
                        let largest = |row: &[f64]| row.iter().fold(0f64, |most, x| most.max(x.abs()));
                        let got_largest = got[part][n..].iter().fold(0f32, |most, x| most.max(x.abs()));
                        let ratio = f64::from(got_largest) / largest(&wanted[part][n..]);
                        if wanted[part][n] != LOST && (ratio - 1.0).abs() > 0.01 {
                            return WRONG;
                        }
                        got[part].truncate(n);
                        wanted[part].truncate(n);
                    }
                }
            }
        }
        let same = touched.iter().enumerate().all(|(e, t)| *t || lane(before, e as u64) == lane(after, e as u64));
        if !same {
            return WRONG;
        }
        distance(&got[0], &wanted[0]).max(distance(&got[1], &wanted[1]))
    }
}

/// Whether a vector of 8 bits whose largest element is this has the right scale: NaN if it holds what is not finite. WGSL's division
/// is off by 2.5 units in the last place at most.
fn is_scale(scale: f32, largest: f64) -> bool {
    let wanted = largest / 127.0;
    if largest.is_nan() { scale.is_nan() } else { (f64::from(scale) - wanted).abs() <= 3e-7 * wanted }
}

/// Whether the bits of an element that is copied are what its type makes of it, in a vector of 8 bits with this largest element.
fn is_stored(storage: KvStorage, bits: u32, x: f64, largest: f64, nearest: bool) -> bool {
    match storage {
        KvStorage::F32 => f64::from(f32::from_bits(bits)) == x || (x.is_nan() && f32::from_bits(bits).is_nan()),
        KvStorage::F16 => {
            let mut rounded = [0; 2];
            BlockFormat::F16.encode(&[x as f32], &mut rounded).unwrap();
            let [got, wanted] = [bits, u16::from_le_bytes(rounded).into()].map(|bits| f64::from(half(bits)));
            if !wanted.is_finite() {
                return got == wanted || (got.is_nan() && wanted.is_nan());
            }
            // Of two that are as near, either: SwiftShader does not go by what is even. And there may be no subnormal numbers.
            let unit = x.abs().log2().floor().max(-14.0).exp2() / 1024.0;
            let near = if nearest { (got - x).abs() <= (wanted - x).abs() } else { (got - x).abs() < unit };
            near || (got == 0.0 && x.abs() < 0.5f64.powi(14))
        }
        // The nearest integer; of two that are as near but for the rounding of the scale's inverse and of products, either.
        KvStorage::Q8 => {
            let integer = if largest > 0.0 { 127.0 * x / largest } else { 0.0 };
            largest.is_nan() || (f64::from(bits as u8 as i8) - integer).abs() < 0.5 + 1e-4
        }
    }
}

/// The f32 of an f16's bits.
fn half(bits: u32) -> f32 {
    let sign = if bits & 0x8000 == 0 { 1.0 } else { -1.0 };
    let (exponent, mantissa) = (bits >> 10 & 31, (bits & 0x3ff) as f32 / 1024.0);
    match exponent {
        0 => sign * mantissa * 2f32.powi(-14),
        31 if mantissa == 0.0 => sign * f32::INFINITY,
        31 => f32::NAN,
        e => sign * (1.0 + mantissa) * 2f32.powi(e as i32 - 15),
    }
}
