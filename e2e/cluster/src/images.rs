//! Container images: a program each, and the licences of what is in it. Built by buildah into the cache, keyed by content.
//!
//! Products are stripped; their debug information, by which backtraces can be read, is laid beside the image. Programs of a release are
//! linked statically. Those of tests are not: their images hold this machine's shared libraries, too.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};

use programs::command::output;
use programs::progress::Progress;
use programs::tools::cache::{CacheKey, ToolCache};
use programs::tools::{Tools, debian};
use supply_chain::{Graph, notices};

/// Holds the sandboxes of pods, and the workload of tests.
pub const POD: &str = "kubebrain.io/pod:e2e";
/// The cluster's name server.
pub const COREDNS: &str = "kubebrain.io/coredns:e2e";
/// The tenant's API server.
pub const APISERVER: &str = "kubebrain.io/kube-apiserver:e2e";
/// The same, as the samples name it.
pub const SAMPLE_APISERVER: &str = "registry.k8s.io/kube-apiserver:v1.34.4";
/// The brain, as the install files name it.
pub const BRAIN: &str = concat!("kubebrain.io/kubebrain:", env!("CARGO_PKG_VERSION"));
/// The brain a second time, under a version that a rolling upgrade goes to. It is the same program in another image.
pub const BRAIN_NEXT: &str = concat!(
    "kubebrain.io/kubebrain:",
    env!("CARGO_PKG_VERSION_MAJOR"),
    ".",
    env!("CARGO_PKG_VERSION_MINOR"),
    ".99"
);
/// The mock of TiKV, for brains that run as pods.
pub const TIKV: &str = "kubebrain.io/mock-tikv:e2e";
/// The operator, as the install files name it.
pub const OPERATOR: &str = concat!("kubebrain.io/kubebrain-operator:", env!("CARGO_PKG_VERSION"));

/// An image to be built.
#[derive(Clone, Debug)]
pub struct Image {
    /// Its name and tag.
    pub tag: &'static str,
    /// Relative to the workspace.
    containerfile: &'static str,
    /// The program that it copies.
    program: PathBuf,
    /// The crate that the program is of, if it is one of ours that is given to others.
    product: Option<&'static str>,
}

/// Lies in the image of a product.
const NOTICES: &str = "THIRD-PARTY-NOTICES";

impl Image {
    /// Images that a node cannot do without.
    ///
    /// # Errors
    ///
    /// A program is not built.
    pub fn of_node(tools: &Tools) -> anyhow::Result<Vec<Self>> {
        let pod = tools.own.get("kubebrain-e2e-pod")?;
        let coredns = tools.addons.join("coredns");
        Ok(vec![
            Self {
                tag: POD,
                containerfile: "e2e/images/pod/Containerfile",
                program: pod,
                product: None,
            },
            Self {
                tag: COREDNS,
                containerfile: "e2e/images/coredns/Containerfile",
                program: coredns,
                product: None,
            },
        ])
    }

    /// The product, and a second API server to put on it.
    ///
    /// # Errors
    ///
    /// A program is not built.
    pub fn of_product(tools: &Tools) -> anyhow::Result<Vec<Self>> {
        let apiserver = tools.kubernetes.join("kube-apiserver");
        let (brain, operator) = (tools.own.get("kubebrain")?, tools.own.get("kubebrain-operator")?);
        Ok(vec![
            Self {
                tag: BRAIN,
                containerfile: "brain/Containerfile",
                program: brain,
                product: Some("brain"),
            },
            Self {
                tag: OPERATOR,
                containerfile: "operator/Containerfile",
                program: operator,
                product: Some("operator"),
            },
            Self {
                tag: APISERVER,
                containerfile: "e2e/images/kube-apiserver/Containerfile",
                program: apiserver,
                product: None,
            },
        ])
    }

    /// The product as another build made it, whose programs are in this directory.
    #[must_use]
    pub fn of_build(programs: &Path) -> Vec<Self> {
        let image = |tag, containerfile, program, product| Self {
            tag,
            containerfile,
            program: programs.join(program),
            product: Some(product),
        };
        vec![
            image(BRAIN, "brain/Containerfile", "kubebrain", "brain"),
            image(OPERATOR, "operator/Containerfile", "kubebrain-operator", "operator"),
        ]
    }

