//! `lockgate workers`: the processes that answer, their workers, and the drain of one process.

use std::time::Duration;

use clap::{Args, Subcommand};
use lockgate::{FleetReport, ProcessReport, SilentNode, admin::AdminError};
use serde::Serialize;

use crate::{
    cli_error::CliError, command_context::CommandContext, output::print_error,
    readable_time::readable_duration,
};

#[derive(Debug, Subcommand)]
pub(crate) enum WorkersCommand {
    /// Let the workers of a process finish what runs, and start nothing more
    Drain(ProcessArguments),
    /// Let the workers of a drained process start work again
    Resume(ProcessArguments),
}

#[derive(Debug, Args)]
pub(crate) struct ProcessArguments {
    /// The process, as HOST:PID or by its id
    #[arg(value_name = "HOST:PID|NODE")]
    process: String,
    /// Why, for the audit log
    #[arg(long)]
    reason: String,
}

pub(crate) async fn run(
    context: &CommandContext<'_>,
    command: Option<&WorkersCommand>,
) -> Result<(), CliError> {
    match command {
        None => print_processes(context, &context.store.fleet().await?),
        Some(WorkersCommand::Drain(arguments)) => {
            let process = &arguments.process;
            context.confirm(&format!("Drain {process}? Its workers start nothing more."))?;
            for node in nodes_of(context, process).await? {
                context.admin().drain_process(&node, &arguments.reason).await?;
            }
            context.output.print_result(format_args!("{process} is drained"))
        }
        Some(WorkersCommand::Resume(arguments)) => {
            for node in nodes_of(context, &arguments.process).await? {
                context.admin().resume_process(&node, &arguments.reason).await?;
            }
            context.output.print_result(format_args!("{} is resumed", arguments.process))
        }
    }
}

pub(crate) fn print_processes(
    context: &CommandContext<'_>,
    fleet: &FleetReport,
) -> Result<(), CliError> {
    let columns = ["PROCESS", "NODE", "VERSION", "UP", "LOCKS", "STATE", "WORKERS"];
    let rows = fleet.processes.iter().map(WorkerRow::Answered);
    let rows: Vec<_> = rows.chain(fleet.silent.iter().map(WorkerRow::Silent)).collect();
    warn_if_truncated(fleet);
    context.output.print_rows(&rows, columns, WorkerRow::to_cells)
}

/// Says on the standard error output that there may be processes without a report.
pub(crate) fn warn_if_truncated(fleet: &FleetReport) {
    if fleet.truncated {
        print_error(
            "256 store handles have answered, the most that an inquiry takes: there may be other processes",
        );
    }
}

/// Process that answered, or node that did not.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum WorkerRow<'a> {
    Answered(&'a ProcessReport),
    Silent(&'a SilentNode),
}

impl WorkerRow<'_> {
    fn to_cells(&self) -> [String; 7] {
        let process = match self {
            Self::Answered(process) => process,
            Self::Silent(SilentNode { node, lease_left_ms, .. }) => {
                let lease = match lease_left_ms {
                    0 => "its lease has ended".to_owned(),
                    ms => format!(
                        "its lease ends in {}",
                        readable_duration(Duration::from_millis(*ms))
                    ),
                };
                return ["?", node, "?", "?", "?", "no answer", &lease].map(str::to_owned);
            }
        };
        let workers = process.workers.iter().map(|worker| {
            let queue = worker.queue.as_deref().unwrap_or("deferred requests");
            format!("{queue} {}/{}", worker.busy, worker.slots)
        });
        [
            format!("{}:{}", process.host, process.pid),
            process.node.clone(),
            process.version.clone(),
            readable_duration(Duration::from_millis(process.uptime_ms)),
            process.hold_count.to_string(),
            if process.draining { "draining" } else { "works" }.to_owned(),
            workers.collect::<Vec<_>>().join(", "),
        ]
    }
}

/// Returns the ids of a process: one for each of its store handles. An id stands for itself.
async fn nodes_of(context: &CommandContext<'_>, process: &str) -> Result<Vec<String>, CliError> {
    if !process.contains(':') {
        return Ok(vec![process.to_owned()]);
    }
    let fleet = context.store.fleet().await?;
    let is_named = |report: &&ProcessReport| format!("{}:{}", report.host, report.pid) == process;
    let nodes: Vec<_> =
        fleet.processes.iter().filter(is_named).map(|report| report.node.clone()).collect();
    if nodes.is_empty() {
        let sentence = format!("{process} does not answer; `lockgate workers` lists who does");
        return Err(AdminError::NotPossible(sentence).into());
    }
    Ok(nodes)
}
