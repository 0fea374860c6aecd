//! Every tensor type that a GGUF file may name, whether this engine decodes it or not: what is needed to check a
//! tensor's size and to say what is not supported. Source: `ggml_type` and `type_traits` in ggml.

/// A tensor type of GGUF.
#[derive(Debug, PartialEq, Eq)]
pub struct GgmlType {
    /// Its number in files.
    pub id: u32,
    /// Its name, as tools print it.
    pub name: &'static str,
    /// Elements in a block.
    pub weights: u32,
    /// Bytes of a block.
    pub bytes: u32,
}

/// The type with this number; none for numbers that were never given or were withdrawn (4, 5, 31–33, 36–38).
pub fn by_id(id: u32) -> Option<&'static GgmlType> {
    TYPES.iter().find(|t| t.id == id)
}

/// `(id, name, elements, bytes)` as a table.
macro_rules! types {
    ($(($id:literal, $name:literal, $weights:literal, $bytes:literal),)*) => {
        /// All types, by number.
        pub static TYPES: &[GgmlType] =
            &[$(GgmlType { id: $id, name: $name, weights: $weights, bytes: $bytes },)*];
    };
}

types! {
    (0, "F32", 1, 4),
    (1, "F16", 1, 2),
    (2, "Q4_0", 32, 18),
    (3, "Q4_1", 32, 20),
    (6, "Q5_0", 32, 22),
    (7, "Q5_1", 32, 24),
    (8, "Q8_0", 32, 34),
    (9, "Q8_1", 32, 36),
    (10, "Q2_K", 256, 84),
    (11, "Q3_K", 256, 110),
    (12, "Q4_K", 256, 144),
    (13, "Q5_K", 256, 176),
    (14, "Q6_K", 256, 210),
    (15, "Q8_K", 256, 292),
    (16, "IQ2_XXS", 256, 66),
    (17, "IQ2_XS", 256, 74),
    (18, "IQ3_XXS", 256, 98),
    (19, "IQ1_S", 256, 50),
    (20, "IQ4_NL", 32, 18),
    (21, "IQ3_S", 256, 110),
    (22, "IQ2_S", 256, 82),
    (23, "IQ4_XS", 256, 136),
    (24, "I8", 1, 1),
    (25, "I16", 1, 2),
    (26, "I32", 1, 4),
    (27, "I64", 1, 8),
    (28, "F64", 1, 8),
    (29, "IQ1_M", 256, 56),
    (30, "BF16", 1, 2),
    (34, "TQ1_0", 256, 54),
    (35, "TQ2_0", 256, 66),
    (39, "MXFP4", 32, 17),
    (40, "NVFP4", 64, 36),
    (41, "Q1_0", 128, 18),
}
