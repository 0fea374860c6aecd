//! The cases of attention: single tokens and tiles over contexts of every length, each with options that models use.

use wgslm::exec::{GpuExecutor, GpuOptions, Limits, Numerics, Oracle, Outs, Phase, SeqStep, Step, Token};
use wgslm::gpu::Device;
use wgslm::model::CacheSpec;
use wgslm::ops::{Attend, Kv, Mask, Op};
use wgslm::quant::BlockFormat::F32;

use super::{CANARY, run};
use crate::programs::*;

/// Where keys and values are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvSource {
    Pages,
    /// In pages, values as the first elements of their keys.
    Latent,
    /// In the step's rows.
    Packed,
}

/// An attention op, and the sequences that it runs on.
#[derive(Clone, Debug)]
pub struct AttendCase {
    pub kv_source: KvSource,
    /// heads, kv_heads, k_dim, v_dim
    pub shape: [u32; 4],
    pub mask: Mask,
    pub softcap: f32,
    pub sinks: bool,
    pub slopes: bool,
    /// Positions in a block.
    pub block: u32,
    pub phase: Phase,
    /// For each sequence, the positions that are cached and the tokens of the step.
    pub seqs: Vec<(u32, u32)>,
    /// Tiles search for their sequence.
    pub search: bool,
    /// Inputs depend on their positions alone, not on how many come at once.
    pub by_position: bool,
    /// With `by_position`: the position whose values are infinite or NaN.
    pub broken: Option<u32>,
}

impl AttendCase {
    pub const PLAIN: Self = Self {
        kv_source: KvSource::Pages,
        shape: [4, 2, 16, 16],
        mask: Mask::Causal,
        softcap: 0.0,
        sinks: false,
        slopes: false,
        block: 16,
        phase: Phase::Decode,
        seqs: Vec::new(),
        search: false,
        by_position: false,
        broken: None,
    };

    pub fn op(&self) -> OneOp {
        let [heads, kv_heads, k_dim, v_dim] = self.shape;
        let widths = [heads * k_dim, kv_heads * k_dim, kv_heads * v_dim];
        let apart = self.kv_source != KvSource::Latent;
        OneOp::new(&widths[..if apart { 3 } else { 2 }], |b, x| {
            let group = b.group();
            let scale = 1.3 / (k_dim as f32).sqrt();
            let cache = match self.kv_source {
                KvSource::Latent => {
                    b.cache(CacheSpec::Pages { group, kv_heads, k_dim, v_dim, v_in_k: true, window: None })
                }
                _ => b.pages(group, kv_heads, k_dim, v_dim, None),
            };
            b.kv_write(cache, x[1], apart.then(|| x[2]));
            let [sinks, slopes] = [("sinks", self.sinks), ("slopes", self.slopes)]
                .map(|(name, wanted)| wanted.then(|| b.vector(name, heads)));
            let out = b.attend(x[0], cache, self.mask, scale);
            let Op::Attend(attend) = last_op(b) else { unreachable!() };
            let kv = if self.kv_source == KvSource::Packed { Kv::Packed { k: x[1], v: x[2] } } else { attend.kv };
            *attend = Attend { softcap: self.softcap, sinks, slopes, kv, ..attend.clone() };
            out
        })
    }

    /// Capacity for the sequences, and for filling their pages.
    fn limits(&self) -> Limits {
        let end = self.seqs.iter().map(|&(pos, rows)| pos + rows).max().unwrap_or(0);
        let rows = self.seqs.iter().map(|s| s.1).sum::<u32>().max(FILLED * FILLERS);
        let blocks = self.seqs.iter().map(|&(pos, rows)| (pos + rows).div_ceil(self.block)).sum::<u32>();
        Limits {
            rows: rows + 3,
            seqs: (self.seqs.len() as u32).max(FILLERS),
            outs: 1,
            block: self.block,
            blocks: blocks + 5,
            context: end.max(FILLED),
            in_flight: 2,
            checkpoints: 0,
        }
    }

