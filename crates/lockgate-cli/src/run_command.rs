//! Runs one command.

use std::io::{self, Write as _};

use clap::CommandFactory as _;
use lockgate::Store;

use crate::{
    arguments::{Arguments, Command},
    cli_error::CliError,
    command_context::CommandContext,
    commands::{audit, check, jobs, limits, locks, queues, top, workers},
    exit_status::ExitStatus,
};

/// Runs a command that needs no store.
pub(crate) fn run_without_store(arguments: &Arguments) -> Option<ExitStatus> {
    let Command::Completions { shell } = &arguments.command else { return None };
    // Not written at once by `generate`, which panics if the reader of a pipe has ended.
    let mut script = Vec::new();
    clap_complete::generate(*shell, &mut Arguments::command(), "lockgate", &mut script);
    let _ = io::stdout().write_all(&script);
    Some(ExitStatus::Done)
}

/// Runs a command on the store.
pub(crate) async fn run(store: &Store, arguments: &Arguments) -> Result<ExitStatus, CliError> {
    let context = CommandContext::new(store, arguments);
    match &arguments.command {
        Command::Locks(command) => locks::run(&context, command).await,
        Command::Limits(command) => limits::run(&context, command).await,
        Command::Jobs(command) => jobs::run(&context, command).await,
        Command::Queues(command) => queues::run(&context, command).await,
        Command::Workers { command } => workers::run(&context, command.as_ref()).await,
        Command::Check(check) => return check::run(&context, check).await,
        Command::Top => top::run(&context).await,
        Command::Audit(audit) => audit::run(&context, audit).await,
        Command::Completions { .. } => Ok(()),
    }?;
    Ok(ExitStatus::Done)
}
