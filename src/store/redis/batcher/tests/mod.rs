//! The combiner over flights of the tests' own, which arrive when a test says so.

mod batch_order;
mod deadline_timers;
mod deadlines;
mod drops;
mod leader_batches;
mod non_repeatable;
mod random_drops;

use std::{
    collections::VecDeque,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync::Semaphore, time::Instant};

use super::{BatchFault, BatchTransport, CallBatcher, CallReply};
use crate::error::{Error, ErrorKind};

const CALL_TIMEOUT: Duration = Duration::from_millis(250);

/// Of tests about order in real time: machines may be slow.
const REAL_TIME_TIMEOUT: Duration = Duration::from_secs(20);

/// What was put on the wire, and what comes of it.
#[derive(Clone)]
pub(super) struct ScriptedTransport(Arc<TransportState>);

struct TransportState {
    /// Each flight that took off: its steps, and whether with the script's text.
    sent_batches: Mutex<Vec<(Vec<u32>, bool)>>,
    /// One for each flight that may arrive.
    allowed_replies: Semaphore,
    /// What the next ones meet; after that they arrive.
    pending_faults: Mutex<VecDeque<BatchFault>>,
    /// There is no way to the server.
    is_disconnected: AtomicBool,
    timeout_count: Mutex<u32>,
}

impl ScriptedTransport {
    fn new_batcher() -> (Arc<CallBatcher<Self>>, Self) {
        Self::new_batcher_within(CALL_TIMEOUT)
    }

    /// A flight that takes a part of this keeps nobody waiting: for tests in real time it is long, since machines may be slow.
    fn new_batcher_within(deadline: Duration) -> (Arc<CallBatcher<Self>>, Self) {
        let field = Self(Arc::new(TransportState {
            sent_batches: Mutex::default(),
            allowed_replies: Semaphore::new(0),
            pending_faults: Mutex::default(),
            is_disconnected: AtomicBool::new(false),
            timeout_count: Mutex::new(0),
        }));
        (Arc::new(CallBatcher::new(field.clone(), "test", deadline)), field)
    }

    fn allow_replies(&self, flights: usize) {
        self.0.allowed_replies.add_permits(flights);
    }

    fn push_fault(&self, fault: BatchFault) {
        self.0.pending_faults.lock().push_back(fault);
    }

    fn set_disconnected(&self, closed: bool) {
        self.0.is_disconnected.store(closed, Ordering::SeqCst);
    }

    fn sent_batches(&self) -> Vec<Vec<u32>> {
        self.0.sent_batches.lock().iter().map(|(steps, _)| steps.clone()).collect()
    }

    fn timeout_count(&self) -> u32 {
        *self.0.timeout_count.lock()
    }
}

/// Steps are numbers; those over 1,000 are two in one.
impl BatchTransport for ScriptedTransport {
    type Command = u32;
    type Reply = u32;
    type BatchConnection = ();
    type Payload = (Vec<u32>, bool);

    const PIPELINE_THRESHOLD: usize = 16;

    fn weight(step: &u32) -> usize {
        if *step > 1000 { 2 } else { 1 }
    }

    fn reply_count(step: &u32) -> usize {
        Self::weight(step)
    }

    async fn connection(&self) -> Result<(), Error> {
        if self.0.is_disconnected.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Unavailable, "path"));
        }
        Ok(())
    }

    fn encode<'a>(
        &self,
        steps: impl Iterator<Item = &'a u32> + Clone,
        by_text: bool,
    ) -> Self::Payload {
        (steps.copied().collect(), by_text)
    }

    async fn send(&self, (): &mut (), load: &Self::Payload) -> Result<Vec<u32>, BatchFault> {
        self.0.sent_batches.lock().push(load.clone());
        self.0.allowed_replies.acquire().await.expect("it is never closed").forget();
        if let Some(fault) = self.0.pending_faults.lock().pop_front() {
            return Err(fault);
        }
        let twice = |step: &u32| std::iter::repeat_n(*step, Self::weight(step));
        Ok(load.0.iter().flat_map(twice).collect())
    }

    fn handle_timeout(&self, (): &()) {
        *self.0.timeout_count.lock() += 1;
    }
}

type BoxedCall = Pin<Box<dyn Future<Output = Result<CallReply<u32>, Error>> + Send>>;

fn start_call(combiner: &Arc<CallBatcher<ScriptedTransport>>, step: u32) -> BoxedCall {
    start_call_within(combiner, step, CALL_TIMEOUT)
}

fn start_call_within(
    combiner: &Arc<CallBatcher<ScriptedTransport>>,
    step: u32,
    deadline: Duration,
) -> BoxedCall {
    let combiner = Arc::clone(combiner);
    let until = Instant::now() + deadline;
    Box::pin(async move { combiner.call(step, until).await })
}

/// A call that has been looked at once.
fn polled_call(combiner: &Arc<CallBatcher<ScriptedTransport>>, step: u32) -> BoxedCall {
    let mut call = start_call(combiner, step);
    let done = poll_once(&mut call);
    assert!(done.is_none(), "{step}: {done:?}");
    call
}

fn poll_once<F: Future + Unpin>(call: &mut F) -> Option<F::Output> {
    match Pin::new(call).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// Lets tasks go as far as they can.
async fn run_ready_tasks() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

async fn reply_of_first_attempt(call: BoxedCall) -> u32 {
    let answer = call.await.expect("it arrives");
    assert_eq!(answer.attempts, 1);
    answer.first
}
