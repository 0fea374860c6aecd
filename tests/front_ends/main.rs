//! Tests of the binary, as users meet it: on a command line, and in a terminal.

mod cli;
mod contract;
mod hub;
mod repl;
mod serve;
