//! Number of requests of this process that wait for a lock.

use super::local_wait_queue::LocalQueues;
use crate::store::Store;

/// Returns the number of requests that wait for a lock in the local queues of this store handle.
pub(crate) fn waiter_count(store: &Store) -> usize {
    store.extension::<LocalQueues>().waiter_count()
}