    /// What the device computes for each row, what the oracle does, and the modules that ran.
    pub async fn outputs(&self, device: &Device, numerics: Numerics) -> (Vec<f32>, Vec<f64>, Vec<String>) {
        let op = self.op();
        let mut rng = Rng(self.seqs.len() as u64 + 5);
        let limits = self.limits();
        let weights = random_weights(&op.program, &[F32], &mut rng);
        let options = GpuOptions { numerics, kv: None, limits, unfused: true, keep_values: true };
        let mut gpu = GpuExecutor::load(device, &op.program, &*weights, options, &mut |_, _| {}).await.unwrap();
        gpu.fill_cache(0x7fc0_7e00); // NaN as f32, and as two f16
        if self.search {
            gpu.search_for_tiles();
        }
        let mut oracle = Oracle::new(&op.program, weights, limits);
        let mut pool = Pool::new(&limits, &mut rng);
        let tables: Vec<_> = self.seqs.iter().map(|&(pos, rows)| pool.table(pos + rows, &limits)).collect();

        // Positions that are there come as short sequences of their own over the same pages: in one op, a key does not know
        // where it stands. So no prompt of thousands of rows has to be attended to.
        let mut fillers = Vec::new();
        for (&(there, _), table) in self.seqs.iter().zip(&tables) {
            for first in (0..there).step_by(FILLED as usize) {
                fillers.push((first, FILLED.min(there - first), &table[(first / self.block) as usize..]));
            }
        }
        let token = [Token::Host(0)];
        let tokens = token.repeat(limits.rows as usize);
        for together in fillers.chunks(FILLERS as usize) {
            let groups: Vec<[&[u32]; 1]> = together.iter().map(|f| [f.2]).collect();
            let steps = together.iter().zip(&groups).enumerate();
            let seqs: Vec<_> =
                steps.map(|(i, (f, group))| seq(i, Phase::Prefill, 0, &tokens[..f.1 as usize], group)).collect();
            let positions = together.iter().flat_map(|&(first, rows, _)| first..first + rows).collect();
            self.step(&mut gpu, &mut oracle, &op, positions, &mut rng, &seqs).await;
        }
        let groups: Vec<[&[u32]; 1]> = tables.iter().map(|t| [t.as_slice()]).collect();
        let steps = self.seqs.iter().zip(&groups).enumerate();
        let part = |(i, (&(pos, rows), group))| seq(i, self.phase, pos, &tokens[..rows as usize], group);
        let seqs: Vec<_> = steps.map(part).collect();
        let canary = vec![CANARY; (limits.rows * self.shape[0] * self.shape[3]) as usize];
        gpu.set_value(self.phase, op.out, &canary);
        let positions = self.seqs.iter().flat_map(|&(pos, rows)| pos..pos + rows).collect();
        self.step(&mut gpu, &mut oracle, &op, positions, &mut rng, &seqs).await;
        let all = gpu.value(self.phase, op.out, limits.rows).await.unwrap();
        let wanted = oracle.value(op.out).concat();
        let (got, rest) = all.split_at(wanted.len());
        assert!(got.iter().all(|x| *x != CANARY), "{self:?}: an element was not written");
        assert!(rest.iter().all(|x| *x == CANARY), "{self:?}: a row past the last was written");
        (got.to_vec(), wanted, gpu.modules())
    }

    async fn step(
        &self,
        gpu: &mut GpuExecutor,
        oracle: &mut Oracle,
        op: &OneOp,
        positions: Vec<u32>,
        rng: &mut Rng,
        seqs: &[SeqStep<'_>],
    ) {
        for &id in &op.inputs {
            let width = op.program.value(id).width as usize;
            let of = |pos: &u32| match self.broken == Some(*pos) && op.inputs.get(2) == Some(&id) {
                true => [f32::INFINITY, f32::NAN, f32::NEG_INFINITY].into_iter().cycle().take(width).collect(),
                false => Rng(u64::from(8 * pos + id.0)).normals(width, 1.5),
            };
            let values = match self.by_position {
                true => positions.iter().flat_map(of).collect(),
                false => rng.normals(positions.len() * width, 1.5),
            };
            gpu.set_value(seqs[0].phase, id, &values);
            let rows = values.chunks(width).map(|row| row.iter().copied().map(f64::from).collect());
            oracle.set_value(id, rows.collect());
        }
        run(gpu, seqs).await;
        oracle.step(&Step { seqs }).unwrap();
    }
}

fn seq<'a>(slot: usize, phase: Phase, pos: u32, tokens: &'a [Token], tables: &'a [&'a [u32]; 1]) -> SeqStep<'a> {
    SeqStep { outs: Outs::None, read_logits: false, ..rows(slot as u32, phase, tokens, pos, tables) }
}

/// Positions of a filling sequence (a multiple of every block size), and how many come at once.
const FILLED: u32 = 64;
const FILLERS: u32 = 4;

