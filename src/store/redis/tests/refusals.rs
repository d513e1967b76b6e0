//! Servers that answer, and will not do it: by the name of what they answer. Each is an outage that is told at once or
//! within the deadline, nothing has been done then, and it is over when the server does it again.

use std::{
    cell::Cell,
    error::Error as _,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{NOBODY, PATIENCE, SECOND, cluster, eventually, server::Server, usable};
use crate::{
    Policy, Quota, RateLimitOutage,
    error::{Error, ErrorKind},
    key::Key,
    lock::{AcquireError, LockGuard, ReleaseStatus},
    rate_limit::RateLimiter,
    store::{
        Store,
        backend::{LockMode, LockToken},
        key_names::{COMMON_SHARD, KeyNames},
        redis::{
            lock_command::{self, LockCommand},
            reply_reader::ReplyReader,
        },
    },
};

const LIMIT: u64 = 100;

/// What is there before the fault, and must be there afterwards.
struct Before {
    server: Server,
    store: Store,
    quota: RateLimiter,
    held: LockGuard,
    charged: u64,
    /// Charges, and locks, of which that is not known.
    doubts: [u64; 2],
}

impl Before {
    async fn new(server: Server, store: Store) -> Self {
        let policy = Policy::new(Quota::requests(LIMIT).per(600 * SECOND))
            .on_outage(RateLimitOutage::Refuse);
        let quota = store.rate_limiter(policy);
        quota.check("k", 1).await.expect("the store is there");
        let held = store.lock("held").lease(60 * SECOND).acquire().await.expect("it is free");
        Self { server, store, quota, held, charged: 1, doubts: [0; 2] }
    }

    /// For refusals that are told at once: what comes late is not taken for an outage.
    async fn patient() -> Self {
        let server = Server::start().await;
        let store = server.patient_store().await;
        Self::new(server, store).await
    }

    async fn lock(&self) -> Error {
        match self.store.lock("x").acquire().await {
            Err(AcquireError::Fault(error)) => error,
            other => panic!("{other:?}"),
        }
    }

    /// The first calls are told by the server's word; later ones, once the breaker is open, without it.
    async fn is_refused(&mut self, code: &str) {
        let error = self.lock().await;
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        let error = self.quota.check("k", 1).await.expect_err("it is refused");
        assert_eq!((error.kind(), said(&error).as_deref()), (ErrorKind::Unavailable, Some(code)));
        for _ in 0..8 {
            assert_eq!(self.lock().await.kind(), ErrorKind::Unavailable);
            let error = self.quota.check("k", 1).await.expect_err("it is refused");
            assert_eq!(error.kind(), ErrorKind::Unavailable, "nothing is in doubt: {error}");
        }
    }

    /// It does again what it is told. Nothing of what was refused has been done.
    async fn goes_on(mut self) {
        usable(&self.store).await;
        let until = Instant::now() + PATIENCE;
        let guard = loop {
            assert!(Instant::now() < until, "it does not go on");
            // `ping` is no write.
            match self.store.lock("x").acquire().await {
                Ok(guard) => break guard,
                Err(AcquireError::Fault(_)) => tokio::time::sleep(Duration::from_millis(10)).await,
                // Until what was in doubt is undone.
                Err(busy) => {
                    assert!(self.doubts[1] > 0, "what was refused has been done: {busy:?}");
                }
            }
        };
        assert_eq!(guard.release().await, ReleaseStatus::Released);
        let left = self.quota.check("k", 1).await.expect("it is there").remaining();
        self.charged += 1;
        let sure = self.charged..=self.charged + self.doubts[0];
        assert!(sure.contains(&(LIMIT - left)), "{} charged, not {sure:?}", LIMIT - left);
        assert_eq!(self.held.release().await, ReleaseStatus::Released);
    }
}

/// What the server has answered.
pub(super) fn said(error: &Error) -> Option<String> {
    let answer = error.source()?.downcast_ref::<redis::RedisError>()?;
    answer.code().map(str::to_owned)
}

async fn refused(code: &str, begin: &[&str], end: &[&str]) {
    let mut before = Before::patient().await;
    before.server.command(begin).await;
    before.is_refused(code).await;
    before.server.command(end).await;
    before.goes_on().await;
}

#[tokio::test]
async fn noreplicas_and_oom() {
    let set = |name, value| ["CONFIG", "SET", name, value];
    if Server::start().await.min_replicas_bind_scripts().await {
        let name = "min-replicas-to-write";
        refused("NOREPLICAS", &set(name, "1"), &set(name, "0")).await;
    }
    refused("OOM", &set("maxmemory", "1"), &set("maxmemory", "0")).await;
}

/// What refuses on one connection does so on all of them.
#[tokio::test]
async fn a_server_that_refuses_is_asked_by_the_connection_there_is() {
    let before = Before::patient().await;
    if !before.server.min_replicas_bind_scripts().await {
        return;
    }
    before.server.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]).await;
    let asked = Cell::new(0);
    let told = async |section: &str, field: &str| {
        asked.set(asked.get() + 1);
        before.server.info(section, field).await
    };
    let refusals = async || told("errorstats", "errorstat_NOREPLICAS:count").await;
    let made = async || told("stats", "total_connections_received").await;
    eventually("nothing to be sent any more", async || {
        let known = refusals().await;
        assert_eq!(before.lock().await.kind(), ErrorKind::Unavailable);
        refusals().await == known
    })
    .await;
    let (first, count) = (refusals().await, made().await);
    let own = asked.get();
    eventually("the probe to have looked", async || refusals().await > first + 10).await;
    let made = made().await - count;
    assert_eq!(made, asked.get() - own, "the others are the probe's");
    before.server.command(&["CONFIG", "SET", "min-replicas-to-write", "0"]).await;
    before.goes_on().await;
}

