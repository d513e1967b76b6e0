//! Grouping of a batch's charges into steps of the script.

use super::{QueuedCharge, single_fixed_window};
use crate::{
    durations::ceil_millis,
    error::Error,
    store::{
        rate::QuotaRule,
        redis::raw_charge_reply::{self, FixedWindowCharge, RawChargeReply},
    },
};

/// Equal charges that the script executes as one step. No other charge of their counters lies
/// between them.
pub(super) struct ChargeGroup {
    /// Numbers in the reply to the step.
    pub(super) value_count: usize,
    pub(super) times: u64,
    /// Present if the charge is of one fixed window and nothing else.
    pub(super) fixed_window: Option<FixedWindowCharge>,
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
    pub(super) fn assign(&mut self, queued: &'a QueuedCharge) -> GroupMember {
        let times = queued.charge.repetitions;
        let (slot, last_group) = self.find_last_group(queued);
        let group = match last_group {
            Some(group) if queued.can_merge_with(self.groups[group].0) => group,
            _ => self.push_group(queued, slot),
        };
        let charged_before = self.groups[group].1.times;
        self.groups[group].1.times += u64::from(times);
        GroupMember { group, charged_before, times }
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "slots are below the length, and their values are indices of the groups"
    )]
    fn find_last_group(&self, queued: &QueuedCharge) -> (usize, Option<usize>) {
        if self.last_by_tag.is_empty() {
            let is_first_group = !self.groups.is_empty() && queued.has_same_tag(self.groups[0].0);
            return (0, is_first_group.then_some(0));
        }
        let mut slot = slot_index(queued);
        while self.last_by_tag[slot] != EMPTY {
            let group = usize::from(self.last_by_tag[slot]);
            if queued.has_same_tag(self.groups[group].0) {
                return (slot, Some(group));
            }
            slot = (slot + 1) % TABLE_SIZE;
        }
        (slot, None)
    }

    #[expect(clippy::indexing_slicing, reason = "slots are below the length, and there is a group")]
    fn push_group(&mut self, queued: &'a QueuedCharge, slot: usize) -> usize {
        let group = self.groups.len();
        let value_count =
            1 + queued.charge.items.iter().map(raw_charge_reply::value_count).sum::<usize>();
        let fixed_window = match single_fixed_window(&queued.charge) {
            Some((QuotaRule::Fixed { window, .. }, cost)) => {
                Some(FixedWindowCharge { cost, window_ms: ceil_millis(window) })
            }
            _ => None,
        };
        self.groups.push((queued, ChargeGroup { value_count, times: 0, fixed_window }));
        // A batch has fewer than 255 groups.
        let number = u8::try_from(group).unwrap_or(EMPTY);
        match group {
            0 => {}
            1 => {
                self.last_by_tag = vec![EMPTY; TABLE_SIZE];
                self.last_by_tag[slot_index(self.groups[0].0)] = 0;
                let (slot, _) = self.find_last_group(queued);
                self.last_by_tag[slot] = number;
            }
            _ => self.last_by_tag[slot] = number,
        }
        group
    }
}

fn slot_index(queued: &QueuedCharge) -> usize {
    // The last bits are common to all tags of a lane.
    usize::try_from((queued.tag_hash >> 8) % TABLE_SIZE as u64).unwrap_or(0)
}

impl GroupMember {
    /// Returns the reply that this charge would have received if it had been sent alone, after the
    /// charges before it.
    pub(super) fn extract_reply(
        &self,
        group: &Result<RawChargeReply, Error>,
    ) -> Result<RawChargeReply, Error> {
        let mut reply = group.clone()?;
        let admitted_before_end = (self.charged_before + u64::from(self.times)).min(reply.admitted);
        reply.admitted_later = reply.admitted - admitted_before_end;
        reply.admitted = admitted_before_end.saturating_sub(self.charged_before);
        Ok(reply)
    }
}
