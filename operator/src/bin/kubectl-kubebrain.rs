//! `kubectl kubebrain`: a kubectl plugin. kubectl finds it by its name in the search path.

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    operator::run_plugin()
}
