//! In actix-web.

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
    BYTES, DELAY, Desk, Facts, JOBS, SECOND, SOON, Setup, WAIT, Wish, listens, terminated,
};
use crate::gauge;

pub(super) async fn serve(setup: &Setup, desk: Arc<Desk>, store: Store) {
    let (stop, mut stopped) = watch::channel(false);
    let routes = routes(setup, desk, &store);
    let worker = setup.works.then(|| {
        let worker = DeferWorker::new(&store, routes.clone()).lease(setup.lease);
        let worker = worker.drain_timeout(setup.drain).concurrency(setup.concurrency);
        let worker = match setup.limited {
            true => worker.queue_concurrency(1).queue_rate(10, SECOND),
            false => worker,
        };
        actix_web::rt::spawn(worker.run(async move {
            let _ = stopped.wait_for(|stop| *stop).await;
        }))
    });
    let status = deferred_routes("/deferred").store(&store);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listens(listener.local_addr().expect("it is bound"));
    let server = HttpServer::new(move || {
        // On each thread that serves.
        gauge::counts_here();
        App::new().configure(routes.clone()).service(status.clone())
    });
    let server = server.h1_allow_half_closed(false).workers(1).disable_signals();
    let server = server.listen(listener).expect("a socket that is bound").run();
    let handle = server.handle();
    actix_web::rt::spawn(server);
    terminated().await;
    stop.send_replace(true);
    if let Some(worker) = worker {
        worker.await.expect("the worker does not panic");
    }
    handle.stop(true).await;
    store.shutdown(WAIT).await;
}

fn routes(
    setup: &Setup,
    desk: Arc<Desk>,
    store: &Store,
) -> impl Fn(&mut ServiceConfig) + Send + Clone + 'static {
    let (desk, store) = (Data::from(desk), Data::new(store.clone()));
    let Setup { lease, most, .. } = *setup;
    move |config| {
        let by_id = || LockLayer::by_path_param("id").lease(lease);
        let defer = || {
            let defer = DeferLayer::new().max_attempts(most);
            defer
                .max_resource_jobs(JOBS)
                .max_resource_bytes(BYTES)
                .max_queue_jobs(JOBS)
                .max_queue_bytes(BYTES)
        };
        let deferred = |path, defer: DeferLayer| resource(path).to(work).wrap(by_id()).wrap(defer);
        config
            .app_data(desk.clone())
            .app_data(store.clone())
            .service(resource("/orders/{id}/pay").to(work).wrap(by_id()))
            .service(resource("/orders/{id}/ship").to(work).wrap(by_id().wait(WAIT)))
            .service(deferred("/orders/{id}/later", defer()))
            .service(deferred("/orders/{id}/once", defer().idempotent_direct()))
            .service(deferred("/orders/{id}/skip", defer().on_failure(OnFailure::Skip)))
            .service(deferred(
                "/orders/{id}/sure",
                defer().on_failure(OnFailure::Skip).min_replicas(1),
            ))
            .service(deferred("/orders/{id}/delayed", defer().delay(DELAY)))
            .service(deferred("/orders/{id}/soon", defer().expires_after(SOON)));
    }
}

async fn work(
    desk: Data<Desk>,
    resource: Path<String>,
    wish: Query<Wish>,
    CurrentLock(lock): CurrentLock,
    job: Option<CurrentJob>,
) -> HttpResponse {
    let job = job.map(|CurrentJob(job)| (job.id.as_str().to_owned(), job.attempt));
    let facts = Facts { resource: resource.into_inner(), job, lock };
    let (status, body) = desk.work(facts, wish.into_inner()).await;
    HttpResponse::build(StatusCode::from_u16(status).expect("a status")).body(body)
}
