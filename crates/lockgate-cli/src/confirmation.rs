//! The confirmation of a destructive command.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};

use crate::{cli_error::CliError, control_characters::replace_controls};

/// Asks on the terminal, unless `yes`. Without a terminal the answer is no.
pub(crate) fn confirm(yes: bool, prompt: &str) -> Result<(), CliError> {
    if yes {
        return Ok(());
    }
    if !io::stdin().is_terminal() {
        return Err(CliError::not_confirmed());
    }
    let _ = write!(io::stderr(), "{} [y/N] ", replace_controls(prompt));
    let _ = io::stderr().flush();
    let mut answer = String::new();
    let is_read = io::stdin().lock().read_line(&mut answer).is_ok();
    if is_read && matches!(answer.trim(), "y" | "Y" | "yes") {
        Ok(())
    } else {
        Err(CliError::not_confirmed())
    }
}
