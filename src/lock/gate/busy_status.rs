//! Status of the response to a request that found its lock busy.

/// Status of a response to a request that found its lock busy. Headers and body are the same for
/// each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum BusyStatus {
    /// 409: the request conflicts with one in progress and may be sent again. The default, because
    /// it names the cause and proxies pass it on unchanged.
    #[default]
    Conflict,
    /// 423 (RFC 4918): for clients that know it from WebDAV.
    Locked,
    /// 429: for clients that wait and retry by themselves after this status. It looks like a quota;
    /// the type of the problem document differs.
    TooManyRequests,
    /// 503: for proxies and clients that retry by themselves after this status. Some proxies take
    /// the server out of service for it.
    Unavailable,
}

impl BusyStatus {
    pub(super) fn code(self) -> u16 {
        match self {
            Self::Conflict => 409,
            Self::Locked => 423,
            Self::TooManyRequests => 429,
            Self::Unavailable => 503,
        }
    }
}
