//! `lockgate limits`: policies, refused clients, and actions on one client.

use std::time::Duration;

use clap::{Subcommand, ValueEnum};
use lockgate::{
    Key, Quota, RefusedSubject,
    rate_limit::{PolicyChange, PolicyVariant},
};
use serde::Serialize;

use crate::{cli_error::CliError, command_context::CommandContext, text_table::TextTable};

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PolicyMode {
    /// Refuse requests beyond the quota
    Enforced,
    /// Refuse no request, and count those that would be refused
    Shadow,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LimitsCommand {
    /// Policies as deployed and as changed, with their refusals
    List,
    /// Rest of a client's quota under a policy
    Show {
        /// Name of the policy
        policy: String,
        /// Client, as `top` prints it
        subject: String,
    },
    /// Clients that were refused most often in the last five to ten minutes
    Top,
    /// Change the quota of a policy, its mode, or both, in all processes, within a second
    ///
    /// A setting without an option stays: as an earlier change has set it, otherwise as deployed.
    Set {
        /// Name of the policy
        policy: String,
        /// New quota, such as `100 per 60s`, perhaps followed by `sliding`, `gcra` or `burst 20`
        #[arg(long, required_unless_present = "mode")]
        quota: Option<Quota>,
        /// New mode
        #[arg(long, value_enum)]
        mode: Option<PolicyMode>,
        /// Why, for the audit log
        #[arg(long)]
        reason: String,
    },
    /// Use a policy as it was deployed; its blocks stay
    Clear {
        /// Name of the policy
        policy: String,
        /// Why, for the audit log
        #[arg(long)]
        reason: String,
    },
    /// End all blocks under a policy
    ClearBlocks {
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
        matches!(self, Self::List | Self::Show { .. } | Self::Top)
    }
}

pub(crate) async fn run(
    context: &CommandContext<'_>,
    command: &LimitsCommand,
) -> Result<(), CliError> {
    let admin = context.admin();
    match command {
        LimitsCommand::List => return list(context).await,
        LimitsCommand::Show { policy, subject } => return show(context, policy, subject).await,
        LimitsCommand::Top => return top(context).await,
        LimitsCommand::Set { policy, quota, mode, reason } => {
            let change = to_change(*quota, *mode);
            context.confirm(&change_prompt(policy, change))?;
            admin.set_policy(policy, change, reason).await?;
        }
        LimitsCommand::Clear { policy, reason } => admin.clear_policy(policy, reason).await?,
        LimitsCommand::ClearBlocks { policy, reason } => {
            context.confirm(&format!("End all blocks under {policy}?"))?;
            admin.clear_blocks(policy, reason).await?;
        }
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
    context.output.print_result("done")
}

fn to_change(quota: Option<Quota>, mode: Option<PolicyMode>) -> PolicyChange {
    let mut change = PolicyChange::new();
    if let Some(quota) = quota {
        change = change.quota(quota);
    }
    if let Some(mode) = mode {
        change = change.shadow(mode == PolicyMode::Shadow);
    }
    change
}

fn change_prompt(policy: &str, change: PolicyChange) -> String {
    let quota = change.new_quota().map_or_else(|| "unchanged".to_owned(), |q| q.to_string());
    let mode = change.new_shadow().map_or("unchanged", mode);
    format!("Change {policy} in all processes? Quota: {quota}; mode: {mode}.")
}

async fn list(context: &CommandContext<'_>) -> Result<(), CliError> {
    let policies = context.store.policies().await?;
    context.output.print(&policies, |policies| {
        let columns =
            ["POLICY", "QUOTA", "MODE", "COUNTED BY", "PROCESSES", "CHANGED TO", "REFUSED"];
        let mut table = TextTable::new(columns);
        for policy in policies {
            let change = policy.change.map_or_else(String::new, readable_change);
            let refusals = policy.refusals.to_string();
            for PolicyVariant { policy: deployed, processes, .. } in &policy.deployed {
                let processes = format!("{processes} of {}", policy.processes);
                let quota = deployed.quota.clone();
                let mode = mode(deployed.is_shadow).to_owned();
                let keys = deployed.keys.clone();
                let (name, change) = (policy.name.clone(), change.clone());
                table.add_row([name, quota, mode, keys, processes, change, refusals.clone()]);
            }
            if policy.deployed.is_empty() {
                let [none, mode, keys] = ["not deployed", "", ""].map(str::to_owned);
                let name = policy.name.clone();
                table.add_row([name, none, mode, keys, "0".to_owned(), change, refusals]);
            }
        }
        table.to_string()
    })
}

async fn show(context: &CommandContext<'_>, policy: &str, subject: &str) -> Result<(), CliError> {
    let limit = context.store.inspect_limit(policy, Key::from_operator_name(subject)).await?;
    context.output.print(&limit, ToString::to_string)?;
    if limit.quotas.is_empty() {
        return Err(CliError::negative("is it used by now? `lockgate limits list` has the others"));
    }
    Ok(())
}

async fn top(context: &CommandContext<'_>) -> Result<(), CliError> {
    let policies = context.store.policies().await?;
    let refused = policies.iter().flat_map(|policy| {
        policy.top_refused.iter().map(|refused| RefusedRow { policy: &policy.name, refused })
    });
    let mut rows: Vec<_> = refused.collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.refused.refusals));
    context.output.print_rows(&rows, ["POLICY", "SUBJECT", "REFUSED", "AT MOST"], |row| {
        let RefusedSubject { subject, refusals, max_refusals, .. } = row.refused;
        [row.policy.to_owned(), subject.clone(), refusals.to_string(), max_refusals.to_string()]
    })
}

/// Refused subject with its policy.
#[derive(Debug, Serialize)]
struct RefusedRow<'a> {
    policy: &'a str,
    #[serde(flatten)]
    refused: &'a RefusedSubject,
}

fn readable_change(change: PolicyChange) -> String {
    let quota = change.new_quota().map(|quota| quota.to_string());
    let mode = change.new_shadow().map(|is_shadow| mode(is_shadow).to_owned());
    let blocks = change.has_blocks().then(|| "with blocks".to_owned());
    [quota, mode, blocks].into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn mode(is_shadow: bool) -> &'static str {
    if is_shadow { "shadow" } else { "enforced" }
}
