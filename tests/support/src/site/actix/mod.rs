//! The application of the scenarios in actix-web.

mod app_middleware;
mod defer_option_routes;
mod lock_hold_routes;
mod lock_option_routes;
mod nested_routes;
mod rate_limit_option_routes;
mod rate_policy_routes;
mod snapshot_routes;

use std::{net::TcpListener, thread, time::Duration};

use actix_web::{
    App as ActixApp, HttpMessage as _, HttpRequest, HttpResponse, HttpServer, Resource,
    guard::{Not, Patch},
    http::StatusCode,
    middleware::from_fn,
    rt::System,
    web::{Data, Path, Payload, ServiceConfig, resource, route, scope},
};
use lockgate_actix_web::{
    CurrentCancellation, CurrentJob, CurrentLock, CurrentRate, DeferLayer, DeferWorker, KeyPart,
    LockLayer, LockOutage, Quota, RateLimitLayer, RateLimitOutage, deferred_routes,
};
use tokio::sync::oneshot;

use self::app_middleware::{
    delay_conflict_response, rebuild_response, replace_conflict_status, require_pass_header,
};
use super::{AppState, RequestUser, RunningServer, authorize_run, header_text};
use crate::scripted_handler::{HandlerBody, HandlerResponse, ObservedRequest};

pub(super) async fn start_server(app: &AppState) -> RunningServer {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let addr = listener.local_addr().expect("it is bound");
    let (stop, stopped) = oneshot::channel::<()>();
    let (end, ended) = oneshot::channel::<()>();
    let app = app.clone();
    thread::spawn(move || {
        System::new().block_on(run_server(app, listener, stopped));
        // The receiver is gone if the site was dropped.
        let _ = end.send(());
    });
    let ended = tokio::spawn(async {
        let _ = ended.await;
    });
    RunningServer { addr, stop, finished: ended }
}

async fn run_server(app: AppState, listener: TcpListener, stopped: oneshot::Receiver<()>) {
    let server = HttpServer::new(move || {
        let app = app.clone();
        ActixApp::new().configure(move |config| {
            configure_routes(config, &app);
            config.service(route_without_worker()).service(deferred_routes("/deferred"));
            config.service(deferred_routes("/own-jobs").visible_to(user_header));
            let found = deferred_routes("/found").visible_to_async(|request| {
                let user = user_header(request);
                async { user }
            });
            config.service(found);
            let own = scope("/own").wrap(from_fn(snapshot_routes::authenticate));
            config.service(own.service(deferred_routes("/").for_user::<RequestUser>()));
            if app.injects_store {
                config.app_data(Data::new(app.store.clone()));
            }
        })
    });
    let server = server
        .h1_allow_half_closed(false)
        .workers(2)
        .disable_signals()
        .listen(listener)
        .expect("a socket that is bound")
        .run();
    let handle = server.handle();
    actix_web::rt::spawn(async move {
        let _ = stopped.await;
        handle.stop(true).await;
    });
    let _ = server.await;
}

/// See [`WebFramework`](super::WebFramework::build_unscoped_merge_layer).
pub(super) fn build_unscoped_merge_layer() {
    snapshot_routes::build_unscoped_merge_layer();
}

pub(super) fn build_worker(app: &AppState) -> DeferWorker {
    let (store, handler, app) = (app.store.clone(), app.handler.clone(), app.clone());
    let worker = DeferWorker::new(&store, move |config: &mut ServiceConfig| {
        configure_routes(config, &app);
    });
    worker.for_user::<RequestUser>().authorize(move |run| {
        let handler = handler.clone();
        async move { authorize_run(&handler, &run) }
    })
}

fn configure_routes(config: &mut ServiceConfig, app: &AppState) {
    config.app_data(Data::new(app.clone()));
    quota_routes(config);
    lock_routes(config);
    lock_hold_routes::lock_hold_routes(config);
    lock_option_routes::lock_option_routes(config, app);
    rate_limit_option_routes::rate_limit_option_routes(config);
    rate_policy_routes::rate_policy_routes(config);
    special_lock_routes(config);
    nested_routes::nested_routes(config);
    defer_routes(config);
    defer_option_routes::defer_option_routes(config);
    app_middleware_routes(config);
    snapshot_routes::snapshot_routes(config);
}

fn quota_per_minute(requests: u64) -> Quota {
    Quota::requests(requests).per(Duration::from_secs(60))
}

