//! `lockgate locks`: holders of locks, times of holds, and waiters.

use std::time::Duration;

use clap::Subcommand;
use lockgate::{FleetReport, HoldReport, Key, WaitReport};
use serde::Serialize;

use crate::{
    cli_error::CliError, command_context::CommandContext, commands::workers::warn_if_truncated,
    readable_time::readable_duration, text_table::TextTable,
};

#[derive(Debug, Subcommand)]
pub(crate) enum LocksCommand {
    /// The longest holds and the longest waits of all processes that answer
    List {
        /// Most holds; a process reports its 200 longest
        #[arg(long, default_value_t = 50)]
        limit: usize,
    },
    /// Holders of a lock, times of its holds, and its waiters
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
        LocksCommand::List { limit } => {
            let fleet = context.store.fleet().await?;
            warn_if_truncated(&fleet);
            print_locks(context, &LockList::of(&fleet, *limit))
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

/// The longest holds and the longest waits.
#[derive(Debug, Serialize)]
pub(crate) struct LockList<'a> {
    holds: Vec<HoldRow<'a>>,
    /// Number of holds of all processes that answer, also those that are not listed.
    hold_count: u64,
    pub(crate) waits: Vec<WaitReport>,
}

impl<'a> LockList<'a> {
    /// Takes at most `max_holds` holds and the longest waits from the reports of all processes.
    pub(crate) fn of(fleet: &'a FleetReport, max_holds: usize) -> Self {
        let mut holds: Vec<HoldRow<'_>> = Vec::new();
        for process in &fleet.processes {
            holds.extend(process.holds.iter().map(|hold| HoldRow {
                host: &process.host,
                pid: process.pid,
                hold,
            }));
        }
        holds.sort_by_key(|row| std::cmp::Reverse(row.hold.held_ms));
        holds.truncate(max_holds);
        let hold_count = fleet.processes.iter().map(|process| process.hold_count).sum();
        Self { holds, hold_count, waits: fleet.longest_waits() }
    }
}

/// Prints the holds, and the waits if there are any.
pub(crate) fn print_locks(
    context: &CommandContext<'_>,
    locks: &LockList<'_>,
) -> Result<(), CliError> {
    context.output.print(locks, |locks| {
        let mut holds =
            TextTable::new(["LOCK", "MODE", "HELD", "LEASE LEFT", "FENCE", "PROCESS", "ROUTE"]);
        for row in &locks.holds {
            let HoldReport { lock, mode, held_ms, lease_left_ms, fence, route, .. } = row.hold;
            let route = route.clone().unwrap_or_default();
            let process = format!("{} (pid {})", row.host, row.pid);
            let [held, left] = [*held_ms, *lease_left_ms].map(readable_millis);
            let (lock, mode) = (lock.clone(), mode.clone());
            holds.add_row([lock, mode, held, left, fence.to_string(), process, route]);
        }
        let mut text = holds.to_string();
        let listed = locks.holds.len();
        if locks.hold_count > listed as u64 {
            text += &format!("the {listed} longest of {} holds\n", locks.hold_count);
        }
        if locks.waits.is_empty() {
            return text;
        }
        let mut waits = TextTable::new(["LOCK", "WAITERS", "LONGEST WAIT"]);
        for WaitReport { lock, waiters, longest_ms, .. } in &locks.waits {
            waits.add_row([lock.clone(), waiters.to_string(), readable_millis(*longest_ms)]);
        }
        format!("{text}\n{waits}")
    })
}

fn readable_millis(ms: u64) -> String {
    readable_duration(Duration::from_millis(ms))
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
        if !inspection.waiting_processes.is_empty() {
            let mut table = TextTable::new(["WAITERS", "LONGEST WAIT", "PROCESS"]);
            for process in &inspection.waiting_processes {
                let longest = readable_duration(process.longest);
                let name = format!("{} (pid {})", process.host, process.pid);
                table.add_row([process.waiters.to_string(), longest, name]);
            }
            text += &format!("\n{table}");
        }
        for id in &inspection.jobs {
            text += &format!("\ndeferred request {id}");
        }
        text
    })
}
