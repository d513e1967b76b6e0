//! Refusals that are told again: those that a client gets within one second are the same.
//!
//! A flood is refused from memory, and then it is the answer itself that costs: half of the instructions of a
//! refusal went into making the same fields and the same document anew.

use std::{fmt, sync::Arc, time::Duration};

use parking_lot::Mutex;

use crate::{
    clock::seconds,
    rate_limit::standing::Standing,
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
pub(super) struct Again([Mutex<Last>; PLACES]);

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
        let mut place = self.0[usize::try_from(wait).unwrap_or(0) % PLACES].lock();
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
