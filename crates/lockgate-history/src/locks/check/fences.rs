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
    let acquisitions = history.acquisitions.iter().filter(|a| a.lock == lock);
    let granted: Vec<(&LockAcquisition, &RecordedGrant)> =
        acquisitions.filter_map(|a| a.grant.as_ref().map(|grant| (a, grant))).collect();
    check_fences_unique(history, &granted).or_else(|| check_fences_increase(history, &granted))
}

fn check_fences_unique(
    history: &LockHistory,
    granted: &[(&LockAcquisition, &RecordedGrant)],
) -> Option<Violation> {
    let mut seen = HashMap::new();
    granted.iter().find_map(|(acquisition, grant)| {
        let other = seen.insert(grant.fence, *acquisition)?;
        let excerpt = history.format_acquisitions([other, acquisition]);
        Some(Violation::new(Guarantee::M2, format!("same fence granted twice:{excerpt}")))
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
    let (mut by_request, mut by_grant) = (granted.to_vec(), granted.to_vec());
    by_request.sort_by_key(|(acquisition, _)| acquisition.requested_at);
    by_grant.sort_by_key(|(_, grant)| grant.granted_at);
    let mut earlier_grants = by_grant.into_iter().peekable();
    // Highest fences of permits, and of the other modes.
    let mut highest: [Option<(&LockAcquisition, u64)>; 2] = [None; 2];
    for (acquisition, grant) in by_request {
        while let Some((earlier, earlier_grant)) =
            earlier_grants.next_if(|(_, earlier)| earlier.granted_at < acquisition.requested_at)
        {
            let highest_of_kind = &mut highest[usize::from(!is_permit(earlier))];
            if highest_of_kind.is_none_or(|(_, fence)| fence < earlier_grant.fence) {
                *highest_of_kind = Some((earlier, earlier_grant.fence));
            }
        }
        let compared = if is_permit(acquisition) { &highest[1..] } else { &highest[..] };
        let larger = compared.iter().flatten().find(|(_, fence)| *fence >= grant.fence);
        if let Some((other, _)) = larger {
            let excerpt = history.format_acquisitions([*other, acquisition]);
            return Some(Violation::new(
                Guarantee::M2,
                format!("fence of a later request is not larger:{excerpt}"),
            ));
        }
    }
    None
}

fn is_permit(acquisition: &LockAcquisition) -> bool {
    matches!(acquisition.mode, RecordedLockMode::Permits(_))
}
