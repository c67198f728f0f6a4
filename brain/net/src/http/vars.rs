//! `/debug/vars`: what etcd publishes there of its process. Go's memory statistics and the status of raft are missing.

use std::ffi::OsString;

use axum::body::Body;
use http::{Method, Request, Response, StatusCode};
use rustix::process::{Resource, getrlimit};
use serde_json::json;

use super::{answer, not_allowed};

/// Flags whose values are secret.
const SECRET_FLAGS: [&str; 2] = ["discovery-user", "discovery-password"];

pub(super) async fn vars(request: Request<Body>) -> Response<Body> {
    if request.method() != Method::GET {
        return not_allowed();
    }
    let cmdline = command_line(std::env::args_os());
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let body = format!(
        "{{\n\"cmdline\": {},\n\"file_descriptor_limit\": {limit}\n}}\n",
        json!(cmdline)
    );
    answer(StatusCode::OK, "application/json; charset=utf-8", body)
}

/// Returns the arguments of the program, without secrets.
fn command_line(args: impl Iterator<Item = OsString>) -> Vec<String> {
    let mut shown = Vec::new();
    let mut is_secret = false;
    for arg in args {
        let arg = arg.to_string_lossy().into_owned();
        if std::mem::take(&mut is_secret) {
            shown.push("...".to_owned());
            continue;
        }
        let flag = arg.trim_start_matches('-');
        match flag.split_once('=') {
            Some((name, _)) if arg.starts_with('-') && SECRET_FLAGS.contains(&name) => {
                let dashes = &arg[..arg.len() - flag.len()];
                shown.push(format!("{dashes}{name}=..."));
            }
            _ => {
                is_secret = arg.starts_with('-') && SECRET_FLAGS.contains(&flag);
                shown.push(arg);
            }
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_shown() {
        let args = [
            "kubebrain",
            "--name=a",
            "--discovery-password=p",
            "-discovery-user",
            "u",
            "-x",
        ];
        let shown = command_line(args.into_iter().map(OsString::from));
        let expected = [
            "kubebrain",
            "--name=a",
            "--discovery-password=...",
            "-discovery-user",
            "...",
            "-x",
        ];
        assert_eq!(shown, expected);
    }
}
