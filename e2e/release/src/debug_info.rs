//! Debug information, which backtraces and profilers read, beside the programs that were stripped of it.

use std::path::Path;
use std::process::Command;

use programs::command::output;

use crate::arch::Arch;

/// Moves the debug information of a program into the file `apart`.
///
/// # Errors
/// `objcopy` fails.
pub(crate) fn split(program: &Path, arch: Arch, apart: &Path) -> anyhow::Result<()> {
    let objcopy = || Command::new(arch.objcopy());
    output(objcopy().arg("--only-keep-debug").arg(program).arg(apart))?;
    let mut link = std::ffi::OsString::from("--add-gnu-debuglink=");
    link.push(apart);
    output(objcopy().arg("--strip-all").arg(link).arg(program))?;
    Ok(())
}
