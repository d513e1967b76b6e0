//! `lockgate check`: [`Store::check`](lockgate::Store::check) for operators.

use indicatif::ProgressBar;
use lockgate::{CheckProgress, CheckReport};

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
    let report = context.store.check().on_progress(show_progress(&bar)).run().await;
    bar.finish_and_clear();
    let mut report = report?;
    // A repair is recorded, which would create a mistyped namespace, so it needs a fault.
    if let Some(reason) = check.reason.as_deref().filter(|_| !report.is_clean()) {
        report = repair(context, &report, reason).await?;
    }
    context.output.print(&report, ToString::to_string)?;
    if report.is_namespace_empty() {
        print_error("the namespace is empty; is it the URL of the service, with its `?ns=`?");
        return Ok(ExitStatus::EmptyNamespace);
    }
    Ok(if report.is_repaired() { ExitStatus::Done } else { ExitStatus::Negative })
}

/// Shows the faults, asks, and repairs.
async fn repair(
    context: &CommandContext<'_>,
    report: &CheckReport,
    reason: &str,
) -> Result<CheckReport, CliError> {
    context.confirm(&format!("{report}\nRepair everything that has a known repair?"))?;
    let bar = context.progress_bar(1_000, PROGRESS_TEMPLATE);
    let report = context.admin().repair_store_with_progress(show_progress(&bar), reason).await;
    bar.finish_and_clear();
    Ok(report?)
}

fn show_progress(bar: &ProgressBar) -> impl Fn(CheckProgress) + Send + Sync + 'static {
    let bar = bar.clone();
    move |progress| {
        bar.set_message(progress.examined.to_string());
        bar.set_position(progress.done_per_mille);
    }
}
