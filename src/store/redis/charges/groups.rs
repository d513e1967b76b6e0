//! Which charges of a flight are one step.

use super::{Asked, fixed};
use crate::{
    clock::millis,
    error::Error,
    store::{
        rate::QuotaRule,
        redis::counted::{Counted, shape},
    },
};

/// One step of the script: charges that are the same, and come one after the other as far as their
/// counters are concerned.
pub(super) struct Group {
    /// Numbers that are answered.
    pub(super) words: usize,
    pub(super) times: u64,
    /// Cost and ms of the window, if it is about one fixed window and nothing else.
    pub(super) fixed: Option<[u64; 2]>,
}

/// Which group a charge is in, and after how many others of it.
pub(super) struct Place {
    pub(super) group: usize,
    after: u64,
    times: u32,
}

/// The groups of a flight, in order; by tag, which one was the last.
///
/// Charges under different tags have no counter in common, so only those under the same tag have an order that
/// counts: a charge joins the last group of its tag, or begins a new one.
#[derive(Default)]
pub(super) struct Firsts<'a> {
    pub(super) groups: Vec<(&'a Asked, Group)>,
    /// By hash of the tag, with the next free slot for those that meet. Made for the second group.
    last: Vec<u8>,
}

/// More than twice as many as there are groups.
const SLOTS: usize = 256;
const NONE: u8 = u8::MAX;

impl<'a> Firsts<'a> {
    #[expect(clippy::indexing_slicing, reason = "what is noted are places of its own groups")]
    pub(super) fn place(&mut self, step: &'a Asked) -> Place {
        let times = step.charge.repetitions;
        let (slot, last) = self.last_of(step);
        let group = match last {
            Some(group) if step.is_another_of(self.groups[group].0) => group,
            _ => self.add(step, slot),
        };
        let after = self.groups[group].1.times;
        self.groups[group].1.times += u64::from(times);
        Place { group, after, times }
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "slots are below the number of them, and what stands in them are places of its own groups"
    )]
    fn last_of(&self, step: &Asked) -> (usize, Option<usize>) {
        if self.last.is_empty() {
            let only = !self.groups.is_empty() && step.has_the_tag_of(self.groups[0].0);
            return (0, only.then_some(0));
        }
        let mut slot = slot_of(step);
        while self.last[slot] != NONE {
            let group = usize::from(self.last[slot]);
            if step.has_the_tag_of(self.groups[group].0) {
                return (slot, Some(group));
            }
            slot = (slot + 1) % SLOTS;
        }
        (slot, None)
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "slots are below the number of them, and there are groups"
    )]
    fn add(&mut self, step: &'a Asked, slot: usize) -> usize {
        let group = self.groups.len();
        let words = 1 + step.charge.items.iter().map(shape).sum::<usize>();
        let fixed = match fixed(&step.charge) {
            Some((QuotaRule::Fixed { window, .. }, cost)) => Some([cost, millis(window)]),
            _ => None,
        };
        self.groups.push((step, Group { words, times: 0, fixed }));
        // A flight has fewer than 255 groups.
        let number = u8::try_from(group).unwrap_or(NONE);
        match group {
            0 => {}
            1 => {
                self.last = vec![NONE; SLOTS];
                self.last[slot_of(self.groups[0].0)] = 0;
                let (slot, _) = self.last_of(step);
                self.last[slot] = number;
            }
            _ => self.last[slot] = number,
        }
        group
    }
}

fn slot_of(step: &Asked) -> usize {
    // All of a lane have the last bits in common.
    usize::try_from((step.fnv >> 8) % SLOTS as u64).unwrap_or(0)
}

impl Place {
    /// What it would have been told if it had been sent by itself, after those before it.
    pub(super) fn of(&self, group: &Result<Counted, Error>) -> Result<Counted, Error> {
        let mut counted = group.clone()?;
        let until = (self.after + u64::from(self.times)).min(counted.admitted);
        counted.later = counted.admitted - until;
        counted.admitted = until.saturating_sub(self.after);
        Ok(counted)
    }
}
