//! A request that goes on when its client has left.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::{Context, Poll},
};

use tokio::{sync::mpsc, time::Instant};

use super::{Gate, Next, Outcome, slot::Slot};

/// Items of a body between two turns of other tasks, where no client slows it down.
const IN_A_ROW: u32 = 32;

/// A request that is remembered, and runs in a task of its own. When its client leaves it is dropped only if it has not
/// begun: from then on one key is one execution, and the answer is for the retry.
#[derive(Debug, Clone)]
pub struct Detached(Slot);

/// Receiver of a body that is read for its gate.
#[derive(Debug)]
pub enum Sink<I> {
    /// It is sent when it is whole.
    Whole(Vec<I>),
    /// It is sent as it comes, and `None` at its end: where that is missing, it broke off.
    Pipe(mpsc::Sender<Option<I>>),
}

impl Detached {
    pub(crate) fn new(slot: Slot) -> Self {
        Self(slot)
    }

    /// Runs a part of the request; `gone` resolves when its client leaves. `None` if that was before it had begun, or
    /// after it had ended: the part was dropped.
    pub async fn run<T>(
        &self,
        part: impl Future<Output = T>,
        gone: impl Future<Output = ()>,
    ) -> Option<T> {
        let (mut part, mut gone, mut left) = (pin!(part), pin!(gone), false);
        poll_fn(|cx| {
            if let Poll::Ready(output) = part.as_mut().poll(cx) {
                return Poll::Ready(Some(output));
            }
            if !left && gone.as_mut().poll(cx).is_ready() {
                left = true;
                if !self.0.has_begun() {
                    return Poll::Ready(None);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Reads the body of the answer for the gate, which has said [`Parting::Keep`](super::Parting::Keep), and hands it on
    /// all but the last item, which is to be sent when the gate is left with the outcome. Without a client it ends with the
    /// longest time that the lock may be held.
    pub async fn read<N: ?Sized, G: Gate<N>, I>(
        &self,
        (gate, ticket): (&G, &mut G::Ticket),
        mut next: impl FnMut(&mut Context<'_>) -> Poll<Next<I>>,
        data: impl Fn(&I) -> Option<&[u8]>,
        gone: impl Future<Output = ()>,
        to: &mut Sink<I>,
    ) -> (Option<I>, Outcome) {
        let (mut gone, mut left) = (pin!(gone), false);
        let until = self.0.begun_until().unwrap_or_else(Instant::now);
        let mut over = pin!(tokio::time::sleep_until(until));
        for n in 1_u32.. {
            let next = poll_fn(|cx| {
                left = left || gone.as_mut().poll(cx).is_ready();
                if left && over.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(None);
                }
                next(cx).map(Some)
            });
            let (item, last) = match next.await {
                None => break,
                Some(Next::Broken(error)) => return (Some(error), Outcome::BrokeOff),
                Some(Next::Item(item)) => (Some(item), false),
                Some(Next::Last(item)) => (item, true),
            };
            if let Some(chunk) = item.as_ref().and_then(&data) {
                gate.hear_body(ticket, chunk);
            }
            match (item, &mut *to) {
                (item, _) if last => return (item, Outcome::Ended),
                (Some(item), Sink::Whole(items)) => items.push(item),
                // Of a client that has left nothing is waited for.
                (Some(item), Sink::Pipe(client)) => drop(client.send(Some(item)).await),
                (None, _) => {}
            }
            if n % IN_A_ROW == 0 {
                tokio::task::yield_now().await;
            }
        }
        (None, Outcome::BrokeOff)
    }
}
