# `just` lists these; each is one ordinary command.

_default:
    @just --list

# Format, lints and the tests that need the host alone: two minutes, nothing is fetched.
check *ARGS:
    scripts/check {{ARGS}}

# One kernel's cases on every adapter there is: just kernels rope
kernels NAME:
    scripts/kernels {{NAME}}

# Install what the tests need and run every test.
test:
    scripts/test

# What CI runs.
ci:
    .ci/run

# Generate text with the embedded model: just run "Once upon a time"
run *ARGS:
    cargo run --release -- run {{ARGS}}

# Build the page and serve it on this machine; models of a folder: just web --models FOLDER
web *ARGS:
    scripts/build-web
    scripts/serve-web {{ARGS}}

# What real drivers say of the kernels, without their GPUs: just drivers navi31 --types Q4_K_M (tools/gpu_compilers/setup first)
drivers *ARGS:
    tools/gpu_compilers/compile {{ARGS}}

# Known vulnerabilities of what is compiled in; needs GitHub.
advisories:
    cargo deny --locked check advisories
