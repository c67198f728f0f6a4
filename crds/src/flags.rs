//! The brain's flags by name, as in the brain's own table. A test of the brain writes `flags.txt` and fails when it differs.

pub use values::Values;

mod values;

/// One flag per line: its name, how the brain treats it, and the values it takes.
const TABLE: &str = include_str!("../flags.txt");

/// A flag of the brain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flag {
    /// Its name, without dashes.
    pub name: &'static str,
    /// How the brain treats it.
    pub treatment: Treatment,
    /// The values it takes. For an old name, look them up under the new name.
    pub values: Values,
}

/// How the brain treats a flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Treatment {
    /// It has an effect, or is accepted and ignored.
    Accepted,
    /// The brain does not start with it.
    Refused,
    /// It is an old name of this flag.
    Renamed(&'static str),
}

impl Flag {
    /// Returns what is wrong with a value of this flag, in words; `None` if no fault is known.
    #[must_use]
    pub fn fault(&self, value: &str) -> Option<String> {
        let values = match self.treatment {
            Treatment::Renamed(new) => named(new).map_or(Values::Text, |new| new.values),
            Treatment::Accepted | Treatment::Refused => self.values,
        };
        values.fault(value)
    }

    /// Returns the current name of this flag.
    #[must_use]
    pub fn current_name(&self) -> &'static str {
        match self.treatment {
            Treatment::Renamed(new) => new,
            Treatment::Accepted | Treatment::Refused => self.name,
        }
    }
}

/// Every flag of the brain, by name.
pub fn all() -> impl Iterator<Item = Flag> {
    TABLE.lines().filter_map(|line| {
        let words: Vec<&'static str> = line.split(' ').collect();
        let (name, treatment, values): (_, _, &[&'static str]) = match words.as_slice() {
            [name, "refused"] => (name, Treatment::Refused, &[]),
            [name, "renamed", new] => (name, Treatment::Renamed(new), &[]),
            [name, "idle"] => (name, Treatment::Accepted, &[]),
            [name, "works", values @ ..] => (name, Treatment::Accepted, values),
            _ => return None,
        };
        Some(Flag {
            name,
            treatment,
            values: Values::read(values)?,
        })
    })
}

/// Returns the flag of this name.
#[must_use]
pub fn named(name: &str) -> Option<Flag> {
    all().find(|flag| flag.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{OWN_FLAGS, TYPED_FLAGS};

    #[test]
    fn every_line_of_the_table_is_read() {
        assert_eq!(all().count(), TABLE.lines().count());
        assert!(all().is_sorted_by(|one, next| one.name < next.name));
        assert_eq!(named("name").unwrap().treatment, Treatment::Accepted);
        assert_eq!(named("wal-dir").unwrap().treatment, Treatment::Refused);
        let old = named("experimental-corrupt-check-time").unwrap();
        assert_eq!(old.current_name(), "corrupt-check-time");
        assert_eq!(named("no-such-flag"), None);
        assert!(old.fault("often").is_some(), "an old name takes what the new one does");
        let gate = named("experimental-initial-corrupt-check").unwrap();
        assert_eq!(gate.fault("true"), None);
    }

    #[test]
    fn flags_that_follow_from_the_spec_are_flags_of_the_brain() {
        let typed = TYPED_FLAGS.iter().map(|(flag, _)| flag);
        let unknown: Vec<&&str> = OWN_FLAGS
            .iter()
            .chain(typed)
            .filter(|flag| named(flag).is_none())
            .collect();
        assert!(unknown.is_empty(), "{unknown:?}");
        for flag in all().filter(|flag| OWN_FLAGS.contains(&flag.current_name())) {
            assert!(OWN_FLAGS.contains(&flag.name), "{} is an old name of one", flag.name);
        }
    }
}
