//! L1: after the faults each request of a living process is answered within the time limit.

use super::LockCheckStats;
use crate::{Guarantee, NANOS_PER_MILLI, Violation, locks::lock_history::LockHistory};

pub(super) fn check_liveness(
    history: &LockHistory,
    looked: &mut LockCheckStats,
) -> Option<Violation> {
    if history.max_wait == 0 {
        return None;
    }
    for op in &history.acquisitions {
        if history.killed_at.contains_key(&op.incarnation) {
            continue;
        }
        let Some(answered) = op.answered_at else {
            return Some(Violation::new(
                Guarantee::L1,
                format!("never answered:{}", history.format_acquisitions([op])),
            ));
        };
        let since = op.requested_at.max(history.last_fault_end);
        let waited = answered.saturating_sub(since);
        looked.longest_wait = looked.longest_wait.max(waited);
        if waited > history.max_wait {
            let shown = history.format_acquisitions([op]);
            return Some(Violation::new(
                Guarantee::L1,
                format!("answered {} ms after the faults:{shown}", waited / NANOS_PER_MILLI),
            ));
        }
    }
    None
}
