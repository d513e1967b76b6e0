//! Replays in an application, and the limit of its responses.

use std::{cell::Cell, future::pending, time::Duration};

use actix_web::{
    App,
    body::BodyStream,
    test::{TestRequest, call_service, init_service},
    web::{self, Data},
};
use futures_util::stream;
use lockgate::{JobId, JobState, Store};

use super::{build_and_call::read_limited, *};
use crate::{DeferLayer, DeferWorker, LockLayer};

/// Body of this number of chunks of ten bytes, and the number of chunks polled.
fn counting_body(chunk_count: usize) -> (BoxBody, Rc<Cell<usize>>) {
    let polled_chunks = Rc::new(Cell::new(0));
    let counter = Rc::clone(&polled_chunks);
    let chunks = (0..chunk_count).map(move |n| {
        counter.set(n + 1);
        Ok::<_, Error>(Bytes::from_static(b"0123456789"))
    });
    (BoxBody::new(BodyStream::new(stream::iter(chunks))), polled_chunks)
}

#[actix_rt::test]
async fn body_is_read_to_its_end_beyond_the_limit() {
    let (body, polled_chunks) = counting_body(100);
    assert_eq!(read_limited(body, 25).await.expect("it ends well"), None);
    assert_eq!(polled_chunks.get(), 100);
    let (body, _) = counting_body(2);
    assert_eq!(
        read_limited(body, 20).await.expect("it ends well").map(|body| body.len()),
        Some(20)
    );
}

#[actix_rt::test]
async fn endless_body_yields_to_other_tasks() {
    let (body, _) = counting_body(usize::MAX);
    assert!(tokio::time::timeout(Duration::from_millis(50), read_limited(body, 25)).await.is_err());
}

#[test]
fn thread_that_cannot_be_started_is_an_error() {
    let thread = thread::Builder::new().stack_size(1 << 46);
    assert!(AppReplayer::start(App::new, thread).is_err());
}

/// The job has a single attempt, which must not be charged.
#[actix_rt::test]
async fn job_without_a_replay_thread_is_not_charged() {
    let store = Store::memory();
    let order = web::resource("/orders/{id}")
        .post(async || "")
        .wrap(LockLayer::by_path_param("id"))
        .wrap(DeferLayer::new().background());
    let app = init_service(App::new().service(order).app_data(Data::new(store.clone()))).await;
    let (commands, _) = mpsc::unbounded_channel();
    let (_, building) = watch::channel(());
    let replayer = AppReplayer { commands, building };
    let worker = DeferWorker::with_replayer(&store, replayer);
    actix_rt::spawn(worker.run(pending()));
    let job = loop {
        let accepted = call_service(&app, TestRequest::post().uri("/orders/7").to_request()).await;
        // Accepted only when the worker has registered.
        let Some(location) = accepted.headers().get("location") else { continue };
        let id = location.to_str().expect("a path").rsplit('/').next().expect("an id");
        break id.parse::<JobId>().expect("an id");
    };
    let first_attempt = async {
        loop {
            let job =
                store.deferred_jobs().get(&job).await.expect("it is there").expect("it is stored");
            if job.reason.is_some() {
                break job;
            }
            tokio::task::yield_now().await;
        }
    };
    let job = tokio::time::timeout(Duration::from_secs(20), first_attempt);
    let job = job.await.expect("the job is claimed");
    assert_eq!((job.state, job.attempts), (JobState::Queued, 0), "{job:?}");
    assert_eq!(job.reason.as_deref(), Some("unreachable"));
}
