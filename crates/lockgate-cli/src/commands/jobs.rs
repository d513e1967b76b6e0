//! `lockgate jobs`: deferred requests.

use std::time::Duration;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use clap::{Args, Subcommand, ValueEnum};
use lockgate::{
    JobId, Key,
    defer::{JobCursor, JobFilter, JobGroup, JobInfo, JobRequest},
};
use serde_json::{Value, json};

use crate::{
    cli_error::CliError, command_context::CommandContext, control_characters::to_single_line,
    dead_letter_progress::run_behind_bar, paged_rows::read_rows, readable_time::ago,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ListedState {
    /// Waiting, delayed or running
    Pending,
    Waiting,
    Delayed,
    Running,
    Dead,
    Done,
}

impl From<ListedState> for JobGroup {
    fn from(state: ListedState) -> Self {
        match state {
            ListedState::Pending => Self::Pending,
            ListedState::Waiting => Self::Waiting,
            ListedState::Delayed => Self::Delayed,
            ListedState::Running => Self::Running,
            ListedState::Dead => Self::Dead,
            ListedState::Done => Self::Done,
        }
    }
}

/// State and filters of a list of deferred requests.
#[derive(Debug, Args)]
pub(crate) struct ListArguments {
    /// State of the requests
    #[arg(long, value_enum, default_value = "pending")]
    state: ListedState,
    /// Most requests
    #[arg(long, default_value_t = 50)]
    limit: usize,
    /// Only those of this owner
    #[arg(long)]
    owner: Option<String>,
    /// Only those of this lock
    #[arg(long)]
    lock: Option<String>,
    /// Only those whose method and route pattern contain this text, such as `POST /orders`
    #[arg(long)]
    route: Option<String>,
    /// Only those whose reason contains this text
    #[arg(long)]
    reason: Option<String>,
}

impl ListArguments {
    fn filter(&self) -> JobFilter {
        let mut filter = JobFilter::new(self.state.into());
        if let Some(owner) = &self.owner {
            filter = filter.owner(owner);
        }
        if let Some(lock) = &self.lock {
            filter = filter.lock(Key::from_operator_name(lock));
        }
        if let Some(route) = &self.route {
            filter = filter.route(route);
        }
        if let Some(reason) = &self.reason {
            filter = filter.reason(reason);
        }
        filter
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum JobsCommand {
    /// Deferred requests in a state
    List(ListArguments),
    /// One deferred request with its runs
    Show {
        /// Id of the request
        id: JobId,
    },
    /// The stored request with its headers and its body; the look is recorded
    ///
    /// Control characters are replaced in the text. With --json, the body is exact: `body`, or
    /// `body_base64` if it is not UTF-8.
    Payload {
        /// Id of the request
        id: JobId,
        /// Why, for the audit log
        #[arg(long)]
        reason: String,
    },
    /// Cancel a request that waits or runs; a run may take 10 s to end
    Cancel {
        /// Id of the request
        id: JobId,
        /// Why, for the audit log
        #[arg(long)]
        reason: String,
    },
    /// Run a delayed request as soon as its lock is free
    RunNow {
        /// Id of the request
        id: JobId,
        /// Why, for the audit log
        #[arg(long)]
        reason: String,
    },
    /// Run a dead request again, or with --all every dead one
    Redrive {
        /// Id of the request
        #[arg(required_unless_present = "all")]
        id: Option<JobId>,
        /// All dead requests
        #[arg(long, conflicts_with = "id")]
        all: bool,
        /// At most so many a second
        #[arg(long, default_value_t = 10)]
        per_second: u32,
        /// Why, for the audit log
        #[arg(long)]
        reason: String,
    },
    /// Delete an ended request and its response, or with --all every dead one
    Purge {
        /// Id of the request
        #[arg(required_unless_present = "all")]
        id: Option<JobId>,
        /// All dead requests
        #[arg(long, conflicts_with = "id")]
        all: bool,
        /// Only those that died so many seconds ago or earlier
        #[arg(long, value_name = "SECONDS", default_value_t = 0, conflicts_with = "id")]
        older_than: u64,
        /// Why, for the audit log
        #[arg(long)]
        reason: String,
    },
    /// Let no worker start a deferred request
    Pause {
        /// Why, for the audit log
        #[arg(long)]
        reason: String,
    },
    /// End a pause
    Resume {
        /// Why, for the audit log
        #[arg(long)]
        reason: String,
    },
}

impl JobsCommand {
    pub(crate) fn is_read_only(&self) -> bool {
        matches!(self, Self::List(_) | Self::Show { .. })
    }
}

pub(crate) async fn run(
    context: &CommandContext<'_>,
    command: &JobsCommand,
) -> Result<(), CliError> {
    let (admin, jobs) = (context.admin(), context.store.deferred_jobs());
    let count_dead = async || Ok(jobs.stats().await?.dead);
    match command {
        JobsCommand::List(arguments) => return list(context, arguments).await,
        JobsCommand::Show { id } => return show(context, id).await,
        JobsCommand::Payload { id, reason } => {
            let request = admin.job_payload(id, reason).await?;
            return context.output.print(&to_document(&request), |_| to_text(&request));
        }
        JobsCommand::Cancel { id, reason } => {
            context.confirm(&format!("Cancel {id}?"))?;
            admin.cancel_job(id, reason).await?;
        }
        JobsCommand::RunNow { id, reason } => admin.run_job_now(id, reason).await?,
        JobsCommand::Redrive { id: Some(id), reason, .. } => admin.redrive_job(id, reason).await?,
        JobsCommand::Redrive { per_second, reason, .. } => {
            context.confirm("Run all dead requests again?")?;
            let redrive = admin.redrive_dead_jobs(*per_second, reason);
            let count = run_behind_bar(context, "redriven", count_dead, redrive).await?;
            let requests = if count == 1 { "request waits" } else { "requests wait" };
            return context.output.print_result(format_args!("{count} {requests} to run again"));
        }
        JobsCommand::Purge { id: Some(id), reason, .. } => {
            context.confirm(&format!("Delete {id} and its response?"))?;
            admin.purge_job(id, reason).await?;
        }
        JobsCommand::Purge { older_than, reason, .. } => {
            context.confirm("Delete all dead requests of that age?")?;
            let purge = admin.purge_dead_jobs(Duration::from_secs(*older_than), reason);
            let count = run_behind_bar(context, "purged", count_dead, purge).await?;
            return context.output.print_result(format_args!("{count} deleted"));
        }
        JobsCommand::Pause { reason } => {
            context.confirm("Pause all deferred requests?")?;
            admin.pause_jobs(reason).await?;
        }
        JobsCommand::Resume { reason } => admin.resume_jobs(reason).await?,
    }
    context.output.print_result("done")
}

/// Returns the JSON form of a request. Its headers are pairs, since a name may occur twice.
fn to_document(request: &JobRequest) -> Value {
    let headers = request.headers.iter();
    let headers = headers.map(|(name, value)| json!([name, String::from_utf8_lossy(value)]));
    let (member, body) = match str::from_utf8(&request.body) {
        Ok(text) => ("body", text.to_owned()),
        Err(_) => ("body_base64", BASE64_STANDARD.encode(&request.body)),
    };
    json!({
        "method": request.method,
        "target": request.target,
        "headers": headers.collect::<Vec<_>>(),
        member: body,
    })
}

fn to_text(request: &JobRequest) -> String {
    let mut text = to_single_line(&format!("{} {}", request.method, request.target));
    for (name, value) in &request.headers {
        let line = format!("{name}: {}", String::from_utf8_lossy(value));
        text += &format!("\n{}", to_single_line(&line));
    }
    text + "\n\n" + &String::from_utf8_lossy(&request.body)
}

async fn list(context: &CommandContext<'_>, arguments: &ListArguments) -> Result<(), CliError> {
    let (jobs, filter) = (context.store.deferred_jobs(), arguments.filter());
    let rows = read_rows(arguments.limit, JobCursor::default(), async |from, max_jobs| {
        let page = jobs.find(&filter, from, max_jobs).await?;
        Ok((page.jobs, page.next))
    });
    let rows = rows.await?;
    let columns = ["ID", "STATE", "LOCK", "ROUTE", "ATTEMPTS", "ACCEPTED", "REASON"];
    context.output.print_rows(&rows, columns, |job: &JobInfo| {
        let lock = job.lock.as_ref().map(Key::operator_name).unwrap_or_default();
        [
            job.id.to_string(),
            job.state.as_str().to_owned(),
            lock.into_owned(),
            job.route.clone().unwrap_or_default(),
            job.attempts.to_string(),
            ago(job.accepted),
            job.reason.clone().unwrap_or_default(),
        ]
    })
}

async fn show(context: &CommandContext<'_>, id: &JobId) -> Result<(), CliError> {
    let job = context.store.deferred_jobs().get(id).await?;
    let job = job.ok_or_else(|| CliError::negative("there is no such deferred request"))?;
    context.output.print(&job, |job| {
        let lock = job.lock.as_ref().map(Key::operator_name).unwrap_or_default();
        let mut text = format!(
            "{}\nstate     {}\nreason    {}\nlock      {lock}\nroute     {}\nowner     {}\nattempts  {}\n\
             crashes   {}\naccepted  {}\nended     {}\n",
            job.id,
            job.state.as_str(),
            to_single_line(job.reason.as_deref().unwrap_or("-")),
            to_single_line(job.route.as_deref().unwrap_or("-")),
            to_single_line(if job.owner.is_empty() { "-" } else { &job.owner }),
            job.attempts,
            job.crashes,
            ago(job.accepted),
            ago(job.ended),
        );
        for run in &job.runs {
            let (attempt, began, outcome) = (run.attempt, ago(run.began), &run.outcome);
            let line = format!("run {attempt}     {began}: {outcome}");
            text += &format!("{}\n", to_single_line(&line));
        }
        text
    })
}
