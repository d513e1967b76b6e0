//! Stored part of a run's response.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::HeaderMap;
use http_body::Frame;
use http_body_util::{Full, StreamBody};

use super::super::service_replayer::read_response_body;
use crate::defer::ReplayBody;

/// Body of `parts` chunks, and the number of chunks that were read.
fn counting_body(
    parts: usize,
) -> (impl http_body::Body<Data = Bytes, Error = String>, Arc<AtomicUsize>) {
    let done = Arc::new(AtomicUsize::new(0));
    let read_count = Arc::clone(&done);
    let work = stream::iter(0..parts).map(move |_| {
        done.fetch_add(1, Ordering::SeqCst);
        Ok(Frame::data(Bytes::from_static(b"0123456789")))
    });
    (StreamBody::new(work), read_count)
}

#[tokio::test]
async fn body_is_read_to_its_end_beyond_the_limit() {
    let (body, done) = counting_body(100);
    assert_eq!(read_response_body(&HeaderMap::new(), body, 25).await, Some(ReplayBody::Stream));
    assert_eq!(done.load(Ordering::SeqCst), 100);
    let long = Full::new(Bytes::from_static(&[0; 26]));
    assert_eq!(read_response_body(&HeaderMap::new(), long, 25).await, Some(ReplayBody::TooLong));
}

#[tokio::test]
async fn interrupted_body_yields_no_response() {
    for good in [0, 2, 3, 50] {
        let parts = stream::iter(0..=good).map(move |n| match n < good {
            true => Ok(Frame::data(Bytes::from_static(b"0123456789"))),
            false => Err("broken off"),
        });
        assert_eq!(
            read_response_body(&HeaderMap::new(), StreamBody::new(parts), 25).await,
            None,
            "{good}"
        );
    }
}

/// The chunks of the body are always ready.
#[tokio::test]
async fn endless_body_yields_to_other_tasks() {
    let parts = stream::repeat_with(|| Ok::<_, String>(Frame::data(Bytes::new())));
    let headers = HeaderMap::new();
    let reading = read_response_body(&headers, StreamBody::new(parts), 0);
    assert!(tokio::time::timeout(Duration::from_millis(50), reading).await.is_err());
}
