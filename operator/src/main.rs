//! `kubebrain-operator`: turns KubeBrainClusters into running brains.

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> anyhow::Result<()> {
    operator::run_operator()
}
