//! Direct runs that continue when their client disconnects.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    sync::mpsc,
    time::{Instant, timeout_at},
};

use super::{Gate, NextBodyItem, ServiceOutcome, parking_slot_for_busy_lock::ParkingSlot};

/// Longest time that a client may leave the next body item unread once the run should have ended. A
/// stalled client must not keep a run, which counts against the limit of runs, forever.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Items read between two yields to other tasks, for a body that no client slows down.
const ITEMS_PER_YIELD: u32 = 32;

/// Request with an idempotency record that runs in a task of its own. A disconnect of its client
/// drops it only if it has not started: from its start on, one key means one execution, and the
/// response is for the retry.
#[derive(Debug, Clone)]
pub struct DetachedRun(ParkingSlot);

/// Destination of a response body that is read for its gate.
#[derive(Debug)]
pub enum BodySink<I> {
    /// Collects the items; they are sent together at the end.
    Buffer(Vec<I>),
    /// Sends each item at once, and `None` at the end. A channel that closes without `None` means
    /// that the body broke off.
    Channel(mpsc::Sender<Option<I>>),
}

impl<I> BodySink<I> {
    /// Adds an item. Returns false if its client leaves it unread until `deadline` and for at least
    /// `STALL_TIMEOUT`.
    async fn push(&mut self, item: I, deadline: Instant) -> bool {
        match self {
            Self::Buffer(items) => {
                items.push(item);
                true
            }
            // The send fails at once if the client has disconnected, and reading goes on.
            Self::Channel(client) => {
                let stall_deadline = deadline.max(Instant::now() + STALL_TIMEOUT);
                timeout_at(stall_deadline, client.send(Some(item))).await.is_ok()
            }
        }
    }
}

impl DetachedRun {
    pub(crate) fn new(slot: ParkingSlot) -> Self {
        Self(slot)
    }

