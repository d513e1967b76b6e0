//! The application of the scenarios, alike in both frameworks.
//!
//! | route | layers, outside in |
//! |---|---|
//! | `/quota/three` | 3 a minute by ip, named `three` |
//! | `/quota/ten` | 10 a minute by ip, named `ten` |
//! | `/quota/second` | 1 a second by ip, named `second` |
//! | `/quota/header` | 2 a minute by the header `x-api-key`, named `header` |
//! | `/quota/param/{id}` | 2 a minute by the parameter, named `param` |
//! | `/quota/user` | 2 a minute by a function that reads `x-user`, named `user` |
//! | `/quota/both/{id}` | 5 a minute by route, named `outer`; 2 a minute by the parameter, named `inner` |
//! | `/quota/refuse` | 3 a minute by ip; 503 during an outage |
//! | `/orders/{id}/pay` | lock by `id`; every method but PATCH |
//! | `/orders/{id}/ship` | lock by `id`, waits up to 15 s |
//! | `/orders/{id}/hurry` | lock by `id`, waits up to 100 ms |
//! | `/orders/{id}/audit` | lock by `id`, safe methods too |
//! | `/orders/{id}/anyway` | lock by `id`; admits during an outage |
//! | `/users/{id}` | lock by `id` in the scope `users` |
//! | `/ab/{id}`, `/a/{id}` | lock by `id` in the scopes `a:b` and `a` |
//! | `/account` | lock by the header `x-account` |
//! | `/nested/{id}` | lock by `id` twice |
//! | `/brief/{id}` | lock by `id`, for at most 3 s |
//! | `/finish/{id}`, `/replace/{id}` | the same, with other reactions to a loss |
//! | `/finish-late/{id}` | lock by `id` without a time limit; reaction to a loss as `/finish` |
//! | `/layered/{id}` | 5 a minute by ip, named `layered`; lock by `id` as `/finish`, and again as `/brief` |
//! | `/brief-refund/{id}` | defer, lock by `id` as `/brief` |
//! | `/whole/{id}` | lock by `id`, every method, until the body has ended |
//! | `/whole-twice/{id}` | the same, with a lock by `id` inside |
//! | `/whole-refund/{id}` | defer, lock by `id` as `/whole` |
//! | `/brief-whole/{id}`, `/brief-whole-finish/{id}` | as `/whole`, for at most 3 s |
//! | `/slow/{id}` | lock by `id`, waits 300 ms for the request's body |
//! | `/slow-whole/{id}` | the same, and until the response body has ended |
//! | `/slow-twice/{id}` | the same, with a lock by `id` inside |
//! | `/slow-refund/{id}` | defer, lock by `id` as `/slow` |
//! | `/inverted-whole/{id}` | lock by `id` as `/whole`, defer: wrong nesting |
//! | `/between-locks/{id}` | lock by `id`, defer, lock by `id`: wrong nesting |
//! | `/background/{id}` | lock by `id`, released in the background |
//! | `/wrong/{id}` | lock by a parameter that the route does not have |
//! | `/tenants/{id}/orders/{id}/...` | `id` twice; lock by `id` or by several, defer, quota by `id` |
//! | `/shops/{shop}/orders/{id}/...` | the same routes; `id` once |
//! | `/hosted/{id}/orders/{id}/pay` | the same for a nested service |
//! | `/around-tenants/{id}/orders/{id}` | lock by `id` around the prefix |
//! | `/inverted/{id}` | lock by `id`, defer: wrong nesting |
//! | `/orders/{id}/refund` | defer, lock by `id` |
//! | `/peer` | defer, lock by ip |
//! | `/small/{id}` | defer with bodies up to 16 bytes and 2 jobs, lock by `id` |
//! | `/kept/{id}` | defer that replays `Authorization`, lock by `id` |
//! | `/carried/{id}` | `Authorization` becomes an extension; defer that carries it, lock by `id` |
//! | `/named/{id}` | the same, with the user in it as owner, and `/own-jobs`; direct runs are recorded |
//! | `/named-first/{id}`, `/named-last/{id}` | the same; first wins, or last wins |
//! | `/named-or-key/{id}` | as `/carried`, with the user as owner; `X-Api-Key` is replayed, first wins, and direct runs are recorded |
//! | `/carried-or-key/{id}` | as `/carried`; `X-Api-Key` is replayed |
//! | `/carried-by-all/{id}` | as `/carried`, shared by all users; first wins, and direct runs are recorded |
//! | `/for-user/{id}` | as `/carried`, by `for_user`, and the status at `/own` |
//! | `/owned/{id}` | defer with `x-user` as owner and the status at `/own-jobs`, lock by `id` |
//! | `/waits/{id}` | defer after a wait of 15 s; lock by `id` |
//! | `/async/{id}` | defer that accepts `respond-async`; lock by `id` |
//! | `/always/{id}` | defer always, bodies up to 16 bytes; lock by `id` |
//! | `/worker-required/{id}` | defer if a worker is alive; lock by `id` |
//! | `/small-budget/{id}` | defer with a body budget of 2 KiB; lock by `id` |
//! | `/shared-budget/{id}` | defer with a body budget of 4 MiB, body timeout of a minute; lock by `id` |
//! | `/thin/{id}` | defer up to 400 bytes; lock by `id` |
//! | `/queue-jobs/{id}`, `/queue-bytes/{id}` | defer one job, or 400 bytes, in each shard; lock by `id` |
//! | `/evicting/{id}` | defer that retains one byte of ended jobs in each shard, with `x-user` as owner, the status at `/own-jobs` and recorded direct runs |
//! | `/few-keys/{id}` | defer with `x-user` as owner, one key per owner in each shard, direct runs recorded; lock by `id` |
//! | `/puts/{id}` | defer only PUT; lock by `id` |
//! | `/first/{id}` | defer, first wins; lock by `id` |
//! | `/last/{id}` | defer, last wins; lock by `id` |
//! | `/delayed/{id}` | defer for a second at least; lock by `id` |
//! | `/brief-lived/{id}` | defer for 300 ms at most; lock by `id` |
//! | `/repeated/{id}` | defer, every method runs twice at most; lock by `id` |
//! | `/remembered/{id}` | defer, direct runs are recorded; lock by `id` |
//! | `/remembered-again/{id}`, `/remembered-one/{id}`, `/remembered-briefly/{id}` | the same: unsafe methods may run again; one at a time in this process; `max_hold` is a second |
//! | `/remembered-several/{id}`, `/remembered-permits/{id}` | the same, under two locks, or a permit |
//! | `/remembered-within/{id}` | as `/remembered`, within it a lock by the header `x-account`, and 1 a minute by `x-api-key` |
//! | `/always-unlocked/{id}` | defer always, without a lock: wrong |
//! | `/always-shared/{id}` | defer always, two at once: wrong |
//! | `/few/{id}` | defer with `x-user` as owner, two jobs per owner in each shard; lock by `id` |
//! | `/few-bytes/{id}` | the same, but up to 400 bytes |
//! | `/crowded/{id}` | defer always with `x-user` as owner, 64 in each shard; lock by `id` |
//! | `/metered/{id}` | 5 a minute by ip, named `metered`; defer, lock by `id` |
//! | `/guarded/{id}` | 401 without `x-pass`, which is removed; defer, lock by `id` |
//! | `/rewritten/{id}` | defer, a 409 becomes a 418, lock by `id` |
//! | `/rebuilt/{id}` | defer, the response is rebuilt from status and body, lock by `id` |
//! | `/late/{id}` | defer, a 409 stops at the gate named by `after`, lock by `id` |
//! | `/unknown/{id}` | defer, lock by `id`; the worker lacks it |
//! | `/methods/{id}` | lock by `id`, only POST and GET |
//! | `/locked/{id}`, `/unavailable/{id}` | lock by `id`, busy is 423 and 503 |
//! | `/too-many/{id}` | lock by `id`, busy is 429; two more polls, 20 ms apart |
//! | `/locked-refund/{id}` | defer, lock by `id`, busy is 423 |
//! | `/again/{id}` | lock by `id`, polls 1,000 times, 20 ms apart |
//! | `/reject/{id}` | lock by `id`, whose wait is overridden by `reject` |
//! | `/stripes/{id}` | lock by `id`, on one stripe |
//! | `/payments/{order}` | lock by `order`, named `id` |
//! | `/tenant/{id}` | lock by `id` and the header `x-tenant` |
//! | `/tenant/{tenant}/{id}` | lock by `id` and the parameter `tenant` |
//! | `/tenant-by/{id}` | lock by `id` and a function that reads `x-user` |
//! | `/transfer/{from}/{to}` | locks by both, named `id`, waits up to 15 s |
//! | `/transfer-later/{from}/{to}` | defer, locks by both, named `id` |
//! | `/accounts` | locks by each value of the header `x-accounts` |
//! | `/document/{id}` | lock by `id`, readers share |
//! | `/two/{id}` | defer, lock by `id`, two at once |
//! | `/within/{id}` | lock by `id`; the handler acquires it again, as on all of these |
//! | `/within-refund/{id}` | defer, lock by `id` |
//! | `/within-rebuilt` | lock by the header `x-account`, a middleware that clears the extensions, the same lock |
//! | `/upgrade/{id}` | two at once by `id`, lock by `id` |
//! | `/fewer/{id}`, `/more/{id}` | two at once by `id`, and one at once, or three |
//! | `/two-stores/{id}` | defer, lock by `id`, lock by `id` on the second store |
//! | `/fence/{id}` | lock by `id`, fence header `x-fence` |
//! | `/called/{id}` | lock by `id`, accepts delegations |
//! | `/client/list` | 2 a minute by client behind the machine's own addresses, named `client`, as the next ones |
//! | `/client/forwarded`, `/client/field` | the same by `Forwarded`, and by `x-client` |
//! | `/client/hops` | the same behind two proxies |
//! | `/client/stranger` | the same behind 192.0.2.0/24 |
//! | `/client/skip`, `/client/shared` | as `/client/list`; unidentified clients pass, or share a key |
//! | `/client/wide` | as `/client/list`, IPv6 by 48 bits |
//! | `/client/lock` | lock by client as `/client/list` |
//! | `/client/later` | defer, the same lock |
//! | `/by/extension` | `x-user` becomes an extension; 2 a minute by it, named `user` |
//! | `/by/lock` | the same extension; lock by it |
//! | `/by/three/{id}` | 2 a minute by client, parameter and `x-api-key` together, named `three` |
//! | `/by/tenant/{id}` | lock by `id` and the header `x-tenant`, as a tuple |
//! | `/listed/address` | 2 a minute by client, named `listed`; 198.51.100.0/24 allowed, 203.0.113.0/24 denied |
//! | `/listed/key` | 2 a minute by `x-api-key`, named `listed`; `free` allowed, `stolen` denied, `x-client` of the machine allowed |
//! | `/rate-headers/draft` | 1 a minute by `x-api-key`, named `header-test`, as the next ones |
//! | `/rate-headers/legacy`, `/rate-headers/both`, `/rate-headers/off` | the same with other headers; `both` exposes them |
//! | `/rate-headers/preflights` | the same, preflights are charged |
//! | `/rate-headers/grpc`, `/rate-headers/own` | the same with other refusals |
//! | `/deferred`, `/own-jobs`, `/found` | the status resource; the second and third one visible to `x-user` |
//! | `/own` | the same by `for_user`, inside the authentication by `Authorization` |

