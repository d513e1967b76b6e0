//! What is told again: refusals that a client gets within one second are the same, and so is the field that names
//! the policies.
//!
//! A flood is refused from memory, and then it is the answer itself that costs: half of the instructions of a
//! refusal went into making the same fields and the same document anew.

use std::{
    fmt,
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;

use crate::{
    clock::seconds,
    rate_limit::{fields::policies, standing::Standing},
    reply::{Repeated, Reply},
};

/// Clients that are to come back at different times get different answers; so many are kept, by the
/// seconds they are told. What finds no place is made anew.
const PLACES: usize = 8;

/// What an answer of a layer with one policy is made of, and nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Told {
    limit: u64,
    window: Duration,
    remaining: u64,
    wait: u64,
    hopeless: bool,
}

type Last = Option<(Told, Arc<Repeated>)>;

/// The last answers of a layer.
#[derive(Default)]
pub(super) struct Again {
    refusals: [Mutex<Last>; PLACES],
    /// The first one's limit and window: nearly always those of all.
    policy: OnceLock<(u64, Duration, Bytes)>,
}

impl Again {
    /// The answer to who stands so, made if it was not the last one of its place.
    #[expect(clippy::indexing_slicing, reason = "a remainder is below that number")]
    pub(super) fn refuse(
        &self,
        standing: &Standing<'_>,
        make: impl FnOnce() -> Reply,
    ) -> Arc<Repeated> {
        let wait = seconds(standing.wait());
        let told = Told {
            limit: standing.limit,
            window: standing.window,
            remaining: standing.remaining,
            wait,
            hopeless: standing.is_hopeless(),
        };
        // Any number will do, as long as it is the same for the same wait.
        let mut place = self.refusals[usize::try_from(wait).unwrap_or(0) % PLACES].lock();
        match &*place {
            Some((last, reply)) if *last == told => Arc::clone(reply),
            _ => {
                let reply = Arc::new(Repeated::new(make()));
                *place = Some((told, Arc::clone(&reply)));
                reply
            }
        }
    }
}

impl Again {
    /// The value of the field that names the policies, of a layer with so many. (One has one name for it.)
    pub(super) fn policies(&self, standings: &[Standing<'_>], limits: usize) -> Bytes {
        let ([one], 1) = (standings, limits) else { return policies(standings) };
        let (limit, window, text) =
            self.policy.get_or_init(|| (one.limit, one.window, policies(standings)));
        if (*limit, *window) == (one.limit, one.window) {
            return text.clone();
        }
        policies(standings)
    }
}

impl fmt::Debug for Again {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Again").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standing(limit: u64, retry: Duration) -> Standing<'static> {
        let (window, reset) = (Duration::from_secs(60), Duration::from_secs(60));
        Standing { name: "a", limit, window, remaining: 0, reset, retry, violated: true }
    }

    #[test]
    fn the_policy_is_named_as_it_is_for_the_request() {
        let again = Again::default();
        let told = |standings: &[Standing<'_>], limits| again.policies(standings, limits);
        let one = |limit, name| Standing { name, ..standing(limit, Duration::ZERO) };
        for _ in 0..2 {
            assert_eq!(told(&[one(3, "a")], 1), "\"a\";q=3;w=60");
            assert_eq!(told(&[one(4, "a")], 1), "\"a\";q=4;w=60", "another quota");
            assert_eq!(told(&[one(3, "b")], 2), "\"b\";q=3;w=60", "the other has no key here");
            let both = told(&[one(3, "a"), one(3, "b")], 2);
            assert_eq!(both, "\"a\";q=3;w=60, \"b\";q=3;w=60");
            assert!(told(&[], 1).is_empty());
        }
    }

    #[test]
    fn what_is_the_same_is_made_once() {
        let again = Again::default();
        let told = |standing, status| again.refuse(&standing, || Reply::new(status)).reply().status;
        let millis = Duration::from_millis;
        assert_eq!(told(standing(3, millis(1_500)), 1), 1);
        assert_eq!(told(standing(3, millis(1_001)), 2), 1, "2 s, both");
        assert_eq!(told(standing(3, millis(1_000)), 3), 3, "another second");
        assert_eq!(told(standing(3, millis(1_500)), 4), 1, "each has a place");
        assert_eq!(told(standing(3, millis(9_500)), 5), 5, "the same place, another second");
        assert_eq!(told(standing(3, millis(1_500)), 6), 6, "which is put out");
        assert_eq!(told(standing(4, millis(1_500)), 7), 7, "another quota");
        assert_eq!(told(standing(4, Duration::MAX), 8), 8, "hopeless");
    }
}
