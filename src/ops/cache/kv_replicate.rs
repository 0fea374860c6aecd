//! `kv_replicate`: repeats each KV head for the query heads that share it.

use crate::gpu::compose::lib;
use crate::gpu::params::params;
use crate::gpu::{Arg, Buffer, Caps, Dim, PlanBuilder};
use crate::ops::KvStorage;
use crate::ops::kernels;
use crate::ops::lower::WIDE;
use crate::{Error, Result};

/// `out[r, h, i] = x[r, h / (q_heads / kv_heads), i]`: x (rows, kv_heads, head_dim) | out (rows, q_heads, head_dim).
///
/// For multi-query and grouped-query attention by kernels that know neither; rows are (batch, sequence). The engine does not
/// need it: our attention kernels share the load of a KV head among its query heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvReplicate {
    /// Batch times sequence.
    pub rows: u32,
    /// Heads of keys and values.
    pub kv_heads: u32,
    /// Query heads, a multiple of those.
    pub q_heads: u32,
    /// Elements of a head.
    pub head_dim: u32,
    /// The type of the elements.
    pub storage: KvStorage,
}

params! {
    pub(crate) struct Params {
        total: u32,
        across: u32,
    }
}

impl KvReplicate {
    /// Fails on empty tensors, on query heads that cannot share KV heads evenly, on heads that are not whole words.
    pub fn check(&self) -> Result<()> {
        let wrong = |problem: String| Err(Error::argument("kv_replicate", problem));
        let Self { rows, kv_heads, q_heads, head_dim, storage } = *self;
        if rows == 0 || kv_heads == 0 || q_heads == 0 || head_dim == 0 {
            return wrong(format!("{rows} rows, {kv_heads} KV heads, {q_heads} query heads of {head_dim} elements"));
        }
        if !q_heads.is_multiple_of(kv_heads) {
            return wrong(format!("{q_heads} query heads are not a multiple of {kv_heads} KV heads"));
        }
        if !head_dim.is_multiple_of(storage.lanes()) || storage == KvStorage::Q8 {
            return wrong(format!("heads of {head_dim} elements of {storage:?}: f32 works, and f16 in even numbers"));
        }
        Ok(())
    }

    /// Bytes of x and of out.
    pub fn bytes(&self) -> [u64; 2] {
        self.row_bytes().map(|row| row * u64::from(self.rows))
    }

    fn row_bytes(&self) -> [u64; 2] {
        [self.kv_heads, self.q_heads]
            .map(|heads| u64::from(heads) * u64::from(self.head_dim / self.storage.lanes()) * 4)
    }

    /// Adds the dispatches for one tensor, or for keys and values at once: pairs of x and out.
    ///
    /// Tensors that a binding cannot hold are split by rows, over as many dispatches as that needs.
    pub fn dispatch(&self, plan: &mut PlanBuilder<'_>, tensors: &[(&Buffer, &Buffer)]) -> Result<()> {
        self.check()?;
        let ((x, out), second) = match *tensors {
            [one] => (one, None),
            [k, v] => (k, Some(v)),
            _ => return Err(Error::argument("kv_replicate", format!("{} tensors, one or two work", tensors.len()))),
        };
        let [x_bytes, out_bytes] = self.bytes();
        let read = |out: &Buffer| tensors.iter().any(|(x, _)| x.is(out));
        let written = |out: &Buffer| tensors.iter().filter(|(_, other)| other.is(out)).count();
        for (x, out) in tensors {
            if read(out) || written(out) > 1 {
                return Err(Error::argument("kv_replicate", "out is another of its tensors"));
            }
            for (what, buffer, bytes) in [("x", x, x_bytes), ("out", out, out_bytes)] {
                if buffer.size() < bytes {
                    let problem = format!("{what} needs {bytes} bytes, the buffer has {}", buffer.size());
                    return Err(Error::argument("kv_replicate", problem));
                }
            }
        }
        let words = self.head_dim / self.storage.lanes();
        let (fragment, n) = if words.is_multiple_of(4) { (lib::VEC4, words / 4) } else { (lib::SCALAR, words) };
        let mut kernel = kernels::KV_REPLICATE.kernel();
        kernel.fill("element", fragment);
        kernel.set("N", n);
        kernel.set("GROUP", self.q_heads / self.kv_heads);
        kernel.set("BOTH", second.is_some());
        let caps = plan.device().caps().clone();
        let step = self.rows_at_once(&caps)?;
        let [x_row, out_row] = self.row_bytes();
        for first in (0..self.rows).step_by(step as usize) {
            let rows = u64::from(step.min(self.rows - first));
            let part = |row: u64| u64::from(first) * row..(u64::from(first) + rows) * row;
            let total = (rows * u64::from(self.q_heads) * u64::from(n)) as u32;
            let groups = total.div_ceil(WIDE);
            let across = groups.min(caps.max_groups);
            let params = Params { total, across: across * WIDE };
            let (x_arg, out_arg) = (Arg::ReadPart(x, part(x_row)), Arg::WritePart(out, part(out_row)));
            let (y_arg, out_y_arg) = match second {
                Some((y, out_y)) => (Arg::ReadPart(y, part(x_row)), Arg::WritePart(out_y, part(out_row))),
                None => (x_arg.clone(), Arg::Unused),
            };
            let grid = [Dim::Fixed(across), Dim::Fixed(groups.div_ceil(across)), Dim::Fixed(1)];
            plan.dispatch(&kernel, &params, &[x_arg, y_arg, out_arg, out_y_arg], grid)?;
        }
        Ok(())
    }

