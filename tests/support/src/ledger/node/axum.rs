//! Routes of a node in axum.

use std::{net::SocketAddr, sync::Arc};

use axum::{
    Extension, Router,
    extract::{Path, Query, State},
    http::StatusCode,
    routing::any,
};
use lockgate::OnFailure;
use lockgate_axum::{
    CurrentJob, CurrentLock, DeferLayer, DeferWorker, LockLayer, Store, deferred_routes,
};
use tokio::{net::TcpListener, sync::watch};

use super::{
    HandlerContext, HandlerInstructions, MAX_BYTES, MAX_JOBS, MAX_WAIT, NodeSetup, RATE_WINDOW,
    RUN_DELAY, RUN_EXPIRY, RecordingHandler, print_address, wait_for_sigterm,
};

pub(super) async fn serve(setup: &NodeSetup, handler: Arc<RecordingHandler>, store: Store) {
    let (stop, stopped) = watch::channel(false);
    let wait_for_stop = |mut stopped: watch::Receiver<bool>| async move {
        let _ = stopped.wait_for(|stop| *stop).await;
    };
    let routes = routes(setup, handler, &store);
    let worker = setup.has_worker.then(|| {
        let worker = DeferWorker::new(&store, routes.clone()).lease(setup.lease);
        let worker = worker.drain_timeout(setup.drain_timeout).concurrency(setup.concurrency);
        let worker = match setup.has_shared_run_limits {
            true => worker.queue_concurrency(1).queue_rate(10, RATE_WINDOW),
            false => worker,
        };
        tokio::spawn(worker.run(wait_for_stop(stopped.clone())))
    });
    let app = routes.merge(deferred_routes("/deferred").store(&store));
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    print_address(listener.local_addr().expect("it is bound"));
    let server = axum::serve(listener, app).with_graceful_shutdown(wait_for_stop(stopped));
    let server = tokio::spawn(async { server.await });
    wait_for_sigterm().await;
    stop.send_replace(true);
    if let Some(worker) = worker {
        worker.await.expect("the worker does not panic");
    }
    let _ = server.await;
    store.shutdown(MAX_WAIT).await;
}

fn routes(setup: &NodeSetup, handler: Arc<RecordingHandler>, store: &Store) -> Router {
    let by_id = || LockLayer::by_path_param("id").lease(setup.lease);
    let locked_route =
        |path, lock: LockLayer| Router::new().route(path, any(handle_request)).layer(lock);
    let defer = || {
        let defer = DeferLayer::new().max_attempts(setup.max_put_runs);
        defer
            .max_resource_jobs(MAX_JOBS)
            .max_resource_bytes(MAX_BYTES)
            .max_queue_jobs(MAX_JOBS)
            .max_queue_bytes(MAX_BYTES)
    };
    let deferred = |path, defer: DeferLayer| locked_route(path, by_id()).layer(defer);
    locked_route("/orders/{id}/pay", by_id())
        .merge(locked_route("/orders/{id}/ship", by_id().wait(MAX_WAIT)))
        .merge(deferred("/orders/{id}/later", defer()))
        .merge(deferred("/orders/{id}/once", defer().idempotent_direct()))
        .merge(deferred("/orders/{id}/skip", defer().on_failure(OnFailure::Skip)))
        .merge(deferred("/orders/{id}/sure", defer().on_failure(OnFailure::Skip).min_replicas(1)))
        .merge(deferred("/orders/{id}/delayed", defer().delay(RUN_DELAY)))
        .merge(deferred("/orders/{id}/soon", defer().expires_after(RUN_EXPIRY)))
        .layer(Extension(store.clone()))
        .with_state(handler)
}

async fn handle_request(
    State(handler): State<Arc<RecordingHandler>>,
    Path(resource): Path<String>,
    Query(instructions): Query<HandlerInstructions>,
    CurrentLock(lock): CurrentLock,
    job: Option<CurrentJob>,
) -> (StatusCode, String) {
    let job = job.map(|CurrentJob(job)| (job.id.as_str().to_owned(), job.attempt));
    let (status, body) =
        handler.handle_run(HandlerContext { resource, job, lock }, instructions).await;
    (StatusCode::from_u16(status).expect("a status"), body)
}
