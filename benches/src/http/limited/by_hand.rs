//! What a careful user writes by hand: a script on a connection manager, asked from a middleware.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    http::{HeaderValue, StatusCode, header::RETRY_AFTER},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use redis::{
    Client, Script,
    aio::{ConnectionManager, MultiplexedConnection},
};

use super::{KEY, WINDOW};
use crate::outcome::Outcome;

/// Refused requests are not counted, as everybody would have it.
const SCRIPT: &str = r"
local spent = tonumber(redis.call('GET', KEYS[1]) or '0')
if spent >= tonumber(ARGV[1]) then
  return {-1, redis.call('PTTL', KEYS[1])}
end
spent = redis.call('INCR', KEYS[1])
if spent == 1 then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return {tonumber(ARGV[1]) - spent, redis.call('PTTL', KEYS[1])}
";

#[derive(Clone)]
pub(super) struct ByHand(Arc<Inner>);

struct Inner {
    manager: ConnectionManager,
    script: Script,
    limit: u32,
}

impl ByHand {
    pub(super) async fn connect(port: u16, limit: u32) -> Outcome<Self> {
        let client = Client::open(("127.0.0.1", port))?;
        let manager = ConnectionManager::new(client).await?;
        Ok(Self(Arc::new(Inner { manager, script: Script::new(SCRIPT), limit })))
    }

    async fn charge(&self, key: &str) -> redis::RedisResult<(i64, i64)> {
        let Inner { manager, script, limit } = &*self.0;
        let mut manager = manager.clone();
        let window = u64::try_from(WINDOW.as_millis()).unwrap_or(u64::MAX);
        script.key(key).arg(*limit).arg(window).invoke_async(&mut manager).await
    }
}

/// The middleware.
pub(super) async fn limit(
    State(limiter): State<ByHand>,
    request: Request,
    next: Next,
) -> Result<Response, StatusCode> {
    let key = request.headers().get(KEY).and_then(|key| key.to_str().ok());
    let key = format!("limit:{}", key.ok_or(StatusCode::BAD_REQUEST)?);
    let (left, wait) = limiter.charge(&key).await.map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?;
    let mut response = if left < 0 {
        let mut response = StatusCode::TOO_MANY_REQUESTS.into_response();
        let seconds = HeaderValue::from(wait.max(0).div_euclid(1000) + 1);
        response.headers_mut().insert(RETRY_AFTER, seconds);
        response
    } else {
        next.run(request).await
    };
    let fields = response.headers_mut();
    fields.insert("x-ratelimit-limit", HeaderValue::from(limiter.0.limit));
    fields.insert("x-ratelimit-remaining", HeaderValue::from(left.max(0)));
    Ok(response)
}

/// No limit, but one round trip of the least that can be asked: what every check over Redis costs.
pub(super) async fn ping(
    State(mut connection): State<MultiplexedConnection>,
    request: Request,
    next: Next,
) -> Result<Response, StatusCode> {
    let pong: redis::RedisResult<()> = redis::cmd("PING").query_async(&mut connection).await;
    pong.map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?;
    Ok(next.run(request).await)
}
