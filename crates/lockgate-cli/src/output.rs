//! [`Output`]: tables for people, JSON for scripts.

use std::{
    fmt::Display,
    io::{self, Write as _},
    sync::atomic::{AtomicBool, Ordering},
};

use serde::Serialize;
use serde_json::json;

use crate::{cli_error::CliError, text_table::TextTable};

/// Form of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Output {
    /// Tables and sentences.
    Text,
    /// One JSON document on one line.
    Json,
}

impl Output {
    /// Prints the value as JSON, or the text that `to_text` makes of it.
    pub(crate) fn print<T: Serialize>(
        self,
        value: &T,
        to_text: impl FnOnce(&T) -> String,
    ) -> Result<(), CliError> {
        let text = match self {
            Self::Text => to_text(value),
            Self::Json => serde_json::to_string(value)
                .map_err(|error| CliError::usage(format!("no JSON form: {error}")))?,
        };
        print_line(text.trim_end());
        Ok(())
    }

    /// Prints what an action has done.
    pub(crate) fn print_result(self, sentence: impl Display) -> Result<(), CliError> {
        let sentence = sentence.to_string();
        self.print(&json!({ "result": sentence }), |_| sentence.clone())
    }

    /// Prints rows as JSON, or as a table.
    pub(crate) fn print_rows<T: Serialize, const N: usize>(
        self,
        rows: &[T],
        columns: [&'static str; N],
        to_cells: impl Fn(&T) -> [String; N],
    ) -> Result<(), CliError> {
        self.print(&rows, |rows| {
            let mut table = TextTable::new(columns);
            rows.iter().for_each(|row| table.add_row(to_cells(row)));
            table.to_string()
        })
    }
}

/// True once the reader of the standard output has ended.
static IS_OUTPUT_CLOSED: AtomicBool = AtomicBool::new(false);

/// Writes a line to the standard output. The reader of a pipe may have ended: the exit code still
/// reports the result, which a panic would hide.
pub(crate) fn print_line(text: impl Display) {
    let mut stdout = io::stdout().lock();
    if writeln!(stdout, "{text}").and_then(|()| stdout.flush()).is_err() {
        IS_OUTPUT_CLOSED.store(true, Ordering::Relaxed);
    }
}

/// Returns true if nobody reads the standard output any more.
pub(crate) fn is_output_closed() -> bool {
    IS_OUTPUT_CLOSED.load(Ordering::Relaxed)
}

/// Writes a line to the standard error, which may be closed.
pub(crate) fn print_error(message: impl Display) {
    let _ = writeln!(io::stderr(), "{message}");
}
