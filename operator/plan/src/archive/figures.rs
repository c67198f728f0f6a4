//! Figures that the pod of an archive reports, from its metrics.

/// The figures of a running archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ArchiveFigures {
    /// The last revision that is stored; 0 if none is known.
    pub revision: i64,
    /// Seconds since the time up to which everything is stored; `None` if there is no such time yet.
    pub lag: Option<i64>,
    /// Gaps since the process began.
    pub gaps: i64,
    /// True while the destination fails.
    pub is_failing: bool,
    /// True while the backup cannot be made that the archive begins with.
    pub lacks_backup: bool,
}

impl ArchiveFigures {
    /// Parses metrics in the text format of Prometheus; `None` if they are not those of an archive. They are untrusted.
    pub fn parse(text: &str) -> Option<Self> {
        Some(Self {
            revision: metric(text, "kubebrain_archive_last_revision")?.max(0),
            lag: Some(metric(text, "kubebrain_archive_lag_seconds")?).filter(|lag| *lag >= 0),
            gaps: metric(text, "kubebrain_archive_gaps_total")?.max(0),
            // An image from before does not say.
            is_failing: metric(text, "kubebrain_archive_failing") == Some(1),
            lacks_backup: metric(text, "kubebrain_archive_backup_failing") == Some(1),
        })
    }
}

/// Returns the value of a metric without labels in the text format of Prometheus; `None` if it is missing or no whole number.
pub(crate) fn metric(text: &str, name: &str) -> Option<i64> {
    let mut lines = text.lines();
    let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    value.trim().parse().ok()
}