/// Prompts for the form by cooperative matrices: ratios and sizes of heads, blocks, masks, ragged sequences over what is there.
pub fn cooperative() -> Vec<AttendCase> {
    let shapes = [
        [2, 2, 64, 64],
        [3, 1, 80, 80],
        [4, 1, 128, 128],
        [7, 1, 32, 32],
        [3, 3, 256, 256],
        [8, 2, 64, 64],
        [6, 3, 65, 63],
        [1, 1, 1, 1],
    ];
    let masks =
        [Mask::Causal, Mask::Window(5), Mask::Full, Mask::Window(70), Mask::BidirectionalWindow(9), Mask::Window(0)];
    let contexts: [&[(u32, u32)]; 5] = [
        &[(15, 1), (0, 1), (16, 1), (31, 3), (7, 2)],
        &[(130, 1), (0, 33), (64, 9)],
        &[(0, 95)],
        &[(150, 2), (0, 8), (100, 17)],
        &[(0, 1)],
    ];
    let case = |(i, shape): (usize, [u32; 4])| AttendCase {
        shape,
        phase: Phase::Prefill,
        mask: masks[i % masks.len()],
        softcap: [0.0, 2.0][i / 2 % 2],
        sinks: i % 3 == 1,
        slopes: i % 4 == 2,
        block: [8, 16, 32][i % 3],
        seqs: contexts[i % contexts.len()].to_vec(),
        ..AttendCase::PLAIN
    };
    let mut cases: Vec<_> = shapes.into_iter().chain(shapes).enumerate().map(case).collect();
    let seqs = vec![(40, 5), (0, 1), (100, 20)];
    cases.push(AttendCase {
        kv_source: KvSource::Latent,
        shape: [5, 1, 72, 64],
        phase: Phase::Prefill,
        seqs,
        ..AttendCase::PLAIN
    });
    cases
}

/// All options of attention, pair by pair.
pub fn cases() -> Vec<AttendCase> {
    let plain = AttendCase::PLAIN;
    // Ratios of heads, sizes of heads, sizes of blocks, contexts: each value of each meets both kernels.
    let shapes: &[[u32; 4]] = &[
        [1, 1, 1, 1],
        [4, 2, 16, 16],
        [3, 1, 32, 32],
        [10, 2, 64, 64],
        [7, 1, 80, 80],
        [6, 2, 96, 96],
        [2, 2, 112, 112],
        [8, 1, 128, 128],
        [4, 1, 256, 256],
        [6, 1, 65, 63],
        [6, 3, 5, 5],
        [3, 3, 32, 8],
        [9, 3, 64, 48],
    ];
    let masks =
        [Mask::Causal, Mask::Window(5), Mask::Full, Mask::Window(70), Mask::BidirectionalWindow(9), Mask::Window(0)];
    let contexts: &[&[(u32, u32)]] = &[
        &[(0, 1)],
        &[(15, 1), (0, 1), (16, 1), (31, 3), (7, 2)],
        &[(300, 1), (0, 33), (64, 9)],
        &[(0, 95)],
        &[(255, 2), (0, 8), (513, 17)],
    ];
    let mut cases = Vec::new();
    for (i, &shape) in shapes.iter().enumerate() {
        for (j, phase) in Phase::ALL.into_iter().enumerate() {
            for n in 0..3 {
                let at = 3 * i + n + j;
                cases.push(AttendCase {
                    shape,
                    phase,
                    mask: masks[at % masks.len()],
                    softcap: [0.0, 2.0][at / 2 % 2],
                    sinks: at % 3 == 1,
                    slopes: at % 4 == 2,
                    block: [8, 16, 32][(i + n) % 3],
                    kv_source: if at % 5 == 3 { KvSource::Packed } else { KvSource::Pages },
                    seqs: contexts[(at + i) % contexts.len()].to_vec(),
                    search: at % 2 == 0,
                    by_position: false,
                    broken: None,
                });
            }
        }
    }
    for case in &mut cases {
        if case.kv_source == KvSource::Packed {
            case.seqs.iter_mut().for_each(|s| s.0 = 0); // sequences are whole
        }
    }
    for phase in Phase::ALL {
        // Latent attention: one KV head, many query heads.
        for shape in [[16, 1, 72, 64], [5, 1, 576, 512], [2, 1, 13, 6], [2, 1, 521, 518]] {
            let seqs = vec![(40, 5), (0, 1), (700, 1)];
            cases.push(AttendCase { kv_source: KvSource::Latent, shape, phase, seqs, ..plain.clone() });
        }
        // Long, and everything at once.
        let seqs = vec![(8191, 1), (8192, 1), (1, 1), (4100, 2)];
        cases.push(AttendCase { phase, seqs, shape: [3, 1, 16, 16], ..plain.clone() });
        let seqs = vec![(9000, 1), (3, 1)];
        let mask = Mask::Window(4000);
        let all = AttendCase { softcap: 3.0, sinks: true, slopes: true, mask, ..plain.clone() };
        cases.push(AttendCase { phase, seqs, block: 32, shape: [5, 1, 20, 12], ..all });
    }
    cases
}
