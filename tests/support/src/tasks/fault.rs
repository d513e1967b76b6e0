//! What is done to the processes and to their server.

use crate::{
    history::dice::Dice,
    proxy::{Moment, Rule},
};

/// The scripts whose calls are struck.
const SCRIPTS: [&str; 3] = ["tasks_push", "tasks_turn", "tasks_renew"];

#[derive(Debug, Clone, Copy)]
pub(super) enum Fault {
    /// SIGKILL, and another process in its place.
    Kill,
    /// SIGKILL at a call: before the server has it, or when it has run.
    KillAtCall,
    /// SIGSTOP, for less or more than a lease.
    Stop,
    /// The reply of a call is lost, and its connection.
    LoseReply,
    /// Messages are lost for a while.
    Deafen,
    /// All connections are cut.
    Cut,
    ForgetScripts,
    /// The server stands still.
    Freeze,
    /// The server is ended, and comes back with its log.
    Restart,
    /// The cable of a process is pulled for a while.
    Stall,
}

impl Fault {
    pub(super) fn draw(dice: &mut Dice) -> Self {
        match dice.below(20) {
            0..=2 => Self::Kill,
            3..=6 => Self::KillAtCall,
            7..=8 => Self::Stop,
            9..=12 => Self::LoseReply,
            13 => Self::Deafen,
            14 => Self::Cut,
            15 | 16 => Self::ForgetScripts,
            17 => Self::Freeze,
            18 => Self::Restart,
            _ => Self::Stall,
        }
    }
}

/// A call that something happens at, before it or after it.
pub(super) fn rule(dice: &mut Dice) -> Rule {
    let script = SCRIPTS[usize::try_from(dice.below(SCRIPTS.len() as u64)).unwrap_or(0)];
    let moment = if dice.percent(50) { Moment::Before } else { Moment::After };
    Rule::new(script, moment).skip(usize::try_from(dice.below(4)).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file that only stands before others in a script is the name of no call.
    #[test]
    fn every_script_that_is_struck_is_called() {
        let file = format!("{}/../../src/store/redis/script.rs", env!("CARGO_MANIFEST_DIR"));
        let scripts = std::fs::read_to_string(file).expect("the scripts are listed there");
        let is_called = |name: &str| scripts.contains(&format!("\"{name}\""));
        assert!(!is_called("tasks_one"), "it is a part of tasks_push");
        for script in SCRIPTS {
            assert!(is_called(script), "{script} is no call: nothing would ever be struck");
        }
    }
}
