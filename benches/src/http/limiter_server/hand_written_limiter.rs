//! Hand-written limiter: a script, called by a middleware over a connection manager.

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

use super::{KEY_HEADER, QUOTA_WINDOW};
use crate::bench_result::BenchResult;

/// Refused requests are not counted, as users expect of a limiter.
const CHARGE_SCRIPT: &str = r"
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
pub(super) struct HandWrittenLimiter(Arc<Inner>);

struct Inner {
    manager: ConnectionManager,
    script: Script,
    limit: u32,
}

impl HandWrittenLimiter {
    pub(super) async fn connect(port: u16, limit: u32) -> BenchResult<Self> {
        let client = Client::open(("127.0.0.1", port))?;
        let manager = ConnectionManager::new(client).await?;
        Ok(Self(Arc::new(Inner { manager, script: Script::new(CHARGE_SCRIPT), limit })))
    }

    async fn charge(&self, key: &str) -> redis::RedisResult<(i64, i64)> {
        let Inner { manager, script, limit } = &*self.0;
        let mut manager = manager.clone();
        let window = u64::try_from(QUOTA_WINDOW.as_millis()).unwrap_or(u64::MAX);
        script.key(key).arg(*limit).arg(window).invoke_async(&mut manager).await
    }
}

pub(super) async fn limit_middleware(
    State(limiter): State<HandWrittenLimiter>,
    request: Request,
    next: Next,
) -> Result<Response, StatusCode> {
    let key = request.headers().get(KEY_HEADER).and_then(|key| key.to_str().ok());
    let key = format!("limit:{}", key.ok_or(StatusCode::BAD_REQUEST)?);
    let (remaining, retry_millis) =
        limiter.charge(&key).await.map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?;
    let mut response = if remaining < 0 {
        let mut response = StatusCode::TOO_MANY_REQUESTS.into_response();
        let seconds = HeaderValue::from(retry_millis.max(0).div_euclid(1000) + 1);
        response.headers_mut().insert(RETRY_AFTER, seconds);
        response
    } else {
        next.run(request).await
    };
    let headers = response.headers_mut();
    headers.insert("x-ratelimit-limit", HeaderValue::from(limiter.0.limit));
    headers.insert("x-ratelimit-remaining", HeaderValue::from(remaining.max(0)));
    Ok(response)
}

/// Sends a `PING` in place of a limit: the round trip that every check over Redis needs.
pub(super) async fn ping_middleware(
    State(mut connection): State<MultiplexedConnection>,
    request: Request,
    next: Next,
) -> Result<Response, StatusCode> {
    let pong: redis::RedisResult<()> = redis::cmd("PING").query_async(&mut connection).await;
    pong.map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?;
    Ok(next.run(request).await)
}
