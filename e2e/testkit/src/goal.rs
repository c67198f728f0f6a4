//! Goals of numbers.

use std::fmt;

/// A bound of a number, in its unit.
#[derive(Clone, Copy, Debug)]
pub enum Goal {
    /// The number is not below it.
    AtLeast(f64),
    /// The number is not above it.
    AtMost(f64),
}

impl Goal {
    /// Displays the bound beside a number.
    pub fn beside(self, number: f64) -> impl fmt::Display {
        let (reached, goal) = match self {
            Goal::AtLeast(least) => (number >= least, format!("at least {least}")),
            Goal::AtMost(most) => (number <= most, format!("at most {most}")),
        };
        format!("[{}: {goal}]", if reached { "goal" } else { "MISSED" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missed_is_said() {
        assert_eq!(Goal::AtMost(2.0).beside(2.0).to_string(), "[goal: at most 2]");
        assert_eq!(Goal::AtMost(2.0).beside(2.1).to_string(), "[MISSED: at most 2]");
        assert_eq!(Goal::AtLeast(0.4).beside(0.3).to_string(), "[MISSED: at least 0.4]");
        assert_eq!(
            Goal::AtLeast(0.4).beside(f64::NAN).to_string(),
            "[MISSED: at least 0.4]"
        );
    }
}
