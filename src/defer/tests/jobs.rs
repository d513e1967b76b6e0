//! Deferred requests in the hands of those who run the service.

use super::{key_of, put_off, put_off_request};
use crate::{
    gate::Head,
    store::{JobId, JobState, Store},
};

#[tokio::test(start_paused = true)]
async fn a_peek_shows_no_values() {
    let store = Store::memory();
    let headers = vec![("x-secret".to_owned(), b"hush".to_vec())];
    let head = Head::new("POST", "/x?token=hush", headers, None);
    let id = put_off_request(&store, head, b"hush hush").await;
    let jobs = store.deferred();
    let head = jobs.peek(&id).await.expect("it is there").expect("it is kept");
    assert_eq!((&*head.method, &*head.path, head.body_len), ("POST", "/x", 9));
    assert_eq!(head.fields, ["x-secret"]);
    assert!(!format!("{head:?}").contains("hush"), "{head:?}");
    let unknown = JobId::new(&key_of("/x"));
    assert_eq!(jobs.peek(&unknown).await.expect("it is there"), None);
    assert_eq!(jobs.get(&unknown).await.expect("it is there"), None);
}

#[tokio::test(start_paused = true)]
async fn what_waits_can_be_cancelled_by_its_id() {
    let store = Store::memory();
    let jobs = store.deferred();
    let id = put_off(&store, "/x").await;
    let id = JobId::parse(id.as_str()).expect("as an operator types it");
    let job = jobs.get(&id).await.expect("it is there").expect("it is known");
    assert_eq!((job.state, job.position), (JobState::Queued, Some(1)));
    assert_eq!(jobs.cancel(&id).await.expect("it is there"), Some(JobState::Cancelled));
    assert_eq!(jobs.cancel(&JobId::new(&key_of("/x"))).await.expect("it is there"), None);
}
