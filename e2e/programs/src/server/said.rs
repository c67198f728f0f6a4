//! The output of a program: its last lines, and its warnings.

use std::io::{BufRead as _, BufReader, PipeReader};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError};

use crate::complaints::is_complaint;

const READY_MESSAGE: &str = "ready to serve client requests";
const KEPT_LINES: usize = 40;
const KEPT_COMPLAINTS: usize = 1_000;

/// Cheap to clone; all clones show the same.
#[derive(Clone, Debug, Default)]
pub(super) struct ServerOutput(Arc<Mutex<OutputLines>>);

#[derive(Debug, Default)]
struct OutputLines {
    last: Vec<String>,
    complaints: Vec<String>,
}

impl ServerOutput {
    /// Reads until the program has ended; tells `ready` when it is.
    pub(super) fn follow(&self, output: PipeReader, ready: &SyncSender<()>) {
        let mut ready = Some(ready);
        for line in BufReader::new(output).split(b'\n') {
            let Ok(line) = line else { return };
            let line = String::from_utf8_lossy(&line).into_owned();
            if line.contains(READY_MESSAGE)
                && let Some(ready) = ready.take()
            {
                ready.send(()).ok(); // the receiver may no longer wait
            }
            let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if lines.complaints.len() < KEPT_COMPLAINTS && is_complaint(&line) {
                lines.complaints.push(line.clone());
            }
            if lines.last.len() == KEPT_LINES {
                lines.last.remove(0);
            }
            lines.last.push(line);
        }
    }

    /// Its last lines, under a heading.
    pub(super) fn text(&self) -> String {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        format!("its last lines:\n{}", lines.last.join("\n"))
    }

    /// Warnings, errors and panics so far.
    pub(super) fn complaints(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).complaints.clone()
    }
}
