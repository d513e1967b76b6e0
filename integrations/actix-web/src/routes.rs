//! The status resource as a service, for `App::service`, `Scope::service` and `ServiceConfig::service`.

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
    defer::{StatusAnswer, StatusGate},
    gate::View as _,
};

use crate::{framework::RequestView, layer::DeferredRoutes, reply::response};

impl HttpServiceFactory for DeferredRoutes {
    fn register(self, config: &mut AppService) {
        let Self { path, gate } = self;
        resource(&format!("{path}/{{id}}"), gate.clone(), false).register(config);
        resource(&format!("{path}/{{id}}/response"), gate, true).register(config);
    }
}

fn resource(path: &str, gate: StatusGate<HttpRequest>, whole: bool) -> Resource {
    web::resource(path).to(move |request: HttpRequest| answer(gate.clone(), request, whole))
}

async fn answer(gate: StatusGate<HttpRequest>, request: HttpRequest, whole: bool) -> HttpResponse {
    let mut view = RequestView::new(&request);
    // What can't be read is no id, and gets the 404 of every other one that is none.
    let id = view.param("id").ok().flatten().unwrap_or_default();
    let asked = gate.ask(&mut view, &id, whole);
    let answer = match asked {
        Ok(request) => request.answer().await,
        Err(reply) => return response(reply),
    };
    match answer {
        StatusAnswer::Whole(reply) => response(reply),
        StatusAnswer::Events(head, events) => {
            let body = BodyStream::new(events.map(Ok::<_, Infallible>));
            response(head).set_body(BoxBody::new(body))
        }
        // A kind of a newer version of the core.
        _ => response(Reply::wiring_fault()),
    }
}
