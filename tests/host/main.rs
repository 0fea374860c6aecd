//! Tests on the host: files, text, the text of kernels, the CPU executor, the house rules.

mod cpu;
mod documents;
mod fetched;
mod files;
mod fuzz;
mod shared;
mod templates;
mod text;
mod tidy;
mod wgsl;

#[global_allocator]
static ALLOC: wgslm_test::alloc::Counting = wgslm_test::alloc::Counting;
