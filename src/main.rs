//! The command line of wgslm.

#[global_allocator]
static ALLOCATOR: wgslm::cli::Allocator = wgslm::cli::Allocator;

fn main() -> std::process::ExitCode {
    wgslm::cli::main()
}
