//! Timer for a handler's waits for its request body.
//!
//! Only the time in which the handler has polled the body and no data is there counts. Time in
//! which the handler does other things does not count, and nothing counts after the end of the
//! body. A client that sends a byte a second is thus stopped like one that sends nothing, and a
//! client that has sent everything is never taken for slow: a wait ends when the body wakes the
//! handler, however late the handler polls.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::time::{Instant, Sleep};

/// Driver's end of the timer; reports the timeout. Dropping it disarms the timer.
pub struct BodyTimeoutWatch(Arc<BodyWaitState>);

/// Body's end of the timer; counts the waits. The driver wraps the body in it.
pub struct RequestBodyWaitTimer {
    shared: Arc<BodyWaitState>,
    remaining: Duration,
    /// Start of the current wait.
    waiting_since: Option<Instant>,
    /// Created by the first wait: most bodies arrive at once.
    sleep: Option<Pin<Box<Sleep>>>,
}

/// Error that the body yields in place of its rest when the client was too slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BodyTimeoutError;

struct BodyWaitState {
    state: AtomicU8,
    driver_waker: AtomicWaker,
    handler_waker: AtomicWaker,
    /// Time at which the body last woke the handler, if the handler has not polled since.
    woken_at: Mutex<Option<Instant>>,
}

const COUNTING: u8 = 0;
const TIMED_OUT: u8 = 1;
const DISARMED: u8 = 2;

impl BodyTimeoutWatch {
    /// Creates both ends.
    #[must_use]
    pub fn new(limit: Duration) -> (Self, RequestBodyWaitTimer) {
        let state = AtomicU8::new(COUNTING);
        let (driver_waker, handler_waker) = (AtomicWaker::new(), AtomicWaker::new());
        let shared = Arc::new(BodyWaitState {
            state,
            driver_waker,
            handler_waker,
            woken_at: Mutex::new(None),
        });
        let remaining = limit.min(crate::durations::MAX_DURATION);
        (
            Self(Arc::clone(&shared)),
            RequestBodyWaitTimer { shared, remaining, waiting_since: None, sleep: None },
        )
    }

    /// Returns true once the client has been too slow.
    #[must_use]
    pub fn is_timed_out(&self) -> bool {
        self.0.state.load(Ordering::Acquire) == TIMED_OUT
    }

