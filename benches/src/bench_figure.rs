//! Numbered figures: one value per round, compared with a target by their median.

use std::fmt;

use crate::stats::{median, value_range};

#[derive(Debug, Clone)]
pub(crate) struct BenchFigure {
    /// Number of the part, and a letter: `1a`.
    pub(crate) id: &'static str,
    pub(crate) description: String,
    pub(crate) unit: &'static str,
    pub(crate) target: FigureTarget,
    /// Empty if the figure could not be measured.
    pub(crate) round_values: Vec<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum FigureTarget {
    AtLeast(f64),
    AtMost(f64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FigureVerdict {
    pub(crate) reached: bool,
    /// Each round alone gives the same verdict.
    pub(crate) is_unanimous: bool,
}

impl FigureTarget {
    fn is_met_by(self, value: f64) -> bool {
        match self {
            Self::AtLeast(bound) => value >= bound,
            Self::AtMost(bound) => value <= bound,
        }
    }
}

impl BenchFigure {
    pub(crate) fn median_value(&self) -> f64 {
        median(&self.round_values)
    }

    /// Compares the median with the target. A figure without values, or with NaN, misses it.
    pub(crate) fn verdict(&self) -> FigureVerdict {
        let reached = self.target.is_met_by(self.median_value());
        let is_unanimous =
            self.round_values.iter().all(|value| self.target.is_met_by(*value) == reached);
        FigureVerdict { reached, is_unanimous }
    }
}

impl fmt::Display for BenchFigure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (smallest, largest) = value_range(&self.round_values);
        let spread = format!("({}..{})", format_number(smallest), format_number(largest));
        let value = format!("{} {}", format_number(self.median_value()), self.unit);
        let Self { id, description, target, .. } = self;
        let target = format!("{target} {}", self.unit);
        let verdict = self.verdict();
        write!(f, "  {id} {description:<66} {value:>10} {spread:<19} {target:<11} {verdict}")
    }
}

impl fmt::Display for FigureTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(bound) => write!(f, ">= {}", format_number(*bound)),
            Self::AtMost(bound) => write!(f, "<= {}", format_number(*bound)),
        }
    }
}

impl fmt::Display for FigureVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.reached { "ok" } else { "FALLS SHORT" })?;
        f.write_str(if self.is_unanimous { "" } else { ", rounds disagree" })
    }
}

/// Formats a number with about three significant digits, since the others are noise.
pub(crate) fn format_number(value: f64) -> String {
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

    fn verdict_text(target: FigureTarget, round_values: &[f64]) -> String {
        let (description, round_values) = (String::new(), round_values.to_vec());
        BenchFigure { id: "0", description, unit: "", target, round_values }.verdict().to_string()
    }

    #[test]
    fn median_decides_verdict() {
        let target = FigureTarget::AtLeast(20.0);
        assert_eq!(verdict_text(target, &[20.0, 21.0, 25.0]), "ok");
        assert_eq!(verdict_text(target, &[19.0, 21.0, 25.0]), "ok, rounds disagree");
        assert_eq!(verdict_text(target, &[19.0, 18.0, 25.0]), "FALLS SHORT, rounds disagree");
        assert_eq!(verdict_text(target, &[1.0, 2.0]), "FALLS SHORT");
    }

    #[test]
    fn at_most_target_is_an_upper_bound() {
        let target = FigureTarget::AtMost(5.0);
        assert_eq!(verdict_text(target, &[4.0, 5.0]), "ok");
        assert_eq!(verdict_text(target, &[4.0, f64::INFINITY, 5.0]), "ok, rounds disagree");
        assert_eq!(verdict_text(target, &[f64::INFINITY]), "FALLS SHORT");
    }

    #[test]
    fn missing_or_nan_values_fall_short() {
        assert_eq!(verdict_text(FigureTarget::AtLeast(1.0), &[]), "FALLS SHORT");
        assert_eq!(verdict_text(FigureTarget::AtMost(1.0), &[f64::NAN]), "FALLS SHORT");
    }

    #[test]
    fn numbers_are_printed_with_three_digits() {
        let formatted = [0.0, 0.1234, 0.97, 1.0, 12.34, 123.4, 5160.4].map(format_number);
        assert_eq!(formatted, ["0", "0.123", "0.970", "1.00", "12.3", "123", "5160"]);
    }
}
