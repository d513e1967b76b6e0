//! What a layer does while the store is away, or was never given to it.

use crate::{
    error::{Error, ErrorKind},
    reply::Reply,
};

/// What a rate limit does with requests it can't decide about because the store is away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RateLimitOutage {
    /// This process limits by itself, at its share of the quota. Each process that
    /// limits counts as one, as far as they were last heard of, and a key begins with its share of what
    /// was left of it. When the store has answered for a second again, it is asked again; what was let in
    /// meanwhile is not charged to it. So all processes together let in about the quota; those that
    /// nobody has heard of come on top, and where the quota is less than one for each, each lets one in.
    Local,
    /// 503 with `Retry-After`: never 429 or 409, since nobody's quota is spent and nothing is busy.
    Refuse,
    /// Let it pass, marked: without fields.
    Admit,
}

/// What a `LockLayer` does with requests while the store is away. There is no third way: a process can't keep others from
/// a lock by itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum LockOutage {
    /// 503 with `Retry-After`: never 409, since nothing is busy. The default: two changes at once are worse than none.
    #[default]
    Refuse,
    /// Let it pass without a lock, and beside others: its handler finds no fence. Not where the store is there and has
    /// something wrong to say of this lock ([`ErrorKind::Protocol`], as of a foreign key of its name): that does not pass by
    /// itself, and is refused.
    Admit,
}

impl LockOutage {
    /// Whether a request passes without what has failed so.
    pub(crate) fn admits(self, error: &Error) -> bool {
        self == Self::Admit && error.kind() != ErrorKind::Protocol
    }
}

/// The answer to a request that brought no store along.
pub(crate) fn missing_store_reply(layer: &str) -> Reply {
    crate::throttle::throttled!(
        error,
        layer,
        "request refused: no store; add .layer(Extension(store)) outside this layer (actix-web: \
         .app_data(web::Data::new(store))), or .store(&store) on the layer"
    );
    Reply::misconfigured()
}
