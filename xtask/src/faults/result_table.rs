//! `RowResult`: result of a row, and the table of all results as text.

use std::{io::Write as _, time::Duration};

/// Result of one row.
#[derive(Debug, Clone)]
pub(super) struct RowResult {
    pub(super) row: String,
    pub(super) fault: String,
    pub(super) topology: &'static str,
    /// Number of tests that ran.
    pub(super) test_count: u64,
    pub(super) verdict: RowVerdict,
    /// Worst figures that the tests reported.
    pub(super) worst_figure: String,
    pub(super) duration: Duration,
}

/// Verdict on a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RowVerdict {
    Holds,
    /// The output of the failed tests.
    Violated(String),
    /// The fault cannot be provoked on one machine. The row gives the substitute.
    NotRunnable,
}

impl RowResult {
    pub(super) fn is_violated(&self) -> bool {
        matches!(self.verdict, RowVerdict::Violated(_))
    }

    fn cells(&self) -> [String; 6] {
        let verdict = match &self.verdict {
            RowVerdict::Holds => "holds",
            RowVerdict::Violated(_) => "VIOLATED",
            RowVerdict::NotRunnable => "not here",
        };
        let runs = if self.test_count == 0 { "-".to_owned() } else { self.test_count.to_string() };
        let (row, fault) = (self.row.clone(), self.fault.clone());
        let figure = match &*self.worst_figure {
            "" => format!("{:.1} s in all", self.duration.as_secs_f64()),
            figure => figure.to_owned(),
        };
        [row, fault, self.topology.to_owned(), runs, verdict.to_owned(), figure]
    }
}

/// Prints the line of the last result, and the full output of a violation.
pub(super) fn print_progress(results: &[RowResult]) {
    let Some(last) = results.last() else { return };
    println!("{}", last.cells().join(" | "));
    if let RowVerdict::Violated(text) = &last.verdict {
        println!("{text}");
    }
    let _ = std::io::stdout().flush();
}

const TABLE_HEADER: [&str; 6] = ["row", "fault", "topology", "runs", "verdict", "worst figure"];

/// Formats the results as a Markdown table.
pub(super) fn format_table(results: &[RowResult]) -> String {
    let rows: Vec<_> = results.iter().map(RowResult::cells).collect();
    let width = |at: usize| {
        let longest = rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
        longest.max(TABLE_HEADER[at].len())
    };
    let widths: Vec<_> = (0..TABLE_HEADER.len()).map(width).collect();
    let line = |cells: &[String]| {
        let cells = cells.iter().zip(&widths).map(|(cell, width)| format!(" {cell:width$} "));
        format!("|{}|\n", cells.collect::<Vec<_>>().join("|"))
    };
    let rule: Vec<_> = widths.iter().map(|width| "-".repeat(*width)).collect();
    let head = TABLE_HEADER.map(str::to_owned);
    let body: String = rows.iter().map(|row| line(row)).collect();
    let count = |is_counted: &dyn Fn(&RowResult) -> bool| {
        results.iter().filter(|result| is_counted(result)).count()
    };
    let violated = count(&RowResult::is_violated);
    let held = count(&|result| result.verdict == RowVerdict::Holds);
    let not_runnable = results.len() - violated - held;
    let summary =
        format!("{held} hold, {violated} are violated, {not_runnable} can't be done here\n");
    [line(&head), line(&rule), body, summary].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row_result(verdict: RowVerdict, figure: &str) -> RowResult {
        RowResult {
            row: "l1".into(),
            fault: "holder killed".into(),
            topology: "single",
            test_count: 2,
            verdict,
            worst_figure: figure.into(),
            duration: Duration::from_millis(1500),
        }
    }

    #[test]
    fn violated_row_is_counted_and_printed() {
        let results = [
            row_result(RowVerdict::Holds, "longest wait 1240 ms"),
            row_result(RowVerdict::NotRunnable, "the clock is the host's"),
            row_result(RowVerdict::Violated("M1".into()), ""),
        ];
        assert_eq!(results.each_ref().map(RowResult::is_violated), [false, false, true]);
        let text = format_table(&results);
        assert!(text.contains("| l1  | holder killed | single   | 2    | VIOLATED | 1.5 s in all"));
        assert!(text.ends_with("1 hold, 1 are violated, 1 can't be done here\n"), "{text}");
    }
}
