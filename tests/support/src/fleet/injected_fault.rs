//! `InjectedFault`: the faults, and the random choice of one.

use super::seeded_rng::SeededRng;

/// Something that is done to a process, to its connections, or to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum InjectedFault {
    /// SIGKILL, and another process in its place.
    Kill,
    /// SIGKILL at a call: before the server has it, or when it has run.
    KillAtCall,
    /// SIGTERM, and another process in its place.
    Drain,
    /// SIGSTOP, for less or more than a lease.
    Stop,
    /// A call of a process is lost, or the reply to it, with its connection.
    LoseReply,
    /// Messages to a process are lost for a while.
    LoseMessages,
    /// The server closes the connections of all subscribers.
    CutMessages,
    /// The server closes all other connections.
    CutCalls,
    /// The server forgets its scripts.
    ForgetScripts,
    /// The server is stopped for a while.
    Freeze,
    /// The server is killed, and comes back with its log.
    Restart,
    /// The connections of a process carry nothing for a while.
    Stall,
    /// The connections of a process are half open.
    HalfOpen,
    /// The connections of a process are slow for a while.
    Delay,
    /// The connections of a process end.
    Cut,
}

impl InjectedFault {
    pub(super) fn ends_process(self) -> bool {
        matches!(self, Self::Kill | Self::KillAtCall | Self::Drain)
    }

    /// Whether it strikes the server, so all processes.
    pub(super) fn affects_all_processes(self) -> bool {
        use InjectedFault::{CutCalls, CutMessages, ForgetScripts, Freeze, Restart};
        matches!(self, CutCalls | CutMessages | ForgetScripts | Freeze | Restart)
    }

    /// Draws one by its weight.
    pub(super) fn draw_weighted(dice: &mut SeededRng, weights: &[&[(Self, u64)]]) -> Self {
        let all = || weights.iter().copied().flatten();
        let mut at = dice.below(all().map(|(_, weight)| weight).sum());
        for (fault, weight) in all() {
            match at.checked_sub(*weight) {
                Some(rest) => at = rest,
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

    /// Tasks have no calls of several steps: a script that only stands before others is the name of no call.
    #[test]
    fn target_scripts_of_tasks_are_called() {
        let file = format!("{}/../../src/store/redis/scripts.rs", env!("CARGO_MANIFEST_DIR"));
        let scripts = std::fs::read_to_string(file).expect("the scripts are listed there");
        for script in TaskDomain::RULES.target_scripts {
            let is_called = scripts.contains(&format!("\"{script}\""));
            assert!(is_called, "{script} is no call: nothing would ever be struck");
        }
    }
}
