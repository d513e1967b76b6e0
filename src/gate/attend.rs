//! The inner call, beside what may end it.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    task::Poll,
};

use super::{Outcome, Reading};

/// How an inner call ended, or was ended.
#[derive(Debug)]
pub enum Attended<T> {
    /// By itself.
    Ended(T),
    /// [`Gate::watch`](super::Gate::watch) resolved, or its client was too slow.
    Stopped,
}

impl<T> Attended<T> {
    /// What to leave the gate with; the function tells of a call that has ended by itself.
    pub fn outcome(&self, reading: Option<&Reading>, ended: impl FnOnce(&T) -> Outcome) -> Outcome {
        match self {
            // Whatever the handler has made of a body that broke off.
            _ if reading.is_some_and(Reading::is_too_slow) => Outcome::TooSlow,
            Self::Ended(output) => ended(output),
            Self::Stopped => Outcome::Stopped,
        }
    }
}

/// Awaits the inner call for as long as the gate lets it go on.
///
/// Both are pinned by the driver and dropped by it, before it leaves the gate: what the handler had
/// begun must have ended when the lock is given back.
pub async fn attend<C: Future, W: Future<Output = ()>>(
    mut call: Pin<&mut C>,
    mut watch: Pin<&mut W>,
    reading: Option<&Reading>,
) -> Attended<C::Output> {
    poll_fn(|cx| {
        // The call first: an answer that is there counts, and one that is there at once costs no watch.
        if let Poll::Ready(output) = call.as_mut().poll(cx) {
            return Poll::Ready(Attended::Ended(output));
        }
        let too_slow = |reading: &Reading| reading.poll_too_slow(cx).is_ready();
        if reading.is_some_and(too_slow) {
            return Poll::Ready(Attended::Stopped);
        }
        watch.as_mut().poll(cx).map(|()| Attended::Stopped)
    })
    .await
}
