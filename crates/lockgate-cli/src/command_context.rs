//! [`CommandContext`]: what every command needs.

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

    /// Returns the actions of the operator. Who has the store's URL may do everything.
    pub(crate) fn admin(&self) -> Admin {
        let name = self.arguments.operator_name();
        self.store.admin(Operator::new(&name, Permission::SeePayloads))
    }

    /// Asks before a destructive command.
    pub(crate) fn confirm(&self, prompt: &str) -> Result<(), CliError> {
        confirm(self.arguments.yes, prompt)
    }
}
