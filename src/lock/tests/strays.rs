//! Calls that arrive long after their callers stopped waiting for them, or a second time.

use super::{SECOND, busy, handover::MS};
use crate::store::{Fault, faulty};

#[tokio::test(start_paused = true)]
async fn a_renewal_that_was_late_shortens_no_extension() {
    let (store, faults) = faulty();
    let guard = store.lock("x").max_hold(300 * SECOND).acquire().await.unwrap();
    faults.set("renew", Fault::Stray(SECOND), 1);
    while faults.seen("renew") == 0 {
        tokio::time::sleep(10 * MS).await;
    }
    tokio::time::sleep(300 * MS).await;
    assert!(guard.extend(60 * SECOND).await.unwrap());
    // The late one runs meanwhile, and no other is due.
    tokio::time::sleep(SECOND).await;
    assert_eq!(faults.seen("renew"), 2);
    assert!(guard.remaining() > 50 * SECOND);
    let told = busy(store.as_another_process().lock("x").acquire().await);
    assert!(told.left >= guard.remaining(), "{:?} of {:?}", told.left, guard.remaining());
}
