//! What all processes have written, and what it shows.

use std::fs;

use lockgate_history::quota::History;

use super::Crew;
use crate::quota::{epoch, limiter::TASKS, policies};

impl Crew {
    pub(super) fn lost(&self) -> usize {
        self.settlements.iter().filter(|struck| struck.has_happened()).count()
    }

    /// Whether it would be seen by now if something was put right twice: not while so much is lost that each count of the
    /// store may be right.
    pub(super) fn shows(&self) -> bool {
        self.lost() > 0 && self.history().check().0.exact > 0
    }

    /// What all have written.
    pub(super) fn history(&self) -> History {
        let mut history = History::default();
        history.killed.clone_from(&self.killed);
        let clients = (policies().len() * TASKS) as u64;
        for life in &self.lives {
            // One that was killed before it began has written nothing.
            history.read(*life, &fs::read_to_string(self.log(*life)).unwrap_or_default());
            history.lives.insert(*life, clients);
        }
        for asked in policies() {
            // Those that are not asked for anew have one name in all.
            let names = (self.first..=epoch()).map(|epoch| (asked.name_in(epoch), asked.limit));
            history.limits.extend(names);
        }
        history
    }
}
