//! Configuration of extractors that only the server's `App` has. The subscriber is that of the
//! process, so this is the only test here.

use std::{
    io,
    sync::{Arc, Mutex},
};

use actix_web::{
    App, HttpResponse,
    dev::Service as _,
    test::{TestRequest, init_service},
    web::{self, JsonConfig, ServiceConfig},
};
use lockgate_actix_web::{DeferLayer, DeferWorker, LockLayer, testing::TestKit};

const WARNING: &str = "run refused by an extractor without its configuration";

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no writer panics").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// Returns the lines with the warning.
    fn warnings(&self) -> Vec<String> {
        let text = String::from_utf8(self.0.lock().expect("no writer panics").clone());
        let text = text.expect("text");
        text.lines().filter(|line| line.contains(WARNING)).map(str::to_owned).collect()
    }
}

fn routes(config: &mut ServiceConfig) {
    let json = web::resource("/orders/{id}/json")
        .post(async |order: web::Json<u64>| order.to_string())
        .wrap(LockLayer::by_path_param("id"))
        .wrap(DeferLayer::new().background());
    let own = web::resource("/orders/{id}/own")
        .post(async || HttpResponse::BadRequest().finish())
        .wrap(LockLayer::by_path_param("id"))
        .wrap(DeferLayer::new().background());
    config.service(json).service(own);
}

/// Defers a request without a `Content-Type` to each of these paths, and runs the requests.
async fn run_statuses<const N: usize>(
    paths: [&str; N],
    worker_has_config: bool,
) -> Vec<Option<u16>> {
    let kit = TestKit::new();
    let store = web::Data::new(kit.store().clone());
    let app = move || {
        let json = JsonConfig::default().content_type_required(false);
        App::new().app_data(store.clone()).app_data(json).configure(routes)
    };
    let worker = match worker_has_config {
        true => DeferWorker::from_app(kit.store(), app.clone()),
        false => DeferWorker::new(kit.store(), routes),
    };
    let mut worker = kit.defer_worker(worker).await.expect("an embedded store");
    let service = init_service(app()).await;
    for path in paths {
        let request = TestRequest::post().uri(path).set_payload("7").to_request();
        assert_eq!(service.call(request).await.expect("an answer").status(), 202);
    }
    let runs = worker.run_due().await.expect("an embedded store");
    runs.iter().map(|run| run.status).collect()
}

#[actix_web::test]
async fn refusal_by_an_extractor_without_its_configuration_is_warned_of_once() {
    let log = Log::default();
    let writer = log.clone();
    tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).init();
    assert_eq!(run_statuses(["/orders/7/json"], true).await, [Some(200)]);
    assert_eq!(run_statuses(["/orders/7/own"], false).await, [Some(400)], "the handler's own");
    assert_eq!(log.warnings(), [""; 0]);

    assert_eq!(run_statuses(["/orders/7/json", "/orders/7/json"], false).await, [Some(400); 2]);
    let warnings = log.warnings();
    let [warning] = warnings.as_slice() else { panic!("{warnings:?}") };
    for part in
        [" WARN ", "route=\"/orders/{id}/json\"", "status=400", "JsonConfig", "config.app_data(..)"]
    {
        assert!(warning.contains(part), "{part} in {warning}");
    }
}
