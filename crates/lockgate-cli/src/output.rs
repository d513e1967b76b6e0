//! [`Output`]: tables for people, JSON for scripts.

use std::{
    fmt::Display,
    io::{self, Write as _},
    sync::atomic::{AtomicBool, Ordering},
};

use serde::Serialize;
use serde_json::json;

use crate::{
    cli_error::CliError,
    control_characters::{escape_controls, replace_controls},
    text_table::TextTable,
};

/// Moves the cursor to the upper left corner and erases the screen.
const CLEAR_SCREEN: &str = "\u{1b}[H\u{1b}[2J";

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
                .map(|json| escape_controls(&json))
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

/// Writes text and a line break to the standard output, with its control characters replaced: it
/// may come from a client.
pub(crate) fn print_line(text: impl Display) {
    write_to_stdout(&format!("{}\n", replace_controls(&text.to_string())));
}

/// Erases the screen of the terminal.
pub(crate) fn clear_screen() {
    write_to_stdout(CLEAR_SCREEN);
}

/// Writes to the standard output. The reader of a pipe may have ended: the exit code still reports
/// the result, which a panic would hide.
fn write_to_stdout(text: &str) {
    let mut stdout = io::stdout().lock();
    if stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).is_err() {
        IS_OUTPUT_CLOSED.store(true, Ordering::Relaxed);
    }
}

/// Returns true if the standard output has no reader any more.
pub(crate) fn is_output_closed() -> bool {
    IS_OUTPUT_CLOSED.load(Ordering::Relaxed)
}

/// Writes a line to the standard error, which may be closed. Its control characters are replaced.
pub(crate) fn print_error(message: impl Display) {
    let _ = writeln!(io::stderr(), "{}", replace_controls(&message.to_string()));
}
