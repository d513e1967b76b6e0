//! Tests of rules of the embedded store alone.

use crate::{
    clock::Clock,
    key::Key,
    store::{
        memory::MemoryBackend,
        tasks::{TaskBackend as _, TaskId},
    },
};

/// Otherwise a client that chooses queue names could exhaust the memory.
#[tokio::test]
async fn reading_missing_queue_does_not_create_it() {
    let memory = MemoryBackend::new(Clock::manual());
    let queue = || Key::from("nobody's");
    assert_eq!(memory.queue_stats(queue()).await.unwrap().waiting, 0);
    assert!(memory.task_view(queue(), TaskId::new()).await.unwrap().is_none());
    assert!(memory.task_payload(queue(), TaskId::new()).await.unwrap().is_none());
    assert!(memory.list_dead_letters(queue(), 0, 10).await.unwrap().dead_letters.is_empty());
    assert_eq!(memory.task_queues.lock().len(), 0);
}
