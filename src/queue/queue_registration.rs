//! `RegisteredQueues`: names of the queues that this process has registered for operators.

use std::collections::HashSet;

use parking_lot::Mutex;

use crate::{key::Key, store::Store};

/// Queues that this store handle has used, and the server generation of their first use: another
/// server, or one that has lost its data, does not know them. The first use of each registers its
/// name in the background, so that operators can list it; no push and no poll pays for that.
#[derive(Debug, Default)]
pub(super) struct RegisteredQueues(Mutex<(u64, HashSet<Key>)>);

/// Most names that a process remembers: a program that makes names from data registers some of
/// them again and again.
const MAX_NAMES: usize = 1_000;

impl RegisteredQueues {
    pub(super) fn register_once(store: &Store, queue: &Key) {
        let registered = store.extension::<Self>();
        {
            let server_generation = store.backend().server_generation();
            let (names_generation, names) = &mut *registered.0.lock();
            if *names_generation != server_generation {
                *names_generation = server_generation;
                names.clear();
            }
            if names.contains(queue) {
                return;
            }
            if names.len() >= MAX_NAMES {
                names.clear();
            }
            names.insert(queue.clone());
        }
        let (weak_store, queue) = (store.downgrade(), queue.clone());
        store.spawn_background(async move {
            let Some(store) = weak_store.upgrade() else { return };
            if store.backend().register_queue(queue.clone()).await.is_err() {
                // The next use tries again.
                registered.0.lock().1.remove(&queue);
            }
        });
    }
}
