//! Settings of `RateLimitLayer` about requests that are not counted: access lists and preflights.

use super::RateLimitLayer;
use crate::{gate::RequestKind, rate_limit::access_lists::AccessLists};

impl<R: RequestKind> RateLimitLayer<R> {
    /// Admits listed clients without counting, and refuses others with 403. Default: empty lists. A
    /// second call replaces the lists of the first.
    #[must_use]
    pub fn access_lists(self, lists: AccessLists) -> Self {
        self.update(|settings| settings.exemptions.lists = lists)
    }

    /// Charges CORS preflights too: OPTIONS with `Origin` and `Access-Control-Request-Method`.
    ///
    /// Default: they pass uncounted, since browsers send them on their own, cannot read a refusal,
    /// and do not add an API key. A CORS layer answers them cheaply. Every client can send such
    /// requests, so set this if no CORS layer is inside this one and a handler accepts every
    /// method.
    #[must_use]
    pub fn charge_preflights(self) -> Self {
        self.update(|settings| settings.exemptions.charges_preflights = true)
    }
}
