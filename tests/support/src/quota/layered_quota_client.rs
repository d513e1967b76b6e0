//! `LayeredQuotaClient`: requests through a layer that adjusts their charge after the response.

use axum::{Router, body::Body, extract::Request, routing::get};
use http::StatusCode;
use lockgate::{Key, Policy, RateLimiter, Store};
use lockgate_axum::{CurrentRate, RateLimitLayer};
use tower::ServiceExt as _;

use super::{ResponseAdjustment, TestedQuota};
use crate::{
    checker::quota::QuotaEvent,
    fleet::{clock, event_log::EventLog, seeded_rng::SeededRng},
};

const KEY_HEADER: &str = "x-key";

/// What the handler says that it has cost.
const COST_HEADER: &str = "x-cost";

/// The handler's, and nobody else's: charges are given back.
const REFUND_STATUS: StatusCode = StatusCode::IM_A_TEAPOT;

/// Of a hundred requests, as many are followed by a look at what is spent.
const SPENT_READ_PERCENT: u64 = 2;

#[derive(Debug, Clone)]
pub(super) struct LayeredQuotaClient {
    app: Router,
    limiter: RateLimiter,
    quota_limit: u64,
    adjustment: ResponseAdjustment,
}

impl LayeredQuotaClient {
    pub(super) fn new(store: &Store, policy: &Policy, after: ResponseAdjustment) -> Self {
        let layer = RateLimitLayer::by_header(KEY_HEADER, policy.clone())
            .refund_on(|status| status == REFUND_STATUS.as_u16())
            .handler_sets_cost()
            .store(store);
        let app = Router::new().route("/", get(report_cost)).layer(layer);
        let (limit, quota) = (store.rate_limiter(policy.clone()), policy.quota().limit());
        Self { app, limiter: limit, quota_limit: quota, adjustment: after }
    }

    pub(super) async fn send_request(
        &self,
        who: u64,
        name: String,
        dice: &mut SeededRng,
        log: &EventLog,
    ) {
        // All of them are charged 1 when they come.
        let costs = match self.adjustment {
            ResponseAdjustment::Increased => 1 + dice.below(3),
            _ => dice.below(2),
        };
        log.record(&QuotaEvent::CostLimit {
            client: who,
            key: name.clone(),
            max_cost: costs.max(1),
        });
        let sent = clock::now_ns();
        let mut request = Request::get("/").header(KEY_HEADER, &name);
        // What costs nothing is given back by its status, or by the handler's word.
        if costs > 0 || dice.chance_percent(50) {
            request = request.header(COST_HEADER, costs);
        }
        let request = request.body(Body::empty()).expect("a request");
        let response = self.app.clone().oneshot(request).await.expect("it can't fail");
        log.record(&match response.status() {
            StatusCode::OK | REFUND_STATUS => {
                QuotaEvent::Admitted { client: who, key: name, sent_at: sent, cost: costs.min(1) }
            }
            StatusCode::TOO_MANY_REQUESTS => QuotaEvent::Refused { client: who, key: name },
            StatusCode::SERVICE_UNAVAILABLE => QuotaEvent::Failed { client: who, key: name },
            other => panic!("{other}"),
        });
    }

    /// What the store has counted of the epoch before, which nobody asks for any more but who is late: so it shows
    /// whether anything was counted twice.
    pub(super) async fn sample_spent_units(
        &self,
        who: u64,
        asked: &TestedQuota,
        dice: &mut SeededRng,
        log: &EventLog,
    ) {
        if !dice.chance_percent(SPENT_READ_PERCENT) {
            return;
        }
        let (sent, name) = (clock::now_ns(), asked.name_in_previous_epoch());
        let told = self.limiter.peek(Key::header(KEY_HEADER, name.as_bytes()), 1).await;
        // Who was stopped meanwhile may have seen another window.
        if let Some(told) = told.ok().filter(|_| asked.name_in_previous_epoch() == name) {
            log.record(&QuotaEvent::SpentRead {
                client: who,
                key: name,
                sent_at: sent,
                spent: self.quota_limit - told.remaining(),
            });
        }
    }
}

async fn report_cost(rate: CurrentRate, request: Request) -> StatusCode {
    let cost = request.headers().get(COST_HEADER).and_then(|cost| cost.to_str().ok()?.parse().ok());
    match cost {
        Some(cost) => {
            let _ = rate.0.set_cost(cost);
            StatusCode::OK
        }
        None => REFUND_STATUS,
    }
}
