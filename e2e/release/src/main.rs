//! `kubebrain-release`: packs programs that are built into the files of a release. `make release` builds them and calls it.
//!
//! It must not depend on the programs that it packs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, ensure};
use clap::Parser;
use programs::progress::Progress;
use programs::tools::cache::ToolCache;
use programs::tools::{debian, go};
use supply_chain::{Graph, notices, sbom};

use arch::Arch;
use layout::Layout;

mod arch;
mod archive;
mod checksums;
mod debug_info;
mod image;
mod layout;
mod manifests;

/// Packs the programs of a release: images, archives, bills of materials, the chart, the manifests and checksums.
#[derive(Debug, Parser)]
#[command(name = "kubebrain-release", version)]
struct ReleaseFlags {
    /// The directory that gets the files. It is made; files of an earlier run are replaced.
    #[arg(long)]
    out: PathBuf,
    /// The directory below which cargo put the programs, one directory per target.
    #[arg(long)]
    target_dir: PathBuf,
    /// An architecture whose programs are built; may be repeated.
    #[arg(long = "arch", value_enum, required = true)]
    archs: Vec<Arch>,
}

/// A program and the crate that it is built from.
struct ReleasedProgram {
    name: &'static str,
    /// The crate whose dependencies are in the program.
    package: &'static str,
    /// The file that says how its image is built, relative to the repository; `None` if it has no image.
    containerfile: Option<&'static str>,
}

const PROGRAMS: [ReleasedProgram; 3] = [
    ReleasedProgram {
        name: "kubebrain",
        package: "brain",
        containerfile: Some("brain/Containerfile"),
    },
    ReleasedProgram {
        name: "kubebrain-operator",
        package: "operator",
        containerfile: Some("operator/Containerfile"),
    },
    ReleasedProgram {
        name: "kubectl-kubebrain",
        package: "kubectl-kubebrain",
        containerfile: None,
    },
];

fn main() -> ExitCode {
    let progress = Progress::stderr();
    progress.exit_code(
        "kubebrain-release",
        pack(&ReleaseFlags::parse(), &progress).map(|()| true),
    )
}

fn pack(options: &ReleaseFlags, progress: &Progress) -> anyhow::Result<()> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
    let workspace = workspace.context("this crate is not in the repository")?;
    let layout = Layout::new(&options.out, env!("CARGO_PKG_VERSION"));
    debian::require(&arch::packages(&options.archs), progress)?;
    let programs = |arch: Arch| options.target_dir.join(arch.target()).join("release");
    for arch in &options.archs {
        for program in &PROGRAMS {
            let path = programs(*arch).join(program.name);
            ensure!(path.is_file(), "{} is missing: run `make release`", path.display());
        }
    }
    layout.create()?;
    let graph = Graph::of_workspace(workspace, supply_chain::TARGET)?;
    for program in &PROGRAMS {
        let stripped = tempfile::tempdir()?;
        let (notices_text, bill) = (
            notices::render(&graph, program.package)?,
            sbom::of_workspace(&graph, workspace, program.package)?,
        );
        layout.write(&layout.bill(program.name), &bill)?;
        let mut contents = Vec::new();
        for arch in &options.archs {
            let place = stripped.path().join(arch.name());
            fs::create_dir(&place)?;
            let copy = place.join(program.name);
            fs::copy(programs(*arch).join(program.name), &copy)?;
            debug_info::split(&copy, *arch, &layout.debug_info(program.name, *arch))?;
            fs::write(place.join("THIRD-PARTY-NOTICES"), &notices_text)?;
            fs::copy(workspace.join("LICENSE"), place.join("LICENSE"))?;
            progress.during(format_args!("pack {} for {}", program.name, arch.name()), || {
                archive::pack(&place, &layout.archive(program.name, *arch))
            })?;
            contents.push((*arch, place));
        }
        if let Some(containerfile) = program.containerfile {
            progress.during(format_args!("build the image of {}", program.name), || {
                let tag = layout.tag(program.name);
                image::build(
                    &workspace.join(containerfile),
                    &contents,
                    &tag,
                    &layout.image(program.name),
                )
            })?;
        }
    }
    let cache = ToolCache::open()?;
    let (helm, kubernetes) = (
        go::HELM.build(&cache, progress)?,
        go::KUBERNETES.build(&cache, progress)?,
    );
    progress.during("package the chart and the manifests", || {
        manifests::package_chart(
            &helm.join("helm"),
            &workspace.join("manifests/helm/kubebrain-operator"),
            &options.out,
        )?;
        let rendered = manifests::kustomize(&kubernetes.join("kubectl"), &workspace.join("manifests/yaml"))?;
        layout.write(&layout.manifests(), &rendered)
    })?;
    let number = checksums::write(&options.out)?;
    progress.say(format_args!("{number} files in {}", options.out.display()));
    Ok(())
}