    /// Runs a part of the request; `disconnected` resolves when its client disconnects. Drops the
    /// part and returns `None` if that happens while no run is in progress: before its start or
    /// after its end.
    pub async fn run_unless_abandoned<T>(
        &self,
        part: impl Future<Output = T>,
        disconnected: impl Future<Output = ()>,
    ) -> Option<T> {
        let (mut part, mut disconnected, mut is_disconnected) =
            (pin!(part), pin!(disconnected), false);
        poll_fn(|cx| {
            if let Poll::Ready(output) = part.as_mut().poll(cx) {
                return Poll::Ready(Some(output));
            }
            if !is_disconnected && disconnected.as_mut().poll(cx).is_ready() {
                is_disconnected = true;
                if !self.0.has_run() {
                    return Poll::Ready(None);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Leaves the gate. The record of a started run is written before this returns, even if the
    /// client has disconnected: [`Store::wait_for_direct_runs`](crate::Store::wait_for_direct_runs)
    /// must not return before it.
    pub async fn leave_gate<T>(
        &self,
        leaving: impl Future<Output = T>,
        disconnected: impl Future<Output = ()>,
    ) -> Option<T> {
        // Checked first: leaving takes the run out of the slot.
        if self.0.has_run() {
            return Some(leaving.await);
        }
        self.run_unless_abandoned(leaving, disconnected).await
    }

    /// Reads the response body for a gate that returned
    /// [`LeaveAction::KeepTicket`](super::LeaveAction::KeepTicket), and forwards all items but the
    /// last. Returns the last item, to be sent after the gate has been left with the returned
    /// outcome.
    ///
    /// Without a client, reading ends at the deadline of the run. With a client, it ends when an
    /// item stays unread until that deadline and for at least `STALL_TIMEOUT`.
    pub async fn forward_body<N: ?Sized, G: Gate<N>, I>(
        &self,
        (gate, ticket): (&G, &mut G::Ticket),
        mut next_item: impl FnMut(&mut Context<'_>) -> Poll<NextBodyItem<I>>,
        chunk_of: impl Fn(&I) -> Option<&[u8]>,
        disconnected: impl Future<Output = ()>,
        sink: &mut BodySink<I>,
    ) -> (Option<I>, ServiceOutcome) {
        let (mut disconnected, mut is_disconnected) = (pin!(disconnected), false);
        let deadline = self.0.run_abandon_at().unwrap_or_else(Instant::now);
        let mut deadline_timer = pin!(tokio::time::sleep_until(deadline));
        for item_count in 1_u32.. {
            let next_item = poll_fn(|cx| {
                is_disconnected = is_disconnected || disconnected.as_mut().poll(cx).is_ready();
                if is_disconnected && deadline_timer.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(None);
                }
                next_item(cx).map(Some)
            });
            let (item, is_last) = match next_item.await {
                None => break,
                Some(NextBodyItem::Failed(error)) => {
                    return (Some(error), ServiceOutcome::BodyFailed);
                }
                Some(NextBodyItem::Item(item)) => (Some(item), false),
                Some(NextBodyItem::Last(item)) => (item, true),
            };
            if let Some(chunk) = item.as_ref().and_then(&chunk_of) {
                gate.observe_body_chunk(ticket, chunk);
            }
            if is_last {
                return (item, ServiceOutcome::BodyEnded);
            }
            if let Some(item) = item
                && !sink.push(item, deadline).await
            {
                break;
            }
            if item_count % ITEMS_PER_YIELD == 0 {
                tokio::task::yield_now().await;
            }
        }
        (None, ServiceOutcome::BodyFailed)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        future::ready,
        sync::atomic::{AtomicBool, Ordering},
    };

    use bytes::Bytes;

    use super::*;
    use crate::{
        gate::{
            GateRequest, HttpRequestHead, InitialVerdict, LeaveAction, LockInstruction, Verdict,
            idempotent_run::tests::{acquire_for_direct_run, begin_run},
        },
        reply::Reply,
        store::Store,
    };

    /// A gate that ignores the body.
    #[derive(Clone)]
    struct BodyIgnoringGate;

    impl Gate<()> for BodyIgnoringGate {
        type EntryContext = Infallible;
        type Ticket = u8;
        type LightTicket = u8;
        type AcceptTicket = Infallible;

        fn inspect<V: GateRequest<NativeRequest = ()>>(
            &self,
            _: &mut V,
        ) -> InitialVerdict<Infallible, u8> {
            InitialVerdict::Skip
        }

        async fn enter(&self, context: Infallible) -> Verdict<u8> {
            match context {}
        }

        fn annotate_request<V: GateRequest<NativeRequest = ()>>(&self, _: &u8, _: &mut V) {}

        fn full_ticket(&self, quick: u8) -> u8 {
            quick
        }

        async fn leave(&self, _: u8, _: ServiceOutcome) -> LeaveAction<u8, Infallible> {
            LeaveAction::AddHeaders(Vec::new())
        }

        async fn accept_parked(
            &self,
            parked: Infallible,
            _: HttpRequestHead,
            _: Option<Bytes>,
        ) -> Option<Reply> {
            match parked {}
        }
    }

    fn item_data(item: &Bytes) -> Option<&[u8]> {
        Some(item)
    }

    #[tokio::test(start_paused = true)]
    async fn stalled_client_does_not_hold_its_run() {
        let detached = DetachedRun::new(ParkingSlot::new(LockInstruction::ParkImmediately, None));
        // The receiver exists but is never read.
        let (to, unread) = mpsc::channel(1);
        let mut sink = BodySink::Channel(to.clone());
        let next =
            |_: &mut Context<'_>| Poll::Ready(NextBodyItem::Item(Bytes::from_static(b"more")));
        let mut ticket = 0;
        let read = detached.forward_body(
            (&BodyIgnoringGate, &mut ticket),
            next,
            item_data,
            to.closed(),
            &mut sink,
        );
        let started_at = Instant::now();
        assert_eq!(read.await, (None, ServiceOutcome::BodyFailed));
        assert_eq!(started_at.elapsed().as_secs(), STALL_TIMEOUT.as_secs());
        drop(unread);
    }

    #[tokio::test(start_paused = true)]
    async fn started_run_leaves_its_gate_after_a_disconnect() {
        let store = Store::memory();
        for has_started in [true, false] {
            let slot = ParkingSlot::new(LockInstruction::ParkImmediately, None);
            if has_started {
                slot.set_run(begin_run(&store, &acquire_for_direct_run(&store).await).await);
            }
            let has_left = AtomicBool::new(false);
            let leaving = async {
                let taken = slot.take_run();
                tokio::task::yield_now().await;
                drop(taken);
                has_left.store(true, Ordering::Relaxed);
            };
            let _ = DetachedRun::new(slot.clone()).leave_gate(leaving, ready(())).await;
            assert_eq!(has_left.load(Ordering::Relaxed), has_started);
        }
    }
}
