//! Requests through a layer that puts right what they were charged once they have their response.

use axum::{Router, body::Body, extract::Request, routing::get};
use http::StatusCode;
use lockgate::{Key, Policy, RateLimiter, Store};
use lockgate_axum::{CurrentRate, RateLimitLayer};
use tower::ServiceExt as _;

use super::{After, Asked};
use crate::{
    checker::quota::QuotaEvent,
    fleet::{clock, dice::Dice, log::Log},
};

const KEY: &str = "x-key";

/// What the handler says that it has cost.
const COST: &str = "x-cost";

/// The handler's, and nobody else's: charges are given back.
const FREE: StatusCode = StatusCode::IM_A_TEAPOT;

/// Of a hundred requests, as many are followed by a look at what is spent.
const LOOKS: u64 = 2;

#[derive(Debug, Clone)]
pub(super) struct Settled {
    app: Router,
    limit: RateLimiter,
    quota: u64,
    after: After,
}

impl Settled {
    pub(super) fn new(store: &Store, policy: &Policy, after: After) -> Self {
        let layer = RateLimitLayer::by_header(KEY, policy.clone())
            .refund_on(|status| status == FREE.as_u16())
            .handler_sets_cost()
            .store(store);
        let app = Router::new().route("/", get(handler)).layer(layer);
        let (limit, quota) = (store.rate_limiter(policy.clone()), policy.quota().limit());
        Self { app, limit, quota, after }
    }

    pub(super) async fn ask(&self, who: u64, name: String, dice: &mut Dice, log: &Log) {
        // All of them are charged 1 when they come.
        let costs = match self.after {
            After::Dearer => 1 + dice.below(3),
            _ => dice.below(2),
        };
        log.note(&QuotaEvent::CostLimit(who, name.clone(), costs.max(1)));
        let sent = clock::now();
        let mut request = Request::get("/").header(KEY, &name);
        // What costs nothing is given back by its status, or by the handler's word.
        if costs > 0 || dice.percent(50) {
            request = request.header(COST, costs);
        }
        let request = request.body(Body::empty()).expect("a request");
        let response = self.app.clone().oneshot(request).await.expect("it can't fail");
        log.note(&match response.status() {
            StatusCode::OK | FREE => QuotaEvent::Admitted(who, name, sent, costs.min(1)),
            StatusCode::TOO_MANY_REQUESTS => QuotaEvent::Refused(who, name),
            StatusCode::SERVICE_UNAVAILABLE => QuotaEvent::Failed(who, name),
            other => panic!("{other}"),
        });
    }

    /// What the store has counted of the epoch before, which nobody asks for any more but who is late: so it shows
    /// whether anything was counted twice.
    pub(super) async fn look_now_and_then(
        &self,
        who: u64,
        asked: &Asked,
        dice: &mut Dice,
        log: &Log,
    ) {
        if !dice.percent(LOOKS) {
            return;
        }
        let (sent, name) = (clock::now(), asked.name_before());
        let told = self.limit.peek(Key::header(KEY, name.as_bytes()), 1).await;
        // Who was stopped meanwhile may have seen another window.
        if let Some(told) = told.ok().filter(|_| asked.name_before() == name) {
            log.note(&QuotaEvent::SpentRead(who, name, sent, self.quota - told.remaining()));
        }
    }
}

async fn handler(rate: CurrentRate, request: Request) -> StatusCode {
    let cost = request.headers().get(COST).and_then(|cost| cost.to_str().ok()?.parse().ok());
    match cost {
        Some(cost) => {
            let _ = rate.0.set_cost(cost);
            StatusCode::OK
        }
        None => FREE,
    }
}