    /// Rows of a dispatch: as many as a binding holds, rounded down so that the next dispatch's begin at an aligned offset.
    fn rows_at_once(&self, caps: &Caps) -> Result<u32> {
        let [x_row, out_row] = self.row_bytes();
        let most = (caps.max_binding / out_row).min(u64::from(u32::MAX / 4) / (out_row / 4));
        if most >= u64::from(self.rows) {
            return Ok(self.rows);
        }
        // Rows are complete words, so `align` of them are always aligned; fewer may be, too.
        let align = u64::from(caps.storage_align.max(4));
        let aligned = (1..=align / 4).find(|n| (n * x_row) % align == 0 && (n * out_row) % align == 0).unwrap_or(align);
        match most / aligned * aligned {
            0 => Err(Error::Limit {
                what: "kv_replicate".to_owned(),
                needed: format!("{} bytes for {aligned} rows", aligned * out_row),
                available: format!("{} in one binding on this device", caps.max_binding),
                instead: "fewer heads at once".to_owned(),
            }),
            rows => Ok(rows as u32),
        }
    }

    /// The same on the CPU, element by element: what the kernel is compared with.
    pub fn oracle<T: Copy>(&self, x: &[T]) -> Vec<T> {
        let [kv_heads, q_heads, n] = [self.kv_heads, self.q_heads, self.head_dim].map(|d| d as usize);
        let element = |at: usize| {
            let (row, head, i) = (at / (q_heads * n), at / n % q_heads, at % n);
            x[(row * kv_heads + head / (q_heads / kv_heads)) * n + i]
        };
        (0..self.rows as usize * q_heads * n).map(element).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: KvReplicate = KvReplicate { rows: 2, kv_heads: 2, q_heads: 6, head_dim: 1, storage: KvStorage::F32 };

    #[test]
    fn heads_follow_one_another_as_often_as_they_are_shared() {
        assert_eq!(SMALL.oracle(&[1, 2, 3, 4]), [1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4]);
    }

    #[test]
    fn shapes_that_make_no_sense_are_refused() {
        for (wrong, says) in [
            (KvReplicate { q_heads: 5, ..SMALL }, "not a multiple"),
            (KvReplicate { q_heads: 1, ..SMALL }, "not a multiple"),
            (KvReplicate { rows: 0, ..SMALL }, "0 rows"),
            (KvReplicate { kv_heads: 0, ..SMALL }, "0 KV heads"),
            (KvReplicate { q_heads: 0, ..SMALL }, "0 query heads"),
            (KvReplicate { head_dim: 0, ..SMALL }, "of 0 elements"),
            (KvReplicate { storage: KvStorage::F16, ..SMALL }, "even"),
            (KvReplicate { storage: KvStorage::Q8, head_dim: 8, ..SMALL }, "f32 works"),
        ] {
            let error = wrong.check().unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
