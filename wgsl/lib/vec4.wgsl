//! vec4: elements that are moved as they are, 128 bits at a time.
alias elem = vec4<u32>;