mod actix;
mod axum;
mod test_site;
mod test_site_builder;

use std::{fmt, net::SocketAddr, sync::Arc};

use lockgate::{
    ExtensionSnapshot, HeldLocks, SharedSecret, Store,
    defer::{PendingRun, RunAuthorization},
};
use serde::{Deserialize, Serialize};
use tokio::{sync::oneshot, task::JoinHandle};

pub use self::{
    test_site::{HeldRequest, TestSite},
    test_site_builder::TestSiteBuilder,
};
use crate::scripted_handler::{ObservedRequest, ScriptedHandler};

/// The frameworks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum WebFramework {
    /// axum.
    Axum,
    /// actix-web.
    Actix,
}

impl WebFramework {
    /// Returns the other framework.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Axum => Self::Actix,
            Self::Actix => Self::Axum,
        }
    }

    /// Puts a `DeferLayer` around a handler that carries a user, names no owner, and merges
    /// requests.
    pub fn build_unscoped_merge_layer(self) {
        match self {
            Self::Axum => axum::build_unscoped_merge_layer(),
            Self::Actix => actix::build_unscoped_merge_layer(),
        }
    }
}

/// Address from which all requests of tests come.
const LOOPBACK_NETWORK: &str = "127.0.0.0/8";

/// User that an authentication puts into a request.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct RequestUser(String);

