//! `lockgate top`: the most important numbers on one screen.

use serde_json::json;

use crate::{
    cli_error::CliError,
    command_context::CommandContext,
    commands::{
        locks::{LockList, print_locks},
        queues, workers,
    },
    output::{Output, print_line},
};

/// Longest holds and longest waits on the screen, which has to hold the queues and processes too.
const MAX_LOCKS: usize = 10;

pub(crate) async fn run(context: &CommandContext<'_>) -> Result<(), CliError> {
    let jobs = context.store.deferred_jobs();
    let (stats, paused) = (jobs.stats().await?, jobs.is_paused().await?);
    let (fleet, queues) = (context.store.fleet().await?, context.store.queues().await?);
    let mut locks = LockList::of(&fleet, MAX_LOCKS);
    locks.waits.truncate(MAX_LOCKS);
    if context.output == Output::Json {
        let document = json!({
            "jobs": stats,
            "paused": paused,
            "locks": locks,
            "queues": queues,
            "workers": fleet.processes,
            "silent": fleet.silent,
            "truncated": fleet.truncated,
        });
        return context.output.print(&document, ToString::to_string);
    }
    print_line(format_args!(
        "deferred requests: {} pending, {} delayed, {} dead{}\n",
        stats.pending,
        stats.delayed,
        stats.dead,
        if paused { ", paused" } else { "" }
    ));
    print_locks(context, &locks)?;
    print_line("");
    queues::print_queues(context, &queues)?;
    print_line("");
    workers::print_processes(context, &fleet)
}
