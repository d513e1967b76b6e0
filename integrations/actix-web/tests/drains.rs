//! A worker that stops while the thread of its routes is blocked: the jobs that it returns must not
//! run twice.

use std::{
    collections::HashMap,
    future::pending,
    sync::{Arc, Condvar, Mutex, PoisonError},
    time::Duration,
};

use actix_web::{
    App,
    body::MessageBody,
    dev::{Service, ServiceResponse},
    rt::time::{sleep, timeout},
    test::{TestRequest, call_service, init_service},
    web::{self, Data, ServiceConfig},
};
use lockgate_actix_web::{DeferLayer, DeferWorker, JobId, JobState, LockLayer, Store};
use tokio::sync::{Notify, oneshot};

const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// Barrier that blocks the thread of a handler until it is opened.
#[derive(Default)]
struct ThreadBarrier {
    entered: Notify,
    is_open: Mutex<bool>,
    opened: Condvar,
}

impl ThreadBarrier {
    fn block_thread(&self) {
        self.entered.notify_one();
        let open = self.is_open.lock().unwrap_or_else(PoisonError::into_inner);
        let open = self.opened.wait_timeout_while(open, 2 * TEST_TIMEOUT, |open| !*open);
        assert!(open.is_ok_and(|(open, _)| *open), "the barrier was not opened in time");
    }

    fn release_thread(&self) {
        *self.is_open.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.opened.notify_all();
    }
}

#[derive(Default)]
struct RouteState {
    runs: Mutex<HashMap<String, u32>>,
    barriers: [ThreadBarrier; 2],
}

/// Closes its channel when the last service of its thread is dropped.
struct ThreadEndNotifier(#[expect(dead_code, reason = "it is dropped")] oneshot::Sender<()>);

async fn count_run(id: web::Path<String>, seen: Data<RouteState>) -> &'static str {
    let mut runs = seen.runs.lock().unwrap_or_else(PoisonError::into_inner);
    *runs.entry(id.into_inner()).or_default() += 1;
    ""
}

async fn block_on_barrier(which: web::Path<usize>, seen: Data<RouteState>) -> &'static str {
    seen.barriers[which.into_inner()].block_thread();
    ""
}

fn routes(seen: &Data<RouteState>) -> impl Fn(&mut ServiceConfig) + Send + Clone + 'static {
    let seen = seen.clone();
    move |config| {
        let orders = web::resource("/orders/{id}")
            .post(count_run)
            .wrap(LockLayer::by_path_param("id"))
            .wrap(DeferLayer::new().background());
        let block = web::resource("/block/{which}")
            .post(block_on_barrier)
            .wrap(LockLayer::by_path_param("which"))
            .wrap(DeferLayer::new().background());
        config.service(orders).service(block).app_data(seen.clone());
    }
}

async fn enqueue_job<B: MessageBody>(
    app: &impl Service<actix_http::Request, Response = ServiceResponse<B>, Error = actix_web::Error>,
    path: &str,
) -> JobId {
    let accepted = call_service(app, TestRequest::post().uri(path).to_request()).await;
    let location = accepted.headers().get("location").expect("it is deferred");
    let id = location.to_str().expect("a path").rsplit('/').next().expect("an id");
    id.parse::<JobId>().expect("an id")
}

async fn wait_for_job_state(store: &Store, id: &JobId, fits: impl Fn(JobState) -> bool) {
    let polling = async {
        loop {
            let job =
                store.deferred_jobs().get(id).await.expect("it is there").expect("it is stored");
            if fits(job.state) {
                return;
            }
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(TEST_TIMEOUT, polling).await.expect("the job reaches the state");
}

/// The thread has received the runs, and one of them blocks the others until the worker has ended.
#[actix_web::test]
async fn returned_jobs_run_once_while_the_old_thread_is_blocked() {
    let (store, seen) = (Store::memory(), Data::new(RouteState::default()));
    let app = App::new().configure(routes(&seen)).app_data(Data::new(store.clone()));
    let app = init_service(app).await;
    let (end_sender, thread_end) = oneshot::channel();
    let thread = Arc::new(Mutex::new(Some(ThreadEndNotifier(end_sender))));
    let first = {
        let routes = routes(&seen);
        DeferWorker::new(&store, move |config| {
            let thread = thread.lock().unwrap_or_else(PoisonError::into_inner).take();
            routes(config);
            config.app_data(Data::new(thread));
        })
    };
    let (stop, stopped) = oneshot::channel::<()>();
    let first = first.drain_timeout(Duration::from_millis(50)).lease(Duration::from_secs(8));
    let first = actix_web::rt::spawn(first.run(async { drop(stopped.await) }));

    enqueue_job(&app, "/block/0").await;
    seen.barriers[0].entered.notified().await;
    let blocks = enqueue_job(&app, "/block/1").await;
    wait_for_job_state(&store, &blocks, |state| state == JobState::Running).await;
    let mut jobs = Vec::new();
    for n in 0..10 {
        let id = enqueue_job(&app, &format!("/orders/{n}")).await;
        wait_for_job_state(&store, &id, |state| state == JobState::Running).await;
        jobs.push(id);
    }
    seen.barriers[0].release_thread();
    seen.barriers[1].entered.notified().await;
    drop(stop);
    first.await.expect("it drains");

    let second = DeferWorker::new(&store, routes(&seen));
    let second = actix_web::rt::spawn(second.run(pending()));
    for id in &jobs {
        wait_for_job_state(&store, id, |state| state == JobState::Done).await;
    }
    // The thread of the stopped worker continues with its commands.
    seen.barriers[1].release_thread();
    let thread_end = timeout(TEST_TIMEOUT, thread_end).await.expect("the thread ends");
    assert!(thread_end.is_err(), "the channel is closed without a message");
    let runs = seen.runs.lock().unwrap_or_else(PoisonError::into_inner).clone();
    assert!(runs.len() == 10 && runs.values().all(|&runs| runs == 1), "{runs:?}");
    // The blocked run has no worker any more, and may have run.
    wait_for_job_state(&store, &blocks, |state| state == JobState::Dead).await;
    second.abort();
}
