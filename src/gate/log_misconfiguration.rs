//! Log record of a misconfigured route: a request that is shared.

use crate::throttle::throttled;

/// Logs that a middleware keeps a clone of a request that a gate must change, at most once a
/// minute.
pub fn log_shared_request() {
    throttled!(
        error,
        "request refused: an outer middleware keeps an `HttpRequest` while the inner service runs, \
         so the request cannot be changed; let the middleware copy the values that it needs and \
         drop the `HttpRequest`"
    );
}
