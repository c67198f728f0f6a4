//! Programs built from the pinned Go modules beside this crate's sources.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};

use super::cache::{CacheKey, ToolCache};
use crate::progress::Progress;

/// A directory with a go.mod whose `tool` lines name the programs, and a go.sum.
#[derive(Clone, Copy, Debug)]
pub struct GoModule {
    name: &'static str,
    ldflags: &'static str,
    /// Build tags, which leave out what is not needed.
    tags: &'static str,
    /// Its C sources are compiled, too.
    cgo: bool,
    /// As Go names them, and as we do.
    renamed: &'static [(&'static str, &'static str)],
    takes: &'static str,
}

/// The Kubernetes programs. Their version is set by hand because modules carry none.
pub const KUBERNETES: GoModule = GoModule {
    name: "kubernetes",
    ldflags: "-s -w -X k8s.io/component-base/version.gitVersion=v1.34.4 \
              -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=34",
    tags: "",
    cgo: false,
    renamed: &[],
    takes: "about 7 min",
};

/// etcd, etcdctl and etcdutl, to compare with.
pub const ETCD: GoModule = GoModule {
    name: "etcd",
    ldflags: "-s -w",
    tags: "",
    cgo: false,
    renamed: &[("server", "etcd")],
    takes: "about 1 min",
};

/// The server of the next etcd, for what is new in it.
pub const ETCD_NEXT: GoModule = GoModule {
    name: "etcd-next",
    ldflags: "-s -w",
    tags: "",
    cgo: false,
    renamed: &[("server", "etcd")],
    takes: "less than 1 min",
};

/// The server of an earlier etcd, from which users move.
pub const ETCD_3_5: GoModule = GoModule {
    name: "etcd-3.5",
    ldflags: "-s -w",
    tags: "",
    cgo: false,
    renamed: &[("server", "etcd")],
    takes: "about 1 min",
};

/// The same, one release before.
pub const ETCD_3_4: GoModule = GoModule {
    name: "etcd-3.4",
    ldflags: "-s -w",
    tags: "",
    cgo: false,
    renamed: &[],
    takes: "about 1 min",
};

/// CoreDNS, with the plugins that are used.
pub const ADDONS: GoModule = GoModule {
    name: "addons",
    ldflags: "-s -w",
    tags: "",
    cgo: false,
    renamed: &[("addons", "coredns")],
    takes: "about 1 min",
};

/// Helm, for the chart.
pub const HELM: GoModule = GoModule {
    name: "helm",
    ldflags: "-s -w",
    tags: "",
    cgo: false,
    renamed: &[],
    takes: "about 1 min",
};

/// Argo CD: one program that acts by the name that it is started under.
pub const ARGOCD: GoModule = GoModule {
    name: "argocd",
    ldflags: "-s -w",
    tags: "",
    cgo: false,
    renamed: &[("cmd", "argocd")],
    takes: "about 8 min",
};

/// A program of ours that uses each package of etcd's client.
pub const CLIENTV3: GoModule = GoModule {
    name: "clientv3",
    ldflags: "-s -w",
    tags: "",
    cgo: false,
    renamed: &[],
    takes: "less than 1 min",
};

/// promtool, for the alerts; without the ways in which a Prometheus finds its targets.
pub const PROMETHEUS: GoModule = GoModule {
    name: "prometheus",
    ldflags: "-s -w",
    tags: "remove_all_sd",
    cgo: false,
    renamed: &[],
    takes: "about 2 min",
};

/// rclone, which serves a directory over the protocol of S3.
pub const RCLONE: GoModule = GoModule {
    name: "rclone",
    ldflags: "-s -w",
    tags: "",
    cgo: false,
    renamed: &[],
    takes: "about 1 min",
};

/// kwok, which plays nodes and pods.
pub const KWOK: GoModule = GoModule {
    name: "kwok",
    ldflags: "-s -w",
    tags: "",
    cgo: false,
    renamed: &[],
    takes: "about 1 min",
};

/// kine, to compare with. SQLite is written in C, so a C compiler is needed.
pub const KINE: GoModule = GoModule {
    name: "kine",
    ldflags: "-s -w",
    tags: "",
    cgo: true,
    renamed: &[],
    takes: "about 2 min",
};

/// Etcd's own tests. They are no tools, so they are built by [`etcd_tests`].
const ETCD_TESTS: GoModule = GoModule {
    name: "etcd-tests",
    ldflags: "-s -w",
    tags: "e2e",
    cgo: false,
    renamed: &[],
    takes: "about 2 min",
};

/// The packages of etcd's tests whose tests start programs, as `etcd` and `etcdctl` in a directory that is given.
const OF_PROGRAMS: &[&str] = &["common", "e2e"];

