//! Servers that answer, and will not do it: by the name of what they answer. Each is an outage that is told at once or
//! within the deadline, nothing has been done then, and it is over when the server does it again.

use std::{
    cell::Cell,
    error::Error as _,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    MAX_WAIT, SECOND, UNUSED_PORT, cluster, server_process::ServerProcess, wait_until,
    wait_until_usable,
};
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
            lock_command_encoding::{self, LockCommand},
            reply_reader::ReplyReader,
        },
    },
};

const LIMIT: u64 = 100;

/// What is there before the fault, and must be there afterwards.
struct RefusalScenario {
    server: ServerProcess,
    store: Store,
    rate_limiter: RateLimiter,
    held_lock: LockGuard,
    charged_units: u64,
    /// Charges, and locks, of which that is not known.
    in_doubt_counts: [u64; 2],
}

impl RefusalScenario {
    async fn new(server: ServerProcess, store: Store) -> Self {
        let policy = Policy::new(Quota::requests(LIMIT).per(600 * SECOND))
            .on_outage(RateLimitOutage::Refuse);
        let quota = store.rate_limiter(policy);
        quota.check("k", 1).await.expect("the store is there");
        let held = store.lock("held").lease(60 * SECOND).acquire().await.expect("it is free");
        Self {
            server,
            store,
            rate_limiter: quota,
            held_lock: held,
            charged_units: 1,
            in_doubt_counts: [0; 2],
        }
    }

    /// For refusals that are told at once: what comes late is not taken for an outage.
    async fn with_long_timeout() -> Self {
        let server = ServerProcess::start().await;
        let store = server.store_with_long_timeout().await;
        Self::new(server, store).await
    }

    async fn acquire_error(&self) -> Error {
        match self.store.lock("x").acquire().await {
            Err(AcquireError::Fault(error)) => error,
            other => panic!("{other:?}"),
        }
    }

    /// The first calls are told by the server's word; later ones, once the breaker is open, without it.
    async fn assert_refused(&mut self, code: &str) {
        let error = self.acquire_error().await;
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        let error = self.rate_limiter.check("k", 1).await.expect_err("it is refused");
        assert_eq!(
            (error.kind(), server_error_code(&error).as_deref()),
            (ErrorKind::Unavailable, Some(code))
        );
        for _ in 0..8 {
            assert_eq!(self.acquire_error().await.kind(), ErrorKind::Unavailable);
            let error = self.rate_limiter.check("k", 1).await.expect_err("it is refused");
            assert_eq!(error.kind(), ErrorKind::Unavailable, "nothing is in doubt: {error}");
        }
    }

    /// It does again what it is told. Nothing of what was refused has been done.
    async fn assert_recovered(mut self) {
        wait_until_usable(&self.store).await;
        let until = Instant::now() + MAX_WAIT;
        let guard = loop {
            assert!(Instant::now() < until, "it does not go on");
            // `ping` is no write.
            match self.store.lock("x").acquire().await {
                Ok(guard) => break guard,
                Err(AcquireError::Fault(_)) => tokio::time::sleep(Duration::from_millis(10)).await,
                // Until what was in doubt is undone.
                Err(busy) => {
                    assert!(
                        self.in_doubt_counts[1] > 0,
                        "what was refused has been done: {busy:?}"
                    );
                }
            }
        };
        assert_eq!(guard.release().await, ReleaseStatus::Released);
        let left = self.rate_limiter.check("k", 1).await.expect("it is there").remaining();
        self.charged_units += 1;
        let sure = self.charged_units..=self.charged_units + self.in_doubt_counts[0];
        assert!(sure.contains(&(LIMIT - left)), "{} charged, not {sure:?}", LIMIT - left);
        assert_eq!(self.held_lock.release().await, ReleaseStatus::Released);
    }
}

/// What the server has answered.
pub(super) fn server_error_code(error: &Error) -> Option<String> {
    let answer = error.source()?.downcast_ref::<redis::RedisError>()?;
    answer.code().map(str::to_owned)
}

async fn assert_refused_between(code: &str, begin: &[&str], end: &[&str]) {
    let mut before = RefusalScenario::with_long_timeout().await;
    before.server.command(begin).await;
    before.assert_refused(code).await;
    before.server.command(end).await;
    before.assert_recovered().await;
}