    /// Images that tests of the operator need beside the product.
    ///
    /// # Errors
    ///
    /// A program is not built.
    pub fn of_tests(tools: &Tools) -> anyhow::Result<Vec<Self>> {
        Ok(vec![
            Self {
                tag: BRAIN_NEXT,
                containerfile: "brain/Containerfile",
                program: tools.own.get("kubebrain")?,
                product: Some("brain"),
            },
            Self {
                tag: TIKV,
                containerfile: "e2e/images/tikv/Containerfile",
                program: tools.own.get("mock-tikv")?,
                product: None,
            },
        ])
    }

    /// The archive to import, built now if its content is new.
    ///
    /// # Errors
    ///
    /// A shared library of the program is missing, or buildah fails.
    pub fn archive(&self, cache: &ToolCache, progress: &Progress) -> anyhow::Result<PathBuf> {
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR"))
            .ancestors()
            .nth(2)
            .context("the crate is not in a workspace")?;
        let containerfile = workspace.join(self.containerfile);
        let read = |path: &Path| fs::read(path).with_context(|| format!("read {}", path.display()));
        let (recipe, program) = (read(&containerfile)?, read(&self.program)?);
        let libraries = if is_dynamic(&program) {
            shared_libraries(&self.program)?
        } else {
            Vec::new()
        };
        let contents: Vec<Vec<u8>> = libraries.iter().map(|path| read(path)).collect::<anyhow::Result<_>>()?;
        let notices = self.product.map(|product| {
            let graph = Graph::of_workspace(workspace, supply_chain::TARGET)?;
            notices::render(&graph, product).with_context(|| format!("collect the licences in {product}"))
        });
        let notices = notices.transpose()?;
        let notices_bytes = notices.as_deref().unwrap_or_default().as_bytes();
        let fixed = [self.tag.as_bytes(), &recipe, &program, notices_bytes];
        let key = CacheKey::of(fixed.into_iter().chain(contents.iter().map(Vec::as_slice)));
        let name = self.tag.rsplit('/').next().unwrap_or(self.tag).replace(':', "-");
        let entry = cache.once("images", &name, &key, progress, |dir| {
            progress.during(format_args!("build image {}", self.tag), || {
                self.build(&containerfile, notices.as_deref(), &libraries, dir)
            })
        })?;
        Ok(entry.join("image.tar"))
    }

    /// Builds in `dir`, which afterwards holds `image.tar`, and of a product its debug information.
    fn build(
        &self,
        containerfile: &Path,
        notices: Option<&str>,
        libraries: &[PathBuf],
        dir: &Path,
    ) -> anyhow::Result<()> {
        let (context, storage) = (dir.join("context"), dir.join("storage"));
        fs::create_dir(&context)?;
        let name = self.program.file_name().context("a program without a name")?;
        let copy = context.join(name);
        fs::copy(&self.program, &copy).with_context(|| format!("copy {}", self.program.display()))?;
        if let Some(notices) = notices {
            fs::write(context.join(NOTICES), notices)?;
            strip(&copy, dir)?;
        }
        let mut recipe = fs::read_to_string(containerfile)?;
        if !libraries.is_empty() {
            recipe.push_str("COPY libraries /\n");
        }
        for library in libraries {
            let place = context.join("libraries").join(library.strip_prefix("/")?);
            fs::create_dir_all(place.parent().context("a library without a directory")?)?;
            fs::copy(library, &place).with_context(|| format!("copy {}", library.display()))?;
        }
        let containerfile = context.join("Containerfile");
        fs::write(&containerfile, recipe)?;
        let buildah = debian::find("buildah")?;
        let buildah = || {
            let mut command = Command::new(&buildah);
            command
                .args(["--storage-driver", "vfs", "--root"])
                .arg(storage.join("root"));
            command.arg("--runroot").arg(storage.join("run"));
            command
        };
        let mut bud = buildah();
        bud.args(["bud", "--isolation", "chroot", "--tag", self.tag]);
        // one program under two tags makes two images
        bud.arg(format!("--label=org.opencontainers.image.ref.name={}", self.tag));
        bud.arg("--file").arg(&containerfile).arg(&context);
        output(&mut bud)?;
        let archive = format!("oci-archive:{}:{}", dir.join("image.tar").display(), self.tag);
        output(buildah().args(["push", self.tag, &archive]))?;
        for rubbish in [context, storage] {
            fs::remove_dir_all(&rubbish).with_context(|| format!("remove {}", rubbish.display()))?;
        }
        Ok(())
    }
}

