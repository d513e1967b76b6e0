//! L1: after the faults everybody who lives is answered, and soon.

use super::Looked;
use crate::history::{
    clock::{MS, ns},
    ops::History,
    turn::LEASE,
};

/// A lease of a holder that died, a few dead places of an accept window each, and a machine that has
/// other things to do. Below the longest wait: who is refused at its end was not served.
fn bound() -> u64 {
    ns(LEASE) + 5000 * MS
}

pub(super) fn all_are_answered(history: &History, looked: &mut Looked) -> Option<String> {
    for op in &history.ops {
        if history.killed.contains_key(&op.life) {
            continue;
        }
        let Some(answered) = op.answered else {
            return Some(format!("L1: never answered:{}", history.excerpt([op])));
        };
        let since = op.asked.max(history.calm);
        let waited = answered.saturating_sub(since);
        looked.longest = looked.longest.max(waited);
        if waited > bound() {
            let shown = history.excerpt([op]);
            return Some(format!("L1: answered {} ms after the faults:{shown}", waited / MS));
        }
    }
    None
}
