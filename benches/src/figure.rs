//! A numbered figure: what was measured round by round, and the line it has to reach.

use std::fmt;

use crate::stats::{median, spread};

#[derive(Debug, Clone)]
pub(crate) struct Figure {
    /// The number in the list of promises, and a letter for its part: `1a`.
    pub(crate) id: &'static str,
    pub(crate) what: String,
    pub(crate) unit: &'static str,
    pub(crate) line: Line,
    /// One value a round.
    pub(crate) rounds: Vec<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Line {
    AtLeast(f64),
    AtMost(f64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) reached: bool,
    /// All rounds are on the same side of the line.
    pub(crate) decided: bool,
}

impl Line {
    fn holds(self, value: f64) -> bool {
        match self {
            Self::AtLeast(line) => value >= line,
            Self::AtMost(line) => value <= line,
        }
    }
}

impl Figure {
    pub(crate) fn value(&self) -> f64 {
        median(&self.rounds)
    }

    /// By the median, also where the rounds do not agree. What could not be measured is not reached.
    pub(crate) fn verdict(&self) -> Verdict {
        let reached = self.line.holds(self.value());
        let decided = self.rounds.iter().all(|value| self.line.holds(*value) == reached);
        Verdict { reached, decided }
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (least, most) = spread(&self.rounds);
        let spread = format!("({}..{})", short(least), short(most));
        let value = format!("{} {}", short(self.value()), self.unit);
        let Self { id, what, line, .. } = self;
        let line = format!("{line} {}", self.unit);
        let verdict = self.verdict();
        write!(f, "  {id} {what:<66} {value:>10} {spread:<19} {line:<11} {verdict}")
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(line) => write!(f, ">= {}", short(*line)),
            Self::AtMost(line) => write!(f, "<= {}", short(*line)),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.reached { "ok" } else { "FALLS SHORT" })?;
        f.write_str(if self.decided { "" } else { ", not decided" })
    }
}

/// Three digits or so: more would be noise.
pub(crate) fn short(value: f64) -> String {
    match value.abs() {
        size if !size.is_finite() => format!("{value}"),
        size if size >= 100.0 || size == 0.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.995 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(line: Line, rounds: &[f64]) -> String {
        let what = String::new();
        let rounds = rounds.to_vec();
        Figure { id: "0", what, unit: "", line, rounds }.verdict().to_string()
    }

    #[test]
    fn the_median_judges() {
        let line = Line::AtLeast(20.0);
        assert_eq!(verdict(line, &[20.0, 21.0, 25.0]), "ok");
        assert_eq!(verdict(line, &[19.0, 21.0, 25.0]), "ok, not decided");
        assert_eq!(verdict(line, &[19.0, 18.0, 25.0]), "FALLS SHORT, not decided");
        assert_eq!(verdict(line, &[1.0, 2.0]), "FALLS SHORT");
    }

    #[test]
    fn a_ceiling_is_a_line_too() {
        let line = Line::AtMost(5.0);
        assert_eq!(verdict(line, &[4.0, 5.0]), "ok");
        assert_eq!(verdict(line, &[4.0, f64::INFINITY, 5.0]), "ok, not decided");
        assert_eq!(verdict(line, &[f64::INFINITY]), "FALLS SHORT");
    }

    #[test]
    fn what_was_not_measured_falls_short() {
        assert_eq!(verdict(Line::AtLeast(1.0), &[]), "FALLS SHORT");
        assert_eq!(verdict(Line::AtMost(1.0), &[f64::NAN]), "FALLS SHORT");
    }

    #[test]
    fn three_digits() {
        let told = [0.0, 0.1234, 0.97, 1.0, 12.34, 123.4, 5160.4].map(short);
        assert_eq!(told, ["0", "0.123", "0.970", "1.00", "12.3", "123", "5160"]);
    }
}
