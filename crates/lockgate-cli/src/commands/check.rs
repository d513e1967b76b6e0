//! `lockgate check`: [`Store::check`](lockgate::Store::check) for operators.

use std::time::Duration;

use indicatif::ProgressBar;

use crate::{
    arguments::CheckArguments, cli_error::CliError, command_context::CommandContext,
    exit_status::ExitStatus, output::print_error,
};

pub(crate) async fn run(
    context: &CommandContext<'_>,
    check: &CheckArguments,
) -> Result<ExitStatus, CliError> {
    // Hidden if the standard error is no terminal.
    let progress = ProgressBar::new_spinner().with_message("checking every key");
    progress.enable_steady_tick(Duration::from_millis(100));
    let report = context.store.check().repair(check.repair).run().await;
    progress.finish_and_clear();
    let report = report?;
    context.output.print(&report, ToString::to_string)?;
    if report.is_namespace_empty() {
        print_error("the namespace is empty; is it the URL of the service, with its `?ns=`?");
        return Ok(ExitStatus::EmptyNamespace);
    }
    Ok(if report.is_repaired() { ExitStatus::Done } else { ExitStatus::Negative })
}
