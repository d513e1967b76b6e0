//! `lockgate limits`: policies that an operator has changed, and actions on one client.

use std::time::Duration;

use clap::Subcommand;
use lockgate::{Key, Quota, rate_limit::PolicyChange};

use crate::{cli_error::CliError, command_context::CommandContext, output::print_line};

#[derive(Debug, Subcommand)]
pub(crate) enum LimitsCommand {
    /// Policies that an operator has changed
    List,
    /// Change the quota of a policy in all processes, within a second
    Set {
        /// Name of the policy
        policy: String,
        /// Requests per window
        #[arg(long)]
        requests: u64,
        /// Length of the window in seconds
        #[arg(long)]
        per: u64,
        /// Refuse no request, and count those that would be refused
        #[arg(long)]
        shadow: bool,
        /// Why, for the audit log
        #[arg(long)]
        reason: String,
    },
    /// Use a policy as it was deployed
    Clear {
        /// Name of the policy
        policy: String,
        /// Why, for the audit log
        #[arg(long)]
        reason: String,
    },
    /// Give a client its whole quota back
    Reset {
        /// Name of the policy
        policy: String,
        /// Client, such as an address
        subject: String,
        /// Why, for the audit log
        #[arg(long)]
        reason: String,
    },
    /// Refuse every request of a client for a time
    Block {
        /// Name of the policy
        policy: String,
        /// Client, such as an address
        subject: String,
        /// For how many seconds
        #[arg(long)]
        seconds: u64,
        /// Why, for the audit log
        #[arg(long)]
        reason: String,
    },
    /// End a block
    Unblock {
        /// Name of the policy
        policy: String,
        /// Client, such as an address
        subject: String,
        /// Why, for the audit log
        #[arg(long)]
        reason: String,
    },
}

impl LimitsCommand {
    pub(crate) fn is_read_only(&self) -> bool {
        matches!(self, Self::List)
    }
}

pub(crate) async fn run(
    context: &CommandContext<'_>,
    command: &LimitsCommand,
) -> Result<(), CliError> {
    let admin = context.admin();
    match command {
        LimitsCommand::List => return list(context).await,
        LimitsCommand::Set { policy, requests, per, shadow, reason } => {
            let quota = Quota::requests(*requests).per(Duration::from_secs((*per).max(1)));
            let change = PolicyChange::new().quota(quota).shadow(*shadow);
            context.confirm(&format!("Change {policy} to {requests} in {per} s everywhere?"))?;
            admin.set_policy(policy, change, reason).await?;
        }
        LimitsCommand::Clear { policy, reason } => admin.clear_policy(policy, reason).await?,
        LimitsCommand::Reset { policy, subject, reason } => {
            admin.reset_limit(policy, Key::from_operator_name(subject), reason).await?;
        }
        LimitsCommand::Block { policy, subject, seconds, reason } => {
            context.confirm(&format!("Refuse every request of {subject} for {seconds} s?"))?;
            let duration = Duration::from_secs(*seconds);
            admin.block(policy, Key::from_operator_name(subject), duration, reason).await?;
        }
        LimitsCommand::Unblock { policy, subject, reason } => {
            admin.unblock(policy, Key::from_operator_name(subject), reason).await?;
        }
    }
    print_line("done");
    Ok(())
}

async fn list(context: &CommandContext<'_>) -> Result<(), CliError> {
    let changed = context.store.changed_policies().await?;
    let rows: Vec<_> = changed.policies.iter().collect();
    context.output.print_rows(&rows, ["POLICY", "CHANGE"], |(name, change)| {
        let change = serde_json::to_string(change).unwrap_or_default();
        [(*name).clone(), change]
    })
}