/// A health check of the application's asks all the while.
#[tokio::test]
async fn pings_keep_no_server_in_use_that_refuses_all_else() {
    let before = Before::patient().await;
    if !before.server.min_replicas_bind_scripts().await {
        return;
    }
    before.server.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]).await;
    let calls = before.server.calls().await;
    for _ in 0..30 {
        let _ = before.store.ping().await;
        assert_eq!(before.lock().await.kind(), ErrorKind::Unavailable);
    }
    let calls = before.server.calls().await - calls;
    assert!(calls <= 15, "{calls} of 30 calls were sent");
    before.server.command(&["CONFIG", "SET", "min-replicas-to-write", "0"]).await;
    before.goes_on().await;
}

/// By what it is asked whether it would count again.
#[tokio::test]
async fn a_server_that_only_answers_pings_is_not_reached() {
    let before = Before::patient().await;
    let reaches = || before.store.backend().ping_shard(COMMON_SHARD);
    reaches().await.expect("it is there");
    before.server.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]).await;
    before.store.ping().await.expect("it answers");
    let error = reaches().await.expect_err("it refuses writes");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    before.server.command(&["CONFIG", "SET", "min-replicas-to-write", "0"]).await;
    reaches().await.expect("it takes writes");
    before.goes_on().await;
}

