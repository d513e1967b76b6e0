//! What wakes the agent.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{
    clock::Clock,
    key::Key,
    store::{
        backend::{Mode, Node, Token},
        lease::{Lease, Terms},
        memory::Memory,
        rounds::Rounds,
    },
};

fn lease(of: Duration) -> Arc<Lease> {
    let terms = Terms {
        lease: of,
        renew: true,
        max_hold: Duration::from_secs(60),
        job: None,
        mode: Mode::Exclusive,
    };
    let me = Token::new(&Node::new());
    Lease::new(&Key::custom("x"), &me, Instant::now() + of, terms, None)
}

/// Each waking is another thread's, and dearer than the call that it is about.
#[tokio::test(start_paused = true)]
async fn locks_that_are_given_back_at_once_wake_nobody_but_the_first_time() {
    let rounds = Rounds::new(Arc::new(Memory::new(Clock::system())));
    assert_eq!(rounds.next(), None);
    let mut woken = 0;
    for _ in 0..100 {
        let held = lease(Duration::from_secs(10));
        rounds.begin(&held);
        rounds.forget(&held);
        tokio::time::advance(Duration::from_millis(1)).await;
        if tokio::time::timeout(Duration::ZERO, rounds.sooner()).await.is_ok() {
            woken += 1;
            // As the agent does, when what it was woken for has gone.
            rounds.next();
        }
    }
    assert_eq!(woken, 1);
    // What is to be done sooner wakes it all the same.
    let short = lease(Duration::from_millis(300));
    rounds.begin(&short);
    rounds.sooner().await;
    assert!(rounds.next().is_some_and(|next| next <= Instant::now() + short.terms.lease));
}
