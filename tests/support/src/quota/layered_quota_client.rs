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

/// Header with the cost that the handler sets.
const COST_HEADER: &str = "x-cost";

/// Status that only the handler sends; the layer refunds its charge.
const REFUND_STATUS: StatusCode = StatusCode::IM_A_TEAPOT;

/// Percentage of requests that are followed by a read of the spent units.
const SPENT_READ_PERCENT: u64 = 2;

#[derive(Debug, Clone)]
pub(super) struct LayeredQuotaClient {
    app: Router,
    limiter: RateLimiter,
    quota_limit: u64,
    adjustment: ResponseAdjustment,
}

impl LayeredQuotaClient {
    pub(super) fn new(store: &Store, policy: &Policy, adjustment: ResponseAdjustment) -> Self {
        let layer = RateLimitLayer::by_header(KEY_HEADER, policy.clone())
            .refund_on(|status| status == REFUND_STATUS.as_u16())
            .handler_sets_cost()
            .store(store);
        let app = Router::new().route("/", get(report_cost)).layer(layer);
        let (limiter, quota_limit) = (store.rate_limiter(policy.clone()), policy.quota().limit());
        Self { app, limiter, quota_limit, adjustment }
    }

    pub(super) async fn send_request(
        &self,
        client: u64,
        name: String,
        rng: &mut SeededRng,
        log: &EventLog,
    ) {
        // Each request is charged one unit first.
        let cost = match self.adjustment {
            ResponseAdjustment::Increased => 1 + rng.below(3),
            _ => rng.below(2),
        };
        log.record(&QuotaEvent::CostLimit { client, key: name.clone(), max_cost: cost.max(1) });
        let sent = clock::now_ns();
        let mut request = Request::get("/").header(KEY_HEADER, &name);
        // A request without cost is refunded by its status or by a cost of zero.
        if cost > 0 || rng.chance_percent(50) {
            request = request.header(COST_HEADER, cost);
        }
        let request = request.body(Body::empty()).expect("a request");
        let response = self.app.clone().oneshot(request).await.expect("it can't fail");
        log.record(&match response.status() {
            StatusCode::OK | REFUND_STATUS => {
                QuotaEvent::Admitted { client, key: name, sent_at: sent, cost: cost.min(1) }
            }
            StatusCode::TOO_MANY_REQUESTS => QuotaEvent::Refused { client, key: name },
            StatusCode::SERVICE_UNAVAILABLE => QuotaEvent::Failed { client, key: name },
            other => panic!("{other}"),
        });
    }

    /// Reads the spent units of the previous epoch, whose key gets only late requests: it shows a
    /// charge that was applied twice.
    pub(super) async fn sample_spent_units(
        &self,
        client: u64,
        quota: &TestedQuota,
        rng: &mut SeededRng,
        log: &EventLog,
    ) {
        if !rng.chance_percent(SPENT_READ_PERCENT) {
            return;
        }
        let (sent, name) = (clock::now_ns(), quota.name_in_previous_epoch());
        let decision = self.limiter.peek(Key::header(KEY_HEADER, name.as_bytes()), 1).await;
        // A client that was paused may have read another epoch.
        if let Some(decision) = decision.ok().filter(|_| quota.name_in_previous_epoch() == name) {
            log.record(&QuotaEvent::SpentRead {
                client,
                key: name,
                sent_at: sent,
                spent: self.quota_limit - decision.remaining(),
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
