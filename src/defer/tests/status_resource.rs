//! Status resource: documents, long polls, event streams, and reconnects.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{FutureExt as _, StreamExt as _};
use serde_json::Value;
use tokio::time::Instant;

use super::{
    CountingReplayer, FnReplayer, SECOND, SpawnedWorker, enqueue_job, lock_key_of, wait_until_ended,
};
use crate::{
    defer::{
        ReplayBody, ReplayOutcome, ReplayResponse, StatusEvents, StatusReply, StatusRequest,
        StatusResource, tests::DeferWorker,
    },
    gate::fake_request::FakeGateRequest,
    reply::Reply,
    store::{JobId, Store},
};

/// Unwraps a reply that is no event stream.
pub(super) fn complete_reply(answer: StatusReply) -> Reply {
    match answer {
        StatusReply::Complete(reply) => reply,
        StatusReply::Events(..) => panic!("it streams"),
    }
}

fn status_request(store: &Store, id: &JobId, headers: &[(&'static str, &str)]) -> StatusRequest {
    let mut view = FakeGateRequest::new("GET");
    view.binary_headers =
        headers.iter().map(|(name, value)| (*name, value.as_bytes().to_vec())).collect();
    let gate = StatusResource::new().store(store);
    gate.parse_request(&mut view, id.as_str(), false).expect("it is well formed")
}

pub(super) async fn get_status(
    store: &Store,
    id: &JobId,
    headers: &[(&'static str, &str)],
) -> Reply {
    complete_reply(status_request(store, id, headers).execute().await)
}

/// Requests the stored response.
pub(super) async fn get_response(store: &Store, id: &JobId) -> Reply {
    let gate = StatusResource::<()>::new().store(store);
    let request = gate.parse_request(&mut FakeGateRequest::new("GET"), id.as_str(), true);
    complete_reply(request.expect("it is well formed").execute().await)
}

#[track_caller]
fn header_value<'a>(reply: &'a Reply, name: &str) -> &'a str {
    let found = reply.headers.iter().find(|(found, _)| found == name);
    &found.unwrap_or_else(|| panic!("no {name}: {reply:?}")).1
}

pub(super) fn job_state(reply: &Reply) -> Value {
    serde_json::from_slice::<Value>(&reply.body).expect("JSON")["state"].clone()
}

async fn open_event_stream(store: &Store, id: &JobId) -> StatusEvents {
    match status_request(store, id, &[("accept", "text/event-stream")]).execute().await {
        StatusReply::Events(head, events) => {
            assert_eq!(header_value(&head, "content-type"), "text/event-stream");
            events
        }
        StatusReply::Complete(reply) => panic!("no stream: {reply:?}"),
    }
}

/// Id and document of the next event; `None` for a comment.
#[track_caller]
fn parse_event(item: &[u8]) -> Option<(String, Value)> {
    let text = std::str::from_utf8(item).expect("text");
    assert!(text.ends_with("\n\n"), "{text}");
    let mut lines = text.lines();
    let id = lines.next()?.strip_prefix("id: ")?.to_owned();
    let data = lines.find_map(|line| line.strip_prefix("data: ")).expect("data");
    Some((id, serde_json::from_str(data).expect("JSON")))
}

#[tokio::test(start_paused = true)]
async fn long_poll_without_a_change_ends_in_time() {
    let store = Store::memory();
    let id = enqueue_job(&store, "/x").await;
    let tag = header_value(&get_status(&store, &id, &[]).await, "etag").to_owned();
    assert!(tag.starts_with("W/\""), "{tag}");
    let started = Instant::now();
    let headers = [("if-none-match", &*tag), ("prefer", "wait=20")];
    assert_eq!(get_status(&store, &id, &headers).await.status, 304);
    assert_eq!(started.elapsed(), 20 * SECOND);
}

/// A server that drains waits for open responses.
#[tokio::test(start_paused = true)]
async fn long_poll_and_event_stream_end_when_the_server_drains() {
    let store = Store::memory();
    let id = enqueue_job(&store, "/x").await;
    let started = Instant::now();
    let drain_begins = || tokio::time::sleep(3 * SECOND);
    let poll = status_request(&store, &id, &[("prefer", "wait=20")]).end_waits_at(drain_begins());
    assert_eq!(complete_reply(poll.execute().await).status, 200);
    assert_eq!(started.elapsed(), 3 * SECOND);
    let stream = status_request(&store, &id, &[("accept", "text/event-stream")]);
    let StatusReply::Events(_, events) = stream.end_waits_at(drain_begins()).execute().await else {
        panic!("no stream");
    };
    assert_eq!(events.collect::<Vec<_>>().await.len(), 1, "the current state");
    assert_eq!(started.elapsed(), 6 * SECOND);
}

/// A long poll for the response does not end when the job merely starts to run.
#[tokio::test(start_paused = true)]
async fn response_poll_ends_with_the_response() {
    let store = Store::memory();
    let routes = FnReplayer::new(|head, marker| {
        marker.pass_own_lock(&lock_key_of(&head.target));
        async {
            tokio::time::sleep(5 * SECOND).await;
            let body = ReplayBody::Full(Bytes::from_static(b"done"));
            ReplayOutcome::Answered(ReplayResponse { status: 200, headers: Vec::new(), body })
        }
    });
    let id = enqueue_job(&store, "/x").await;
    let gate = StatusResource::new().store(&store);
    let response = |wait: &'static str| {
        let mut view = FakeGateRequest::new("GET");
        view.binary_headers = vec![("prefer", wait.as_bytes().to_vec())];
        let request = gate.parse_request(&mut view, id.as_str(), true).expect("well formed");
        async { complete_reply(request.execute().await) }
    };
    let worker = SpawnedWorker::spawn_worker(DeferWorker::new(&store, routes));
    assert_eq!(response("wait=2").await.status, 202);
    let reply = response("wait=20").await;
    assert_eq!((reply.status, &*reply.body), (200, &b"done"[..]));
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn non_ascii_response_header_is_returned_unchanged() {
    let store = Store::memory();
    let unusual: [(&str, &[u8]); 3] = [
        ("content-disposition", b"attachment; filename=na\xefve.txt"),
        ("link", "</\u{e9}>".as_bytes()),
        ("etag", b"\"1\""),
    ];
    let routes = FnReplayer::new(move |head, marker| {
        marker.pass_own_lock(&lock_key_of(&head.target));
        let headers = unusual.map(|(name, value)| (name.to_owned(), value.to_vec())).to_vec();
        async {
            ReplayOutcome::Answered(ReplayResponse {
                status: 200,
                headers,
                body: ReplayBody::Full(Bytes::new()),
            })
        }
    });
    let worker = SpawnedWorker::spawn_worker(DeferWorker::new(&store, routes));
    let id = enqueue_job(&store, "/x").await;
    wait_until_ended(&store, &id).await;
    let reply = get_response(&store, &id).await;
    assert_eq!(header_value(&reply, "etag"), "\"1\"");
    let returned = reply.binary_headers.iter().map(|(name, value)| (&**name, &**value));
    assert_eq!(Vec::from_iter(returned), unusual[..2]);
    worker.stop().await;
}

/// A viewer without a name, or with the empty name of the job's owner, does not see it either.
#[tokio::test(start_paused = true)]
async fn job_without_owner_is_hidden_where_owners_count() {
    let store = Store::memory();
    let id = enqueue_job(&store, "/x").await;
    for name in [None, Some(""), Some("ada")] {
        let gate =
            StatusResource::new().store(&store).visible_to(move |()| name.map(str::to_owned));
        for (method, response) in [("GET", false), ("GET", true), ("DELETE", false)] {
            let mut view = FakeGateRequest::new(method);
            let request =
                gate.parse_request(&mut view, id.as_str(), response).expect("it is well formed");
            assert_eq!(complete_reply(request.execute().await).status, 404, "{method} {name:?}");
        }
    }
    assert_eq!(get_status(&store, &id, &[]).await.status, 200, "it is there");
}

#[tokio::test(start_paused = true)]
async fn event_stream_sends_keepalives_and_ends() {
    let store = Store::memory();
    let id = enqueue_job(&store, "/x").await;
    let started = Instant::now();
    let items: Vec<_> = open_event_stream(&store, &id).await.collect().await;
    assert_eq!(started.elapsed(), 25 * SECOND);
    let events = items.iter().filter(|item| parse_event(item).is_some()).count();
    assert_eq!((events, items.len()), (1, 3), "an event, and a comment each ten seconds");
}

/// Each waiting request polls the store periodically, so their number is limited.
#[tokio::test(start_paused = true)]
async fn requests_beyond_the_waiter_limit_are_answered_at_once() {
    let store = Store::memory();
    let id = enqueue_job(&store, "/x").await;
    let mut waiting = Vec::new();
    for _ in 0..4096 {
        waiting.push(open_event_stream(&store, &id).await);
    }
    let started = Instant::now();
    let items: Vec<_> = open_event_stream(&store, &id).await.collect().await;
    let [one] = &items[..] else { panic!("the stream has one event: {items:?}") };
    let (seen, _) = parse_event(one).expect("an event");
    assert!(one.windows(14).any(|field| field == b"\nretry: 10000\n"), "{one:?}");
    let headers = [("accept", "text/event-stream"), ("last-event-id", &*seen)];
    let StatusReply::Events(_, reopened) = status_request(&store, &id, &headers).execute().await
    else {
        panic!("no stream")
    };
    assert_eq!(reopened.collect::<Vec<_>>().await, [&b"retry: 10000\n\n"[..]]);
    let reply = get_status(&store, &id, &[("prefer", "wait=20")]).await;
    assert_eq!((reply.status, job_state(&reply)), (200, "queued".into()));
    let applied =
        |reply: &Reply| reply.headers.iter().any(|(name, _)| name == "preference-applied");
    assert!(!applied(&reply), "it has not waited");
    assert_eq!(started.elapsed(), Duration::ZERO);
    waiting.pop();
    let reply = get_status(&store, &id, &[("prefer", "wait=20")]).await;
    assert!(applied(&reply));
    assert_eq!(started.elapsed(), 20 * SECOND);
}

/// A queue that advances between two polls yields an event at each poll, so events are paced.
#[tokio::test(start_paused = true)]
async fn event_stream_of_a_moving_queue_is_paced_and_ends() {
    let store = Store::memory();
    let mut before = Vec::new();
    for n in 0..150 {
        before.push(enqueue_job(&store, &format!("/x/{n}")).await);
    }
    let id = enqueue_job(&store, "/x").await;
    let (started, mut event_count) = (Instant::now(), 0);
    let mut events = open_event_stream(&store, &id).await;
    while events.next().await.is_some() {
        event_count += 1;
        if let Some(first) = before.pop() {
            store.deferred_jobs().cancel(&first).await.expect("the store is there");
        }
    }
    assert_eq!(started.elapsed(), 25 * SECOND);
    assert!((95..=103).contains(&event_count), "{event_count} in 25 s");
}

#[tokio::test(start_paused = true)]
async fn reconnecting_client_receives_only_new_events() {
    let store = Store::memory();
    let id = enqueue_job(&store, "/x").await;
    let (seen, _) = parse_event(&open_event_stream(&store, &id).await.next().await.expect("one"))
        .expect("an event");
    let reconnect = |seen: &str| {
        let headers = [("accept", "text/event-stream"), ("last-event-id", seen)];
        status_request(&store, &id, &headers).execute()
    };
    let StatusReply::Events(_, mut silent) = reconnect(&seen).await else {
        panic!("it is pending");
    };
    let retry_hint = silent.next().now_or_never().flatten().expect("when to come back");
    assert_eq!(retry_hint, "retry: 1000\n\n");
    assert!(silent.next().now_or_never().is_none(), "the client has this event");
    let worker = SpawnedWorker::spawn_on(&store, &CountingReplayer::default());
    let mut last = None;
    while let Some(item) = silent.next().await {
        last = parse_event(&item).or(last);
    }
    let (last, document) = last.expect("an event");
    assert_eq!(document["state"], "done");
    // No event will follow: 204 ends an `EventSource`.
    assert_eq!(complete_reply(reconnect(&last).await).status, 204);
    assert!(matches!(reconnect(&seen).await, StatusReply::Events(..)));
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn dropped_event_stream_unsubscribes() {
    let store = Store::memory();
    let id = enqueue_job(&store, "/x").await;
    let mut stream = open_event_stream(&store, &id).await;
    let _ = stream.next().await;
    assert!(stream.next().now_or_never().is_none());
    assert!(Arc::strong_count(&store.wakeups().subscribe_job(&id)) > 1, "the stream listens");
    drop(stream);
    assert_eq!(
        Arc::strong_count(&store.wakeups().subscribe_job(&id)),
        1,
        "the dropped stream unsubscribed"
    );
}
