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
}

impl ArchiveFigures {
    /// Parses metrics in the text format of Prometheus; `None` if they are not those of an archive. They are untrusted.
    pub fn parse(text: &str) -> Option<Self> {
        let value = |name: &str| {
            let mut lines = text.lines();
            let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
            value.trim().parse::<i64>().ok()
        };
        Some(Self {
            revision: value("kubebrain_archive_last_revision")?.max(0),
            lag: Some(value("kubebrain_archive_lag_seconds")?).filter(|lag| *lag >= 0),
            gaps: value("kubebrain_archive_gaps_total")?.max(0),
        })
    }
}
