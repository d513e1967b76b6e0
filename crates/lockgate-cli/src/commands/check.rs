//! `lockgate check`: [`Store::check`](lockgate::Store::check) for operators.

use lockgate::CheckProgress;

use crate::{
    arguments::CheckArguments, cli_error::CliError, command_context::CommandContext,
    exit_status::ExitStatus, output::print_error,
};

/// The number of keys is unknown before the end, so the bar shows thousandths of the check.
const PROGRESS_TEMPLATE: &str = "{msg} examined {wide_bar} {percent}%, {eta} left";

pub(crate) async fn run(
    context: &CommandContext<'_>,
    check: &CheckArguments,
) -> Result<ExitStatus, CliError> {
    let bar = context.progress_bar(1_000, PROGRESS_TEMPLATE);
    let observed_bar = bar.clone();
    let show_progress = move |progress: CheckProgress| {
        observed_bar.set_message(progress.examined.to_string());
        observed_bar.set_position(progress.done_per_mille);
    };
    let check = context.store.check().repair(check.repair).on_progress(show_progress);
    let report = check.run().await;
    bar.finish_and_clear();
    let report = report?;
    context.output.print(&report, ToString::to_string)?;
    if report.is_namespace_empty() {
        print_error("the namespace is empty; is it the URL of the service, with its `?ns=`?");
        return Ok(ExitStatus::EmptyNamespace);
    }
    Ok(if report.is_repaired() { ExitStatus::Done } else { ExitStatus::Negative })
}
