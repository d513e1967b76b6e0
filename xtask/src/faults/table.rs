//! What came of each row, as people read it.

use std::{io::Write as _, time::Duration};

/// What came of one row.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub(super) row: String,
    pub(super) fault: String,
    pub(super) topology: &'static str,
    /// Tests that ran.
    pub(super) runs: u64,
    pub(super) verdict: Verdict,
    /// The worst that any of them told.
    pub(super) figure: String,
    pub(super) took: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    Holds,
    /// With what the tests wrote.
    Violated(String),
    /// Why it can't be done here, and what stands in for it.
    NotHere,
}

impl Found {
    pub(super) fn is_bad(&self) -> bool {
        matches!(self.verdict, Verdict::Violated(_))
    }

    fn cells(&self) -> [String; 6] {
        let verdict = match &self.verdict {
            Verdict::Holds => "holds",
            Verdict::Violated(_) => "VIOLATED",
            Verdict::NotHere => "not here",
        };
        let runs = if self.runs == 0 { "-".to_owned() } else { self.runs.to_string() };
        let (row, fault) = (self.row.clone(), self.fault.clone());
        let figure = match &*self.figure {
            "" => format!("{:.1} s in all", self.took.as_secs_f64()),
            figure => figure.to_owned(),
        };
        [row, fault, self.topology.to_owned(), runs, verdict.to_owned(), figure]
    }
}

/// A line as soon as it is known; what a violation looks like in full.
pub(super) fn progress(found: &[Found]) {
    let Some(last) = found.last() else { return };
    println!("{}", last.cells().join(" | "));
    if let Verdict::Violated(text) = &last.verdict {
        println!("{text}");
    }
    let _ = std::io::stdout().flush();
}

const HEAD: [&str; 6] = ["row", "fault", "topology", "runs", "verdict", "worst figure"];

/// As Markdown.
pub(super) fn all(found: &[Found]) -> String {
    let rows: Vec<_> = found.iter().map(Found::cells).collect();
    let width = |at: usize| {
        let longest = rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
        longest.max(HEAD[at].len())
    };
    let widths: Vec<_> = (0..HEAD.len()).map(width).collect();
    let line = |cells: &[String]| {
        let cells = cells.iter().zip(&widths).map(|(cell, width)| format!(" {cell:width$} "));
        format!("|{}|\n", cells.collect::<Vec<_>>().join("|"))
    };
    let rule: Vec<_> = widths.iter().map(|width| "-".repeat(*width)).collect();
    let head = HEAD.map(str::to_owned);
    let body: String = rows.iter().map(|row| line(row)).collect();
    let count = |of: &dyn Fn(&Found) -> bool| found.iter().filter(|found| of(found)).count();
    let bad = count(&Found::is_bad);
    let held = count(&|found| found.verdict == Verdict::Holds);
    let rest = found.len() - bad - held;
    let sum = format!("{held} hold, {bad} are violated, {rest} can't be done here\n");
    [line(&head), line(&rule), body, sum].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(verdict: Verdict, figure: &str) -> Found {
        Found {
            row: "l1".into(),
            fault: "holder killed".into(),
            topology: "single",
            runs: 2,
            verdict,
            figure: figure.into(),
            took: Duration::from_millis(1500),
        }
    }

    #[test]
    fn a_violation_is_bad_and_told() {
        let all_of = [
            found(Verdict::Holds, "longest wait 1240 ms"),
            found(Verdict::NotHere, "the clock is the host's"),
            found(Verdict::Violated("M1".into()), ""),
        ];
        assert_eq!(all_of.each_ref().map(Found::is_bad), [false, false, true]);
        let text = all(&all_of);
        assert!(text.contains("| l1  | holder killed | single   | 2    | VIOLATED | 1.5 s in all"));
        assert!(text.ends_with("1 hold, 1 are violated, 1 can't be done here\n"), "{text}");
    }
}
