//! `lockgate queues`: task queues.

use std::time::Duration;

use clap::{Subcommand, ValueEnum};
use lockgate::{
    Key,
    queue::{Queue, QueueInfo, TaskCursor, TaskFilter, TaskId, TaskInfo},
};
use serde_json::Value;

use crate::{
    cli_error::CliError,
    command_context::CommandContext,
    dead_letter_progress::run_behind_bar,
    paged_rows::read_rows,
    readable_time::{ago, readable_duration},
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ListedTasks {
    Due,
    Delayed,
    Running,
    Dead,
}

#[derive(Debug, Subcommand)]
pub(crate) enum QueuesCommand {
    /// All queues with their depth
    List,
    /// Tasks of a queue
    Tasks {
        /// Name of the queue
        queue: String,
        /// State of the tasks
        #[arg(long, value_enum, default_value = "due")]
        state: ListedTasks,
        /// Only dead letters whose last failure contains this text
        #[arg(long)]
        reason: Option<String>,
        /// Most tasks
        #[arg(long, default_value_t = 50)]
        limit: usize,
    },
    /// The payload of a task; the look is recorded
    Payload {
        /// Name of the queue
        queue: String,
        /// Id of the task
        #[arg(allow_hyphen_values = true)]
        id: TaskId,
        /// Why, for the audit log
        #[arg(long)]
        reason: String,
    },
    /// Cancel a task that waits or runs; a run may take 10 s to end
    Cancel {
        /// Name of the queue
        queue: String,
        /// Id of the task
        #[arg(allow_hyphen_values = true)]
        id: TaskId,
        /// Why, for the audit log
        #[arg(long)]
        reason: String,
    },
    /// Let a delayed task start now
    RunNow {
        /// Name of the queue
        queue: String,
        /// Id of the task
        #[arg(allow_hyphen_values = true)]
        id: TaskId,
        /// Why, for the audit log
        #[arg(long)]
        reason: String,
    },
    /// Run a dead letter again, or with --all every one
    Redrive {
        /// Name of the queue
        queue: String,
        /// Id of the task
        #[arg(required_unless_present = "all", allow_hyphen_values = true)]
        id: Option<TaskId>,
        /// All dead letters
        #[arg(long, conflicts_with = "id")]
        all: bool,
        /// At most so many a second
        #[arg(long, default_value_t = 10)]
        per_second: u32,
        /// Why, for the audit log
        #[arg(long)]
        reason: String,
    },
    /// Delete a dead letter
    Purge {
        /// Name of the queue
        queue: String,
        /// Id of the task
        #[arg(allow_hyphen_values = true)]
        id: TaskId,
        /// Why, for the audit log
        #[arg(long)]
        reason: String,
    },
    /// Let no worker start a task of a queue
    Pause {
        /// Name of the queue
        queue: String,
        /// Why, for the audit log
        #[arg(long)]
        reason: String,
    },
    /// End a pause
    Resume {
        /// Name of the queue
        queue: String,
        /// Why, for the audit log
        #[arg(long)]
        reason: String,
    },
}

impl QueuesCommand {
    pub(crate) fn is_read_only(&self) -> bool {
        matches!(self, Self::List | Self::Tasks { .. })
    }
}

pub(crate) async fn run(
    context: &CommandContext<'_>,
    command: &QueuesCommand,
) -> Result<(), CliError> {
    let admin = context.admin();
    let key = |queue: &str| Key::from_operator_name(queue);
    match command {
        QueuesCommand::List => return print_queues(context, &context.store.queues().await?),
        QueuesCommand::Tasks { queue, state, reason, limit } => {
            let (queue, reason) = (context.store.queue(key(queue)), reason.as_deref());
            return list_tasks(context, &queue, *state, reason, *limit).await;
        }
        QueuesCommand::Payload { queue, id, reason } => {
            let payload = admin.task_payload(key(queue), id, reason).await?;
            return context.output.print(&payload, |payload| format!("{payload:#}"));
        }
        QueuesCommand::Cancel { queue, id, reason } => {
            context.confirm(&format!("Cancel {id} of {queue}?"))?;
            admin.cancel_task(key(queue), id, reason).await?;
        }
        QueuesCommand::RunNow { queue, id, reason } => {
            admin.run_task_now(key(queue), id, reason).await?;
        }
        QueuesCommand::Redrive { queue, id: Some(id), reason, .. } => {
            admin.redrive_task(key(queue), id, reason).await?;
        }
        QueuesCommand::Redrive { queue, per_second, reason, .. } => {
            context.confirm(&format!("Run all dead letters of {queue} again?"))?;
            let tasks: Queue<Value> = context.store.queue(key(queue));
            let redrive = admin.redrive_tasks(key(queue), *per_second, reason);
            let count_dead = async || Ok(tasks.stats().await?.dead_letters);
            let count = run_behind_bar(context, "redriven", count_dead, redrive).await?;
            let tasks = if count == 1 { "task waits" } else { "tasks wait" };
            return context.output.print_result(format_args!("{count} {tasks} to run again"));
        }
        QueuesCommand::Purge { queue, id, reason } => {
            context.confirm(&format!("Delete {id} of {queue}?"))?;
            admin.purge_task(key(queue), id, reason).await?;
        }
        QueuesCommand::Pause { queue, reason } => {
            context.confirm(&format!("Pause {queue}?"))?;
            admin.pause_queue(key(queue), reason).await?;
        }
        QueuesCommand::Resume { queue, reason } => admin.resume_queue(key(queue), reason).await?,
    }
    context.output.print_result("done")
}

pub(crate) fn print_queues(
    context: &CommandContext<'_>,
    queues: &[QueueInfo],
) -> Result<(), CliError> {
    let columns = ["QUEUE", "DUE", "DELAYED", "RUNNING", "DEAD", "OLDEST DUE", "STATE"];
    context.output.print_rows(queues, columns, |queue| {
        [
            queue.name.clone(),
            queue.stats.due.to_string(),
            queue.stats.waiting.saturating_sub(queue.stats.due).to_string(),
            queue.stats.running.to_string(),
            queue.stats.dead_letters.to_string(),
            queue.oldest_due.map_or_else(|| "-".to_owned(), readable_duration),
            if queue.stats.paused { "paused" } else { "open" }.to_owned(),
        ]
    })
}

async fn list_tasks(
    context: &CommandContext<'_>,
    queue: &Queue<Value>,
    state: ListedTasks,
    reason: Option<&str>,
    limit: usize,
) -> Result<(), CliError> {
    if reason.is_some() && state != ListedTasks::Dead {
        return Err(CliError::usage("--reason needs --state dead".to_owned()));
    }
    let listed = async |filter| {
        let read_page = async |from, max_tasks| {
            let page = queue.tasks(filter, from, max_tasks).await?;
            Ok((page.tasks, page.next))
        };
        read_rows(limit, TaskCursor::default(), read_page).await
    };
    let tasks: Vec<TaskInfo> = match state {
        ListedTasks::Due => listed(TaskFilter::Due).await?,
        ListedTasks::Delayed => listed(TaskFilter::Delayed).await?,
        ListedTasks::Running => listed(TaskFilter::Running).await?,
        ListedTasks::Dead => {
            let read_page = async |after, max_tasks| {
                let (tasks, next) = match reason {
                    Some(reason) => {
                        let page = queue.find_dead_letters(reason, after, max_tasks).await?;
                        (page.tasks, page.next)
                    }
                    None => {
                        let page = queue.dead_letters(after, max_tasks).await?;
                        (page.tasks, page.next)
                    }
                };
                Ok((tasks, next.map(Some)))
            };
            read_rows(limit, None, read_page).await?
        }
    };
    let columns = ["ID", "PUSHED", "DUE IN", "ATTEMPTS", "LAST FAILURE"];
    context.output.print_rows(&tasks, columns, |task| {
        let due_in = Some(task.due_in).filter(|due_in| *due_in > Duration::ZERO);
        [
            task.id.to_string(),
            ago(Some(task.pushed_at)),
            due_in.map_or_else(|| "-".to_owned(), readable_duration),
            task.attempts.to_string(),
            task.history.last().map_or_else(String::new, |failure| failure.reason.clone()),
        ]
    })
}
