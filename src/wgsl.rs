//! The texts of `wgsl/`, as they are compiled in: whole, without their comments where they are downloaded, and not at all in the
//! module that runs on the processor.
//!
//! Comments are a quarter of the texts, and not what a page needs. Lines keep their numbers, so what a compiler says
//! of a line is true of the file. Two comments mean something to [`compose`](crate::gpu::compose) and stay.

/// The text of the file `wgsl/$name.wgsl`.
macro_rules! wgsl {
    ($name:expr) => {{
        const FILE: &str = if cfg!(feature = "web-cpu") {
            ""
        } else {
            include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/wgsl/", $name, ".wgsl"))
        };
        #[cfg(target_arch = "wasm32")]
        {
            const BYTES: &[u8; $crate::wgsl::copy_code(FILE, &mut [])] = &{
                let mut bytes = [0; $crate::wgsl::copy_code(FILE, &mut [])];
                $crate::wgsl::copy_code(FILE, &mut bytes);
                bytes
            };
            const CODE: &str = match str::from_utf8(BYTES) {
                Ok(code) => code,
                Err(_) => panic!("comments end where characters end"),
            };
            CODE
        }
        #[cfg(not(target_arch = "wasm32"))]
        FILE
    }};
}
pub(crate) use wgsl;

/// Copies a text into `out` without its comments, as far as `out` reaches: the length of all that there is to copy.
#[cfg_attr(
    not(any(test, target_arch = "wasm32")),
    expect(dead_code, reason = "there, the texts are compiled in whole")
)]
pub(crate) const fn copy_code(text: &str, out: &mut [u8]) -> usize {
    let text = text.as_bytes();
    let (mut at, mut length) = (0, 0);
    let mut in_comment = false;
    // How much of the comment is still to be copied.
    let mut kept = 0;
    while at < text.len() {
        if text[at] == b'\n' {
            in_comment = false;
        } else if !in_comment && starts_with(text, at, "//") {
            in_comment = true;
            kept = if starts_with(text, at, "//! use:") {
                usize::MAX
            } else if starts_with(text, at, "// set:") {
                "// set:".len()
            } else {
                0
            };
        }
        if !in_comment || kept > 0 {
            if length < out.len() {
                out[length] = text[at];
            }
            length += 1;
            kept = kept.saturating_sub(1);
        }
        at += 1;
    }
    length
}

const fn starts_with(text: &[u8], at: usize, prefix: &str) -> bool {
    let prefix = prefix.as_bytes();
    let mut i = 0;
    while i < prefix.len() && at + i < text.len() && text[at + i] == prefix[i] {
        i += 1;
    }
    i == prefix.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::compose::{self, lib};

    fn code(text: &str) -> String {
        let mut bytes = vec![0; copy_code(text, &mut [])];
        copy_code(text, &mut bytes);
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn comments_go_and_lines_stay() {
        let text = "//! k: a kernel, »éx«\n//! use: lib/batch, <kv>\n\n// Why.\nconst N: u32 = 1u;  // set: of rows\nlet x = a / b; // c // d\n//";
        let bare = "\n//! use: lib/batch, <kv>\n\n\nconst N: u32 = 1u;  // set:\nlet x = a / b; \n";
        assert_eq!(code(text), bare);
        assert_eq!(code(""), "");
    }

    #[test]
    fn every_text_means_the_same_without_its_comments() {
        let texts = || {
            let kernels = crate::ops::KERNELS.iter().map(|kernel| kernel.source);
            let formats = crate::quant::BlockFormat::ALL.iter().map(|format| format.info().wgsl);
            kernels.chain(formats).chain(lib::LIB.iter().map(|fragment| fragment.source))
        };
        let (mut whole, mut bare) = (0, 0);
        for text in texts() {
            let code = code(text);
            (whole, bare) = (whole + text.len(), bare + code.len());
            assert_eq!(code.lines().count(), text.lines().count(), "{text}");
            assert!(compose::set_constants(&code).eq(compose::set_constants(text)), "{text}");
            assert!(compose::overrides(&code).eq(compose::overrides(text)), "{text}");
            let uses = |text: &str| text.lines().find(|line| line.starts_with("//! use:")).map(str::to_owned);
            assert_eq!(uses(&code), uses(text));
            let without = |line: &str| line.split("//").next().unwrap().trim_end().to_owned();
            assert!(code.lines().map(without).eq(text.lines().map(without)), "{text}");
        }
        assert!(bare * 5 < whole * 4, "{bare} of {whole} bytes");
    }
}
