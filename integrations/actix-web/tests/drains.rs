//! A worker that stops while its routes' thread is busy: what it hands back must not run beside those who take it over.

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

const SOON: Duration = Duration::from_secs(20);

/// A handler that doesn't let go of its thread until it is opened.
#[derive(Default)]
struct Barrier {
    come: Notify,
    open: Mutex<bool>,
    opened: Condvar,
}

impl Barrier {
    fn wait(&self) {
        self.come.notify_one();
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let open = self.opened.wait_timeout_while(open, 2 * SOON, |open| !*open);
        assert!(open.is_ok_and(|(open, _)| *open), "nobody has opened it");
    }

    fn open(&self) {
        *self.open.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.opened.notify_all();
    }
}

#[derive(Default)]
struct Seen {
    runs: Mutex<HashMap<String, u32>>,
    barriers: [Barrier; 2],
}

/// Says when the last of its thread's services is gone.
struct Thread(#[expect(dead_code, reason = "it is dropped")] oneshot::Sender<()>);

async fn order(id: web::Path<String>, seen: Data<Seen>) -> &'static str {
    let mut runs = seen.runs.lock().unwrap_or_else(PoisonError::into_inner);
    *runs.entry(id.into_inner()).or_default() += 1;
    ""
}

async fn block(which: web::Path<usize>, seen: Data<Seen>) -> &'static str {
    seen.barriers[which.into_inner()].wait();
    ""
}

fn routes(seen: &Data<Seen>) -> impl Fn(&mut ServiceConfig) + Send + Clone + 'static {
    let seen = seen.clone();
    move |config| {
        let orders = web::resource("/orders/{id}")
            .post(order)
            .wrap(LockLayer::by_path_param("id"))
            .wrap(DeferLayer::new().defer_always());
        let block = web::resource("/block/{which}")
            .post(block)
            .wrap(LockLayer::by_path_param("which"))
            .wrap(DeferLayer::new().defer_always());
        config.service(orders).service(block).app_data(seen.clone());
    }
}

async fn send<B: MessageBody>(
    app: &impl Service<actix_http::Request, Response = ServiceResponse<B>, Error = actix_web::Error>,
    path: &str,
) -> JobId {
    let accepted = call_service(app, TestRequest::post().uri(path).to_request()).await;
    let location = accepted.headers().get("location").expect("it is deferred");
    let id = location.to_str().expect("a path").rsplit('/').next().expect("an id");
    JobId::parse(id).expect("an id")
}

async fn until(store: &Store, id: &JobId, fits: impl Fn(JobState) -> bool) {
    let looks = async {
        loop {
            let job =
                store.deferred_jobs().get(id).await.expect("it is there").expect("it is kept");
            if fits(job.state) {
                return;
            }
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(SOON, looks).await.expect("it comes to it");
}

/// The thread has taken the runs on, and one of them keeps it from the others until their worker is gone.
#[actix_web::test]
async fn what_was_handed_back_is_run_once_when_the_thread_comes_free() {
    let (store, seen) = (Store::memory(), Data::new(Seen::default()));
    let app = App::new().configure(routes(&seen)).app_data(Data::new(store.clone()));
    let app = init_service(app).await;
    let (tell, gone) = oneshot::channel();
    let thread = Arc::new(Mutex::new(Some(Thread(tell))));
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

    send(&app, "/block/0").await;
    seen.barriers[0].come.notified().await;
    let blocks = send(&app, "/block/1").await;
    until(&store, &blocks, |state| state == JobState::Running).await;
    let mut jobs = Vec::new();
    for n in 0..10 {
        let id = send(&app, &format!("/orders/{n}")).await;
        until(&store, &id, |state| state == JobState::Running).await;
        jobs.push(id);
    }
    seen.barriers[0].open();
    seen.barriers[1].come.notified().await;
    drop(stop);
    first.await.expect("it drains");

    let second = DeferWorker::new(&store, routes(&seen));
    let second = actix_web::rt::spawn(second.run(pending()));
    for id in &jobs {
        until(&store, id, |state| state == JobState::Done).await;
    }
    // The thread of the one that was stopped goes on with what it had.
    seen.barriers[1].open();
    let gone = timeout(SOON, gone).await.expect("it ends");
    assert!(gone.is_err(), "it tells nothing else");
    let runs = seen.runs.lock().unwrap_or_else(PoisonError::into_inner).clone();
    assert!(runs.len() == 10 && runs.values().all(|&runs| runs == 1), "{runs:?}");
    // Its own run is nobody's any more: it may have run.
    until(&store, &blocks, |state| state == JobState::Dead).await;
    second.abort();
}