fn quota_routes(config: &mut ServiceConfig) {
    let mut one = |path: &str, layer: RateLimitLayer| {
        config.service(resource(path).to(handle_request).wrap(layer));
    };
    let second = Quota::requests(1).per(Duration::from_secs(1));
    one("/quota/three", RateLimitLayer::by_ip(quota_per_minute(3)).policy_name("three"));
    one("/quota/ten", RateLimitLayer::by_ip(quota_per_minute(10)).policy_name("ten"));
    one("/quota/second", RateLimitLayer::by_ip(second).policy_name("second"));
    one(
        "/quota/header",
        RateLimitLayer::by_header("x-api-key", quota_per_minute(2)).policy_name("header"),
    );
    one(
        "/quota/param/{id}",
        RateLimitLayer::by_path_param("id", quota_per_minute(2)).policy_name("param"),
    );
    let number = RateLimitLayer::by_path_param_as::<u64>("id", quota_per_minute(2));
    one("/quota/number/{id}", number.policy_name("number"));
    let number = RateLimitLayer::by(KeyPart::path_param_as::<u64>("id"), quota_per_minute(2));
    one("/quota/number-key/{id}", number.policy_name("number-key"));
    one(
        "/quota/user",
        RateLimitLayer::by_key("user", user_header, quota_per_minute(2)).policy_name("user"),
    );
    let admit = RateLimitLayer::by_ip(quota_per_minute(3)).policy_name("admit");
    one("/quota/admit", admit.on_outage(RateLimitOutage::Admit));
    let refuse = RateLimitLayer::by_ip(quota_per_minute(3)).policy_name("refuse");
    one("/quota/refuse", refuse.on_outage(RateLimitOutage::Refuse));
    let two_layers = resource("/quota/both/{id}")
        .to(handle_request)
        .wrap(RateLimitLayer::by_path_param("id", quota_per_minute(2)).policy_name("inner"))
        .wrap(RateLimitLayer::by_route(quota_per_minute(5)).policy_name("outer"));
    config.service(two_layers);
}

fn lock_routes(config: &mut ServiceConfig) {
    let pay = resource("/orders/{id}/pay")
        .route(route().guard(Not(Patch())).to(handle_request))
        .wrap(LockLayer::by_path_param("id"));
    config.service(pay);
    let by_id = || LockLayer::by_path_param("id");
    let mut one = |path: &str, layer: LockLayer| {
        config.service(resource(path).to(handle_request).wrap(layer));
    };
    one("/orders/{id}/ship", by_id().wait(Duration::from_secs(15)));
    one("/orders/{id}/hurry", by_id().wait(Duration::from_millis(100)));
    one("/orders/{id}/audit", by_id().all_methods());
    one("/orders/{id}/anyway", by_id().on_outage(LockOutage::Admit));
    one("/users/{id}", by_id().scope("users"));
    one("/ab/{id}", by_id().scope("a:b"));
    one("/a/{id}", by_id().scope("a"));
}

fn special_lock_routes(config: &mut ServiceConfig) {
    let by_id = || LockLayer::by_path_param("id");
    config
        .service(resource("/account").to(handle_request).wrap(LockLayer::by_header("x-account")))
        .service(resource("/nested/{id}").to(handle_request).wrap(by_id()).wrap(by_id()))
        .service(resource("/wrong/{id}").to(handle_request).wrap(LockLayer::by_path_param("order")))
        .service(
            resource("/inverted/{id}").to(handle_request).wrap(DeferLayer::new()).wrap(by_id()),
        );
}

fn defer_routes(config: &mut ServiceConfig) {
    let by_id = || LockLayer::by_path_param("id");
    let mut one = |path: &str, lock: LockLayer, defer: DeferLayer| {
        config.service(resource(path).to(handle_request).wrap(lock).wrap(defer));
    };
    one("/orders/{id}/refund", by_id(), DeferLayer::new());
    one("/peer", LockLayer::by_ip(), DeferLayer::new());
    one("/small/{id}", by_id(), DeferLayer::new().body_limit(16).max_resource_jobs(2));
    let hasty = DeferLayer::new().body_read_timeout(Duration::from_millis(300));
    one("/hasty/{id}", by_id(), hasty);
    let with_kept_header =
        DeferLayer::new().keep_header("Authorization").credential_header("X-Api-Key");
    one("/kept/{id}", by_id(), with_kept_header);
    one("/owned/{id}", by_id(), DeferLayer::new().owner(user_header).status_path("/own-jobs"));
    let owned =
        || DeferLayer::new().owner(user_header).status_path("/own-jobs").idempotent_direct();
    one("/evicting/{id}", by_id(), owned().max_ended_bytes(64));
    one("/few-keys/{id}", by_id(), owned().max_idempotency_keys(64));
    one("/few/{id}", by_id(), DeferLayer::new().owner(user_header).max_owner_jobs(128));
    one("/few-bytes/{id}", by_id(), DeferLayer::new().owner(user_header).max_owner_bytes(64 * 400));
    let crowded = DeferLayer::new().owner(user_header).max_queue_jobs(64 * 64).background();
    one("/crowded/{id}", by_id(), crowded);
    let metered = resource("/metered/{id}")
        .to(handle_request)
        .wrap(by_id())
        .wrap(DeferLayer::new())
        .wrap(RateLimitLayer::by_ip(quota_per_minute(5)).policy_name("metered"));
    config.service(metered);
}

