//! GGUF files with large headers.

use wgslm::file::{Access, ModelFile};
use wgslm_test::fetched;

#[test]
fn large_headers_are_read_in_pieces() {
    // Longer than the first piece, so parsing starts again once or more.
    for (name, tokens, last) in [
        ("ggml-vocab-llama-bpe.gguf", 128_256, "<|reserved_special_token_250|>"),
        ("ggml-vocab-llama-spm.gguf", 32_000, "给"),
        ("ggml-vocab-gpt-2.gguf", 50_257, "<|endoftext|>"),
    ] {
        for access in [Access::Mapped, Access::Read] {
            let model = ModelFile::open_as(&fetched(&format!("vocab-gguf/{name}")), access).unwrap();
            let strings = model.gguf().unwrap().strings("tokenizer.ggml.tokens").unwrap();
            assert_eq!((strings.len(), strings.get(tokens - 1)), (tokens, Some(last)), "{name}");
            assert!(model.tensors().is_empty());
        }
    }
}
