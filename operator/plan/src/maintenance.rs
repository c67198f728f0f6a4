//! The times in which outdated members that serve may be replaced.

use crds::KubeBrainCluster;
use crds::cluster::maintenance_window::{MAX_DURATION, MIN_DURATION, MaintenanceWindow};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::cron::Cron;
use crate::status::whole_seconds;

/// The windows of a cluster. Without one, every time is good.
#[derive(Debug, Clone, Default)]
pub struct MaintenanceWindows(Vec<ParsedWindow>);

#[derive(Debug, Clone)]
struct ParsedWindow {
    begins: Cron,
    duration: SignedDuration,
}

impl MaintenanceWindows {
    /// Parses windows.
    ///
    /// # Errors
    /// A schedule, a time zone or a duration is malformed. The message is for the user.
    pub fn parse(windows: &[MaintenanceWindow]) -> Result<Self, String> {
        let parsed = windows.iter().enumerate().map(|(index, window)| {
            parse(window).map_err(|why| format!("updateStrategy.maintenanceWindows[{index}]: {why}"))
        });
        parsed.collect::<Result<_, _>>().map(Self)
    }

    /// Returns the reason why no member that serves may be replaced at `now`, if so.
    pub fn closed(&self, now: Timestamp) -> Option<String> {
        let is_open = |window: &ParsedWindow| window.begins.newest(now - window.duration, now).is_some();
        if self.0.is_empty() || self.0.iter().any(is_open) {
            return None;
        }
        let next = self.0.iter().filter_map(|window| window.begins.next(now)).min();
        let next = next.map_or("none follows".to_owned(), |next| {
            format!("the next one begins at {}", whole_seconds(next))
        });
        Some(format!("outside of updateStrategy.maintenanceWindows: {next}"))
    }
}

fn parse(window: &MaintenanceWindow) -> Result<ParsedWindow, String> {
    let begins = Cron::parse(&window.schedule, window.time_zone())?;
    let duration = crds::duration::parse(&window.duration).map_err(|error| format!("duration: {error}"))?;
    if !(MIN_DURATION..=MAX_DURATION).contains(&duration) {
        return Err("duration must be between 10m and 168h".to_owned());
    }
    let duration = SignedDuration::try_from(duration).map_err(|error| format!("duration: {error}"))?;
    Ok(ParsedWindow { begins, duration })
}

/// Returns the reason why no member of a cluster that serves may be replaced at `now`, if so. A spec that cannot be read has another reason.
pub fn closed(cluster: &KubeBrainCluster, now: Timestamp) -> Option<String> {
    let strategy = cluster.spec.update_strategy.as_ref()?;
    let windows = MaintenanceWindows::parse(&strategy.maintenance_windows).ok()?;
    windows.closed(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn windows(of: &[(&str, &str, &str)]) -> Result<MaintenanceWindows, String> {
        let windows = of.iter().map(|(schedule, duration, zone)| MaintenanceWindow {
            schedule: (*schedule).to_owned(),
            duration: (*duration).to_owned(),
            time_zone: Some((*zone).to_owned()),
        });
        MaintenanceWindows::parse(&windows.collect::<Vec<_>>())
    }

    #[test]
    fn window_is_open_from_its_beginning_for_its_duration() {
        // Saturdays from 01:00 to 03:30 in Berlin, which is an hour ahead of UTC in winter.
        let found = windows(&[
            ("0 1 * * 6", "2h30m", "Europe/Berlin"),
            ("30 12 * * 6", "10m", "Etc/UTC"),
        ])
        .unwrap();
        let closed = |time: &str| found.closed(time.parse().unwrap());
        let until = |next: &str| {
            Some(format!(
                "outside of updateStrategy.maintenanceWindows: the next one begins at {next}"
            ))
        };
        for (time, expected) in [
            ("2026-11-27T23:59:59Z", until("2026-11-28T00:00:00Z")),
            ("2026-11-28T00:00:00Z", None),
            ("2026-11-28T02:29:59Z", None),
            ("2026-11-28T02:30:00Z", until("2026-11-28T12:30:00Z")),
            ("2026-11-28T12:35:00Z", None),
            ("2026-11-28T12:40:00Z", until("2026-12-05T00:00:00Z")),
        ] {
            assert_eq!(closed(time), expected, "{time}");
        }
        assert_eq!(MaintenanceWindows::default().closed(Timestamp::UNIX_EPOCH), None);
    }

    #[test]
    fn windows_that_overlap_or_never_end_are_open() {
        let always = windows(&[("@hourly", "1h", "Etc/UTC")]).unwrap();
        for minute in ["00:00", "00:59", "59:59"] {
            let time = format!("2026-11-28T07:{minute}Z");
            assert_eq!(always.closed(time.parse().unwrap()), None, "{time}");
        }
    }

    #[test]
    fn malformed_windows_are_refused_by_their_place() {
        for (window, expected) in [
            (("0 25 * * *", "2h", "Etc/UTC"), "maintenanceWindows[1]: schedule"),
            (("@daily", "2h", "Mars/Base"), "maintenanceWindows[1]: timeZone"),
            (
                ("@daily", "2d", "Etc/UTC"),
                "maintenanceWindows[1]: duration: \"2d\" is not",
            ),
            (
                ("@daily", "9m", "Etc/UTC"),
                "maintenanceWindows[1]: duration must be between",
            ),
            (
                ("@daily", "169h", "Etc/UTC"),
                "maintenanceWindows[1]: duration must be between",
            ),
        ] {
            let error = windows(&[("@daily", "2h", "Etc/UTC"), window]).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