/// Strips a program of its symbols, which a file in `directory` keeps.
fn strip(program: &Path, directory: &Path) -> anyhow::Result<()> {
    let name = program
        .file_name()
        .context("a program without a name")?
        .to_string_lossy();
    let apart = directory.join(format!("{name}.debug"));
    let objcopy = debian::find("objcopy")?;
    let objcopy = || Command::new(&objcopy);
    output(objcopy().arg("--only-keep-debug").arg(program).arg(&apart))?;
    let mut link = std::ffi::OsString::from("--add-gnu-debuglink=");
    link.push(&apart);
    output(objcopy().arg("--strip-all").arg(link).arg(program))?;
    Ok(())
}

/// The shared libraries of a program and its loader, at the paths where the loader looks for them.
fn shared_libraries(program: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let listed = output(Command::new("ldd").arg(program))?;
    ensure!(
        !listed.contains("not found"),
        "{} needs a shared library that is missing:\n{listed}",
        program.display()
    );
    let paths = listed.lines().filter_map(|line| {
        let line = line.rsplit("=> ").next()?;
        line.split_whitespace().next().filter(|path| path.starts_with('/'))
    });
    Ok(paths.map(PathBuf::from).collect())
}

/// Returns true if a 64-bit ELF file asks for a dynamic loader. Any other file does not.
fn is_dynamic(file: &[u8]) -> bool {
    const INTERPRETER: u32 = 3;
    let number = |at: usize, bytes: usize| {
        let field = file.get(at..at + bytes)?;
        Some(
            field
                .iter()
                .rev()
                .fold(0u64, |value, byte| value << 8 | u64::from(*byte)),
        )
    };
    let headers = || {
        let (table, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
        let at = |n: u64| usize::try_from(table.checked_add(n.checked_mul(size)?)?).ok();
        Some(
            (0..count)
                .filter_map(at)
                .any(|at| number(at, 4) == Some(INTERPRETER.into())),
        )
    };
    file.starts_with(b"\x7fELF\x02\x01") && headers().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manifests_name_the_images_that_are_built() {
        let operator = include_str!("../../../manifests/yaml/operator/operator.yaml");
        assert!(operator.contains(&format!("image: {OPERATOR}\n")), "{operator}");
        let (repository, _) = BRAIN.rsplit_once(':').unwrap(); // the tag is the version that a cluster asks for
        assert!(
            operator.contains(&format!("--default-image={repository}\n")),
            "{operator}"
        );
    }

    #[test]
    fn samples_name_the_image_of_the_api_server() {
        let sample = include_str!("../../../manifests/yaml/samples/tenant-control-plane.yaml");
        assert!(sample.contains(&format!("image: {SAMPLE_APISERVER}\n")), "{sample}");
    }

    #[test]
    fn the_second_version_of_the_brain_is_a_later_one() {
        let version = |image: &str| -> Vec<u32> {
            let (_, tag) = image.rsplit_once(':').unwrap();
            tag.split('.').map(|part| part.parse().unwrap()).collect()
        };
        assert!(version(BRAIN_NEXT) > version(BRAIN), "{BRAIN_NEXT} after {BRAIN}");
    }

    #[test]
    fn a_program_that_needs_shared_libraries_is_told() {
        assert!(is_dynamic(&fs::read("/bin/sh").unwrap()));
        assert!(!is_dynamic(b"#!/bin/sh"));
        assert!(!is_dynamic(&fs::read("/bin/sh").unwrap()[..40]));
    }

    #[test]
    fn shared_libraries_include_the_loader() {
        let libraries = shared_libraries(Path::new("/bin/sh")).unwrap();
        let named = |part: &str| libraries.iter().any(|path| path.to_string_lossy().contains(part));
        assert!(named("/libc.so.") && named("/ld-linux-"), "{libraries:?}");
    }
}
