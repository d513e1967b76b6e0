//! M2: fences are unique, and grow in the order of time.

use std::collections::HashMap;

use crate::{
    Guarantee, Violation,
    locks::{
        RecordedLockMode,
        lock_history::{LockAcquisition, LockHistory, RecordedGrant},
    },
};

pub(super) fn check_fences(history: &LockHistory, lock: &str) -> Option<Violation> {
    let ops = history.acquisitions.iter().filter(|op| op.lock == lock);
    let granted: Vec<(&LockAcquisition, &RecordedGrant)> =
        ops.filter_map(|op| op.grant.as_ref().map(|grant| (op, grant))).collect();
    check_fences_unique(history, &granted).or_else(|| check_fences_increase(history, &granted))
}

fn check_fences_unique(
    history: &LockHistory,
    granted: &[(&LockAcquisition, &RecordedGrant)],
) -> Option<Violation> {
    let mut seen = HashMap::new();
    granted.iter().find_map(|(op, grant)| {
        let other = seen.insert(grant.fence, *op)?;
        Some(Violation::new(
            Guarantee::M2,
            format!("one fence for two:{}", history.format_acquisitions([other, op])),
        ))
    })
}

/// Checks that a request made after a grant has a larger fence than that grant, even if the lease
/// had ended when the grant was received.
///
/// Permits are compared only with the other modes, since several of them are held at once.
#[expect(clippy::indexing_slicing, reason = "there are two kinds")]
fn check_fences_increase(
    history: &LockHistory,
    granted: &[(&LockAcquisition, &RecordedGrant)],
) -> Option<Violation> {
    let (mut asked, mut got) = (granted.to_vec(), granted.to_vec());
    asked.sort_by_key(|(op, _)| op.requested_at);
    got.sort_by_key(|(_, grant)| grant.granted_at);
    let mut before = got.into_iter().peekable();
    // Highest fences of permits, and of the other modes.
    let mut highest: [Option<(&LockAcquisition, u64)>; 2] = [None; 2];
    for (op, grant) in asked {
        while let Some((earlier, its)) =
            before.next_if(|(_, earlier)| earlier.granted_at < op.requested_at)
        {
            let of_kind = &mut highest[usize::from(!is_permit(earlier))];
            if of_kind.is_none_or(|(_, fence)| fence < its.fence) {
                *of_kind = Some((earlier, its.fence));
            }
        }
        let against = if is_permit(op) { &highest[1..] } else { &highest[..] };
        let larger = against.iter().flatten().find(|(_, fence)| *fence >= grant.fence);
        if let Some((other, _)) = larger {
            let shown = history.format_acquisitions([*other, op]);
            return Some(Violation::new(
                Guarantee::M2,
                format!("the fence of who came later is not larger:{shown}"),
            ));
        }
    }
    None
}

fn is_permit(op: &LockAcquisition) -> bool {
    matches!(op.mode, RecordedLockMode::Permits(_))
}
