//! `InjectedFault`: the faults, and the random choice of one.

use super::seeded_rng::SeededRng;

/// Fault of a process, of its connections, or of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum InjectedFault {
    /// SIGKILL, followed by a replacement of the process.
    Kill,
    /// SIGKILL at a call, before it reaches the server or after it has run.
    KillAtCall,
    /// SIGTERM, followed by a replacement of the process.
    Drain,
    /// SIGSTOP for less or more than a lease.
    Stop,
    /// Loss of a call or of its reply, together with the connection.
    LoseReply,
    /// Loss of messages to a process for a while.
    LoseMessages,
    /// The server closes the connections of all subscribers.
    CutMessages,
    /// The server closes all other connections.
    CutCalls,
    /// The server's script cache is flushed.
    ForgetScripts,
    /// The server is paused for a while.
    Freeze,
    /// The server is killed and restarts with its append-only file.
    Restart,
    /// The connections of a process are stalled for a while.
    Stall,
    /// The connections of a process are half open.
    HalfOpen,
    /// The connections of a process are slow for a while.
    Delay,
    /// The connections of a process are closed.
    Cut,
}

impl InjectedFault {
    pub(super) fn ends_process(self) -> bool {
        matches!(self, Self::Kill | Self::KillAtCall | Self::Drain)
    }

    /// Returns true if the fault hits the server and so all processes.
    pub(super) fn affects_all_processes(self) -> bool {
        use InjectedFault::{CutCalls, CutMessages, ForgetScripts, Freeze, Restart};
        matches!(self, CutCalls | CutMessages | ForgetScripts | Freeze | Restart)
    }

    /// Draws a fault by its weight.
    pub(super) fn draw_weighted(rng: &mut SeededRng, weights: &[&[(Self, u64)]]) -> Self {
        let weighted_faults = || weights.iter().copied().flatten();
        let mut remaining_weight = rng.below(weighted_faults().map(|(_, weight)| weight).sum());
        for (fault, weight) in weighted_faults() {
            match remaining_weight.checked_sub(*weight) {
                Some(remaining) => remaining_weight = remaining,
                None => return *fault,
            }
        }
        Self::Kill
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        fleet::{DomainRules, FleetDomain},
        history::LockDomain,
        ledger::JobDomain,
        proxy,
        quota::QuotaDomain,
        tasks::TaskDomain,
    };

    const DOMAIN_RULES: [DomainRules; 4] =
        [LockDomain::RULES, JobDomain::RULES, QuotaDomain::RULES, TaskDomain::RULES];

    #[test]
    fn target_scripts_of_all_domains_exist() {
        let scripts = DOMAIN_RULES.iter().flat_map(|rules| rules.target_scripts);
        scripts.for_each(|script| assert!(proxy::script_exists(script), "there is no {script}"));
    }

    /// Task scripts have no steps, and a mere script prelude would match no call.
    #[test]
    fn target_scripts_of_tasks_are_called() {
        let file =
            format!("{}/../../src/store/redis/script_sources.rs", env!("CARGO_MANIFEST_DIR"));
        let scripts = std::fs::read_to_string(file).expect("the scripts are listed there");
        for script in TaskDomain::RULES.target_scripts {
            let is_called = scripts.contains(&format!("\"{script}\""));
            assert!(is_called, "{script} is no call: nothing would ever be struck");
        }
    }
}
