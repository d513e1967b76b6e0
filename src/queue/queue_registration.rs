//! `RegisteredQueues`: names of the queues that this process has registered for operators.

use std::{collections::HashMap, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::empty_queue_check::IDLE_POLL_INTERVAL;
use crate::{durations::MAX_DURATION, key::Key, store::Store};

/// Queues that this store handle has used, and the server generation of their first use: another
/// server, or one that has lost its data, does not know them. The first use of each registers its
/// name in the background, so that operators can list it; no push and no poll pays for that.
///
/// A server that is emptied keeps its generation, so workers register their queue again with their
/// task polls; an idle worker sends one soon after such a loss.
#[derive(Debug, Default)]
pub(super) struct RegisteredQueues(Mutex<(u64, HashMap<Key, Instant>)>);

/// Most names that a process remembers: a program that makes names from data registers some of
/// them again and again.
const MAX_NAMES: usize = 1_000;

impl RegisteredQueues {
    pub(super) fn register_once(store: &Store, queue: &Key) {
        Self::register(store, queue, MAX_DURATION);
    }

    /// Registers the queue of a worker, unless this was done a moment ago.
    pub(super) fn register_again(store: &Store, queue: &Key) {
        Self::register(store, queue, IDLE_POLL_INTERVAL);
    }

    /// Registers a queue, unless this was done within `max_age`.
    fn register(store: &Store, queue: &Key, max_age: Duration) {
        let registered = store.extension::<Self>();
        {
            let server_generation = store.backend().server_generation();
            let (names_generation, names) = &mut *registered.0.lock();
            if *names_generation != server_generation {
                *names_generation = server_generation;
                names.clear();
            }
            if names.get(queue).is_some_and(|registered_at| registered_at.elapsed() < max_age) {
                return;
            }
            if names.len() >= MAX_NAMES {
                names.clear();
            }
            names.insert(queue.clone(), Instant::now());
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
