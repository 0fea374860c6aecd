//! Which adapter the tests of kernels and models run on.

/// `WGSLM_TEST_ADAPTER`: a part of its name, in lower case, in place of the software adapters.
pub fn requested() -> Option<String> {
    std::env::var("WGSLM_TEST_ADAPTER").ok().filter(|name| !name.is_empty())
}
