//! What goes on beside a holder: late votes come in, and nodes that have no lease are asked again.
//!
//! Renewal is not done here: each node's lease is in the rounds of its own store. Without this task, should
//! its runtime end, a lock stands for as long as the nodes do that had voted for it.

use std::{pin::pin, sync::Arc};

use tokio::time::{Instant, sleep_until};

use super::{
    held::{Held, Next},
    round::{Asking, Vote},
};
use crate::store::LeaseTerms;

/// Begins it. It ends with the lock.
pub(super) fn begin(asking: &Asking, held: &Arc<Held>) {
    let Some(first) = asking.nodes.first() else { return };
    // The guard ends the lock when it goes, whoever has this besides.
    let tender = Tender { asking: asking.clone(), held: Arc::clone(held) };
    first.spawn_background(tender.run());
}

struct Tender {
    asking: Asking,
    held: Arc<Held>,
}

impl Tender {
    async fn run(self) {
        let third = self.asking.terms.lease / 3;
        let mut next = Instant::now() + third;
        let mut ended = pin!(self.held.ended());
        loop {
            tokio::select! {
                _ = &mut ended => return,
                next = self.held.next() => match next {
                    Next::Vote(vote) => self.count(vote),
                    Next::Raised(at, hold) => self.held.join(at, hold),
                },
                () = sleep_until(next) => {
                    next = Instant::now() + third;
                    self.ask_again();
                }
            }
        }
    }

    fn count(&self, (at, answer): Vote) {
        // A node that refuses is asked another time.
        if let Ok(hold) = answer {
            self.held.tell(self.asking.raised(at, hold, self.held.fence));
        }
    }

    /// Those that had no lease at the beginning, and those that have lost it.
    fn ask_again(&self) {
        let terms = &self.asking.terms;
        let left = self.held.end.saturating_duration_since(Instant::now());
        if terms.renews && left >= terms.lease {
            let terms = LeaseTerms { max_hold: left, ..terms.clone() };
            for at in self.held.missing() {
                self.held.ask(self.asking.vote(at, &terms));
            }
        }
    }
}
