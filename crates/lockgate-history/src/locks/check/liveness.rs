//! L1: after the faults each request of a living process is answered within the time limit.

use super::LockCheckStats;
use crate::{Guarantee, NANOS_PER_MILLI, Violation, locks::lock_history::LockHistory};

pub(super) fn check_liveness(
    history: &LockHistory,
    stats: &mut LockCheckStats,
) -> Option<Violation> {
    if history.max_wait == 0 {
        return None;
    }
    for acquisition in &history.acquisitions {
        if history.killed_at.contains_key(&acquisition.incarnation) {
            continue;
        }
        let Some(answered_at) = acquisition.answered_at else {
            return Some(Violation::new(
                Guarantee::L1,
                format!("request unanswered:{}", history.format_acquisitions([acquisition])),
            ));
        };
        let wait_start = acquisition.requested_at.max(history.last_fault_end);
        let waited = answered_at.saturating_sub(wait_start);
        stats.longest_wait = stats.longest_wait.max(waited);
        if waited > history.max_wait {
            let excerpt = history.format_acquisitions([acquisition]);
            let (waited, max_wait) = (waited / NANOS_PER_MILLI, history.max_wait / NANOS_PER_MILLI);
            return Some(Violation::new(
                Guarantee::L1,
                format!(
                    "request answered {waited} ms after the faults, at most {max_wait} ms:{excerpt}"
                ),
            ));
        }
    }
    None
}
