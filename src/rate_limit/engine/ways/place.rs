//! Which counter an entry is about: as it is asked for, as it is kept, and as it stands in the map.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::{
    key::Key,
    rate_limit::quota::Quota,
    store::{By, SettleCharge, Settled},
};

/// One counter: whose, of which policy, and where. A quota that is changed is another one here, although
/// it may be the same in the store: what was said of one limit says nothing of the next.
#[derive(Debug, Clone, Copy)]
pub(in crate::rate_limit) struct Spot<'a> {
    pub(in crate::rate_limit) policy: &'a Arc<str>,
    pub(in crate::rate_limit) tag: &'a Key,
    pub(in crate::rate_limit) subject: &'a Key,
    pub(in crate::rate_limit) quota: Quota,
}

/// A spot of one's own.
#[derive(Debug, Clone)]
pub(in crate::rate_limit::engine) struct Place {
    policy: Arc<str>,
    tag: Key,
    subject: Key,
    quota: Quota,
}

/// A spot in the map: its texts and not its keys. A key goes with its request, and the next one is made where it was;
/// if it were kept, something older would be freed instead, and allocators have nothing at hand for who does that.
#[derive(Debug)]
pub(in crate::rate_limit::engine) struct Name {
    policy: Arc<str>,
    subject: SmallVec<[u8; 32]>,
    /// If it is not the subject.
    tag: Option<Box<str>>,
    quota: Quota,
}

/// Any odd number of many bits.
const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

impl Spot<'_> {
    /// Eight bytes at a time. The quota is left to the comparison: few have two at once.
    pub(super) fn hash(&self, seed: u64) -> u64 {
        mixed(mixed(seed, self.subject.as_str()), self.policy)
    }
}

fn mixed(seed: u64, text: &str) -> u64 {
    let (words, rest) = text.as_bytes().as_chunks::<8>();
    let start = seed ^ text.len() as u64;
    let hash = words.iter().fold(start, |hash, word| folded(hash ^ u64::from_le_bytes(*word)));
    let rest = rest.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
    folded(hash ^ rest)
}

fn folded(n: u64) -> u64 {
    let product = u128::from(n) * u128::from(ODD);
    #[expect(clippy::cast_possible_truncation, reason = "the one half, and the other")]
    let folded = product as u64 ^ (product >> 64) as u64;
    folded
}

impl Place {
    pub(in crate::rate_limit::engine) fn of(spot: Spot<'_>) -> Self {
        let Spot { policy, tag, subject, quota } = spot;
        Self { policy: Arc::clone(policy), tag: tag.clone(), subject: subject.clone(), quota }
    }

    /// A change of what was charged here.
    pub(in crate::rate_limit::engine) fn settled(&self, by: By) -> Option<SettleCharge> {
        let (policy, subject) = (Arc::clone(&self.policy), self.subject.clone());
        let settled = Settled::new(policy, subject, self.quota.rule()?, by);
        Some(SettleCharge { tag: self.tag.clone(), items: vec![settled] })
    }

    pub(in crate::rate_limit::engine) fn spot(&self) -> Spot<'_> {
        let Self { policy, tag, subject, quota } = self;
        Spot { policy, tag, subject, quota: *quota }
    }
}

impl Name {
    pub(super) fn of(spot: Spot<'_>) -> Self {
        let Spot { policy, tag, subject, quota } = spot;
        let tag = (tag != subject).then(|| tag.as_str().into());
        let subject = SmallVec::from_slice(subject.as_str().as_bytes());
        Self { policy: Arc::clone(policy), subject, tag, quota }
    }

    pub(super) fn is(&self, spot: Spot<'_>) -> bool {
        self.quota == spot.quota && self.is_alike(spot)
    }

    /// Whatever the quota: of one algorithm it is one counter in the store.
    pub(super) fn is_alike(&self, spot: Spot<'_>) -> bool {
        *self.subject == *spot.subject.as_str().as_bytes()
            && self.policy == *spot.policy
            && match &self.tag {
                None => spot.tag == spot.subject,
                Some(tag) => **tag == *spot.tag.as_str(),
            }
    }

    pub(in crate::rate_limit::engine) fn place(&self) -> Place {
        let subject = Key::from_store(&String::from_utf8_lossy(&self.subject));
        let tag = self.tag.as_ref().map_or_else(|| subject.clone(), |tag| Key::from_store(tag));
        Place { policy: Arc::clone(&self.policy), tag, subject, quota: self.quota }
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, time::Duration};

    use super::*;

    /// A spot stands in the map as what it is, whatever is long or differs from the rest.
    #[test]
    fn a_name_is_of_one_spot() {
        let policies: [Arc<str>; 2] = ["a".into(), "b".into()];
        let keys = ["x", "y", "a-key-that-is-too-long-to-stand-in-the-row-itself"].map(Key::custom);
        let quota = |n| Quota::requests(n).per(Duration::from_secs(1));
        let mut spots = Vec::new();
        for policy in &policies {
            for subject in &keys {
                for tag in &keys {
                    let spot = |n| Spot { policy, tag, subject, quota: quota(n) };
                    spots.extend([spot(1), spot(2)]);
                }
            }
        }
        for (at, spot) in spots.iter().enumerate() {
            let place = Name::of(*spot).place();
            for (other, spot) in spots.iter().enumerate() {
                let name = Name::of(place.spot());
                assert_eq!(name.is(*spot), at == other, "{place:?} {spot:?}");
                // Two in a row differ in their quotas.
                assert_eq!(name.is_alike(*spot), at / 2 == other / 2, "{place:?} {spot:?}");
            }
        }
    }

    #[test]
    fn what_differs_in_a_byte_or_in_length_differs_in_its_hash() {
        let texts: Vec<String> = (0..40)
            .flat_map(|length| ["0", "1", "\0"].map(|byte| "0".repeat(length) + byte))
            .chain((0..10_000).map(|n| format!("h:x-key::{n}")))
            .collect();
        let texts: HashSet<_> = texts.iter().collect();
        for seed in [0, 1, u64::MAX] {
            let hashes: HashSet<_> = texts.iter().map(|text| mixed(seed, text)).collect();
            assert_eq!(hashes.len(), texts.len());
        }
    }
}
