//! The combiner over flights of the tests' own, which arrive when a test says so.

mod deadlines;
mod drops;
mod lead;
mod once;
mod order;
mod random;
mod watch;

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

const DEADLINE: Duration = Duration::from_millis(250);

/// Of tests about order in real time: machines may be slow.
const LONG: Duration = Duration::from_secs(20);

/// What was put on the wire, and what comes of it.
#[derive(Clone)]
pub(super) struct Field(Arc<FieldState>);

struct FieldState {
    /// Each flight that took off: its steps, and whether with the script's text.
    sent: Mutex<Vec<(Vec<u32>, bool)>>,
    /// One for each flight that may arrive.
    arrivals: Semaphore,
    /// What the next ones meet; after that they arrive.
    faults: Mutex<VecDeque<BatchFault>>,
    /// There is no way to the server.
    closed: AtomicBool,
    late: Mutex<u32>,
}

impl Field {
    fn new() -> (Arc<CallBatcher<Self>>, Self) {
        Self::within(DEADLINE)
    }

    /// A flight that takes a part of this keeps nobody waiting: for tests in real time it is long, since machines may be slow.
    fn within(deadline: Duration) -> (Arc<CallBatcher<Self>>, Self) {
        let field = Self(Arc::new(FieldState {
            sent: Mutex::default(),
            arrivals: Semaphore::new(0),
            faults: Mutex::default(),
            closed: AtomicBool::new(false),
            late: Mutex::new(0),
        }));
        (Arc::new(CallBatcher::new(field.clone(), "test", deadline)), field)
    }

    fn arrive(&self, flights: usize) {
        self.0.arrivals.add_permits(flights);
    }

    fn meets(&self, fault: BatchFault) {
        self.0.faults.lock().push_back(fault);
    }

    fn close(&self, closed: bool) {
        self.0.closed.store(closed, Ordering::SeqCst);
    }

    fn sent(&self) -> Vec<Vec<u32>> {
        self.0.sent.lock().iter().map(|(steps, _)| steps.clone()).collect()
    }

    fn late(&self) -> u32 {
        *self.0.late.lock()
    }
}

/// Steps are numbers; those over 1,000 are two in one.
impl BatchTransport for Field {
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
        if self.0.closed.load(Ordering::SeqCst) {
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
        self.0.sent.lock().push(load.clone());
        self.0.arrivals.acquire().await.expect("it is never closed").forget();
        if let Some(fault) = self.0.faults.lock().pop_front() {
            return Err(fault);
        }
        let twice = |step: &u32| std::iter::repeat_n(*step, Self::weight(step));
        Ok(load.0.iter().flat_map(twice).collect())
    }

    fn handle_timeout(&self, (): &()) {
        *self.0.late.lock() += 1;
    }
}

type Call = Pin<Box<dyn Future<Output = Result<CallReply<u32>, Error>> + Send>>;

fn call(combiner: &Arc<CallBatcher<Field>>, step: u32) -> Call {
    call_within(combiner, step, DEADLINE)
}

fn call_within(combiner: &Arc<CallBatcher<Field>>, step: u32, deadline: Duration) -> Call {
    let combiner = Arc::clone(combiner);
    let until = Instant::now() + deadline;
    Box::pin(async move { combiner.call(step, until).await })
}

/// A call that has been looked at once.
fn begun(combiner: &Arc<CallBatcher<Field>>, step: u32) -> Call {
    let mut call = call(combiner, step);
    let done = poll(&mut call);
    assert!(done.is_none(), "{step}: {done:?}");
    call
}

fn poll<F: Future + Unpin>(call: &mut F) -> Option<F::Output> {
    match Pin::new(call).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// Lets tasks go as far as they can.
async fn settle() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

async fn arrived(call: Call) -> u32 {
    let answer = call.await.expect("it arrives");
    assert_eq!(answer.attempts, 1);
    answer.first
}