impl ExtensionSnapshot for RequestUser {
    const NAME: &'static str = "user";
}

impl lockgate::RequestUser for RequestUser {
    fn owner(&self) -> String {
        format!("user:{}", self.owner_id())
    }
}

impl RequestUser {
    /// Returns the user without the token number, which follows a dot.
    fn owner_id(&self) -> String {
        self.0.split('.').next().unwrap_or_default().to_owned()
    }
}

impl fmt::Display for RequestUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Tenant that an authentication may find; its text may equal that of a user.
#[derive(Debug, Clone)]
struct RequestTenant(String);

impl fmt::Display for RequestTenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns true if the user of a deferred request may still run it.
fn authorize_run(handler: &ScriptedHandler, run: &PendingRun) -> RunAuthorization {
    match run.snapshot::<RequestUser>() {
        Some(RequestUser(name)) if handler.is_revoked(&name) => RunAuthorization::Denied,
        _ => RunAuthorization::Granted,
    }
}

/// Returns the sync point at which a busy response is delayed.
fn conflict_gate(query: Option<&str>) -> &str {
    query.and_then(|query| query.strip_prefix("after=")).unwrap_or_default()
}

/// Returns the accounts that a request names.
fn parse_accounts(value: Option<&[u8]>) -> Vec<String> {
    let names = value.and_then(|names| str::from_utf8(names).ok()).unwrap_or_default();
    names.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// Returns the value of a header as text. Invalid UTF-8 is escaped, so that values stay distinct.
fn header_text(value: &[u8]) -> String {
    str::from_utf8(value).map_or_else(|_| value.escape_ascii().to_string(), str::to_owned)
}

/// Secret for the delegation headers of all sites.
fn delegation_secret() -> SharedSecret {
    SharedSecret::new([7; 32])
}

/// Returns the locks of a request, and acquires the first of them again.
async fn acquire_reentrantly(app: &AppState, locks: &HeldLocks, observed: &mut ObservedRequest) {
    observed.locks = locks.fences().map(|(key, fence)| (key.to_string(), fence)).collect();
    if let Some(first) = locks.iter().next() {
        observed.fence = first.fence();
        let inner = app.store.lock(first.key().clone()).acquire().await;
        observed.reentrant_acquire = match &inner {
            Ok(guard) => guard.fence().into(),
            Err(error) => error.to_string().into(),
        };
        observed.delegation =
            first.delegation_header(&app.store, &delegation_secret()).map(|(_, value)| value);
    }
}

/// State shared by the routes.
#[derive(Debug, Clone)]
struct AppState {
    store: Store,
    /// Second store of a test; without one, routes use the first store.
    second_store: Option<Store>,
    /// True if requests carry the store as an extension.
    injects_store: bool,
    handler: ScriptedHandler,
    site_name: Arc<str>,
}

/// A running server.
struct RunningServer {
    addr: SocketAddr,
    stop: oneshot::Sender<()>,
    /// Resolves when the last connection has ended.
    finished: JoinHandle<()>,
}
