//! [`Arguments`]: the command line.

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

use crate::{
    commands::{
        audit::AuditArguments, jobs::JobsCommand, limits::LimitsCommand, locks::LocksCommand,
        queues::QueuesCommand, workers::WorkersCommand,
    },
    exit_status::EXIT_CODES,
    output::Output,
};

/// Inspects and changes the shared state of a service in its lockgate store: locks, limits,
/// deferred requests, queues and workers.
#[derive(Debug, Parser)]
#[command(name = "lockgate", version, after_help = EXIT_CODES)]
pub(crate) struct Arguments {
    /// URL of the service's store with its namespace, such as redis://127.0.0.1/?ns=shop
    ///
    /// Prefer the variable for a URL with a password: other users of the machine can read the
    /// arguments of a process, and the shell keeps them in its history. `rediss://` trusts the
    /// certificates that the system trusts, or those in SSL_CERT_FILE.
    #[arg(long, value_name = "URL", env = "LOCKGATE_STORE", hide_env_values = true, global = true)]
    pub(crate) store: Option<String>,
    /// Print one JSON document instead of a table
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Repeat the command every SECONDS until interrupted; for commands that change nothing
    #[arg(
        long,
        value_name = "SECONDS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "2",
        value_parser = clap::value_parser!(u32).range(1..=3600),
        global = true
    )]
    pub(crate) watch: Option<u32>,
    /// Do not ask before a destructive command
    #[arg(long, global = true)]
    pub(crate) yes: bool,
    /// Name in the audit log
    #[arg(long, value_name = "NAME", env = "LOCKGATE_OPERATOR", global = true)]
    pub(crate) operator: Option<String>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Arguments {
    pub(crate) fn output(&self) -> Output {
        if self.json { Output::Json } else { Output::Text }
    }

    /// Returns the operator's name for the audit log: the option, or the login name.
    pub(crate) fn operator_name(&self) -> String {
        let login = || std::env::var("USER").or_else(|_| std::env::var("LOGNAME")).ok();
        self.operator.clone().or_else(login).unwrap_or_else(|| "lockgate".to_owned())
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Locks: their holders, the times of holds, and their waiters
    #[command(subcommand)]
    Locks(LocksCommand),
    /// Rate limits: policies, refused clients, and the rest of a client's quota
    #[command(subcommand)]
    Limits(LimitsCommand),
    /// Deferred requests: list, cancel, run now, redrive
    #[command(subcommand)]
    Jobs(JobsCommand),
    /// Task queues: depth, tasks, dead letters
    #[command(subcommand)]
    Queues(QueuesCommand),
    /// Processes of the service and their workers; drain one
    Workers {
        #[command(subcommand)]
        command: Option<WorkersCommand>,
    },
    /// Check the store for jobs in no state or in two, keys without an owner, and wrong counts
    #[command(after_help = EXIT_CODES)]
    Check(CheckArguments),
    /// One screen: jobs, locks, queues and processes, on a terminal every two seconds
    Top,
    /// Actions of operators, newest first
    Audit(AuditArguments),
    /// Print the completions of a shell
    Completions {
        /// Shell to complete for
        shell: Shell,
    },
}

#[derive(Debug, Args)]
pub(crate) struct CheckArguments {
    /// Repair the faults that have a known repair; no request that can still run is lost
    #[arg(long, requires = "reason")]
    pub(crate) repair: bool,
    /// Why the store is repaired, for the audit log
    #[arg(long, requires = "repair")]
    pub(crate) reason: Option<String>,
}

impl Command {
    /// Returns true if `--watch` may repeat the command.
    pub(crate) fn is_read_only(&self) -> bool {
        match self {
            Self::Locks(command) => command.is_read_only(),
            Self::Limits(command) => command.is_read_only(),
            Self::Jobs(command) => command.is_read_only(),
            Self::Queues(command) => command.is_read_only(),
            Self::Check(check) => !check.repair,
            Self::Workers { command } => command.is_none(),
            Self::Top | Self::Audit(_) => true,
            Self::Completions { .. } => false,
        }
    }
}
