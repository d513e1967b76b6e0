//! Steps that are never sent twice where they may have run.

use std::sync::Arc;

use tokio::{runtime::Builder, time::Instant};

use super::{Field, LONG};
use crate::{
    error::{Error, ErrorKind},
    store::redis::batcher::{BatchFault, BatchTransport, CallBatcher},
};

/// As the field, but once.
struct Once(Field);

impl BatchTransport for Once {
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

fn once() -> (Arc<CallBatcher<Once>>, Field) {
    let (_, field) = Field::new();
    (Arc::new(CallBatcher::new(Once(field.clone()), "test", LONG)), field)
}

type Call = std::pin::Pin<Box<dyn Future<Output = Result<u32, ErrorKind>> + Send>>;

/// A call that has been looked at once.
fn begun(combiner: &Arc<CallBatcher<Once>>, step: u32) -> Call {
    let combiner = Arc::clone(combiner);
    let until = Instant::now() + LONG;
    let mut call: Call = Box::pin(async move {
        let answer = combiner.call(step, until).await;
        answer.map(|answer| answer.first).map_err(|error| error.kind())
    });
    assert!(super::poll(&mut call).is_none());
    call
}

#[tokio::test(start_paused = true)]
async fn what_was_cut_off_is_told_so_and_not_sent_again() {
    let (combiner, field) = once();
    let calls = [1, 2, 3].map(|step| begun(&combiner, step));
    field.meets(BatchFault::ConnectionLost);
    field.meets(BatchFault::ConnectionLost);
    field.arrive(2);
    for call in calls {
        assert_eq!(call.await, Err(ErrorKind::Timeout));
    }
    assert_eq!(field.sent(), [vec![1], vec![2, 3]]);
    let next = begun(&combiner, 4);
    field.arrive(1);
    assert_eq!(next.await, Ok(4));
}

#[tokio::test(start_paused = true)]
async fn what_has_not_run_is_sent_again() {
    for fault in [|| BatchFault::NoScript, || BatchFault::NotExecuted] {
        let (combiner, field) = once();
        let calls = [1, 2, 3].map(|step| begun(&combiner, step));
        field.meets(fault());
        field.arrive(2);
        super::settle().await;
        field.meets(fault());
        field.arrive(2);
        for (call, step) in calls.into_iter().zip(1..) {
            assert_eq!(call.await, Ok(step));
        }
    }
}

/// The task that had them under way ends with its runtime: nobody knows whether they have run.
#[test]
fn a_runtime_that_ends_leaves_doubt_to_those_under_way_alone() {
    let runtime = || Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (home, here) = (runtime(), runtime());
    let (combiner, field) = home.block_on(async { once() });
    let guard = home.enter();
    let first = begun(&combiner, 1);
    drop(guard);
    let guard = here.enter();
    let others = [begun(&combiner, 2), begun(&combiner, 3)];
    drop(guard);
    let guard = home.enter();
    drop(first);
    drop(guard);
    while field.sent().len() < 2 {
        std::thread::yield_now();
    }
    // Its one thread is done with the look at it in which it was sent.
    here.block_on(home.spawn(async {})).unwrap();
    home.shutdown_timeout(LONG);
    field.arrive(10);
    for call in others {
        assert_eq!(here.block_on(call), Err(ErrorKind::Timeout), "{:?}", field.sent());
    }
    let last = here.block_on(async { combiner.call(4, Instant::now() + LONG).await });
    assert_eq!(last.unwrap().first, 4);
    assert!(!field.sent()[2..].concat().iter().any(|step| *step <= 3));
}
