//! Calls of a transport whose commands must not run twice.

use std::sync::Arc;

use tokio::{runtime::Builder, time::Instant};

use super::{REAL_TIME_TIMEOUT, ScriptedTransport};
use crate::{
    error::{Error, ErrorKind},
    store::redis::batcher::{BatchFault, BatchTransport, CallBatcher},
};

/// [`ScriptedTransport`] whose commands are not repeatable.
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
        commands: impl Iterator<Item = &'a u32> + Clone,
        by_text: bool,
    ) -> Self::Payload {
        self.0.encode(commands, by_text)
    }

    async fn send(
        &self,
        connection: &mut (),
        payload: &Self::Payload,
    ) -> Result<Vec<u32>, BatchFault> {
        self.0.send(connection, payload).await
    }

    fn handle_timeout(&self, connection: &()) {
        BatchTransport::handle_timeout(&self.0, connection);
    }
}

fn new_non_repeatable_batcher() -> (Arc<CallBatcher<NonRepeatableTransport>>, ScriptedTransport) {
    let (_, transport) = ScriptedTransport::new_batcher();
    (
        Arc::new(CallBatcher::new(
            NonRepeatableTransport(transport.clone()),
            "test",
            REAL_TIME_TIMEOUT,
        )),
        transport,
    )
}

type NonRepeatableCall = std::pin::Pin<Box<dyn Future<Output = Result<u32, ErrorKind>> + Send>>;

/// Starts a call and polls it once.
fn polled_non_repeatable_call(
    batcher: &Arc<CallBatcher<NonRepeatableTransport>>,
    command: u32,
) -> NonRepeatableCall {
    let batcher = Arc::clone(batcher);
    let deadline = Instant::now() + REAL_TIME_TIMEOUT;
    let mut call: NonRepeatableCall = Box::pin(async move {
        let answer = batcher.call(command, deadline).await;
        answer.map(|answer| answer.first).map_err(|error| error.kind())
    });
    assert!(super::poll_once(&mut call).is_none());
    call
}

#[tokio::test(start_paused = true)]
async fn call_on_lost_connection_times_out_and_is_not_resent() {
    let (batcher, transport) = new_non_repeatable_batcher();
    let calls = [1, 2, 3].map(|command| polled_non_repeatable_call(&batcher, command));
    transport.push_fault(BatchFault::ConnectionLost);
    transport.push_fault(BatchFault::ConnectionLost);
    transport.allow_replies(2);
    for call in calls {
        assert_eq!(call.await, Err(ErrorKind::Timeout));
    }
    assert_eq!(transport.sent_batches(), [vec![1], vec![2, 3]]);
    let next = polled_non_repeatable_call(&batcher, 4);
    transport.allow_replies(1);
    assert_eq!(next.await, Ok(4));
}

#[tokio::test(start_paused = true)]
async fn call_that_did_not_run_is_resent() {
    for fault in [|| BatchFault::NoScript, || BatchFault::NotExecuted] {
        let (batcher, transport) = new_non_repeatable_batcher();
        let calls = [1, 2, 3].map(|command| polled_non_repeatable_call(&batcher, command));
        transport.push_fault(fault());
        transport.allow_replies(2);
        super::run_ready_tasks().await;
        transport.push_fault(fault());
        transport.allow_replies(2);
        for (call, command) in calls.into_iter().zip(1..) {
            assert_eq!(call.await, Ok(command));
        }
    }
}

/// The task that sent them ends with its runtime, so it is unknown whether they have run.
#[test]
fn ended_runtime_times_out_only_its_calls_in_flight() {
    let runtime = || Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (home, here) = (runtime(), runtime());
    let (batcher, transport) = home.block_on(async { new_non_repeatable_batcher() });
    let guard = home.enter();
    let first = polled_non_repeatable_call(&batcher, 1);
    drop(guard);
    let guard = here.enter();
    let others = [polled_non_repeatable_call(&batcher, 2), polled_non_repeatable_call(&batcher, 3)];
    drop(guard);
    let guard = home.enter();
    drop(first);
    drop(guard);
    while transport.sent_batches().len() < 2 {
        std::thread::yield_now();
    }
    // The runtime's only thread has finished the poll that sent the batch.
    here.block_on(home.spawn(async {})).unwrap();
    home.shutdown_timeout(REAL_TIME_TIMEOUT);
    transport.allow_replies(10);
    for call in others {
        assert_eq!(here.block_on(call), Err(ErrorKind::Timeout), "{:?}", transport.sent_batches());
    }
    let last = here.block_on(async { batcher.call(4, Instant::now() + REAL_TIME_TIMEOUT).await });
    assert_eq!(last.unwrap().first, 4);
    assert!(!transport.sent_batches()[2..].concat().iter().any(|command| *command <= 3));
}
