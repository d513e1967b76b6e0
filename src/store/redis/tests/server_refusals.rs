//! Servers that answer and refuse calls, by error code. Each refusal is an outage, which is
//! reported at once or within the deadline. Refused calls have no effect, and the outage ends when
//! the server accepts calls again.

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

/// State before the fault, which must be there afterwards.
struct RefusalScenario {
    server: ServerProcess,
    store: Store,
    rate_limiter: RateLimiter,
    held_lock: LockGuard,
    charged_units: u64,
    /// Numbers of charges and of locks in doubt.
    in_doubt_counts: [u64; 2],
}

impl RefusalScenario {
    async fn new(server: ServerProcess, store: Store) -> Self {
        let policy = Policy::new(Quota::requests(LIMIT).per(600 * SECOND))
            .on_outage(RateLimitOutage::Refuse);
        let rate_limiter = store.rate_limiter(policy);
        rate_limiter.check("k", 1).await.expect("the store is there");
        let held_lock = store.lock("held").lease(60 * SECOND).acquire().await.expect("it is free");
        Self { server, store, rate_limiter, held_lock, charged_units: 1, in_doubt_counts: [0; 2] }
    }

    /// With a long deadline, for refusals that are reported at once: a late answer is no outage.
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

    /// Asserts the error code on the first calls. Later calls are refused by the breaker, without a
    /// code.
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

    /// Asserts that calls succeed again, and that refused calls had no effect.
    async fn assert_recovered(mut self) {
        wait_until_usable(&self.store).await;
        let until = Instant::now() + MAX_WAIT;
        let guard = loop {
            assert!(Instant::now() < until, "it does not go on");
            // `ping` is no write.
            match self.store.lock("x").acquire().await {
                Ok(guard) => break guard,
                Err(AcquireError::Fault(_)) => tokio::time::sleep(Duration::from_millis(10)).await,
                // Until calls in doubt are undone.
                Err(busy) => {
                    assert!(self.in_doubt_counts[1] > 0, "a refused call took effect: {busy:?}");
                }
            }
        };
        assert_eq!(guard.release().await, ReleaseStatus::Released);
        let remaining = self.rate_limiter.check("k", 1).await.expect("it is there").remaining();
        self.charged_units += 1;
        let expected = self.charged_units..=self.charged_units + self.in_doubt_counts[0];
        assert!(
            expected.contains(&(LIMIT - remaining)),
            "{} charged, not {expected:?}",
            LIMIT - remaining
        );
        assert_eq!(self.held_lock.release().await, ReleaseStatus::Released);
    }
}

/// Returns the error code of the server.
pub(super) fn server_error_code(error: &Error) -> Option<String> {
    let reply = error.source()?.downcast_ref::<redis::RedisError>()?;
    reply.code().map(str::to_owned)
}

async fn assert_refused_between(code: &str, begin_fault: &[&str], end_fault: &[&str]) {
    let mut scenario = RefusalScenario::with_long_timeout().await;
    scenario.server.command(begin_fault).await;
    scenario.assert_refused(code).await;
    scenario.server.command(end_fault).await;
    scenario.assert_recovered().await;
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

/// A server that refuses on one connection refuses on all, so probes need no new one.
#[tokio::test]
async fn refusing_server_is_probed_over_existing_connection() {
    let scenario = RefusalScenario::with_long_timeout().await;
    if !scenario.server.applies_min_replicas_to_scripts().await {
        return;
    }
    scenario.server.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]).await;
    let query_count = Cell::new(0);
    let query_info = async |section: &str, field: &str| {
        query_count.set(query_count.get() + 1);
        scenario.server.info_number(section, field).await
    };
    let refusals = async || query_info("errorstats", "errorstat_NOREPLICAS:count").await;
    let connections = async || query_info("stats", "total_connections_received").await;
    wait_until("nothing to be sent any more", async || {
        let known = refusals().await;
        assert_eq!(scenario.acquire_error().await.kind(), ErrorKind::Unavailable);
        refusals().await == known
    })
    .await;
    let (first, count) = (refusals().await, connections().await);
    let own_before = query_count.get();
    wait_until("the probe to have run", async || refusals().await > first + 10).await;
    let connections = connections().await - count;
    assert_eq!(connections, query_count.get() - own_before, "the others are the probe's");
    scenario.server.command(&["CONFIG", "SET", "min-replicas-to-write", "0"]).await;
    scenario.assert_recovered().await;
}

/// A health check of the application sends pings all the time.
#[tokio::test]
async fn successful_pings_do_not_keep_refusing_server_in_use() {
    let scenario = RefusalScenario::with_long_timeout().await;
    if !scenario.server.applies_min_replicas_to_scripts().await {
        return;
    }
    scenario.server.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]).await;
    let calls = scenario.server.count_script_calls().await;
    for _ in 0..30 {
        let _ = scenario.store.ping().await;
        assert_eq!(scenario.acquire_error().await.kind(), ErrorKind::Unavailable);
    }
    let calls = scenario.server.count_script_calls().await - calls;
    assert!(calls <= 15, "{calls} of 30 calls were sent");
    scenario.server.command(&["CONFIG", "SET", "min-replicas-to-write", "0"]).await;
    scenario.assert_recovered().await;
}

/// A rate limiter uses this ping to find out whether the store counts again.
#[tokio::test]
async fn shard_ping_fails_on_server_that_refuses_writes() {
    let scenario = RefusalScenario::with_long_timeout().await;
    let ping_shard = || scenario.store.backend().ping_shard(COMMON_SHARD);
    ping_shard().await.expect("it is there");
    scenario.server.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]).await;
    scenario.store.ping().await.expect("it answers");
    let error = ping_shard().await.expect_err("it refuses writes");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    scenario.server.command(&["CONFIG", "SET", "min-replicas-to-write", "0"]).await;
    ping_shard().await.expect("the server accepts writes");
    scenario.assert_recovered().await;
}

