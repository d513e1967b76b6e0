//! `ResponseOptions`: the rate headers of a layer, and its replies to refused requests.

use std::{fmt, sync::Arc};

use bytes::Bytes;

use super::{
    policy_status::PolicyStatus,
    rate_headers::RateHeaders,
    rate_refusal::{RateRefusal, RefusalReason},
};
use crate::reply::{HeaderSet, Reply};

pub(super) type RefusalResponder = dyn Fn(&RateRefusal<'_>) -> Reply + Send + Sync;

/// Settings of a layer about the headers and replies that clients see.
#[derive(Clone, Default)]
pub(super) struct ResponseOptions {
    pub(super) headers: RateHeaders,
    pub(super) expose_headers: bool,
    pub(super) responder: Option<Arc<RefusalResponder>>,
}

impl ResponseOptions {
    /// Returns the headers for an admitted request.
    pub(super) fn headers_for(&self, statuses: &[PolicyStatus<'_>]) -> HeaderSet {
        let mut headers = HeaderSet::new();
        self.headers.append_to(self.expose_headers, statuses, &mut headers);
        headers
    }

    /// Like `headers_for`; `policy_header` as in [`RateHeaders::for_each_header`].
    pub(super) fn for_each_header(
        &self,
        statuses: &[PolicyStatus<'_>],
        policy_header: impl FnOnce(&[PolicyStatus<'_>]) -> Bytes,
        add: impl FnMut(&'static str, Bytes),
    ) {
        self.headers.for_each_header(self.expose_headers, statuses, policy_header, add);
    }

    /// Returns the reply to a request that at least one of these policies refuses.
    pub(super) fn refusal_reply(&self, statuses: &[PolicyStatus<'_>]) -> Reply {
        let is_permanent = statuses.iter().any(PolicyStatus::is_permanent);
        self.build_reply(
            if is_permanent { RefusalReason::CostAboveQuota } else { RefusalReason::QuotaExceeded },
            statuses,
        )
    }

    /// Returns true if the application makes the replies.
    pub(super) fn has_responder(&self) -> bool {
        self.responder.is_some()
    }

    /// Returns the reply to a client on the deny list.
    pub(super) fn denied_reply(&self) -> Reply {
        tracing::debug!("request refused: the client is on the deny list");
        self.build_reply(RefusalReason::Denied, &[])
    }

    fn build_reply(&self, reason: RefusalReason, statuses: &[PolicyStatus<'_>]) -> Reply {
        let refusal = RateRefusal {
            reason,
            policies: statuses,
            headers: self.headers,
            expose_headers: self.expose_headers,
        };
        match &self.responder {
            Some(respond) => respond(&refusal),
            None => refusal.reply(),
        }
    }
}

impl fmt::Debug for ResponseOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseOptions")
            .field("headers", &self.headers)
            .field("expose_headers", &self.expose_headers)
            .field("responds", &self.responder.is_some())
            .finish()
    }
}
