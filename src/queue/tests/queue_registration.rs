//! Names of queues for operators.

use super::{push_text, text_queue, wait_until_idle};
use crate::store::{BackendFault, faulty_store};

#[tokio::test(start_paused = true)]
async fn a_queue_is_registered_once_and_again_after_a_loss_of_data() {
    let (store, faults) = faulty_store();
    let queue = text_queue(&store);
    let count_after_push = async || {
        push_text(&queue, "x").await;
        wait_until_idle().await;
        faults.call_count("register_queue")
    };
    faults.set("register_queue", BackendFault::Unavailable, 1);
    assert_eq!(count_after_push().await, 1, "refused");
    assert_eq!(count_after_push().await, 2, "the next use tries again");
    assert_eq!(count_after_push().await, 2);
    faults.replace_server();
    assert_eq!(count_after_push().await, 3);
    assert_eq!(count_after_push().await, 3);
}
