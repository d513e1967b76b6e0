//! `lockgate locks`: who holds a lock, for how long, and who waits.

use std::time::Duration;

use clap::Subcommand;
use lockgate::{FleetReport, HoldReport, Key};
use serde::Serialize;

use crate::{
    cli_error::CliError, command_context::CommandContext, readable_time::readable_duration,
    text_table::TextTable,
};

/// Most holds of the list.
const MAX_LISTED: usize = 50;

#[derive(Debug, Subcommand)]
pub(crate) enum LocksCommand {
    /// The longest holds of all processes that answer
    List,
    /// Who holds a lock, for how long, and who waits
    Show {
        /// Name of the lock, as in the code, or its stored form such as p:id::7
        lock: String,
    },
    /// Take a lock from its holders; a handler that ignores its fence may still write
    Release {
        /// Name of the lock
        lock: String,
        /// Why, for the audit log
        #[arg(long)]
        reason: String,
    },
}

impl LocksCommand {
    pub(crate) fn is_read_only(&self) -> bool {
        !matches!(self, Self::Release { .. })
    }
}

/// Hold with its process.
#[derive(Debug, Serialize)]
pub(crate) struct HoldRow<'a> {
    host: &'a str,
    pid: u32,
    #[serde(flatten)]
    hold: &'a HoldReport,
}

pub(crate) async fn run(
    context: &CommandContext<'_>,
    command: &LocksCommand,
) -> Result<(), CliError> {
    match command {
        LocksCommand::List => {
            let fleet = context.store.fleet().await?;
            print_holds(context, &longest_holds(&fleet, MAX_LISTED))
        }
        LocksCommand::Show { lock } => show(context, lock).await,
        LocksCommand::Release { lock, reason } => {
            context.confirm(&format!(
                "Take {lock} from its holders? Two requests may then work on the same thing."
            ))?;
            let key = Key::from_operator_name(lock);
            let holders = context.admin().force_release(key, reason).await?;
            let noun = if holders == 1 { "holder" } else { "holders" };
            context.output.print_result(format_args!("{lock} was taken from {holders} {noun}"))
        }
    }
}

/// Returns the longest holds of all processes.
pub(crate) fn longest_holds(fleet: &FleetReport, max_rows: usize) -> Vec<HoldRow<'_>> {
    let mut rows: Vec<HoldRow<'_>> = Vec::new();
    for process in &fleet.processes {
        rows.extend(process.holds.iter().map(|hold| HoldRow {
            host: &process.host,
            pid: process.pid,
            hold,
        }));
    }
    rows.sort_by_key(|row| std::cmp::Reverse(row.hold.held_ms));
    rows.truncate(max_rows);
    rows
}

pub(crate) fn print_holds(
    context: &CommandContext<'_>,
    rows: &[HoldRow<'_>],
) -> Result<(), CliError> {
    context.output.print_rows(
        rows,
        ["LOCK", "MODE", "HELD", "LEASE LEFT", "FENCE", "PROCESS", "ROUTE"],
        |row| {
            let HoldReport { lock, mode, held_ms, lease_left_ms, fence, route, .. } = row.hold;
            let route = route.clone().unwrap_or_default();
            let [held, left] =
                [*held_ms, *lease_left_ms].map(|ms| readable_duration(Duration::from_millis(ms)));
            let process = format!("{} (pid {})", row.host, row.pid);
            [lock.clone(), mode.clone(), held, left, fence.to_string(), process, route]
        },
    )
}

async fn show(context: &CommandContext<'_>, lock: &str) -> Result<(), CliError> {
    let inspection = context.store.lock(Key::from_operator_name(lock)).inspect().await?;
    context.output.print(&inspection, |inspection| {
        let mut text = format!("{inspection}\n");
        for holder in inspection.holders.iter().skip(1) {
            text += &format!("also {holder}\n");
        }
        if !inspection.waiters.is_empty() {
            let mut table = TextTable::new(["WAITS", "MODE", "PROCESS"]);
            for waiter in &inspection.waiters {
                let process = match (&waiter.host, waiter.pid) {
                    (Some(host), Some(pid)) => format!("{host} (pid {pid})"),
                    _ => format!("{}, which does not answer", waiter.node),
                };
                table.add_row([readable_duration(waiter.waited), waiter.mode.to_owned(), process]);
            }
            text += &format!("\n{table}");
        }
        for id in &inspection.jobs {
            text += &format!("\ndeferred request {id}");
        }
        text
    })
}