/// Middlewares of the application between lockgate's layers.
fn app_middleware_routes(config: &mut ServiceConfig) {
    let by_id = || LockLayer::by_path_param("id");
    let guarded =
        resource("/guarded/{id}").to(handle_request).wrap(by_id()).wrap(DeferLayer::new());
    let rewritten = resource("/rewritten/{id}")
        .to(handle_request)
        .wrap(by_id())
        .wrap(from_fn(replace_conflict_status));
    let rebuilt =
        resource("/rebuilt/{id}").to(handle_request).wrap(by_id()).wrap(from_fn(rebuild_response));
    let delayed = resource("/late/{id}")
        .to(handle_request)
        .wrap(by_id())
        .wrap(from_fn(delay_conflict_response));
    config
        .service(guarded.wrap(from_fn(require_pass_header)))
        .service(rewritten.wrap(DeferLayer::new()))
        .service(rebuilt.wrap(DeferLayer::new()))
        .service(delayed.wrap(DeferLayer::new()));
}

/// Route that the server has and the worker lacks.
fn route_without_worker() -> impl actix_web::dev::HttpServiceFactory {
    let unknown: Resource = resource("/unknown/{id}");
    unknown.to(handle_request).wrap(LockLayer::by_path_param("id")).wrap(DeferLayer::new())
}

fn user_header(request: &HttpRequest) -> Option<String> {
    let user = request.headers().get("x-user")?;
    user.to_str().ok().map(str::to_owned)
}

#[expect(clippy::too_many_arguments, reason = "each is an extractor")]
async fn handle_request(
    app: Data<AppState>,
    lock: Option<CurrentLock>,
    rate: Option<CurrentRate>,
    job: Option<CurrentJob>,
    cancellation: CurrentCancellation,
    id: Option<Path<String>>,
    request: HttpRequest,
    body: Payload,
) -> HttpResponse {
    let observed = ObservedRequest {
        path_id: id.map(Path::into_inner),
        fence: lock.and_then(|lock| lock.0.fence()),
        quota_remaining: rate.map(|rate| rate.0.decision().remaining()),
        run_fence: job.as_ref().map(|job| job.0.fence),
        job: job.map(|job| (job.0.id.to_string(), job.0.attempt)),
        cancellation: cancellation.0,
        ..describe_request(&app, &request)
    };
    build_response(app.handler.handle_request(observed, body).await)
}

fn describe_request(app: &AppState, request: &HttpRequest) -> ObservedRequest {
    ObservedRequest {
        site: app.site_name.to_string(),
        method: request.method().to_string(),
        target: request.uri().to_string(),
        route: request.match_pattern().unwrap_or_default(),
        headers: header_pairs(request),
        user: request.extensions().get::<RequestUser>().map(RequestUser::to_string),
        peer_addr: request.peer_addr().map(|peer| peer.to_string()),
        ..ObservedRequest::default()
    }
}

fn build_response(handler_response: HandlerResponse) -> HttpResponse {
    let status = StatusCode::from_u16(handler_response.status)
        .expect("the scripted handler returns a valid status");
    let mut response = HttpResponse::build(status);
    for header in handler_response.headers {
        response.append_header(header);
    }
    match handler_response.body {
        HandlerBody::Whole(bytes) => response.body(bytes),
        HandlerBody::Stream(stream) => response.streaming(stream),
    }
}

fn header_pairs(request: &HttpRequest) -> Vec<(String, String)> {
    let fields = request.headers().iter();
    fields.map(|(name, value)| (name.to_string(), header_text(value.as_bytes()))).collect()
}
