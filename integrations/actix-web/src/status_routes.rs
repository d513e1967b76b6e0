//! Status resource as a service, for `App::service`, `Scope::service` and `ServiceConfig::service`.

use std::convert::Infallible;

use actix_web::{
    HttpRequest, HttpResponse, Resource,
    body::{BodyStream, BoxBody},
    dev::{AppService, HttpServiceFactory},
    web,
};
use futures_util::StreamExt as _;
use lockgate::{
    Reply,
    defer::{StatusGate, StatusReply},
    gate::GateRequest as _,
};

use crate::{
    layers::DeferredRoutes, reply_response::response_from_reply, request_view::RequestView,
};

impl HttpServiceFactory for DeferredRoutes {
    fn register(self, config: &mut AppService) {
        let Self { path, gate } = self;
        status_resource(&format!("{path}/{{id}}"), gate.clone(), false).register(config);
        status_resource(&format!("{path}/{{id}}/response"), gate, true).register(config);
    }
}

fn status_resource(path: &str, gate: StatusGate<HttpRequest>, whole: bool) -> Resource {
    web::resource(path)
        .to(move |request: HttpRequest| status_response(gate.clone(), request, whole))
}

async fn status_response(
    gate: StatusGate<HttpRequest>,
    request: HttpRequest,
    whole: bool,
) -> HttpResponse {
    let mut view = RequestView::new(&request);
    // An unreadable value is not an id, and gets the 404 of an unknown one.
    let id = view.path_param("id").ok().flatten().unwrap_or_default();
    let asked = gate.parse_request(&mut view, &id, whole);
    let answer = match asked {
        Ok(request) => request.execute().await,
        Err(reply) => return response_from_reply(reply),
    };
    match answer {
        StatusReply::Complete(reply) => response_from_reply(reply),
        StatusReply::Events(head, events) => {
            let body = BodyStream::new(events.map(Ok::<_, Infallible>));
            response_from_reply(head).set_body(BoxBody::new(body))
        }
        // Variant that a newer version of the core crate has added.
        _ => response_from_reply(Reply::misconfigured()),
    }
}
