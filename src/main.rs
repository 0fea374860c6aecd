//! The command line of wgslm.

fn main() -> std::process::ExitCode {
    wgslm::cli::main()
}
