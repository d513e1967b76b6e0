//! L1: after the faults everybody who lives is answered, and soon.

use super::Looked;
use crate::{Check, MS, Violation, locks::books::History};

pub(super) fn all_are_answered(history: &History, looked: &mut Looked) -> Option<Violation> {
    if history.patience == 0 {
        return None;
    }
    for op in &history.ops {
        if history.killed.contains_key(&op.life) {
            continue;
        }
        let Some(answered) = op.answered else {
            return Some(Violation::new(
                Check::L1,
                format!("never answered:{}", history.excerpt([op])),
            ));
        };
        let since = op.asked.max(history.calm);
        let waited = answered.saturating_sub(since);
        looked.longest = looked.longest.max(waited);
        if waited > history.patience {
            let shown = history.excerpt([op]);
            return Some(Violation::new(
                Check::L1,
                format!("answered {} ms after the faults:{shown}", waited / MS),
            ));
        }
    }
    None
}
