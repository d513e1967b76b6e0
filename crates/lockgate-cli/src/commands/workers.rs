//! `lockgate workers`: the processes that answer, and their workers.

use std::time::Duration;

use crate::{
    cli_error::CliError, command_context::CommandContext, readable_time::readable_duration,
};

pub(crate) async fn run(context: &CommandContext<'_>) -> Result<(), CliError> {
    let fleet = context.store.fleet().await?;
    let columns = ["PROCESS", "VERSION", "UP", "LOCKS", "WORKERS"];
    context.output.print_rows(&fleet.processes, columns, |process| {
        let workers = process.workers.iter().map(|worker| {
            let queue = worker.queue.as_deref().unwrap_or("deferred requests");
            format!("{queue} {}/{}", worker.busy, worker.slots)
        });
        [
            format!("{} (pid {})", process.host, process.pid),
            process.version.clone(),
            readable_duration(Duration::from_millis(process.uptime_ms)),
            process.hold_count.to_string(),
            workers.collect::<Vec<_>>().join(", "),
        ]
    })
}
