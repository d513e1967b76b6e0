//! Grouping of a batch's charges into steps of the script.

use super::{QueuedCharge, single_fixed_window};
use crate::{
    clock::ceil_millis,
    error::Error,
    store::{
        rate::QuotaRule,
        redis::raw_charge_reply::{RawChargeReply, value_count},
    },
};

/// Equal charges that the script executes as one step. No other charge of their counters lies
/// between them.
pub(super) struct ChargeGroup {
    /// Numbers in the reply to the step.
    pub(super) value_count: usize,
    pub(super) times: u64,
    /// Cost and window (ms), if the charge is of one fixed window and nothing else.
    pub(super) fixed_window: Option<[u64; 2]>,
}

/// Group of a charge, and its position there.
pub(super) struct GroupMember {
    pub(super) group: usize,
    charged_before: u64,
    times: u32,
}

/// Groups of a batch, in order, with an index of the last group of each tag.
///
/// Charges under different tags have no counter in common, so their order does not matter. A charge
/// joins the last group of its tag, or begins a new one.
#[derive(Default)]
pub(super) struct ChargeGroups<'a> {
    pub(super) groups: Vec<(&'a QueuedCharge, ChargeGroup)>,
    /// Index by hash of the tag, with linear probing. Created with the second group.
    last_by_tag: Vec<u8>,
}

/// More than twice the largest number of groups.
const TABLE_SIZE: usize = 256;
const EMPTY: u8 = u8::MAX;

impl<'a> ChargeGroups<'a> {
    #[expect(clippy::indexing_slicing, reason = "stored values are indices of the groups")]
    pub(super) fn assign(&mut self, step: &'a QueuedCharge) -> GroupMember {
        let times = step.charge.repetitions;
        let (slot, last) = self.find_last_group(step);
        let group = match last {
            Some(group) if step.can_merge_with(self.groups[group].0) => group,
            _ => self.push_group(step, slot),
        };
        let after = self.groups[group].1.times;
        self.groups[group].1.times += u64::from(times);
        GroupMember { group, charged_before: after, times }
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "slots are below the length, and their values are indices of the groups"
    )]
    fn find_last_group(&self, step: &QueuedCharge) -> (usize, Option<usize>) {
        if self.last_by_tag.is_empty() {
            let only = !self.groups.is_empty() && step.has_same_tag(self.groups[0].0);
            return (0, only.then_some(0));
        }
        let mut slot = slot_index(step);
        while self.last_by_tag[slot] != EMPTY {
            let group = usize::from(self.last_by_tag[slot]);
            if step.has_same_tag(self.groups[group].0) {
                return (slot, Some(group));
            }
            slot = (slot + 1) % TABLE_SIZE;
        }
        (slot, None)
    }

    #[expect(clippy::indexing_slicing, reason = "slots are below the length, and there is a group")]
    fn push_group(&mut self, step: &'a QueuedCharge, slot: usize) -> usize {
        let group = self.groups.len();
        let words = 1 + step.charge.items.iter().map(value_count).sum::<usize>();
        let fixed = match single_fixed_window(&step.charge) {
            Some((QuotaRule::Fixed { window, .. }, cost)) => Some([cost, ceil_millis(window)]),
            _ => None,
        };
        self.groups.push((step, ChargeGroup { value_count: words, times: 0, fixed_window: fixed }));
        // A batch has fewer than 255 groups.
        let number = u8::try_from(group).unwrap_or(EMPTY);
        match group {
            0 => {}
            1 => {
                self.last_by_tag = vec![EMPTY; TABLE_SIZE];
                self.last_by_tag[slot_index(self.groups[0].0)] = 0;
                let (slot, _) = self.find_last_group(step);
                self.last_by_tag[slot] = number;
            }
            _ => self.last_by_tag[slot] = number,
        }
        group
    }
}

fn slot_index(step: &QueuedCharge) -> usize {
    // The last bits are common to all tags of a lane.
    usize::try_from((step.tag_hash >> 8) % TABLE_SIZE as u64).unwrap_or(0)
}

impl GroupMember {
    /// Returns the reply that this charge would have received if it had been sent alone, after the
    /// charges before it.
    pub(super) fn extract_reply(
        &self,
        group: &Result<RawChargeReply, Error>,
    ) -> Result<RawChargeReply, Error> {
        let mut counted = group.clone()?;
        let until = (self.charged_before + u64::from(self.times)).min(counted.admitted);
        counted.admitted_later = counted.admitted - until;
        counted.admitted = until.saturating_sub(self.charged_before);
        Ok(counted)
    }
}
