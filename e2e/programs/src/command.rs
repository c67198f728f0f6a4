//! Short commands that must succeed; the error has their output if they do not.

use std::ffi::OsStr;
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};

/// Runs a command to its end and gives its standard output.
///
/// # Errors
///
/// It cannot be started or fails; the error holds what it wrote on standard error.
pub fn run<A: AsRef<OsStr>>(program: impl AsRef<OsStr>, args: impl IntoIterator<Item = A>) -> anyhow::Result<String> {
    output(Command::new(program).args(args))
}

/// As [`run`], with a command made elsewhere. It gets no standard input unless it was given one.
///
/// # Errors
///
/// As [`run`].
pub fn output(command: &mut Command) -> anyhow::Result<String> {
    let output = command
        .output()
        .with_context(|| format!("start {}", command.get_program().display()))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    bail!("{}: {}: {}", spelled(command), output.status, said.trim_end())
}

/// As [`output`], with `input` as standard input.
///
/// # Errors
///
/// As [`run`]; a command that does not read its input to the end fails too.
pub fn feed(command: &mut Command, input: &[u8]) -> anyhow::Result<String> {
    use std::io::Write as _;
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("start {}", command.get_program().display()))?;
    let mut stdin = child.stdin.take().context("a piped standard input is missing")?;
    let written = std::thread::scope(|scope| {
        let writer = scope.spawn(move || stdin.write_all(input));
        let output = child.wait_with_output();
        (writer.join(), output)
    });
    let (Ok(write), output) = written else {
        bail!("{}: the thread that feeds it panicked", spelled(command))
    };
    let output = output.with_context(|| format!("wait for {}", spelled(command)))?;
    if !output.status.success() {
        bail!(
            "{}: {}: {}",
            spelled(command),
            output.status,
            String::from_utf8_lossy(&output.stderr).trim_end()
        );
    }
    write.with_context(|| format!("feed {}", spelled(command)))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The command as one would type it, without its directory.
fn spelled(command: &Command) -> String {
    let program = std::path::Path::new(command.get_program())
        .file_name()
        .unwrap_or_default();
    let words = std::iter::once(program).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_tells_what_was_run_and_what_it_said() {
        let error = run("sh", ["-c", "echo out; echo no such luck >&2; exit 3"])
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("sh -c echo out") && error.ends_with("exit status: 3: no such luck"),
            "{error}"
        );
    }

    #[test]
    fn input_is_fed_and_output_is_given() {
        assert_eq!(feed(&mut Command::new("cat"), b"milk").unwrap(), "milk");
    }
}