/// A call that frees memory is run, whatever precedes it in its batch.
#[tokio::test]
async fn full_server_runs_release_batched_behind_acquire() {
    let server = ServerProcess::start().await;
    let store = server.store_with_long_timeout().await;
    let held = store.lock("held").lease(60 * SECOND).acquire().await.expect("it is free");
    let lease = Arc::clone(held.lease().expect("it is held"));
    server.command(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let free = cluster::acquire_command(&Key::custom("free"), &LockToken::new(store.node()));
    let (key, token, mode) = (lease.key.clone(), lease.token.clone(), LockMode::Exclusive);
    let commands = [LockCommand::Acquire(free), LockCommand::Release { key, token, mode }];
    let args = lock_command_encoding::build_command(&KeyNames::new("test"), commands.iter(), true);
    let args: Vec<_> = args.args_iter().filter_map(|arg| argument_text(&arg)).collect();
    let args: Vec<_> = args.iter().map(String::as_str).collect();
    let redis::Value::Array(replies) = server.query(&args).await else { panic!("no list") };
    assert_eq!(replies.len(), 2);
    assert_eq!(replies[1], redis::Value::BulkString("released".into()));
    let refused =
        ReplyReader::new("lock_batch", replies[0].clone()).item_error().expect("it is refused");
    assert_eq!(refused.kind(), ErrorKind::Unavailable);
    assert_eq!(held.release().await, ReleaseStatus::AlreadyLost);
}

fn argument_text(arg: &redis::Arg<&[u8]>) -> Option<String> {
    match arg {
        redis::Arg::Simple(bytes) => String::from_utf8(bytes.to_vec()).ok(),
        _ => None,
    }
}

/// A server that failed to save refuses writes, if it is configured so.
#[tokio::test]
async fn misconf_is_an_outage() {
    let mut scenario = RefusalScenario::with_long_timeout().await;
    // Its directory is removed, so saving fails.
    scenario.server.remove_data_dir();
    scenario.server.command(&["CONFIG", "SET", "save", "3600 1000000"]).await;
    scenario.server.command(&["BGSAVE"]).await;
    wait_until("the server not to have saved", async || {
        let info: String = scenario.server.query(&["INFO", "persistence"]).await;
        info.contains("rdb_last_bgsave_status:err")
    })
    .await;
    let error = scenario.store.ping().await.expect_err("it refuses pings, too");
    assert_eq!(
        (error.kind(), server_error_code(&error).as_deref()),
        (ErrorKind::Unavailable, Some("MISCONF"))
    );
    scenario.assert_refused("MISCONF").await;
    scenario.server.command(&["CONFIG", "SET", "save", ""]).await;
    scenario.assert_recovered().await;
}

#[tokio::test]
async fn readonly_is_an_outage() {
    let scenario = RefusalScenario::with_long_timeout().await;
    scenario.server.command(&["REPLICAOF", "127.0.0.1", UNUSED_PORT]).await;
    for _ in 0..8 {
        assert_eq!(scenario.acquire_error().await.kind(), ErrorKind::Unavailable);
        let error = scenario.rate_limiter.check("k", 1).await.expect_err("it is refused");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "nothing is in doubt: {error}");
    }
    scenario.server.command(&["REPLICAOF", "NO", "ONE"]).await;
    scenario.assert_recovered().await;
}

/// A script of another client does not end. A call sent late in its deadline may get no reply by
/// then.
#[tokio::test]
async fn busy_is_an_outage() {
    let server = ServerProcess::start().await;
    let store = server.connect_store().await;
    let mut scenario = RefusalScenario::new(server, store).await;
    scenario.server.command(&["CONFIG", "SET", "lua-time-limit", "1"]).await;
    let client = redis::Client::open(("127.0.0.1", scenario.server.port())).expect("an address");
    let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
    let connection = client.get_multiplexed_async_connection_with_config(&config).await;
    let mut connection = connection.expect("it runs");
    let blocking_script = crate::store::spawn(async move {
        let mut command = redis::cmd("EVAL");
        command.arg("while true do end").arg(0).query_async::<()>(&mut connection).await
    });
    wait_until_busy(&scenario.server).await;
    let is_outage = |kind| matches!(kind, ErrorKind::Unavailable | ErrorKind::Timeout);
    let error = scenario.store.ping().await.expect_err("it runs nothing");
    assert!(is_outage(error.kind()), "{error}");
    for _ in 0..8 {
        let error = scenario.acquire_error().await;
        assert!(is_outage(error.kind()), "{error}");
        scenario.in_doubt_counts[1] += u64::from(error.kind() == ErrorKind::Timeout);
        let error = scenario.rate_limiter.check("k", 1).await.expect_err("it is refused");
        assert!(is_outage(error.kind()), "{error}");
        scenario.in_doubt_counts[0] += u64::from(error.kind() == ErrorKind::Timeout);
    }
    // The breaker is open: nothing is sent.
    assert_eq!(scenario.acquire_error().await.kind(), ErrorKind::Unavailable);
    scenario.server.command(&["SCRIPT", "KILL"]).await;
    blocking_script.await.expect("no panic").expect_err("it was killed");
    scenario.assert_recovered().await;
}

async fn wait_until_busy(server: &ServerProcess) {
    wait_until("the script to take too long", async || {
        let answer = server.try_query::<String>(&["PING"]).await;
        answer.is_err_and(|error| error.code() == Some("BUSY"))
    })
    .await;
}