/// The directory with etcd's own tests, one program for each package. The certificates that they use are in `../fixtures`, as seen from the
/// directory that they run in: this one. They are built now if they were not before.
///
/// # Errors
///
/// As [`GoModule::build`].
pub fn etcd_tests(cache: &ToolCache, progress: &Progress) -> anyhow::Result<PathBuf> {
    const MODULE: &str = "go.etcd.io/etcd/tests/v3";
    let source = ETCD_TESTS.source();
    let fixtures = ETCD_TESTS.sources(MODULE)?.join("fixtures");
    let key = ETCD_TESTS.key(&source)?;
    let dir = cache.once("go", ETCD_TESTS.name, &key, progress, |dir| {
        let what = format!(
            "build etcd's own tests ({} on two cores the first time)",
            ETCD_TESTS.takes
        );
        progress.during(what, || {
            for package in OF_PROGRAMS {
                let mut build = Command::new("go");
                build.current_dir(&source).args(["test", "-c", "-vet=off"]);
                build.args(["-tags", ETCD_TESTS.tags, "-ldflags", ETCD_TESTS.ldflags, "-o"]);
                run(build
                    .arg(dir.join("tests").join(package))
                    .arg(format!("{MODULE}/{package}")))?;
            }
            std::os::unix::fs::symlink(&fixtures, dir.join("fixtures")).context("link the certificates of etcd's tests")
        })
    })?;
    Ok(dir.join("tests"))
}

impl GoModule {
    /// The sources of a module that the programs are built from, downloaded now if they were not before.
    ///
    /// # Errors
    ///
    /// There is no Go, or the download fails.
    pub fn sources(&self, module: &str) -> anyhow::Result<PathBuf> {
        let mut download = Command::new("go");
        download
            .current_dir(self.source())
            .args(["mod", "download", "-json", module]);
        let said: serde_json::Value = serde_json::from_str(&run(&mut download)?).context("read what Go downloaded")?;
        let directory = said["Dir"].as_str().context("Go names no directory")?;
        Ok(directory.into())
    }

    fn source(&self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(self.name)
    }

    /// The directory with the built programs, built now if they were not before.
    ///
    /// # Errors
    ///
    /// There is no Go, or the build fails: then with the end of the compiler's output.
    pub fn build(&self, cache: &ToolCache, progress: &Progress) -> anyhow::Result<PathBuf> {
        let source = self.source();
        let key = self.key(&source)?;
        cache.once("go", self.name, &key, progress, |dir| {
            let what = format!(
                "build {} from Go modules ({} on two cores the first time)",
                self.name, self.takes
            );
            progress.during(what, || self.install(&source, dir))
        })
    }

    fn key(&self, source: &Path) -> anyhow::Result<CacheKey> {
        let read = |file: &str| {
            let path = source.join(file);
            fs::read(&path).with_context(|| format!("read {}", path.display()))
        };
        let version = run(Command::new("go").arg("version")).context("Go 1.26 or newer is needed")?;
        let mut files = vec!["go.mod".to_owned(), "go.sum".to_owned()];
        let listed = fs::read_dir(source).with_context(|| format!("list {}", source.display()))?;
        for entry in listed {
            files.extend(
                entry?
                    .file_name()
                    .into_string()
                    .ok()
                    .filter(|name| name.ends_with(".go")),
            );
        }
        files[2..].sort();
        let files = files
            .iter()
            .map(|file| read(file))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let mut parts: Vec<&[u8]> = files.iter().map(Vec::as_slice).collect();
        parts.extend([version.as_bytes(), self.ldflags.as_bytes()]);
        if !self.tags.is_empty() {
            parts.push(self.tags.as_bytes());
        }
        if self.cgo {
            parts.push(b"cgo");
        }
        Ok(CacheKey::of(parts))
    }

    fn install(&self, source: &Path, dir: &Path) -> anyhow::Result<()> {
        let mut install = Command::new("go");
        install.current_dir(source).args([
            "install",
            "-trimpath",
            "-tags",
            self.tags,
            "-ldflags",
            self.ldflags,
            "tool",
        ]);
        let cgo = if self.cgo { "1" } else { "0" };
        run(install.env("CGO_ENABLED", cgo).env("GOBIN", dir))?;
        for (go, ours) in self.renamed {
            fs::rename(dir.join(go), dir.join(ours)).with_context(|| format!("rename {go} to {ours}"))?;
        }
        Ok(())
    }
}

/// Standard output of a command that must succeed.
fn run(command: &mut Command) -> anyhow::Result<String> {
    let output = command
        .output()
        .with_context(|| format!("start {}", command.get_program().display()))?;
    if !output.status.success() {
        bail!(
            "{command:?}: {}\n{}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim_end()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