/// What makes room is done, whatever stands before it in its flight.
#[tokio::test]
async fn a_server_without_room_runs_a_release_behind_an_acquisition() {
    let server = Server::start().await;
    let store = server.patient_store().await;
    let held = store.lock("held").lease(60 * SECOND).acquire().await.expect("it is free");
    let lease = Arc::clone(held.lease().expect("it is held"));
    server.command(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let free = cluster::ask(&Key::custom("free"), &LockToken::new(store.node()));
    let (key, me, mode) = (lease.key.clone(), lease.token.clone(), LockMode::Exclusive);
    let asks = [LockCommand::Acquire(free), LockCommand::Release { key, token: me, mode }];
    let words = lock_command::build_command(&KeyNames::new("test"), asks.iter(), true);
    let words: Vec<_> = words.args_iter().filter_map(|arg| text(&arg)).collect();
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let redis::Value::Array(answers) = server.ask(&words).await else { panic!("no list") };
    assert_eq!(answers.len(), 2);
    assert_eq!(answers[1], redis::Value::BulkString("released".into()));
    let refused =
        ReplyReader::new("lock_batch", answers[0].clone()).item_error().expect("it is refused");
    assert_eq!(refused.kind(), ErrorKind::Unavailable);
    assert_eq!(held.release().await, ReleaseStatus::AlreadyLost);
}

fn text(arg: &redis::Arg<&[u8]>) -> Option<String> {
    match arg {
        redis::Arg::Simple(bytes) => String::from_utf8(bytes.to_vec()).ok(),
        _ => None,
    }
}

/// It could not save, and was told not to take anything more then.
#[tokio::test]
async fn misconf() {
    let mut before = Before::patient().await;
    // It saves to where it was started, which is gone.
    before.server.lose_folder();
    before.server.command(&["CONFIG", "SET", "save", "3600 1000000"]).await;
    before.server.command(&["BGSAVE"]).await;
    eventually("the server not to have saved", async || {
        let facts: String = before.server.ask(&["INFO", "persistence"]).await;
        facts.contains("rdb_last_bgsave_status:err")
    })
    .await;
    let error = before.store.ping().await.expect_err("it refuses pings, too");
    assert_eq!((error.kind(), said(&error).as_deref()), (ErrorKind::Unavailable, Some("MISCONF")));
    before.is_refused("MISCONF").await;
    before.server.command(&["CONFIG", "SET", "save", ""]).await;
    before.goes_on().await;
}

#[tokio::test]
async fn readonly() {
    let before = Before::patient().await;
    before.server.command(&["REPLICAOF", "127.0.0.1", NOBODY]).await;
    for _ in 0..8 {
        assert_eq!(before.lock().await.kind(), ErrorKind::Unavailable);
        let error = before.quota.check("k", 1).await.expect_err("it is refused");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "nothing is in doubt: {error}");
    }
    before.server.command(&["REPLICAOF", "NO", "ONE"]).await;
    before.goes_on().await;
}

/// Somebody else's script does not end. What is sent to the server late in a deadline may have no answer by its end.
#[tokio::test]
async fn busy() {
    let server = Server::start().await;
    let store = server.store().await;
    let mut before = Before::new(server, store).await;
    before.server.command(&["CONFIG", "SET", "lua-time-limit", "1"]).await;
    let client = redis::Client::open(("127.0.0.1", before.server.port())).expect("an address");
    let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
    let spins = client.get_multiplexed_async_connection_with_config(&config).await;
    let mut spins = spins.expect("it runs");
    let spinning = crate::store::spawn(async move {
        let mut spin = redis::cmd("EVAL");
        spin.arg("while true do end").arg(0).query_async::<()>(&mut spins).await
    });
    is_busy(&before.server).await;
    let outage = |kind| matches!(kind, ErrorKind::Unavailable | ErrorKind::Timeout);
    let error = before.store.ping().await.expect_err("it runs nothing");
    assert!(outage(error.kind()), "{error}");
    for _ in 0..8 {
        let error = before.lock().await;
        assert!(outage(error.kind()), "{error}");
        before.doubts[1] += u64::from(error.kind() == ErrorKind::Timeout);
        let error = before.quota.check("k", 1).await.expect_err("it is refused");
        assert!(outage(error.kind()), "{error}");
        before.doubts[0] += u64::from(error.kind() == ErrorKind::Timeout);
    }
    // The breaker is open: nothing is sent.
    assert_eq!(before.lock().await.kind(), ErrorKind::Unavailable);
    before.server.command(&["SCRIPT", "KILL"]).await;
    spinning.await.expect("no panic").expect_err("it was killed");
    before.goes_on().await;
}

async fn is_busy(server: &Server) {
    eventually("the script to take too long", async || {
        let answer = server.try_ask::<String>(&["PING"]).await;
        answer.is_err_and(|error| error.code() == Some("BUSY"))
    })
    .await;
}
