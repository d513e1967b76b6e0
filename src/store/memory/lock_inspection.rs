//! `inspect_lock.lua` and `force_release.lua` of the embedded store.

use std::{collections::HashSet, time::Duration};

use super::{lock_holders_and_queue::HolderEntry, lock_transaction::LockTransaction};
use crate::store::{
    inspection::{
        HolderKind, LockSnapshot, MAX_SNAPSHOT_ENTRIES, SnapshotHolder, SnapshotWaiter, mode_name,
    },
    wakeup_message::WakeupMessage,
};

impl LockTransaction<'_> {
    pub(super) fn snapshot(&self) -> LockSnapshot {
        let now = self.now;
        let live_holders = self.lock.holders.iter().filter(|(_, deadline)| *deadline > now.ms);
        let holders = live_holders.take(MAX_SNAPSHOT_ENTRIES).map(|(member, deadline)| {
            let kind = match member {
                HolderEntry::Holder(_, token) => HolderKind::Holder(token.clone()),
                HolderEntry::Offer(_, token) => HolderKind::OfferToWaiter(token.clone()),
                HolderEntry::JobOffer(id) => HolderKind::OfferToJob(id.clone()),
            };
            let remaining = Duration::from_millis(deadline - now.ms);
            SnapshotHolder { kind, mode: mode_name(member.mode_letter()), remaining }
        });
        let live_waiters = self.lock.waiters.iter().filter(|waiter| waiter.deadline > now.ms);
        let waiters = live_waiters.take(MAX_SNAPSHOT_ENTRIES).map(|waiter| SnapshotWaiter {
            token: waiter.token.clone(),
            mode: waiter.mode.name(),
            waited: Duration::from_micros(now.us.saturating_sub(waiter.seq)),
        });
        let jobs = self.lock.jobs.iter().take(MAX_SNAPSHOT_ENTRIES).map(|(_, id)| id.clone());
        LockSnapshot {
            holders: holders.collect(),
            waiters: waiters.collect(),
            waiter_count: self.lock.waiters.len() as u64,
            jobs: jobs.collect(),
            job_count: self.lock.jobs.len() as u64,
        }
    }

    pub(super) fn force_release(&mut self) -> usize {
        self.expire_holders();
        let mut nodes = HashSet::new();
        let mut released = 0;
        self.lock.holders.retain(|(member, _)| match member {
            HolderEntry::Holder(_, token) => {
                nodes.insert(token.node().to_owned());
                released += 1;
                false
            }
            _ => true,
        });
        for node in nodes {
            self.send_wakeup(&node, WakeupMessage::ForcedRelease);
        }
        if released > 0 {
            self.offer_next();
        }
        released
    }
}
