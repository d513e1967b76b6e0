//! Batcher tests over a scripted transport, which answers a batch when its test allows it.

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

/// Timeout of tests about order in real time, long enough for a slow machine.
const REAL_TIME_TIMEOUT: Duration = Duration::from_secs(20);

/// Transport that records batches and scripts their outcomes.
#[derive(Clone)]
pub(super) struct ScriptedTransport(Arc<TransportState>);

struct TransportState {
    /// Commands of each sent batch, and whether it was sent with the script's text.
    sent_batches: Mutex<Vec<(Vec<u32>, bool)>>,
    /// One permit for each batch that may be answered.
    allowed_replies: Semaphore,
    /// Faults of the next batches. Later batches are answered.
    pending_faults: Mutex<VecDeque<BatchFault>>,
    /// Requests for a connection fail.
    is_disconnected: AtomicBool,
    timeout_count: Mutex<u32>,
}

impl ScriptedTransport {
    fn new_batcher() -> (Arc<CallBatcher<Self>>, Self) {
        Self::new_batcher_within(CALL_TIMEOUT)
    }

    /// A batch delays others for a part of `deadline` at most. Tests in real time use a long one,
    /// since machines may be slow.
    fn new_batcher_within(deadline: Duration) -> (Arc<CallBatcher<Self>>, Self) {
        let transport = Self(Arc::new(TransportState {
            sent_batches: Mutex::default(),
            allowed_replies: Semaphore::new(0),
            pending_faults: Mutex::default(),
            is_disconnected: AtomicBool::new(false),
            timeout_count: Mutex::new(0),
        }));
        (Arc::new(CallBatcher::new(transport.clone(), "test", deadline)), transport)
    }

    fn allow_replies(&self, batches: usize) {
        self.0.allowed_replies.add_permits(batches);
    }

    fn push_fault(&self, fault: BatchFault) {
        self.0.pending_faults.lock().push_back(fault);
    }

    fn set_disconnected(&self, disconnected: bool) {
        self.0.is_disconnected.store(disconnected, Ordering::SeqCst);
    }

    fn sent_batches(&self) -> Vec<Vec<u32>> {
        self.0.sent_batches.lock().iter().map(|(commands, _)| commands.clone()).collect()
    }

    fn timeout_count(&self) -> u32 {
        *self.0.timeout_count.lock()
    }
}

/// Commands are numbers. One above 1,000 has a weight of 2 and two replies.
impl BatchTransport for ScriptedTransport {
    type Command = u32;
    type Reply = u32;
    type BatchConnection = ();
    type Payload = (Vec<u32>, bool);

    const PIPELINE_THRESHOLD: usize = 16;

    fn weight(command: &u32) -> usize {
        if *command > 1000 { 2 } else { 1 }
    }

    fn reply_count(command: &u32) -> usize {
        Self::weight(command)
    }

    async fn connection(&self) -> Result<(), Error> {
        if self.0.is_disconnected.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Unavailable, "path"));
        }
        Ok(())
    }

    fn encode<'a>(
        &self,
        commands: impl Iterator<Item = &'a u32> + Clone,
        by_text: bool,
    ) -> Self::Payload {
        (commands.copied().collect(), by_text)
    }

    async fn send(&self, (): &mut (), payload: &Self::Payload) -> Result<Vec<u32>, BatchFault> {
        self.0.sent_batches.lock().push(payload.clone());
        self.0.allowed_replies.acquire().await.expect("it is never closed").forget();
        if let Some(fault) = self.0.pending_faults.lock().pop_front() {
            return Err(fault);
        }
        let replies = |command: &u32| std::iter::repeat_n(*command, Self::weight(command));
        Ok(payload.0.iter().flat_map(replies).collect())
    }

    fn handle_timeout(&self, (): &()) {
        *self.0.timeout_count.lock() += 1;
    }
}

type BoxedCall = Pin<Box<dyn Future<Output = Result<CallReply<u32>, Error>> + Send>>;

fn start_call(batcher: &Arc<CallBatcher<ScriptedTransport>>, command: u32) -> BoxedCall {
    start_call_within(batcher, command, CALL_TIMEOUT)
}

fn start_call_within(
    batcher: &Arc<CallBatcher<ScriptedTransport>>,
    command: u32,
    timeout: Duration,
) -> BoxedCall {
    let batcher = Arc::clone(batcher);
    let deadline = Instant::now() + timeout;
    Box::pin(async move { batcher.call(command, deadline).await })
}

/// Starts a call and polls it once.
fn polled_call(batcher: &Arc<CallBatcher<ScriptedTransport>>, command: u32) -> BoxedCall {
    let mut call = start_call(batcher, command);
    let done = poll_once(&mut call);
    assert!(done.is_none(), "{command}: {done:?}");
    call
}

fn poll_once<F: Future + Unpin>(call: &mut F) -> Option<F::Output> {
    match Pin::new(call).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// Yields until no task can proceed.
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
