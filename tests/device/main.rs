//! Tests on adapters: kernels, models, decoding, devices. Models run on the CPU as well, by the same tests.

mod decode;
mod devices;
mod kernels;
mod models;

#[global_allocator]
static ALLOC: wgslm_test::alloc::Counting = wgslm_test::alloc::Counting;
