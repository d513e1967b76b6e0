//! Steps that are never sent twice where they may have run.

use std::sync::Arc;

use tokio::{runtime::Builder, time::Instant};

use super::{REAL_TIME_TIMEOUT, ScriptedTransport};
use crate::{
    error::{Error, ErrorKind},
    store::redis::batcher::{BatchFault, BatchTransport, CallBatcher},
};

/// As the field, but once.
struct NonRepeatableTransport(ScriptedTransport);

impl BatchTransport for NonRepeatableTransport {
    type Command = u32;
    type Reply = u32;
    type BatchConnection = ();
    type Payload = (Vec<u32>, bool);

    const REPEATABLE: bool = false;

    fn weight(_: &u32) -> usize {
        1
    }

    fn reply_count(_: &u32) -> usize {
        1
    }

    async fn connection(&self) -> Result<(), Error> {
        self.0.connection().await
    }

    fn encode<'a>(
        &self,
        steps: impl Iterator<Item = &'a u32> + Clone,
        by_text: bool,
    ) -> Self::Payload {
        self.0.encode(steps, by_text)
    }

    async fn send(&self, path: &mut (), load: &Self::Payload) -> Result<Vec<u32>, BatchFault> {
        self.0.send(path, load).await
    }

    fn handle_timeout(&self, path: &()) {
        BatchTransport::handle_timeout(&self.0, path);
    }
}

fn new_non_repeatable_batcher() -> (Arc<CallBatcher<NonRepeatableTransport>>, ScriptedTransport) {
    let (_, field) = ScriptedTransport::new_batcher();
    (
        Arc::new(CallBatcher::new(
            NonRepeatableTransport(field.clone()),
            "test",
            REAL_TIME_TIMEOUT,
        )),
        field,
    )
}

type NonRepeatableCall = std::pin::Pin<Box<dyn Future<Output = Result<u32, ErrorKind>> + Send>>;

/// A call that has been looked at once.
fn polled_non_repeatable_call(
    combiner: &Arc<CallBatcher<NonRepeatableTransport>>,
    step: u32,
) -> NonRepeatableCall {
    let combiner = Arc::clone(combiner);
    let until = Instant::now() + REAL_TIME_TIMEOUT;
    let mut call: NonRepeatableCall = Box::pin(async move {
        let answer = combiner.call(step, until).await;
        answer.map(|answer| answer.first).map_err(|error| error.kind())
    });
    assert!(super::poll_once(&mut call).is_none());
    call
}

#[tokio::test(start_paused = true)]
async fn call_on_lost_connection_times_out_and_is_not_resent() {
    let (combiner, field) = new_non_repeatable_batcher();
    let calls = [1, 2, 3].map(|step| polled_non_repeatable_call(&combiner, step));
    field.push_fault(BatchFault::ConnectionLost);
    field.push_fault(BatchFault::ConnectionLost);
    field.allow_replies(2);
    for call in calls {
        assert_eq!(call.await, Err(ErrorKind::Timeout));
    }
    assert_eq!(field.sent_batches(), [vec![1], vec![2, 3]]);
    let next = polled_non_repeatable_call(&combiner, 4);
    field.allow_replies(1);
    assert_eq!(next.await, Ok(4));
}

#[tokio::test(start_paused = true)]
async fn call_that_did_not_run_is_resent() {
    for fault in [|| BatchFault::NoScript, || BatchFault::NotExecuted] {
        let (combiner, field) = new_non_repeatable_batcher();
        let calls = [1, 2, 3].map(|step| polled_non_repeatable_call(&combiner, step));
        field.push_fault(fault());
        field.allow_replies(2);
        super::run_ready_tasks().await;
        field.push_fault(fault());
        field.allow_replies(2);
        for (call, step) in calls.into_iter().zip(1..) {
            assert_eq!(call.await, Ok(step));
        }
    }
}

/// The task that had them under way ends with its runtime: nobody knows whether they have run.
#[test]
fn ended_runtime_times_out_only_its_calls_in_flight() {
    let runtime = || Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (home, here) = (runtime(), runtime());
    let (combiner, field) = home.block_on(async { new_non_repeatable_batcher() });
    let guard = home.enter();
    let first = polled_non_repeatable_call(&combiner, 1);
    drop(guard);
    let guard = here.enter();
    let others =
        [polled_non_repeatable_call(&combiner, 2), polled_non_repeatable_call(&combiner, 3)];
    drop(guard);
    let guard = home.enter();
    drop(first);
    drop(guard);
    while field.sent_batches().len() < 2 {
        std::thread::yield_now();
    }
    // Its one thread is done with the look at it in which it was sent.
    here.block_on(home.spawn(async {})).unwrap();
    home.shutdown_timeout(REAL_TIME_TIMEOUT);
    field.allow_replies(10);
    for call in others {
        assert_eq!(here.block_on(call), Err(ErrorKind::Timeout), "{:?}", field.sent_batches());
    }
    let last = here.block_on(async { combiner.call(4, Instant::now() + REAL_TIME_TIMEOUT).await });
    assert_eq!(last.unwrap().first, 4);
    assert!(!field.sent_batches()[2..].concat().iter().any(|step| *step <= 3));
}
