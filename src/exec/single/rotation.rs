//! Rotations of single ops.

use crate::gpu::{Buffer, Device};
use crate::ops::lower::{AngleSource, Angles};
use crate::{Error, Result};

/// Where the cosines and sines of a rotation come from.
#[derive(Clone, Copy, Debug)]
pub enum Rotation<'a> {
    /// The host: (rows, pairs) of cosine and sine, two f32.
    Host {
        /// Where they are.
        angles: &'a Buffer,
        /// Pairs of elements that are rotated.
        pairs: u32,
    },
    /// `position * scale * frequencies[i]` radians for pair i, cosine and sine times `factor`: what linear scaling, llama3's,
    /// YaRN's and LongRoPE's come to.
    Frequencies {
        /// Radians a position, for each pair.
        frequencies: &'a [f64],
        /// A factor on all of them.
        scale: f64,
        /// On cosine and sine.
        factor: f32,
    },
    /// `position * scale * theta^(-2i / dims)` radians for pair i, cosine and sine times `factor`, without a table.
    Power {
        /// The base, above 1.
        theta: f64,
        /// Elements of a head that are rotated: even, at most 512.
        dims: u32,
        /// A factor on all angles, from 0 to 6.
        scale: f64,
        /// On cosine and sine.
        factor: f32,
    },
}

impl Rotation<'_> {
    /// Where kernels find it, and how many pairs it rotates. Where there is no table, `unused` is bound.
    pub(super) fn angles(&self, device: &Device, unused: &Buffer) -> Result<(Angles, usize)> {
        let (buffer, pairs, source) = match *self {
            Self::Host { angles, pairs } => (angles.clone(), pairs as usize, AngleSource::Host),
            Self::Frequencies { frequencies, scale, factor } => {
                let words: Vec<[u32; 2]> = frequencies.iter().map(|f| revolutions(f * scale)).collect();
                let buffer = Buffer::new(device, "revolutions", words.len() as u64 * 8)?;
                buffer.write(device, 0, &words);
                (buffer, frequencies.len(), AngleSource::Turns { factor })
            }
            Self::Power { theta, dims, scale, factor } => {
                let fits = theta > 1.0 && theta <= 1e15 && dims <= 512 && (0.0..=6.0).contains(&scale);
                if !fits {
                    let problem = format!("theta {theta}, {dims} dimensions, scale {scale}");
                    return Err(Error::argument("rotation", problem));
                }
                (unused.clone(), dims as usize / 2, AngleSource::Power { factor, theta, freq_scale: scale })
            }
        };
        Ok((Angles { buffer, at: 0, source }, pairs))
    }
}

/// Radians as fractions of a revolution, in 2⁻³² and 2⁻⁶⁴; whole revolutions are dropped.
fn revolutions(radians: f64) -> [u32; 2] {
    const WORD: f64 = (1u64 << 32) as f64;
    let scaled = (radians / std::f64::consts::TAU).rem_euclid(1.0) * WORD;
    [scaled.floor() as u32, ((scaled - scaled.floor()) * WORD) as u32]
}
