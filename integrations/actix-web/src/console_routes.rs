//! `ConsoleRoutes`: the operators' console, for `App::service`, `Scope::service` and
//! `ServiceConfig::service`.

use std::convert::Infallible;

use actix_web::{
    HttpRequest, HttpResponse, Resource,
    body::{BodyStream, BoxBody},
    dev::{AppService, HttpServiceFactory},
    web,
};
use futures_util::StreamExt as _;
use lockgate::{
    Reply, Store,
    console::{ConsoleGuard, ConsoleReply, ConsoleResource},
};

use crate::{reply_to_response::response_from_reply, request_view::RequestView};

/// Routes of the operators' console. Created by [`console`].
#[derive(Debug, Clone)]
#[must_use = "the routes must be mounted"]
pub struct ConsoleRoutes {
    path: String,
    resource: ConsoleResource<HttpRequest>,
}

/// Creates the operators' console at this path: pages of locks, limits, deferred requests, queues
/// and processes, with actions for operators who may act.
///
/// `guard` decides who may open it, for every request: a function of the request's head that
/// returns an [`Operator`](lockgate::admin::Operator), or a ready-made one,
/// [`LocalOperator`](crate::LocalOperator) or
/// [`BasicAuth`](crate::BasicAuth). There is no console without a guard.
///
/// The page is embedded in the library and loads nothing from elsewhere. Actions need the page's
/// own origin. Mount it outside of layers that limit or lock requests: it is needed most when they
/// refuse.
///
/// ```
/// # use actix_web::App;
/// use lockgate_actix_web::{LocalOperator, Store, admin::Permission, console};
///
/// let guard = LocalOperator::new(Permission::Act);
/// let app = App::new().service(console("/ops", guard).store(&Store::memory()));
/// # drop(app);
/// ```
pub fn console(path: &str, guard: impl ConsoleGuard<HttpRequest>) -> ConsoleRoutes {
    ConsoleRoutes {
        path: format!("/{}", path.trim_matches('/')),
        resource: ConsoleResource::new(guard),
    }
}

impl ConsoleRoutes {
    /// Uses this store instead of the one that the request provides.
    pub fn store(self, store: &Store) -> Self {
        Self { resource: self.resource.store(store), ..self }
    }
}

impl HttpServiceFactory for ConsoleRoutes {
    fn register(self, config: &mut AppService) {
        let mount = self.path.trim_end_matches('/');
        let paths = [mount.to_owned(), format!("{mount}/"), format!("{mount}/{{path:.*}}")];
        for path in paths.into_iter().filter(|path| !path.is_empty()) {
            console_resource(&path, self.resource.clone()).register(config);
        }
    }
}

fn console_resource(path: &str, resource: ConsoleResource<HttpRequest>) -> Resource {
    web::resource(path).to(move |request: HttpRequest, payload: web::Payload| {
        console_response(resource.clone(), request, payload)
    })
}

async fn console_response(
    resource: ConsoleResource<HttpRequest>,
    request: HttpRequest,
    payload: web::Payload,
) -> HttpResponse {
    let path = request.match_info().get("path").unwrap_or_default().to_owned();
    let target = request.uri().path_and_query().map_or("/", |target| target.as_str()).to_owned();
    let mut view = RequestView::new(&request);
    let console_request = match resource.parse_request(&mut view, &target, &path) {
        Ok(console_request) => console_request,
        Err(reply) => return response_from_reply(reply),
    };
    let body = if console_request.wants_body() {
        let limit = ConsoleResource::<HttpRequest>::MAX_BODY_LEN;
        match payload.to_bytes_limited(limit).await {
            Ok(Ok(body)) => body,
            _ => {
                let reply = ConsoleResource::<HttpRequest>::unusable_body_reply();
                return response_from_reply(reply);
            }
        }
    } else {
        web::Bytes::new()
    };
    match console_request.execute(&body).await {
        ConsoleReply::Complete(reply) => response_from_reply(reply),
        ConsoleReply::Events(head, events) => {
            let body = BodyStream::new(events.map(Ok::<_, Infallible>));
            response_from_reply(head).set_body(BoxBody::new(body))
        }
        // Variant that a newer version of the core crate has added.
        _ => response_from_reply(Reply::misconfigured()),
    }
}
