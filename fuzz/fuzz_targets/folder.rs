#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| wgslm_test::fuzz::folder(data));
