//! The most likely tokens of a row, in two passes of which compilers make vector instructions.

/// Lanes that are compared side by side.
const LANES: usize = 16;
/// Logits of which a lane finds its largest, at least and at most.
const GROUPS: [usize; 2] = [4, 64];

/// A token's place in the order from the most likely: by its logit, then by its id.
pub(super) fn place(x: f32, id: u32) -> u64 {
    let bits = if x == 0.0 { 0 } else { x.to_bits() };
    let order = if bits >> 31 != 0 { !bits } else { bits | 0x8000_0000 };
    u64::from(!order) << 32 | u64::from(id)
}

/// The logit of a place.
fn logit(place: u64) -> f32 {
    let order = !(place >> 32) as u32;
    f32::from_bits(if order >> 31 != 0 { order & 0x7fff_ffff } else { !order })
}

/// Whether no logit is NaN or infinite: those have an exponent of all ones.
pub(crate) fn all_finite(logits: &[f32]) -> bool {
    const EXPONENT: u32 = 0x7f80_0000;
    !logits.iter().fold(false, |any, x| any | (x.to_bits() & EXPONENT == EXPONENT))
}

/// The largest of each lane.
fn largest_by_lane(logits: &[f32]) -> [f32; LANES] {
    let mut largest = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = logits.as_chunks::<LANES>();
    let mut compare = |part: &[f32]| {
        for (largest, x) in largest.iter_mut().zip(part) {
            *largest = if *x > *largest { *x } else { *largest };
        }
    };
    chunks.iter().for_each(|chunk| compare(chunk));
    compare(rest);
    largest
}

/// The largest logit; -infinity of none.
pub(super) fn largest(logits: &[f32]) -> f32 {
    largest_by_lane(logits).into_iter().fold(f32::NEG_INFINITY, f32::max)
}

/// The most tokens that [`likeliest`] finds quickly among so many.
pub(super) fn few(vocab: usize) -> usize {
    vocab / GROUPS[0] / 4
}

/// Adds what `of` makes of each token from `first` on whose logit fits, and of its logit. Where none of a group fits, that is all
/// that is looked at.
pub(crate) fn gather<T>(
    logits: &[f32],
    first: u32,
    fits: impl Fn(f32) -> bool,
    of: impl Fn(u32, f32) -> T,
    out: &mut Vec<T>,
) {
    for (first, part) in (first..).step_by(LANES).zip(logits.chunks(LANES)) {
        if part.iter().fold(false, |any, x| any | fits(*x)) {
            let fitting = (first..).zip(part).filter(|(_, x)| fits(**x));
            out.extend(fitting.map(|(id, x)| of(id, *x)));
        }
    }
}

/// The places of the `n` most likely tokens, from the most likely down; of all, if there are fewer.
///
/// A row is divided into groups, of which there are some times as many as tokens are wanted. The n-th largest of the groups' largest
/// logits is no larger than the n-th largest of all, so only what is as large as that is sorted.
pub(crate) fn likeliest(logits: &[f32], n: usize, places: &mut Vec<u64>) {
    places.clear();
    if n == 0 {
        return;
    }
    let group = (logits.len() / n / 4).clamp(GROUPS[0], GROUPS[1]);
    for segment in logits.chunks(group * LANES) {
        places.extend(largest_by_lane(segment).map(|x| place(x, 0)));
    }
    let bound = if n < places.len() { logit(*places.select_nth_unstable(n - 1).1) } else { f32::NEG_INFINITY };
    places.clear();
    gather(logits, 0, |x| x >= bound, |id, x| place(x, id), places);
    if n < places.len() {
        places.select_nth_unstable(n - 1);
        places.truncate(n);
    }
    places.sort_unstable();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of any length, with ties, zeros of both signs and the largest numbers.
    fn rows() -> impl Iterator<Item = Vec<f32>> {
        let mut random = 0x2545_f491_4f6c_dd1d_u64;
        let mut next = move || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random >> 33
        };
        (0..300).map(move |i| {
            let len = [1, 15, 16, 17, 1000, 1024, 1025, 5000, 20_000][i % 9] + next() as usize % 3;
            let levels = [2, 50, 1 << 30][i / 9 % 3];
            let one = |n: u64| match n % 400 {
                0 => f32::MAX,
                1 => f32::MIN,
                2 => -0.0,
                3 => 0.0,
                _ => (n % levels) as f32 / levels as f32 * 20.0 - 12.0,
            };
            (0..len).map(|_| one(next())).collect()
        })
    }

    #[test]
    fn the_likeliest_are_those_that_sorting_finds() {
        let mut places = Vec::new();
        for row in rows() {
            let mut sorted: Vec<u32> = (0..row.len() as u32).collect();
            sorted.sort_by(|a, b| row[*b as usize].partial_cmp(&row[*a as usize]).unwrap().then(a.cmp(b)));
            for n in [0, 1, 2, 20, 40, few(row.len()), row.len(), row.len() + 1] {
                likeliest(&row, n, &mut places);
                let ids: Vec<u32> = places.iter().map(|place| *place as u32).collect();
                assert_eq!(ids, sorted[..n.min(row.len())], "{n} of {}", row.len());
            }
            assert_eq!(largest(&row), row[sorted[0] as usize]);
        }
    }

    #[test]
    fn one_logit_that_is_not_finite_is_seen_wherever_it_is() {
        for mut row in rows().take(60) {
            assert!(all_finite(&row));
            let at = row.len() * 7 / 11;
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                row[at] = bad;
                assert!(!all_finite(&row));
            }
        }
    }
}
