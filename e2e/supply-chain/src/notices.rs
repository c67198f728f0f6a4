//! The licences of third parties that go with a program.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::Context as _;

use crate::{Graph, Package};

/// Beginnings of the names of files with licences and notices.
const NOTICE_FILE_PREFIXES: [&str; 5] = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE"];

/// Software that is linked besides crates.
const OTHER_SOFTWARE: &str = "\
The program is linked statically with the GNU C Library (LGPL-2.1-or-later, https://www.gnu.org/software/libc/), which can be
replaced by relinking the program from its sources, and with the standard library of Rust (MIT OR Apache-2.0,
https://github.com/rust-lang/rust).
";

const APACHE_LICENCE: &str = include_str!("../../../LICENSE");

const MIT_LICENCE: &str = "\
Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated documentation files
(the \"Software\"), to deal in the Software without restriction, including without limitation the rights to use, copy, modify,
merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit persons to whom the Software is
furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the Software.

THE SOFTWARE IS PROVIDED \"AS IS\", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES
OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE
LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN
CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
";

/// The notices for the program of a crate, as text: who is in it, then each text once.
///
/// # Errors
/// The crate is not there, or files cannot be read.
pub fn render(graph: &Graph, program: &str) -> anyhow::Result<String> {
    let all = graph.closure(program);
    anyhow::ensure!(!all.is_empty(), "there is no crate {program}");
    // Our own crates have no notices but their licence, which the image names; copies of others' crates have a file of their own.
    let theirs: Vec<&Package> = all
        .into_iter()
        .filter(|package| package.source.is_some() || package.directory.join("NOTICE").exists())
        .collect();
    let mut text = format!("{program} contains software of third parties.\n\n{OTHER_SOFTWARE}\n");
    let mut texts: BTreeMap<String, Vec<&Package>> = BTreeMap::new();
    for package in theirs {
        let licence = package.licence.as_deref().unwrap_or("see below");
        writeln!(text, "{} {} ({licence})", package.name, package.version)?;
        for found in of_package(package)? {
            texts.entry(found).or_default().push(package);
        }
    }
    let mut texts: Vec<_> = texts.into_iter().collect();
    texts.sort_by(|(_, a), (_, b)| (&a[0].name, &a[0].version).cmp(&(&b[0].name, &b[0].version)));
    for (found, packages) in texts {
        let names: Vec<String> = packages.iter().map(ToString::to_string).collect();
        write!(
            text,
            "\n{}\n{}\n\n{}\n",
            "=".repeat(80),
            names.join(", "),
            found.trim_end()
        )?;
    }
    Ok(text)
}

/// The texts that a package brings, or the text of its licence.
fn of_package(package: &Package) -> anyhow::Result<Vec<String>> {
    let directory = &package.directory;
    let read = || -> anyhow::Result<Vec<String>> {
        let mut paths = Vec::new();
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            if path.is_file() && is_notice(&path) {
                paths.push(path);
            }
        }
        paths.sort();
        let texts = paths.iter().map(|path| Ok(fs::read_to_string(path)?));
        texts.collect()
    };
    let found = read().with_context(|| format!("read the licences in {}", directory.display()))?;
    if !found.is_empty() {
        return Ok(found);
    }
    let licence = package.licence.as_deref().unwrap_or_default();
    if licence.contains("Apache-2.0") {
        return Ok(vec![APACHE_LICENCE.to_owned()]);
    }
    if licence == "MIT" {
        let authors = match package.authors.join(", ") {
            authors if authors.is_empty() => format!("the authors of {}", package.name),
            authors => authors,
        };
        return Ok(vec![format!("Copyright (c) {authors}\n\n{MIT_LICENCE}")]);
    }
    // It asks for no notice: see `deny.toml`.
    Ok(Vec::new())
}

fn is_notice(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
    NOTICE_FILE_PREFIXES.iter().any(|file| name.starts_with(file)) || name == "UNLICENSE"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::licences::tests::package;

    #[test]
    fn a_text_that_several_crates_bring_is_there_once() {
        let directory = tempfile::tempdir().unwrap();
        let bring = |name: &str, files: &[(&str, &str)]| {
            let own = directory.path().join(name);
            fs::create_dir(&own).unwrap();
            for (file, text) in files {
                fs::write(own.join(file), text).unwrap();
            }
            Package {
                directory: own,
                source: Some("registry".into()),
                ..package(name, "1.0.0", "MIT")
            }
        };
        let both = [("LICENSE-MIT", "same\n"), ("main.rs", "no licence")];
        let (a, b) = (bring("a", &both), bring("b", &both));
        let c = bring("c", &[]);
        let text = |package: &Package| of_package(package).unwrap();
        assert_eq!(text(&a), text(&b));
        assert_eq!(text(&a), ["same\n"]);
        assert!(text(&c)[0].starts_with("Copyright (c) the authors of c\n\nPermission is hereby granted"));
        let rendered = render(&Graph::of([a]), "a").unwrap();
        assert!(rendered.contains("\na 1.0.0 (MIT)\n"), "{rendered}");
        assert!(rendered.ends_with("\na@1.0.0\n\nsame\n"), "{rendered}");
        assert!(!rendered.contains("no licence"), "{rendered}");
    }
}
