//! M2: fences are unique, and grow in the order of time.

use std::collections::HashMap;

use crate::{
    Check, Violation,
    locks::{
        Mode,
        books::{Grant, History, Op},
    },
};

pub(super) fn grow(history: &History, lock: &str) -> Option<Violation> {
    let ops = history.ops.iter().filter(|op| op.lock == lock);
    let granted: Vec<(&Op, &Grant)> =
        ops.filter_map(|op| op.grant.as_ref().map(|grant| (op, grant))).collect();
    unique(history, &granted).or_else(|| in_time(history, &granted))
}

fn unique(history: &History, granted: &[(&Op, &Grant)]) -> Option<Violation> {
    let mut seen = HashMap::new();
    granted.iter().find_map(|(op, grant)| {
        let other = seen.insert(grant.fence, *op)?;
        Some(Violation::new(
            Check::M2,
            format!("one fence for two:{}", history.excerpt([other, op])),
        ))
    })
}

/// Whoever asked after another had been granted has a larger fence: also where that one's lease was over
/// when it heard of it. Not among permits: several are held at once, each with fences set aside for the
/// next of its process, and these are used up in any order.
#[expect(clippy::indexing_slicing, reason = "there are two kinds")]
fn in_time(history: &History, granted: &[(&Op, &Grant)]) -> Option<Violation> {
    let (mut asked, mut got) = (granted.to_vec(), granted.to_vec());
    asked.sort_by_key(|(op, _)| op.asked);
    got.sort_by_key(|(_, grant)| grant.at);
    let mut before = got.into_iter().peekable();
    // Of permits, and of the other modes.
    let mut highest: [Option<(&Op, u64)>; 2] = [None; 2];
    for (op, grant) in asked {
        while let Some((earlier, its)) = before.next_if(|(_, earlier)| earlier.at < op.asked) {
            let of_kind = &mut highest[usize::from(!is_permit(earlier))];
            if of_kind.is_none_or(|(_, fence)| fence < its.fence) {
                *of_kind = Some((earlier, its.fence));
            }
        }
        let against = if is_permit(op) { &highest[1..] } else { &highest[..] };
        let larger = against.iter().flatten().find(|(_, fence)| *fence >= grant.fence);
        if let Some((other, _)) = larger {
            let shown = history.excerpt([*other, op]);
            return Some(Violation::new(
                Check::M2,
                format!("the fence of who came later is not larger:{shown}"),
            ));
        }
    }
    None
}

fn is_permit(op: &Op) -> bool {
    matches!(op.mode, Mode::Permits(_))
}