    /// Resolves when the client has been too slow, whichever task reads the body.
    pub fn poll_timed_out(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.0.driver_waker.register(cx.waker());
        if self.is_timed_out() { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for BodyTimeoutWatch {
    fn drop(&mut self) {
        self.0.finish_as(DISARMED);
    }
}

impl BodyWaitState {
    /// Leaves the state `COUNTING`, at most once.
    fn finish_as(&self, final_state: u8) {
        let _ =
            self.state.compare_exchange(COUNTING, final_state, Ordering::AcqRel, Ordering::Acquire);
    }
}

/// Waker of the body: records the time of the wake-up, and wakes the handler.
impl Wake for BodyWaitState {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken_at.lock().get_or_insert_with(Instant::now);
        self.handler_waker.wake();
    }
}

impl RequestBodyWaitTimer {
    /// Polls the body.
    ///
    /// # Errors
    ///
    /// If the handler has waited too long. The driver is woken too.
    pub fn poll_body<T>(
        &mut self,
        cx: &mut Context<'_>,
        body: impl FnOnce(&mut Context<'_>) -> Poll<T>,
    ) -> Result<Poll<T>, BodyTimeoutError> {
        if self.shared.state.load(Ordering::Acquire) == DISARMED {
            return Ok(body(cx));
        }
        // Before the body is polled: a wake-up from here on belongs to the next poll.
        let woken_at = self.shared.woken_at.lock().take();
        if woken_at.is_some() {
            self.end_wait(woken_at);
        }
        self.shared.handler_waker.register(cx.waker());
        let waker = Waker::from(Arc::clone(&self.shared));
        let result = body(&mut Context::from_waker(&waker));
        if result.is_pending() {
            self.poll_wait(cx)?;
        } else {
            self.end_wait(None);
        }
        Ok(result)
    }

    /// Ends the current wait, at `ended` or now.
    fn end_wait(&mut self, ended: Option<Instant>) {
        if let Some(waiting_since) = self.waiting_since.take() {
            let ended = ended.unwrap_or_else(Instant::now);
            self.remaining =
                self.remaining.saturating_sub(ended.saturating_duration_since(waiting_since));
        }
    }

    fn poll_wait(&mut self, cx: &mut Context<'_>) -> Result<(), BodyTimeoutError> {
        let deadline = *self.waiting_since.get_or_insert_with(Instant::now) + self.remaining;
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        if sleep.deadline() != deadline {
            sleep.as_mut().reset(deadline);
        }
        if sleep.as_mut().poll(cx).is_pending() {
            return Ok(());
        }
        self.shared.finish_as(TIMED_OUT);
        self.shared.driver_waker.wake();
        Err(BodyTimeoutError)
    }
}

impl fmt::Display for BodyTimeoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the request body did not arrive in time")
    }
}

impl std::error::Error for BodyTimeoutError {}

impl fmt::Debug for BodyTimeoutWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BodyTimeoutWatch")
            .field("too_slow", &self.is_timed_out())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for RequestBodyWaitTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestBodyWaitTimer")
            .field("remaining", &self.remaining)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt as _, StreamExt as _, future::poll_fn};
    use tokio::sync::mpsc;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// A handler's read of a body, with a timeout of 5 s.
    struct TimedTestBody(mpsc::UnboundedReceiver<u8>, RequestBodyWaitTimer);

    impl TimedTestBody {
        fn new() -> (mpsc::UnboundedSender<u8>, Self, BodyTimeoutWatch) {
            let (client, body) = mpsc::unbounded_channel();
            let (handle, timer) = BodyTimeoutWatch::new(5 * SECOND);
            (client, Self(body, timer), handle)
        }

        async fn read(&mut self) -> Result<Option<u8>, BodyTimeoutError> {
            let Self(body, timer) = self;
            poll_fn(|cx| match timer.poll_body(cx, |cx| body.poll_recv(cx)) {
                Ok(polled) => polled.map(Ok),
                Err(slow) => Poll::Ready(Err(slow)),
            })
            .await
        }
    }

    /// The losing branch of a `select!` polls late in this way.
    #[tokio::test(start_paused = true)]
    async fn received_data_is_returned_after_a_late_poll() {
        let (client, mut body, handle) = TimedTestBody::new();
        for byte in 0..9 {
            assert_eq!(body.read().now_or_never(), None);
            client.send(byte).expect("it is read");
            tokio::time::sleep(6 * SECOND).await;
            assert_eq!(body.read().await, Ok(Some(byte)));
        }
        assert!(!handle.is_timed_out());
        // The time until the data arrived still counts.
        assert_eq!(body.read().now_or_never(), None);
        tokio::time::sleep(3 * SECOND).await;
        client.send(9).expect("it is read");
        tokio::time::sleep(6 * SECOND).await;
        assert_eq!(body.read().await, Ok(Some(9)));
        let since = Instant::now();
        assert_eq!(body.read().await, Err(BodyTimeoutError));
        assert_eq!(since.elapsed(), 2 * SECOND);
        assert!(handle.is_timed_out());
    }

    /// A handler that is woken and finds no data continues to wait.
    #[tokio::test(start_paused = true)]
    async fn wakeup_without_data_does_not_end_the_wait() {
        let (handle, mut timer) = BodyTimeoutWatch::new(5 * SECOND);
        let mut ticks = Box::pin(futures_util::stream::unfold((), |()| async {
            tokio::time::sleep(SECOND).await;
            Some(((), ()))
        }));
        let since = Instant::now();
        let mut read = async || {
            poll_fn(|cx| {
                let nothing = |cx: &mut Context<'_>| {
                    // Wakes each second, and yields nothing.
                    while ticks.poll_next_unpin(cx).is_ready() {}
                    Poll::<()>::Pending
                };
                match timer.poll_body(cx, nothing) {
                    Ok(_) => Poll::Pending,
                    Err(slow) => Poll::Ready(slow),
                }
            })
            .await
        };
        assert_eq!(read().await, BodyTimeoutError);
        assert_eq!(since.elapsed(), 5 * SECOND);
        assert!(handle.is_timed_out());
    }
}