#[tokio::test]
async fn noreplicas_and_oom_are_outages() {
    let set = |name, value| ["CONFIG", "SET", name, value];
    if ServerProcess::start().await.applies_min_replicas_to_scripts().await {
        let name = "min-replicas-to-write";
        assert_refused_between("NOREPLICAS", &set(name, "1"), &set(name, "0")).await;
    }
    assert_refused_between("OOM", &set("maxmemory", "1"), &set("maxmemory", "0")).await;
}

/// What refuses on one connection does so on all of them.
#[tokio::test]
async fn refusing_server_is_probed_over_existing_connection() {
    let before = RefusalScenario::with_long_timeout().await;
    if !before.server.applies_min_replicas_to_scripts().await {
        return;
    }
    before.server.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]).await;
    let asked = Cell::new(0);
    let told = async |section: &str, field: &str| {
        asked.set(asked.get() + 1);
        before.server.info_number(section, field).await
    };
    let refusals = async || told("errorstats", "errorstat_NOREPLICAS:count").await;
    let made = async || told("stats", "total_connections_received").await;
    wait_until("nothing to be sent any more", async || {
        let known = refusals().await;
        assert_eq!(before.acquire_error().await.kind(), ErrorKind::Unavailable);
        refusals().await == known
    })
    .await;
    let (first, count) = (refusals().await, made().await);
    let own = asked.get();
    wait_until("the probe to have looked", async || refusals().await > first + 10).await;
    let made = made().await - count;
    assert_eq!(made, asked.get() - own, "the others are the probe's");
    before.server.command(&["CONFIG", "SET", "min-replicas-to-write", "0"]).await;
    before.assert_recovered().await;
}

/// A health check of the application's asks all the while.
#[tokio::test]
async fn successful_pings_do_not_keep_refusing_server_in_use() {
    let before = RefusalScenario::with_long_timeout().await;
    if !before.server.applies_min_replicas_to_scripts().await {
        return;
    }
    before.server.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]).await;
    let calls = before.server.count_script_calls().await;
    for _ in 0..30 {
        let _ = before.store.ping().await;
        assert_eq!(before.acquire_error().await.kind(), ErrorKind::Unavailable);
    }
    let calls = before.server.count_script_calls().await - calls;
    assert!(calls <= 15, "{calls} of 30 calls were sent");
    before.server.command(&["CONFIG", "SET", "min-replicas-to-write", "0"]).await;
    before.assert_recovered().await;
}

/// By what it is asked whether it would count again.
#[tokio::test]
async fn shard_ping_fails_on_server_that_refuses_writes() {
    let before = RefusalScenario::with_long_timeout().await;
    let reaches = || before.store.backend().ping_shard(COMMON_SHARD);
    reaches().await.expect("it is there");
    before.server.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]).await;
    before.store.ping().await.expect("it answers");
    let error = reaches().await.expect_err("it refuses writes");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    before.server.command(&["CONFIG", "SET", "min-replicas-to-write", "0"]).await;
    reaches().await.expect("it takes writes");
    before.assert_recovered().await;
}

