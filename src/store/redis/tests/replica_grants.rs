//! Grants that count only when replicas have them.

use super::{SECOND, batched_runs::poll_repeatedly, server_process::ServerProcess};
use crate::{AcquireError, Error, ErrorKind, lock::ReleaseStatus, store::Store};

/// Connects a store that waits for replicas for four fifths of four seconds.
async fn store_awaiting_replicas(server: &ServerProcess) -> Store {
    let builder = Store::builder(&server.url()).call_timeout(4 * SECOND);
    builder.connect().await.expect("the URL is right")
}

/// `WAIT` takes up to four fifths of the deadline. On a loaded machine, its reply may be too late.
pub(super) fn assert_outage(error: &Error) {
    assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout), "{error}");
}

async fn assert_lock_is_free(store: &Store) {
    assert!(store.shutdown(20 * SECOND).await);
    let guard = store.lock("x").acquire().await.expect("the uncounted grant is released");
    assert_eq!(guard.release().await, ReleaseStatus::Released);
}

#[tokio::test]
async fn grant_without_replica_fails_and_is_undone() {
    let server = ServerProcess::start().await;
    let store = store_awaiting_replicas(&server).await;
    match store.lock("x").min_replicas(1).acquire().await {
        Err(AcquireError::Fault(error)) => assert_outage(&error),
        other => panic!("{other:?}"),
    }
    assert_lock_is_free(&store).await;
}

/// The future may be one of many in a loop that does something else.
#[tokio::test]
async fn unpolled_replica_wait_does_not_block_others() {
    let (server, replica) = (ServerProcess::start().await, ServerProcess::start().await);
    let store = store_awaiting_replicas(&server).await;
    replica.command(&["REPLICAOF", "127.0.0.1", &server.port().to_string()]).await;
    let caught_up = async { while store.lock("x").min_replicas(1).acquire().await.is_err() {} };
    tokio::time::timeout(20 * SECOND, caught_up).await.expect("it catches up");
    for polls in 1..12 {
        let mut unpolled = Box::pin(store.lock("y").min_replicas(1).acquire());
        poll_repeatedly(&mut unpolled, polls).await;
        let other = store.lock("x").min_replicas(1).acquire().await;
        assert_eq!(
            other.expect("it is granted").release().await,
            ReleaseStatus::Released,
            "{polls}"
        );
        drop(unpolled);
    }
}
