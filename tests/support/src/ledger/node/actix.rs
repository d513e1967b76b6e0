//! Routes of a node in actix-web.

use std::{net::TcpListener, sync::Arc};

use actix_web::{
    App, HttpResponse, HttpServer,
    http::StatusCode,
    web::{Data, Path, Query, ServiceConfig, resource},
};
use lockgate::OnFailure;
use lockgate_actix_web::{
    CurrentJob, CurrentLock, DeferLayer, DeferWorker, LockLayer, Store, deferred_routes,
};
use tokio::sync::watch;

use super::{
    HandlerContext, HandlerInstructions, MAX_BYTES, MAX_JOBS, MAX_WAIT, NodeSetup, RATE_WINDOW,
    RUN_DELAY, RUN_EXPIRY, RecordingHandler, print_address, wait_for_sigterm,
};
use crate::resource_usage;

pub(super) async fn serve(setup: &NodeSetup, handler: Arc<RecordingHandler>, store: Store) {
    let (stop, mut stopped) = watch::channel(false);
    let routes = routes(setup, handler, &store);
    let worker = setup.has_worker.then(|| {
        let worker = DeferWorker::new(&store, routes.clone()).lease(setup.lease);
        let worker = worker.drain_timeout(setup.drain_timeout).concurrency(setup.concurrency);
        let worker = match setup.has_shared_run_limits {
            true => worker.queue_concurrency(1).queue_rate(10, RATE_WINDOW),
            false => worker,
        };
        actix_web::rt::spawn(worker.run(async move {
            let _ = stopped.wait_for(|stop| *stop).await;
        }))
    });
    let status = deferred_routes("/deferred").store(&store);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    print_address(listener.local_addr().expect("it is bound"));
    let server = HttpServer::new(move || {
        // Called on each server thread.
        resource_usage::register_runtime();
        App::new().configure(routes.clone()).service(status.clone())
    });
    let server = server.h1_allow_half_closed(false).workers(1).disable_signals();
    let server = server.listen(listener).expect("a socket that is bound").run();
    let handle = server.handle();
    actix_web::rt::spawn(server);
    wait_for_sigterm().await;
    stop.send_replace(true);
    if let Some(worker) = worker {
        worker.await.expect("the worker does not panic");
    }
    handle.stop(true).await;
    store.shutdown(MAX_WAIT).await;
}

fn routes(
    setup: &NodeSetup,
    handler: Arc<RecordingHandler>,
    store: &Store,
) -> impl Fn(&mut ServiceConfig) + Send + Clone + 'static {
    let (handler, store) = (Data::from(handler), Data::new(store.clone()));
    let NodeSetup { lease, max_put_runs, .. } = *setup;
    move |config| {
        let by_id = || LockLayer::by_path_param("id").lease(lease);
        let defer = || {
            let defer = DeferLayer::new().max_attempts(max_put_runs);
            defer
                .max_resource_jobs(MAX_JOBS)
                .max_resource_bytes(MAX_BYTES)
                .max_queue_jobs(MAX_JOBS)
                .max_queue_bytes(MAX_BYTES)
        };
        let deferred =
            |path, defer: DeferLayer| resource(path).to(handle_request).wrap(by_id()).wrap(defer);
        config
            .app_data(handler.clone())
            .app_data(store.clone())
            .service(resource("/orders/{id}/pay").to(handle_request).wrap(by_id()))
            .service(resource("/orders/{id}/ship").to(handle_request).wrap(by_id().wait(MAX_WAIT)))
            .service(deferred("/orders/{id}/later", defer()))
            .service(deferred("/orders/{id}/once", defer().idempotent_direct()))
            .service(deferred("/orders/{id}/skip", defer().on_failure(OnFailure::Skip)))
            .service(deferred(
                "/orders/{id}/sure",
                defer().on_failure(OnFailure::Skip).min_replicas(1),
            ))
            .service(deferred("/orders/{id}/delayed", defer().delay(RUN_DELAY)))
            .service(deferred("/orders/{id}/soon", defer().expires_after(RUN_EXPIRY)));
    }
}

async fn handle_request(
    handler: Data<RecordingHandler>,
    resource: Path<String>,
    instructions: Query<HandlerInstructions>,
    CurrentLock(lock): CurrentLock,
    job: Option<CurrentJob>,
) -> HttpResponse {
    let job = job.map(|CurrentJob(job)| (job.id.as_str().to_owned(), job.attempt));
    let context = HandlerContext { resource: resource.into_inner(), job, lock };
    let (status, body) = handler.handle_run(context, instructions.into_inner()).await;
    HttpResponse::build(StatusCode::from_u16(status).expect("a status")).body(body)
}
