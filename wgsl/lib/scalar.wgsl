//! scalar: elements that are moved as they are, 32 bits at a time.
alias elem = u32;
