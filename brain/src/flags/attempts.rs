//! Flags of commands that a program repeats until one attempt succeeds.

use clap::{Arg, ArgMatches};

use super::command::{is_set, option, switch, value};
use super::{AttemptOptions, FlagError};

/// Maximum length of `--request-id`, in bytes.
const MAX_REQUEST_ID_BYTES: usize = 128;

/// Returns the flags of a command that makes a store; `once` says how little an attempt does.
pub(super) fn attempt_flags(once: &'static str) -> [Arg; 3] {
    [
        switch("once", once),
        request_id(
            "derive the id of the new cluster from this ID, by which --once recognises the store of an earlier attempt: use each ID for one store only",
        ),
        option("result-file", "FILE", "write the result to this file, in JSON"),
    ]
}

/// Reads [`attempt_flags`].
pub(super) fn attempts(args: &ArgMatches) -> Result<AttemptOptions, FlagError> {
    let options = AttemptOptions {
        once: is_set(args, "once"),
        request_id: value(args, "request-id"),
        result_file: value::<String>(args, "result-file").map(Into::into),
    };
    let file = &options.result_file;
    if file.as_ref().is_some_and(|file| file.as_os_str().is_empty()) {
        return Err(FlagError("--result-file needs the path of a file".to_owned()));
    }
    if options.request_id.is_some() && !options.once {
        return Err(FlagError("--request-id needs --once".to_owned()));
    }
    Ok(options)
}

/// Returns the flag that names what several attempts are for.
pub(super) fn request_id(help: &'static str) -> Arg {
    option("request-id", "ID", help).value_parser(request)
}

fn request(text: &str) -> Result<String, String> {
    let is_known = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    match (1..=MAX_REQUEST_ID_BYTES).contains(&text.len()) && text.chars().all(is_known) {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "must have 1 to {MAX_REQUEST_ID_BYTES} letters, digits, dots, dashes and underscores"
        )),
    }
}
