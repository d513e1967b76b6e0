//! [`CommandContext`]: store, operator and output of a command.

use indicatif::{ProgressBar, ProgressStyle};
use lockgate::{
    Store,
    admin::{Admin, Operator, Permission},
};

use crate::{arguments::Arguments, cli_error::CliError, confirmation::confirm, output::Output};

/// Store, form of the output, and the operator.
#[derive(Debug)]
pub(crate) struct CommandContext<'a> {
    pub(crate) store: &'a Store,
    pub(crate) output: Output,
    arguments: &'a Arguments,
}

impl<'a> CommandContext<'a> {
    pub(crate) fn new(store: &'a Store, arguments: &'a Arguments) -> Self {
        Self { store, output: arguments.output(), arguments }
    }

    /// Returns the actions of the operator. The store's URL allows all of them.
    pub(crate) fn admin(&self) -> Admin {
        let name = self.arguments.operator_name();
        self.store.admin(Operator::new(&name, Permission::SeePayloads))
    }

    /// Creates a bar on the standard error, of the form `template`. It is hidden if that is no
    /// terminal, and with `--json`.
    pub(crate) fn progress_bar(&self, total: u64, template: &str) -> ProgressBar {
        if self.output == Output::Json {
            return ProgressBar::hidden();
        }
        let style = ProgressStyle::with_template(template);
        ProgressBar::new(total).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
    }

    /// Asks before a destructive command.
    pub(crate) fn confirm(&self, prompt: &str) -> Result<(), CliError> {
        confirm(self.arguments.yes, prompt)
    }
}