/// What makes room is done, whatever stands before it in its flight.
#[tokio::test]
async fn full_server_runs_release_batched_behind_acquire() {
    let server = ServerProcess::start().await;
    let store = server.store_with_long_timeout().await;
    let held = store.lock("held").lease(60 * SECOND).acquire().await.expect("it is free");
    let lease = Arc::clone(held.lease().expect("it is held"));
    server.command(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let free = cluster::acquire_command(&Key::custom("free"), &LockToken::new(store.node()));
    let (key, me, mode) = (lease.key.clone(), lease.token.clone(), LockMode::Exclusive);
    let asks = [LockCommand::Acquire(free), LockCommand::Release { key, token: me, mode }];
    let words = lock_command_encoding::build_command(&KeyNames::new("test"), asks.iter(), true);
    let words: Vec<_> = words.args_iter().filter_map(|arg| argument_text(&arg)).collect();
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let redis::Value::Array(answers) = server.query(&words).await else { panic!("no list") };
    assert_eq!(answers.len(), 2);
    assert_eq!(answers[1], redis::Value::BulkString("released".into()));
    let refused =
        ReplyReader::new("lock_batch", answers[0].clone()).item_error().expect("it is refused");
    assert_eq!(refused.kind(), ErrorKind::Unavailable);
    assert_eq!(held.release().await, ReleaseStatus::AlreadyLost);
}

fn argument_text(arg: &redis::Arg<&[u8]>) -> Option<String> {
    match arg {
        redis::Arg::Simple(bytes) => String::from_utf8(bytes.to_vec()).ok(),
        _ => None,
    }
}

/// It could not save, and was told not to take anything more then.
#[tokio::test]
async fn misconf_is_an_outage() {
    let mut before = RefusalScenario::with_long_timeout().await;
    // It saves to where it was started, which is gone.
    before.server.remove_data_dir();
    before.server.command(&["CONFIG", "SET", "save", "3600 1000000"]).await;
    before.server.command(&["BGSAVE"]).await;
    wait_until("the server not to have saved", async || {
        let facts: String = before.server.query(&["INFO", "persistence"]).await;
        facts.contains("rdb_last_bgsave_status:err")
    })
    .await;
    let error = before.store.ping().await.expect_err("it refuses pings, too");
    assert_eq!(
        (error.kind(), server_error_code(&error).as_deref()),
        (ErrorKind::Unavailable, Some("MISCONF"))
    );
    before.assert_refused("MISCONF").await;
    before.server.command(&["CONFIG", "SET", "save", ""]).await;
    before.assert_recovered().await;
}

#[tokio::test]
async fn readonly_is_an_outage() {
    let before = RefusalScenario::with_long_timeout().await;
    before.server.command(&["REPLICAOF", "127.0.0.1", UNUSED_PORT]).await;
    for _ in 0..8 {
        assert_eq!(before.acquire_error().await.kind(), ErrorKind::Unavailable);
        let error = before.rate_limiter.check("k", 1).await.expect_err("it is refused");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "nothing is in doubt: {error}");
    }
    before.server.command(&["REPLICAOF", "NO", "ONE"]).await;
    before.assert_recovered().await;
}

/// Somebody else's script does not end. What is sent to the server late in a deadline may have no answer by its end.
#[tokio::test]
async fn busy_is_an_outage() {
    let server = ServerProcess::start().await;
    let store = server.connect_store().await;
    let mut before = RefusalScenario::new(server, store).await;
    before.server.command(&["CONFIG", "SET", "lua-time-limit", "1"]).await;
    let client = redis::Client::open(("127.0.0.1", before.server.port())).expect("an address");
    let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
    let spins = client.get_multiplexed_async_connection_with_config(&config).await;
    let mut spins = spins.expect("it runs");
    let spinning = crate::store::spawn(async move {
        let mut spin = redis::cmd("EVAL");
        spin.arg("while true do end").arg(0).query_async::<()>(&mut spins).await
    });
    wait_until_busy(&before.server).await;
    let outage = |kind| matches!(kind, ErrorKind::Unavailable | ErrorKind::Timeout);
    let error = before.store.ping().await.expect_err("it runs nothing");
    assert!(outage(error.kind()), "{error}");
    for _ in 0..8 {
        let error = before.acquire_error().await;
        assert!(outage(error.kind()), "{error}");
        before.in_doubt_counts[1] += u64::from(error.kind() == ErrorKind::Timeout);
        let error = before.rate_limiter.check("k", 1).await.expect_err("it is refused");
        assert!(outage(error.kind()), "{error}");
        before.in_doubt_counts[0] += u64::from(error.kind() == ErrorKind::Timeout);
    }
    // The breaker is open: nothing is sent.
    assert_eq!(before.acquire_error().await.kind(), ErrorKind::Unavailable);
    before.server.command(&["SCRIPT", "KILL"]).await;
    spinning.await.expect("no panic").expect_err("it was killed");
    before.assert_recovered().await;
}

async fn wait_until_busy(server: &ServerProcess) {
    wait_until("the script to take too long", async || {
        let answer = server.try_query::<String>(&["PING"]).await;
        answer.is_err_and(|error| error.code() == Some("BUSY"))
    })
    .await;
}
