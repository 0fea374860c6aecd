//! angles_table: cosine and sine of a row's pair from the host: `angles` (rows, ROPE_DIMS / 2) of two f32
fn angle(row: u32, pair: u32) -> vec2<f32> {
    return bitcast<vec2<f32>>(angles[row * (ROPE_DIMS / 2u) + pair]);
}
