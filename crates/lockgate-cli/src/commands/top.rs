//! `lockgate top`: the most important numbers on one screen.

use crate::{
    cli_error::CliError,
    command_context::CommandContext,
    commands::{locks, queues, queues::QueuesCommand, workers},
    output::{Output, print_line},
};

/// Longest holds on the screen, which has to hold the queues and processes too.
const MAX_LOCKS: usize = 10;

pub(crate) async fn run(context: &CommandContext<'_>) -> Result<(), CliError> {
    let jobs = context.store.deferred_jobs();
    let (stats, paused) = (jobs.stats().await?, jobs.is_paused().await?);
    if context.output == Output::Json {
        return context.output.print(&stats, |_| String::new());
    }
    print_line(format_args!(
        "deferred requests: {} pending, {} delayed, {} dead{}\n",
        stats.pending,
        stats.delayed,
        stats.dead,
        if paused { ", paused" } else { "" }
    ));
    locks::list(context, MAX_LOCKS).await?;
    print_line("");
    queues::run(context, &QueuesCommand::List).await?;
    print_line("");
    workers::run(context, None).await
}
