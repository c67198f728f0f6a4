//! `kubectl kubebrain`: a kubectl plugin. kubectl finds it in the search path by its name.

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    kubectl_kubebrain::run()
}
