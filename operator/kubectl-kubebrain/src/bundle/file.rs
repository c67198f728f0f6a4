//! The file of a support bundle: a compressed tar archive, with an index at its end. The redactor reads each file before it is added.

use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::Value;

use super::redact::Redactor;

/// Name of the index.
const INDEX: &str = "index.txt";

pub(super) struct BundleFile<W: Write> {
    tar: tar::Builder<GzEncoder<W>>,
    /// Directory of all files.
    root: String,
    /// Time of all files, in seconds.
    time: u64,
    pub(super) redactor: Redactor,
    /// The files, with their sizes.
    files: Vec<(String, usize)>,
    /// Parts that are not in the bundle, each with the reason.
    missing: Vec<(String, String)>,
}

impl<W: Write> BundleFile<W> {
    pub(super) fn new(out: W, root: String, time: u64, redactor: Redactor) -> Self {
        Self {
            tar: tar::Builder::new(GzEncoder::new(out, Compression::default())),
            root,
            time,
            redactor,
            files: Vec::new(),
            missing: Vec::new(),
        }
    }

    /// # Errors
    /// The file cannot be written.
    pub(super) fn add_text(&mut self, path: &str, text: &str) -> io::Result<()> {
        let text = self.redactor.text(text);
        self.append(path, &text)
    }

    /// # Errors
    /// The file cannot be written.
    pub(super) fn add_object(&mut self, path: &str, mut object: Value) -> io::Result<()> {
        self.redactor.object(&mut object);
        self.append(path, &format!("{object:#}\n"))
    }

    /// Records that something is not in the bundle.
    pub(super) fn miss(&mut self, what: &str, why: &str) {
        self.missing.push((what.to_owned(), self.redactor.text(why)));
    }

    /// Writes the index below `title`, and returns the numbers of files and of what is missing.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn finish(mut self, title: &str) -> io::Result<(usize, usize)> {
        let mut index = format!("{title}\n\nFiles, with their sizes in bytes:\n");
        for (path, bytes) in &self.files {
            index.push_str(&format!("{bytes:>10}  {path}\n"));
        }
        index.push_str("\nNot in this bundle:\n");
        for (what, why) in &self.missing {
            index.push_str(&format!("  {what}: {why}\n"));
        }
        if self.missing.is_empty() {
            index.push_str("  nothing that was looked for\n");
        }
        let index = self.redactor.text(&index);
        self.append(INDEX, &index)?;
        self.tar.into_inner()?.finish()?.flush()?;
        Ok((self.files.len() + 1, self.missing.len()))
    }

    fn append(&mut self, path: &str, text: &str) -> io::Result<()> {
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(self.time);
        self.tar
            .append_data(&mut header, format!("{}/{path}", self.root), text.as_bytes())?;
        if path != INDEX {
            self.files.push((path.to_owned(), text.len()));
        }
        Ok(())
    }
}
